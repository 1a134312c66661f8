package main

// Samples and their report.

import (
	"math"
	"slices"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"
)

// operationKey stands for the whole operation of a scenario, in place of a method's name.
const operationKey = ""

// recorder keeps every sample of one caller, by method. It is not shared between goroutines.
type recorder map[string]*samples

type samples struct {
	latencies []time.Duration
	errors    map[string]int64
	messages  map[string]string
}

func newRecorder() recorder { return recorder{} }

func (r recorder) of(method string) *samples {
	s, found := r[method]
	if !found {
		s = &samples{errors: map[string]int64{}, messages: map[string]string{}}
		r[method] = s
	}
	return s
}

func (r recorder) succeeded(method string, took time.Duration) {
	s := r.of(method)
	s.latencies = append(s.latencies, took)
}

func (r recorder) failed(method string, err error) {
	s := r.of(method)
	code := code.Code(status.Code(err)).String() // UNAVAILABLE, as the specifications spell it; grpc-go's is Unavailable
	s.errors[code]++
	s.messages[code] = status.Convert(err).Message()
}

func (r recorder) merge(other recorder) {
	for method, from := range other {
		into := r.of(method)
		into.latencies = append(into.latencies, from.latencies...)
		for code, count := range from.errors {
			into.errors[code] += count
			into.messages[code] = from.messages[code]
		}
	}
}

// report is printed. Calls and latencies are those of successful calls; failures are counted by code.
type report struct {
	Scenario         string                  `json:"scenario"`
	Callers          int                     `json:"callers"`
	CPUMicrosPerCall float64                 `json:"loadgen_cpu_us_per_call"`
	Targets          map[string]targetReport `json:"targets"`
}

type targetReport struct {
	Seconds    float64            `json:"seconds"`
	Calls      int                `json:"calls"`
	PerSecond  float64            `json:"calls_per_second"`
	Errors     map[string]int64   `json:"errors"`
	Messages   map[string]string  `json:"error_messages,omitempty"`
	Latency    distribution       `json:"latency_us"`
	Operations operations         `json:"operations"`
	Methods    map[string]summary `json:"methods"`
}

type operations struct {
	Count     int          `json:"count"`
	PerSecond float64      `json:"per_second"`
	Latency   distribution `json:"latency_us"`
}

type summary struct {
	Calls   int          `json:"calls"`
	Latency distribution `json:"latency_us"`
}

// distribution is in microseconds.
type distribution struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
}

func newReport(p *plan, targets []*target, cpu time.Duration) report {
	out := report{Scenario: p.scenario, Callers: p.callers, Targets: map[string]targetReport{}}
	total := 0
	for _, t := range targets {
		one := newTargetReport(t)
		out.Targets[t.name] = one
		total += one.Calls
	}
	if total > 0 {
		out.CPUMicrosPerCall = micros(cpu) / float64(total)
	}
	return out
}

func newTargetReport(t *target) targetReport {
	seconds := t.measured.Seconds()
	out := targetReport{
		Seconds: seconds, Errors: map[string]int64{}, Messages: map[string]string{}, Methods: map[string]summary{},
	}
	var all []time.Duration
	for method, s := range t.recorder {
		if method == operationKey {
			out.Operations = operations{len(s.latencies), rate(len(s.latencies), seconds), distributionOf(s.latencies)}
			continue
		}
		all = append(all, s.latencies...)
		out.Methods[method] = summary{len(s.latencies), distributionOf(s.latencies)}
		for code, count := range s.errors {
			out.Errors[code] += count
			out.Messages[code] = s.messages[code]
		}
	}
	out.Calls, out.PerSecond, out.Latency = len(all), rate(len(all), seconds), distributionOf(all)
	return out
}

func distributionOf(latencies []time.Duration) distribution {
	if len(latencies) == 0 {
		return distribution{}
	}
	sorted := slices.Sorted(slices.Values(latencies))
	var sum time.Duration
	for _, latency := range sorted {
		sum += latency
	}
	return distribution{
		P50:  micros(nearestRank(sorted, 0.50)),
		P90:  micros(nearestRank(sorted, 0.90)),
		P99:  micros(nearestRank(sorted, 0.99)),
		Max:  micros(sorted[len(sorted)-1]),
		Mean: micros(sum) / float64(len(sorted)),
	}
}

// nearestRank is the smallest sample that at least this share of all samples does not exceed.
func nearestRank(sorted []time.Duration, share float64) time.Duration {
	return sorted[max(int(math.Ceil(share*float64(len(sorted))))-1, 0)]
}

func rate(count int, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	return float64(count) / seconds
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// cpuTime is the CPU time of this process on all cores so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
