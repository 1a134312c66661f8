package main

// The driver's Node service: volumes that are directories, staged and published by the kernel's own bind mounts.

import (
	"context"
	"os"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const noFollow = 8 // UMOUNT_NOFOLLOW, umount2(2)

var nodeCapabilities = []csi.NodeServiceCapability_RPC_Type{
	csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
	csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	if d.mounts == "" {
		return answer, nil
	}
	for _, kind := range nodeCapabilities {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return answer, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	// Every volume id is valid: the volume is created when it is first staged.
	return &csi.NodeStageVolumeResponse{}, d.bind(d.place(r.GetVolumeId()), r.GetStagingTargetPath())
}

func (d *driver) NodePublishVolume(
	_ context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, d.bind(d.place(r.GetVolumeId()), r.GetTargetPath())
}

func (d *driver) NodeUnpublishVolume(
	_ context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := d.unbind(r.GetVolumeId(), r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := syscall.Rmdir(r.GetTargetPath()); err != nil && !os.IsNotExist(err) {
		return nil, status.Errorf(codes.Internal, "the target cannot be removed: %v", err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *driver) NodeUnstageVolume(
	_ context.Context, r *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.unbind(r.GetVolumeId(), r.GetStagingTargetPath())
}

func (d *driver) NodeGetVolumeStats(
	_ context.Context, r *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	var found syscall.Statfs_t
	if err := syscall.Statfs(r.GetVolumePath(), &found); err != nil {
		return nil, status.Errorf(codes.NotFound, "the volume path cannot be looked at: %v", err)
	}
	block := found.Bsize
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{
		Unit:      csi.VolumeUsage_BYTES,
		Total:     int64(found.Blocks) * block,
		Available: int64(found.Bavail) * block,
		Used:      int64(found.Blocks-found.Bfree) * block,
	}}}, nil
}

func (d *driver) place(volume string) string {
	return filepath.Join(d.mounts, filepath.Base(volume))
}

// bind mounts a volume's directory at a target, unless it is there.
func (d *driver) bind(place, target string) error {
	if d.mounts == "" {
		return status.Error(codes.Unimplemented, "no volume can be mounted without --mounts")
	}
	if err := os.MkdirAll(place, 0o755); err != nil {
		return status.Errorf(codes.Internal, "the volume cannot be made: %v", err)
	}
	if err := os.Mkdir(target, 0o755); err != nil && !os.IsExist(err) {
		return status.Errorf(codes.Internal, "the target cannot be made: %v", err)
	}
	if same(place, target) {
		return nil
	}
	if err := syscall.Mount(place, target, "", syscall.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "it cannot be mounted: %v", err)
	}
	return nil
}

func (d *driver) unbind(volume, target string) error {
	if !same(d.place(volume), target) {
		return nil
	}
	if err := syscall.Unmount(target, noFollow); err != nil {
		return status.Errorf(codes.Internal, "it cannot be unmounted: %v", err)
	}
	return nil
}

func same(place, target string) bool {
	one, err := os.Stat(place)
	if err != nil {
		return false
	}
	other, err := os.Stat(target)
	return err == nil && os.SameFile(one, other)
}
