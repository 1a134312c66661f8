package main

// The call log: a JSON line when a Node call that changes something begins and one when it ends, in the test driver's words
// (tests/kit/testdriver/call_log.py), so that one reader knows both.

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

type callLog struct {
	file   *os.File
	number atomic.Int64
}

type noted struct {
	Event      string  `json:"event"`
	Pid        int     `json:"pid"`
	Call       int64   `json:"call"`
	Time       float64 `json:"time"`
	Method     string  `json:"method"`
	VolumeID   string  `json:"volume_id"`
	TargetPath string  `json:"target_path,omitempty"`
	Code       string  `json:"code,omitempty"`
}

func openCallLog(path string) (*callLog, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	return &callLog{file: file}, err
}

func (l *callLog) intercept(
	ctx context.Context, request any, call *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	method := call.FullMethod[strings.LastIndex(call.FullMethod, "/")+1:]
	volume, concerns := request.(interface{ GetVolumeId() string })
	if !concerns {
		return handle(ctx, request)
	}
	line := noted{Event: "start", Pid: os.Getpid(), Call: l.number.Add(1), Method: method, VolumeID: volume.GetVolumeId()}
	if target, has := request.(interface{ GetTargetPath() string }); has {
		line.TargetPath = target.GetTargetPath()
	}
	l.write(line)
	answer, err := handle(ctx, request)
	line.Event, line.Code = "end", upper(status.Code(err).String())
	l.write(line)
	return answer, err
}

func (l *callLog) write(line noted) {
	line.Time = float64(time.Now().UnixNano()) / 1e9
	text, err := json.Marshal(line)
	if err == nil {
		_, _ = l.file.Write(append(text, '\n'))
	}
}

// upper writes a code as the specification does: NotFound is NOT_FOUND.
func upper(code string) string {
	if code == "OK" {
		return code
	}
	var words strings.Builder
	for at, letter := range code {
		if at > 0 && letter >= 'A' && letter <= 'Z' {
			words.WriteByte('_')
		}
		words.WriteRune(letter)
	}
	return strings.ToUpper(words.String())
}
