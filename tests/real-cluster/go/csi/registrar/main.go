// csi-node-driver-registrar announces a CSI driver to the kubelet of its node, as the sidecar of that name does.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"real-cluster/csi/plugin"
)

// folder is the kubelet's folder of plugins in the sidecar's container.
const folder = "/registration"

// nameOf returns the driver's name. It repeats the request until the driver responds; timeout is for one request.
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
	refused := func(err error) { failed <- err }
	registrar := &plugin.Registrar{Driver: driver, Endpoint: *endpoint, Refused: refused}
	if err := plugin.Serve(filepath.Join(folder, driver+"-reg.sock"), registrar.Register, failed); err != nil {
		return err
	}
	return <-failed
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
