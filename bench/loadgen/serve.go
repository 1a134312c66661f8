package main

// The driver that answers at once, from memory: Identity, and the Controller methods that a bridge calls.

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const prSetTimerSlack = 29 // linux/prctl.h

func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("loadgen serve", flag.ContinueOnError)
	endpoint := flags.String("endpoint", "", "where to listen: unix:///path/csi.sock (required)")
	d := &driver{volumes: map[string]int64{}}
	flags.StringVar(&d.name, "name", "load.csi-bridge.io", "the driver's name")
	flags.StringVar(&d.node, "node", "node-1", "the node id that NodeGetInfo answers")
	flags.DurationVar(&d.delay, "delay", 0, "how long every Controller call but GetCapabilities takes")
	flags.StringVar(&d.mounts, "mounts", "", "a directory for volumes that can be staged and published; without, none can")
	flags.BoolVar(&d.attach, "attach", false, "whether volumes are to be published to a node by the controller first")
	calls := flags.String("call-log", "", "a file that each call about a volume is noted in, when it begins and ends")
	if err := flags.Parse(args); err != nil {
		return err
	}
	path, isUnix := strings.CutPrefix(*endpoint, "unix://")
	if !isUnix || path == "" {
		return fmt.Errorf("--endpoint %q is not a UNIX socket: give unix:///path/csi.sock", *endpoint)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("the old socket cannot be removed: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	var options []grpc.ServerOption
	if *calls != "" {
		log, err := openCallLog(*calls)
		if err != nil {
			return err
		}
		options = append(options, grpc.UnaryInterceptor(log.intercept))
	}
	server := grpc.NewServer(options...)
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	log.Printf("loadgen: %s serves on %s", d.name, path)
	return server.Serve(listener)
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	name, node string
	delay      time.Duration
	mounts     string
	attach     bool

	mutex   sync.Mutex
	volumes map[string]int64 // bytes, by id; a volume's id is its name
}

// work waits for the driver's delay. Go rounds its timers up to a millisecond where nothing else runs, so a short delay
// uses the kernel's exact timer. A long one uses Go's, because the kernel's blocks a thread.
func (d *driver) work() {
	if d.delay >= 5*time.Millisecond {
		time.Sleep(d.delay)
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Without this the kernel may wake a thread 50 µs late. If the kernel refuses, the delay is that much longer.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0)
	for end := time.Now().Add(d.delay); ; {
		left := time.Until(end)
		if left <= 0 {
			return
		}
		pause := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&pause, nil)
	}
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1.0.0"}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
		},
	}}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	kinds := []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	if d.attach {
		kinds = append(kinds, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range kinds {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return answer, nil
}

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.work()
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume needs a name")
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if had, found := d.volumes[r.GetName()]; found && had != size {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s has %d bytes", r.GetName(), had)
	}
	d.volumes[r.GetName()] = size
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.GetName(), CapacityBytes: size}}, nil
}

func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.work()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	delete(d.volumes, r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

func (d *driver) ControllerPublishVolume(
	context.Context, *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	d.work()
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (d *driver) ControllerUnpublishVolume(
	context.Context, *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.work()
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *driver) ValidateVolumeCapabilities(
	_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	d.work()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if _, found := d.volumes[r.GetVolumeId()]; !found {
		return nil, status.Errorf(codes.NotFound, "there is no volume %s", r.GetVolumeId())
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()},
	}, nil
}
