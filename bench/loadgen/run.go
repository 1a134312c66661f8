package main

// The closed loop. Several sockets take turns, a slice of time each. So other load on the machine affects all of them
// alike, and each has the machine to itself while it is measured.

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// plan holds the values of the flags.
type plan struct {
	scenario string
	sockets  []socket
	callers  int
	duration time.Duration
	count    int64
	slice    time.Duration
	warmUp   time.Duration
	timeout  time.Duration
	pause    time.Duration
	padding  int
}

// socket is one --socket NAME=unix:///path.
type socket struct{ name, endpoint string }

// target is one socket under measurement. Everything in it is touched only while its slice runs.
type target struct {
	name     string
	scenario scenario
	recorder recorder
	begun    atomic.Int64 // operations
	measured time.Duration
}

func parsePlan(args []string) (*plan, error) {
	p := &plan{}
	flags := flag.NewFlagSet("loadgen run", flag.ContinueOnError)
	flags.StringVar(&p.scenario, "scenario", "create-delete", "what one operation is: "+strings.Join(scenarioNames(), ", "))
	flags.IntVar(&p.callers, "callers", 1, "how many callers wait for an answer at any time")
	flags.DurationVar(&p.duration, "duration", 5*time.Second, "how long each socket is measured, where --count is 0")
	flags.Int64Var(&p.count, "count", 0, "how many operations each socket gets; 0: by --duration")
	flags.DurationVar(&p.slice, "slice", 500*time.Millisecond, "how long one socket's turn is")
	flags.DurationVar(&p.warmUp, "warm-up", 300*time.Millisecond, "how long each socket is driven before it is measured")
	flags.DurationVar(&p.timeout, "timeout", 10*time.Second, "deadline of each call (csi-provisioner's default)")
	flags.DurationVar(&p.pause, "pause", 0, "how long a caller waits after each call, so that caches get cold")
	flags.IntVar(&p.padding, "padding", 0, "bytes of parameters added to each CreateVolume")
	flags.Func("socket", "NAME=unix:///path, repeatable: the sockets take turns", func(value string) error {
		name, endpoint, found := strings.Cut(value, "=")
		if !found || name == "" || !strings.HasPrefix(endpoint, "unix://") {
			return fmt.Errorf("%q is not NAME=unix:///path", value)
		}
		p.sockets = append(p.sockets, socket{name, endpoint})
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case len(p.sockets) == 0:
		return nil, fmt.Errorf("no --socket NAME=unix:///path given")
	case p.callers < 1 || p.slice <= 0 || p.duration <= 0:
		return nil, fmt.Errorf("--callers, --slice and --duration are above zero")
	}
	return p, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	p, err := parsePlan(args)
	if err != nil {
		return err
	}
	targets := make([]*target, 0, len(p.sockets))
	for _, s := range p.sockets {
		t, err := newTarget(ctx, p, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		defer t.scenario.close()
		targets = append(targets, t)
	}
	for _, t := range targets {
		p.turn(ctx, t, p.warmUp, false)
	}
	cpu := cpuTime()
	for left := true; left && ctx.Err() == nil; {
		left = false
		for _, t := range targets {
			if !p.done(t) {
				p.turn(ctx, t, p.slice, true)
				left = true
			}
		}
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(newReport(p, targets, cpuTime()-cpu))
}

func newTarget(ctx context.Context, p *plan, s socket) (*target, error) {
	conn, err := grpc.NewClient(s.endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		return nil, err
	}
	operation, err := newScenario(ctx, p, conn)
	if err != nil {
		return nil, err
	}
	return &target{name: s.name, scenario: operation, recorder: newRecorder()}, nil
}

func (p *plan) done(t *target) bool {
	if p.count > 0 {
		return t.begun.Load() >= p.count
	}
	return t.measured >= p.duration
}

// turn drives one target with all callers for about `length`; it ends when every call that was begun has ended.
func (p *plan) turn(ctx context.Context, t *target, length time.Duration, recorded bool) {
	if !recorded {
		defer func() { t.recorder = newRecorder() }()
	}
	if p.count == 0 && recorded {
		length = min(length, p.duration-t.measured)
	}
	began := time.Now()
	recorders := make([]recorder, p.callers)
	var callers sync.WaitGroup
	for i := range recorders {
		recorders[i] = newRecorder()
		callers.Go(func() {
			for ctx.Err() == nil && time.Since(began) < length {
				if recorded && p.count > 0 && t.begun.Add(1) > p.count {
					return
				}
				start := time.Now()
				if t.scenario.operate(ctx, recorders[i]) {
					recorders[i].succeeded(operationKey, time.Since(start))
				}
			}
		})
	}
	callers.Wait()
	if recorded {
		t.measured += time.Since(began)
	}
	for _, r := range recorders {
		t.recorder.merge(r)
	}
}
