package main

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// smallest is the size in bytes of a volume without a requested one.
const smallest = 1 << 20

// controller creates, attaches, expands and deletes volumes, one request after the other.
type controller struct {
	csi.UnimplementedControllerServer
	mutex   sync.Mutex
	volumes *volumes
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

// requested returns the requested size of a volume.
func requested(limits *csi.CapacityRange) (int64, error) {
	bytes := max(limits.GetRequiredBytes(), smallest)
	if limit := limits.GetLimitBytes(); limit > 0 && limit < bytes {
		return 0, status.Errorf(codes.OutOfRange, "a volume has at least %d bytes", bytes)
	}
	return bytes, nil
}

func (c *controller) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	name := request.GetName()
	if err := checkName(name); err != nil {
		return nil, err
	}
	for _, capability := range request.GetVolumeCapabilities() {
		if capability.GetBlock() != nil {
			return nil, status.Error(codes.InvalidArgument, "a folder is no block device")
		}
	}
	bytes, err := requested(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	if found, err := c.volumes.size(name); err == nil {
		if found < bytes {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s has %d bytes", name, found)
		}
		return created(name, found), nil
	}
	for _, entry := range []string{data, attached, mounted} {
		if err := os.MkdirAll(c.volumes.path(name, entry), 0o755); err != nil {
			return nil, err
		}
	}
	// Containers of all users may write.
	if err := os.Chmod(c.volumes.path(name, data), 0o777); err != nil {
		return nil, err
	}
	if err := c.volumes.setSize(name, bytes); err != nil {
		return nil, err
	}
	c.volumes.events.Printf("create %s %d", name, bytes)
	return created(name, bytes), nil
}

func created(name string, bytes int64) *csi.CreateVolumeResponse {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: name, CapacityBytes: bytes}}
}

func (c *controller) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume := request.GetVolumeId()
	if c.volumes.find(volume) != nil {
		return &csi.DeleteVolumeResponse{}, nil
	}
	for _, kind := range []string{attached, mounted} {
		nodes, err := c.volumes.nodes(volume, kind)
		if err != nil {
			return nil, err
		}
		if len(nodes) > 0 {
			c.volumes.violation("delete %s: it is %s at %s", volume, kind, strings.Join(nodes, ","))
			return nil, status.Errorf(codes.FailedPrecondition, "volume %s is %s", volume, kind)
		}
	}
	if err := os.RemoveAll(c.volumes.path(volume)); err != nil {
		return nil, err
	}
	c.volumes.events.Printf("delete %s", volume)
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ControllerPublishVolume(_ context.Context, request *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume, node := request.GetVolumeId(), request.GetNodeId()
	if err := c.volumes.find(volume); err != nil {
		return nil, err
	}
	nodes, err := c.volumes.nodes(volume, attached)
	if err != nil {
		return nil, err
	}
	for _, other := range nodes {
		if other == node {
			return &csi.ControllerPublishVolumeResponse{}, nil
		}
	}
	if len(nodes) > 0 && singleNode(request.GetVolumeCapability().GetAccessMode().GetMode()) {
		c.volumes.violation("attach %s %s: it is attached to %s", volume, node, strings.Join(nodes, ","))
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to another node", volume)
	}
	if err := c.volumes.set(volume, attached, node); err != nil {
		return nil, err
	}
	c.volumes.events.Printf("attach %s %s", volume, node)
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (c *controller) ControllerUnpublishVolume(_ context.Context, request *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume, node := request.GetVolumeId(), request.GetNodeId()
	done := &csi.ControllerUnpublishVolumeResponse{}
	if c.volumes.find(volume) != nil {
		return done, nil
	}
	isAttached, err := c.volumes.is(volume, attached, node)
	if err != nil || !isAttached {
		return done, err
	}
	isMounted, err := c.volumes.is(volume, mounted, node)
	if err != nil {
		return nil, err
	}
	if isMounted {
		c.volumes.violation("detach %s %s: it is mounted", volume, node)
	}
	if err := c.volumes.unset(volume, attached, node); err != nil {
		return nil, err
	}
	c.volumes.events.Printf("detach %s %s", volume, node)
	return done, nil
}

func (c *controller) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume := request.GetVolumeId()
	if err := c.volumes.find(volume); err != nil {
		return nil, err
	}
	bytes, err := requested(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	found, err := c.volumes.size(volume)
	if err != nil {
		return nil, err
	}
	if found < bytes {
		if err := c.volumes.setSize(volume, bytes); err != nil {
			return nil, err
		}
		c.volumes.events.Printf("expand %s %d", volume, bytes)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: max(found, bytes), NodeExpansionRequired: true}, nil
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := c.volumes.find(request.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: request.GetVolumeCapabilities(),
	}}, nil
}

func (*controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	kinds := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	var capabilities []*csi.ControllerServiceCapability
	for _, kind := range kinds {
		rpc := &csi.ControllerServiceCapability_RPC{Type: kind}
		capability := &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}
		capabilities = append(capabilities, capability)
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: capabilities}, nil
}
