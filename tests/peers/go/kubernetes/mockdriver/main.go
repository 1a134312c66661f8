// Command mockdriver serves the CSI driver of Kubernetes' own e2e tests on a UNIX socket: a vendor's driver that nobody
// in this project wrote. It keeps its volumes in memory.
package main

import (
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	var config service.Config
	endpoint := flag.String("endpoint", "", "where to listen: unix:///path/csi.sock (required)")
	attach := flag.Bool("attach", true, "publish volumes to nodes (PUBLISH_UNPUBLISH_VOLUME)")
	flag.StringVar(&config.DriverName, "name", service.Name, "the driver's name, which is also its node id")
	flag.Int64Var(&config.AttachLimit, "attach-limit", 0, "volumes one node takes; 0 is no limit")
	flag.BoolVar(&config.EnableTopology, "topology", false, "report one topology segment for every volume and the node")
	flag.BoolVar(&config.NodeExpansionRequired, "node-expansion", false, "ask for NodeExpandVolume after every expansion")
	flag.BoolVar(&config.DisableControllerExpansion, "no-controller-expansion", false, "leave EXPAND_VOLUME out of the controller's capabilities")
	flag.BoolVar(&config.DisableOnlineExpansion, "no-online-expansion", false, "expand volumes only while they are not published")
	flag.BoolVar(&config.VolumeMountGroupRequired, "mount-group", false, "apply fsGroup in the driver (VOLUME_MOUNT_GROUP)")
	flag.BoolVar(&config.NodeVolumeConditionRequired, "volume-condition", false, "report CSI 1.9's volume condition from the node")
	flag.BoolVar(&config.PermissiveTargetPath, "permissive-target-path", false, "accept a target path that exists already")
	flag.Parse()
	config.DisableAttach = !*attach

	path, isUnix := strings.CutPrefix(*endpoint, "unix://")
	if !isUnix || path == "" {
		log.Fatalf("mockdriver: --endpoint %q is not a UNIX socket: give unix:///path/csi.sock", *endpoint)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		log.Fatalf("mockdriver: the old socket cannot be removed: %v", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Fatalf("mockdriver: %v", err)
	}
	driver := service.New(config)
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, driver)
	csi.RegisterControllerServer(server, driver)
	csi.RegisterNodeServer(server, driver)

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		server.Stop()
	}()
	log.Printf("mockdriver: %s serves on %s", config.DriverName, path)
	if err := server.Serve(listener); err != nil {
		log.Fatalf("mockdriver: %v", err)
	}
}
