// Command registrar registers one CSI driver with whoever acts as the kubelet of a node, over Kubernetes' own plugin
// registration API: it takes the driver's name from the driver, answers GetInfo, and ends with status 1 when it hears
// that the registration failed, so that whoever restarts it makes the next attempt.
package main

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const connectLimit = 30 * time.Second

type registrar struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	log.Printf("GetInfo: %s at %s", r.info.Name, r.info.Endpoint)
	return r.info, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		log.Printf("not registered: %s", status.Error)
		os.Exit(1)
	}
	log.Print("registered")
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	csiAddress := flag.String("csi-address", "", "the driver's socket as this process sees it (required)")
	kubeletPath := flag.String("kubelet-registration-path", "", "the driver's socket as the kubelet sees it (required)")
	directory := flag.String("plugin-registration-path", "/registration", "where the kubelet looks for plugins")
	limit := flag.Duration("timeout", time.Second, "for one question to the driver")
	kind := flag.String("type", registration.CSIPlugin, "the plugin type to claim")
	version := flag.String("version", "1.0.0", "the version to claim")
	flag.Parse()

	name, err := driverName(*csiAddress, *limit)
	if err != nil {
		log.Fatal(err)
	}
	info := &registration.PluginInfo{
		Type:              *kind,
		Name:              name,
		Endpoint:          *kubeletPath,
		SupportedVersions: []string{*version},
	}
	if err := serve(filepath.Join(*directory, name+"-reg.sock"), &registrar{info: info}); err != nil {
		log.Fatal(err)
	}
}

// driverName asks the driver who it is, for as long as it takes to come up, within a limit.
func driverName(socket string, limit time.Duration) (string, error) {
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	client := csi.NewIdentityClient(connection)
	for end := time.Now().Add(connectLimit); ; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		answer, err := client.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		cancel()
		if err == nil {
			return answer.GetName(), nil
		}
		if time.Now().After(end) {
			return "", err
		}
	}
}

func serve(socket string, service *registrar) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	before := syscall.Umask(0o077)
	listener, err := net.Listen("unix", socket)
	syscall.Umask(before)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, service)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		server.GracefulStop() // closes the listener, which removes the socket
	}()
	log.Printf("serving %s", socket)
	return server.Serve(listener)
}
