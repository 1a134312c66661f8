package main

// The operations of a caller. Requests are made as bytes, so that the generator costs less than the bridge.

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// scenario is one socket's kind of operation.
type scenario interface {
	// operate makes the calls of one operation and records each; it returns whether all of them succeeded.
	operate(ctx context.Context, r recorder) bool
	// close deletes the scenario's volumes at the driver.
	close()
}

var scenarios = map[string]func(ctx context.Context, p *plan, c *client) (scenario, error){
	"create-delete": newCreateDelete,
	"identity":      newIdentity,
	"validate":      newValidate,
}

func scenarioNames() []string {
	names := make([]string, 0, len(scenarios))
	for name := range scenarios {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func newScenario(ctx context.Context, p *plan, conn *grpc.ClientConn) (scenario, error) {
	build, found := scenarios[p.scenario]
	if !found {
		return nil, fmt.Errorf("no scenario is called %q; there are: %s", p.scenario, strings.Join(scenarioNames(), ", "))
	}
	return build(ctx, p, &client{conn: conn, timeout: p.timeout, pause: p.pause})
}

// client calls one socket with bytes.
type client struct {
	conn    *grpc.ClientConn
	timeout time.Duration
	pause   time.Duration
}

func (c *client) call(ctx context.Context, method string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var response []byte
	err := c.conn.Invoke(ctx, method, request, &response)
	return response, err
}

// timed calls and records. A call that was cut off by the end of the run is not recorded.
func (c *client) timed(ctx context.Context, r recorder, method string, request []byte) ([]byte, error) {
	start := time.Now()
	response, err := c.call(ctx, method, request)
	switch {
	case err == nil:
		r.succeeded(method, time.Since(start))
	case ctx.Err() == nil:
		r.failed(method, err)
	}
	if c.pause > 0 {
		time.Sleep(c.pause)
	}
	return response, err
}

// identity: one GetPluginInfo.
type identity struct{ *client }

func newIdentity(_ context.Context, _ *plan, c *client) (scenario, error) { return identity{c}, nil }

func (s identity) operate(ctx context.Context, r recorder) bool {
	_, err := s.timed(ctx, r, csi.Identity_GetPluginInfo_FullMethodName, nil)
	return err == nil
}

func (s identity) close() {}

// createDelete: a CreateVolume with a name of its own, then the DeleteVolume of that volume.
type createDelete struct {
	*client
	prefix  string
	next    atomic.Int64
	request *csi.CreateVolumeRequest
}

func newCreateDelete(_ context.Context, p *plan, c *client) (scenario, error) {
	request := &csi.CreateVolumeRequest{
		CapacityRange:      &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{filesystemCapability()},
	}
	if p.padding > 0 {
		request.Parameters = map[string]string{"padding": strings.Repeat("x", p.padding)}
	}
	return &createDelete{client: c, prefix: fmt.Sprintf("load-%d-%x", os.Getpid(), time.Now().UnixNano()), request: request}, nil
}

func (s *createDelete) operate(ctx context.Context, r recorder) bool {
	id, err := s.create(ctx, r, fmt.Sprintf("%s-%d", s.prefix, s.next.Add(1)))
	if err != nil {
		return false
	}
	request, err := proto.Marshal(&csi.DeleteVolumeRequest{VolumeId: id})
	if err == nil {
		_, err = s.timed(ctx, r, csi.Controller_DeleteVolume_FullMethodName, request)
	}
	return err == nil
}

func (s *createDelete) create(ctx context.Context, r recorder, name string) (string, error) {
	// A shallow copy: the callers share all of the request but its name.
	request, err := proto.Marshal(&csi.CreateVolumeRequest{
		Name:               name,
		CapacityRange:      s.request.CapacityRange,
		VolumeCapabilities: s.request.VolumeCapabilities,
		Parameters:         s.request.Parameters,
	})
	if err != nil {
		return "", err
	}
	response, err := s.timed(ctx, r, csi.Controller_CreateVolume_FullMethodName, request)
	if err != nil {
		return "", err
	}
	var created csi.CreateVolumeResponse
	if err := proto.Unmarshal(response, &created); err != nil {
		return "", err
	}
	return created.GetVolume().GetVolumeId(), nil
}

func (s *createDelete) close() {}

// validate: one ValidateVolumeCapabilities of a volume made beforehand, a call that changes nothing at the driver.
type validate struct {
	*client
	id      string
	request []byte
}

func newValidate(ctx context.Context, p *plan, c *client) (scenario, error) {
	maker, err := newCreateDelete(ctx, p, c)
	if err != nil {
		return nil, err
	}
	made := maker.(*createDelete)
	id, err := made.create(ctx, newRecorder(), made.prefix)
	if err != nil {
		return nil, fmt.Errorf("the volume to validate: %w", err)
	}
	request, err := proto.Marshal(&csi.ValidateVolumeCapabilitiesRequest{
		VolumeId:           id,
		VolumeCapabilities: []*csi.VolumeCapability{filesystemCapability()},
	})
	return validate{client: c, id: id, request: request}, err
}

func (s validate) operate(ctx context.Context, r recorder) bool {
	_, err := s.timed(ctx, r, csi.Controller_ValidateVolumeCapabilities_FullMethodName, s.request)
	return err == nil
}

func (s validate) close() {
	request, err := proto.Marshal(&csi.DeleteVolumeRequest{VolumeId: s.id})
	if err == nil {
		// The run's own context may have ended by now; if the call fails, one volume of a test driver stays.
		_, _ = s.call(context.Background(), csi.Controller_DeleteVolume_FullMethodName, request)
	}
}

func filesystemCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

// rawCodec passes bytes on as they are, under the content type of protobuf.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
