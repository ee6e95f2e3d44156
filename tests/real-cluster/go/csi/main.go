// csi-folder is a CSI driver whose volumes are folders of one machine.
//
// Without --node it is the controller service, for csi-provisioner, csi-attacher and csi-resizer. With --node it is the
// node service of that node, and registers itself with the kubelet: it needs no node-driver-registrar. Nodes that share
// the folder of volumes share their data.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"real-cluster/csi/plugin"
)

// driverName is the name of the driver, the provisioner of its StorageClasses.
const driverName = "folder.csi.example.com"

// serve starts a gRPC server on a Unix socket, whose folder it creates.
func serve(path string, register func(*grpc.Server), failed chan<- error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return plugin.Serve(path, register, failed)
}

func run() error {
	socket := flag.String("socket", "", "path of the Unix socket of the CSI services")
	root := flag.String("volumes", "", "the folder of all volumes")
	node := flag.String("node", "", "serve as the node service of this node")
	registry := flag.String("registry", "/var/lib/kubelet/plugins_registry", "the kubelet's folder of plugins")
	flag.Parse()
	if *socket == "" || *root == "" {
		return fmt.Errorf("--socket and --volumes are needed")
	}
	volumes, err := open(*root)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	services := func(server *grpc.Server) {
		csi.RegisterIdentityServer(server, &identity{})
		if *node == "" {
			csi.RegisterControllerServer(server, &controller{volumes: volumes})
		} else {
			csi.RegisterNodeServer(server, &nodeService{name: *node, volumes: volumes})
		}
	}
	if err := serve(*socket, services, failed); err != nil {
		return err
	}
	if *node != "" {
		refused := func(err error) { log.Print(err) }
		registrar := &plugin.Registrar{Driver: driverName, Endpoint: *socket, Refused: refused}
		if err := serve(filepath.Join(*registry, driverName+"-reg.sock"), registrar.Register, failed); err != nil {
			return err
		}
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	select {
	case <-stop:
		return nil
	case err := <-failed:
		return err
	}
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
