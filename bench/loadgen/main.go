// Command loadgen drives CSI sockets in a closed loop and reports latencies and rates. It is also a driver that answers
// at once, so that the bridge's own cost shows.
//
//	loadgen run --scenario create-delete --callers 16 --duration 5s --socket direct=unix:///d.sock --socket bridge=unix:///b.sock
//	loadgen serve --endpoint unix:///d.sock --delay 350us
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage:
  loadgen run   --socket NAME=unix:///path [--socket ...] [flags]   drive CSI sockets, print JSON
  loadgen serve --endpoint unix:///path [flags]                     a CSI driver that answers from memory
"loadgen run -h" and "loadgen serve -h" list the flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := dispatch(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "loadgen: %v\n", err)
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command\n%s", usage)
	}
	switch args[0] {
	case "run":
		return run(ctx, args[1:], os.Stdout)
	case "serve":
		return serve(ctx, args[1:])
	default:
		return fmt.Errorf("no command is called %q\n%s", args[0], usage)
	}
}
