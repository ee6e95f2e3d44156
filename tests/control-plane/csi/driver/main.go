// driver is a CSI driver for tests: one process with identity, controller and node service on a Unix socket.
//
// It wraps the mock driver of upstream's end-to-end tests in an interceptor that lets it serve many nodes, detects double
// attachments, and delays or fails calls on request. Each attachment, detachment, creation, expansion and deletion is one
// line of the log. A line with VIOLATION after the time reports a request that would have damaged data.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// backend records the nodes that each volume is attached to. The mock behind it has a single node, whose name is the
// driver's.
type backend struct {
	mutex       sync.Mutex
	node        string
	attached    map[string]map[string]bool // volume -> nodes
	attachDelay time.Duration
	detachDelay time.Duration
	failAttach  int
	failDetach  int
}

// nodes returns the nodes that a volume is attached to, sorted.
func (b *backend) nodes(volume string) string {
	return strings.Join(slices.Sorted(maps.Keys(b.attached[volume])), ",")
}

// singleNode reports whether a volume with this access mode may be attached to one node only.
func singleNode(mode csi.VolumeCapability_AccessMode_Mode) bool {
	switch mode {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return false
	}
	return true
}

// attach attaches a volume, unless it is attached elsewhere and may not be attached twice.
func (b *backend) attach(ctx context.Context, request *csi.ControllerPublishVolumeRequest, next grpc.UnaryHandler) (any, error) {
	time.Sleep(b.attachDelay)
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.failAttach > 0 {
		b.failAttach--
		return nil, status.Error(codes.Internal, "injected attach failure")
	}
	volume, node := request.VolumeId, request.NodeId
	elsewhere := len(b.attached[volume]) > 0 && !b.attached[volume][node]
	if elsewhere && singleNode(request.GetVolumeCapability().GetAccessMode().GetMode()) {
		log.Printf("VIOLATION attach %s %s: it is attached to %s", volume, node, b.nodes(volume))
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to another node", volume)
	}
	request.NodeId = b.node
	response, err := next(ctx, request)
	if err == nil {
		if b.attached[volume] == nil {
			b.attached[volume] = map[string]bool{}
		}
		b.attached[volume][node] = true
		log.Printf("attach %s %s", volume, node)
	}
	return response, err
}

// detach detaches a volume. It forwards the request to the mock only if the volume is attached to no other node.
func (b *backend) detach(ctx context.Context, request *csi.ControllerUnpublishVolumeRequest, next grpc.UnaryHandler) (any, error) {
	time.Sleep(b.detachDelay)
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.failDetach > 0 {
		b.failDetach--
		return nil, status.Error(codes.Internal, "injected detach failure")
	}
	volume := request.VolumeId
	delete(b.attached[volume], request.NodeId)
	log.Printf("detach %s %s", volume, request.NodeId)
	if len(b.attached[volume]) > 0 {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	request.NodeId = b.node
	return next(ctx, request)
}

// remove deletes a volume.
func (b *backend) remove(ctx context.Context, request *csi.DeleteVolumeRequest, next grpc.UnaryHandler) (any, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if len(b.attached[request.VolumeId]) > 0 {
		log.Printf("VIOLATION delete %s: it is attached to %s", request.VolumeId, b.nodes(request.VolumeId))
	}
	response, err := next(ctx, request)
	if err == nil {
		log.Printf("delete %s", request.VolumeId)
	}
	return response, err
}

// place restricts a volume to the topology that was requested first, instead of the constant one of the mock.
func place(request *csi.CreateVolumeRequest, volume *csi.Volume) {
	if preferred := request.GetAccessibilityRequirements().GetPreferred(); len(preferred) > 0 {
		volume.AccessibleTopology = preferred[:1]
	}
}

func (b *backend) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	switch request := request.(type) {
	case *csi.ControllerPublishVolumeRequest:
		return b.attach(ctx, request, next)
	case *csi.ControllerUnpublishVolumeRequest:
		return b.detach(ctx, request, next)
	case *csi.DeleteVolumeRequest:
		return b.remove(ctx, request, next)
	}
	response, err := next(ctx, request)
	if err != nil {
		return response, err
	}
	switch response := response.(type) {
	case *csi.CreateVolumeResponse:
		place(request.(*csi.CreateVolumeRequest), response.GetVolume())
		log.Printf("create %s %d", response.GetVolume().GetVolumeId(), response.GetVolume().GetCapacityBytes())
	case *csi.ControllerExpandVolumeResponse:
		log.Printf("expand %s %d", request.(*csi.ControllerExpandVolumeRequest).VolumeId, response.CapacityBytes)
	case *csi.ControllerGetCapabilitiesResponse:
		// The mock's list of attached nodes is constant: csi-attacher must not reconcile by it.
		response.Capabilities = slices.DeleteFunc(response.Capabilities, func(c *csi.ControllerServiceCapability) bool {
			kind := c.GetRpc().GetType()
			return kind == csi.ControllerServiceCapability_RPC_LIST_VOLUMES ||
				kind == csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES
		})
	}
	return response, err
}

func run() error {
	var config service.Config
	b := &backend{attached: map[string]map[string]bool{}}
	socket := flag.String("socket", "csi.sock", "path of the Unix socket")
	flag.StringVar(&config.DriverName, "name", "mock.csi.k8s.io", "name of the driver")
	flag.Int64Var(&config.AttachLimit, "attach-limit", 0, "most volumes attached, on all nodes together; 0: no limit")
	flag.BoolVar(&config.DisableAttach, "disable-attach", false, "volumes need not be attached")
	flag.BoolVar(&config.NodeExpansionRequired, "node-expand", false, "an expansion ends on the node")
	flag.BoolVar(&config.DisableControllerExpansion, "no-controller-expand", false, "no expansion by the controller service")
	flag.BoolVar(&config.DisableOnlineExpansion, "no-online-expand", false, "no expansion while a volume is in use")
	flag.BoolVar(&config.EnableTopology, "topology", false, "volumes have a topology")
	flag.DurationVar(&b.attachDelay, "attach-delay", 0, "how long an attachment takes")
	flag.DurationVar(&b.detachDelay, "detach-delay", 0, "how long a detachment takes")
	flag.IntVar(&b.failAttach, "fail-attach", 0, "number of attachments that fail at first")
	flag.IntVar(&b.failDetach, "fail-detach", 0, "number of detachments that fail at first")
	flag.Parse()
	b.node, config.PermissiveTargetPath = config.DriverName, true
	if err := os.Remove(*socket); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove the socket of a former process: %w", err)
	}
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	mock := service.New(config)
	server := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock})
	if err := server.Start(listener, b.intercept); err != nil {
		return err
	}
	log.Printf("%s listens on %s", config.DriverName, *socket)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	server.Stop()
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
