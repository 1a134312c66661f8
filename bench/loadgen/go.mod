// The load generator of `make bench`. Its versions are those of tests/peers/go/sidecars, which shares the build cache.
module csi-bridge.io/bench/loadgen

go 1.26.0

require (
	github.com/container-storage-interface/spec v1.13.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa
	google.golang.org/grpc v1.83.1
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)
