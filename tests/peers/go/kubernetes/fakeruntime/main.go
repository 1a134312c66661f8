// Command fakeruntime is a container runtime that runs nothing: upstream's own fake, in a process of its own. Pods become
// running and go away as the kubelet says, so that what it does for their volumes can be watched without containers.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
)

// server adds to upstream's fake what a kubelet needs for its own safety.
type server struct {
	*fake.RemoteRuntime
}

// CreateContainer gives every container the log path that the kubelet chose. Upstream's fake leaves it empty, and a
// kubelet that removes such a container's logs removes "*" from its own working directory, whatever lies there.
func (s server) CreateContainer(ctx context.Context, request *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	directory, name := request.GetSandboxConfig().GetLogDirectory(), request.GetConfig().GetLogPath()
	if !filepath.IsAbs(directory) || name == "" {
		return nil, errors.New("the container has no absolute log path, and the kubelet would remove other files for its logs")
	}
	answer, err := s.RemoteRuntime.CreateContainer(ctx, request)
	if err != nil {
		return nil, err
	}
	s.RuntimeService.Lock()
	defer s.RuntimeService.Unlock()
	s.RuntimeService.Containers[answer.ContainerId].LogPath = filepath.Join(directory, name)
	return answer, nil
}

func main() {
	endpoint := flag.String("endpoint", "", "where to listen: unix:///path/cri.sock (required)")
	image := flag.String("image", "nothing:1", "the one image that there is")
	flag.Parse()
	path, isUnix := strings.CutPrefix(*endpoint, "unix://")
	if !isUnix || path == "" {
		log.Fatalf("fakeruntime: --endpoint %q is not a UNIX socket: give unix:///path/cri.sock", *endpoint)
	}

	runtime := server{fake.NewFakeRemoteRuntime()}
	runtime.RuntimeService.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}}
	// An image without a size counts as broken.
	runtime.ImageService.SetFakeImageSize(1)
	runtime.ImageService.SetFakeImages([]string{*image})

	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Fatalf("fakeruntime: %v", err)
	}
	grpcServer := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(grpcServer, runtime)
	runtimeapi.RegisterImageServiceServer(grpcServer, runtime)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		grpcServer.Stop()
	}()
	log.Printf("fakeruntime: serves on %s", path)
	if err := grpcServer.Serve(listener); err != nil {
		log.Fatalf("fakeruntime: %v", err)
	}
}
