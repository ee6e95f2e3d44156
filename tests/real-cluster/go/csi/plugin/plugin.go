// Package plugin serves gRPC on Unix sockets, and announces a CSI driver to the kubelet.
package plugin

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Serve starts a gRPC server on a Unix socket, which replaces that of a former process.
func Serve(path string, register func(*grpc.Server), failed chan<- error) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove the socket of a former process: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	register(server)
	go func() { failed <- server.Serve(listener) }()
	log.Printf("listening on %s", path)
	return nil
}

// Registrar announces a driver to the kubelet, which finds its socket in the folder of plugins.
type Registrar struct {
	registration.UnimplementedRegistrationServer
	// Driver is the driver's name, and Endpoint its socket on the node.
	Driver, Endpoint string
	// Refused is called if the kubelet refuses the driver.
	Refused func(error)
}

// Register adds the registrar to a server.
func (r *Registrar) Register(server *grpc.Server) {
	registration.RegisterRegistrationServer(server, r)
}

// GetInfo describes the driver.
func (r *Registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.Driver, Endpoint: r.Endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus receives the kubelet's decision.
func (r *Registrar) NotifyRegistrationStatus(_ context.Context, result *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if result.PluginRegistered {
		log.Print("registered with the kubelet")
	} else {
		r.Refused(fmt.Errorf("the kubelet refuses the driver: %s", result.Error))
	}
	return &registration.RegistrationStatusResponse{}, nil
}
