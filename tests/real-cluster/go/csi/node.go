package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nodeService mounts volumes on one node, one request after the other.
type nodeService struct {
	csi.UnimplementedNodeServer
	mutex   sync.Mutex
	name    string
	volumes *volumes
}

func (n *nodeService) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.name}, nil
}

func (*nodeService) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	kinds := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	var capabilities []*csi.NodeServiceCapability
	for _, kind := range kinds {
		rpc := &csi.NodeServiceCapability_RPC{Type: kind}
		capability := &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc}}
		capabilities = append(capabilities, capability)
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: capabilities}, nil
}

// NodeStageVolume mounts a volume on the node, for all of its pods.
func (n *nodeService) NodeStageVolume(_ context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	volume := request.GetVolumeId()
	if err := n.volumes.find(volume); err != nil {
		return nil, err
	}
	isAttached, err := n.volumes.is(volume, attached, n.name)
	if err != nil {
		return nil, err
	}
	if !isAttached {
		n.volumes.violation("mount %s %s: it is not attached", volume, n.name)
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not attached to this node", volume)
	}
	isMounted, err := n.volumes.is(volume, mounted, n.name)
	if err != nil {
		return nil, err
	}
	if err := n.volumes.set(volume, mounted, n.name); err != nil {
		return nil, err
	}
	if err := bind(n.volumes.path(volume, data), request.GetStagingTargetPath(), false); err != nil {
		return nil, err
	}
	if !isMounted {
		n.volumes.events.Printf("mount %s %s", volume, n.name)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *nodeService) NodeUnstageVolume(_ context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	volume := request.GetVolumeId()
	if err := unbind(request.GetStagingTargetPath(), false); err != nil {
		return nil, err
	}
	if isMounted, err := n.volumes.is(volume, mounted, n.name); err == nil && isMounted {
		if err := n.volumes.unset(volume, mounted, n.name); err != nil {
			return nil, err
		}
		n.volumes.events.Printf("unmount %s %s", volume, n.name)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume mounts a volume for a pod.
func (n *nodeService) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if err := n.volumes.find(request.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := bind(request.GetStagingTargetPath(), request.GetTargetPath(), request.GetReadonly()); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *nodeService) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if err := unbind(request.GetTargetPath(), true); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume completes an expansion. A folder has no size of its own, so nothing has to grow.
func (n *nodeService) NodeExpandVolume(_ context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	volume := request.GetVolumeId()
	if err := n.volumes.find(volume); err != nil {
		return nil, err
	}
	bytes, err := n.volumes.size(volume)
	if err != nil {
		return nil, err
	}
	n.volumes.events.Printf("grow %s %s", volume, n.name)
	return &csi.NodeExpandVolumeResponse{CapacityBytes: bytes}, nil
}

// isMountPoint reports whether something is mounted at a path.
func isMountPoint(path string) (bool, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			return true, nil
		}
	}
	return false, nil
}

// bind mounts a folder at a second path, unless something is mounted there already.
func bind(source, target string, readOnly bool) error {
	if target == "" {
		return status.Error(codes.InvalidArgument, "a path is missing")
	}
	isMounted, err := isMountPoint(target)
	if err != nil || isMounted {
		return err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "mount %s at %s: %v", source, target, err)
	}
	if readOnly {
		return syscall.Mount("", target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	}
	return nil
}

// unbind undoes bind, and removes the folder at the path on request.
func unbind(target string, remove bool) error {
	isMounted, err := isMountPoint(target)
	if err != nil {
		return err
	}
	if isMounted {
		if err := syscall.Unmount(target, 0); err != nil {
			return status.Errorf(codes.Internal, "unmount %s: %v", target, err)
		}
	}
	if !remove {
		return nil
	}
	if err := os.Remove(target); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
