// csi-node-driver-registrar announces a CSI driver to the kubelet of its node, as the sidecar of that name does.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// folder is the kubelet's folder of plugins in the sidecar's container.
const folder = "/registration"

// registrar answers the kubelet's questions about the driver.
type registrar struct {
	registration.UnimplementedRegistrationServer
	driver, endpoint string
	refused          chan error
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.driver, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, result *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if result.PluginRegistered {
		log.Printf("the kubelet has registered %s", r.driver)
	} else {
		r.refused <- fmt.Errorf("the kubelet refuses %s: %s", r.driver, result.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// nameOf asks the driver for its name, until it responds.
func nameOf(socket string, timeout time.Duration) (string, error) {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		cancel()
		if err == nil {
			return info.GetName(), nil
		}
		log.Printf("ask the driver for its name: %v", err)
		time.Sleep(time.Second)
	}
}

func run() error {
	socket := flag.String("csi-address", "/run/csi/socket", "the driver's Unix socket in this container")
	endpoint := flag.String("kubelet-registration-path", "", "the driver's Unix socket on the node")
	timeout := flag.Duration("timeout", time.Second, "maximum time for a response of the driver")
	health := flag.String("http-endpoint", "", "address of /healthz")
	flag.Int("v", 0, "ignored")
	flag.Parse()
	failed := make(chan error, 4)
	if *health != "" {
		http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
		go func() { failed <- http.ListenAndServe(*health, nil) }()
	}
	driver, err := nameOf(*socket, *timeout)
	if err != nil {
		return err
	}
	path := filepath.Join(folder, driver+"-reg.sock")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove the socket of a former process: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &registrar{driver: driver, endpoint: *endpoint, refused: failed})
	go func() { failed <- server.Serve(listener) }()
	return <-failed
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
