package main

// #include "api.h"
import "C"

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/formats"
	"github.com/goccl/goccl/core/sim"
	"github.com/goccl/goccl/core/tune"
)

// simulation is the request of goccl_simulate().
type simulation struct {
	Collective string `json:"collective"`
	Bytes      uint64 `json:"bytes"`
	Ranks      int    `json:"ranks"`
	PerHost    int    `json:"ranks_per_host"`
	PerDomain  int    `json:"ranks_per_domain"`
	ByTurns    bool   `json:"by_turns"`
	CPUs       int    `json:"cpus"`
	Transport  string `json:"transport"`
	Net        string `json:"net"`
	// Estimate asks for what formulas say, in place of a simulation.
	Estimate bool `json:"estimate"`
	// Trace and Goal are names of files to be written.
	Trace string `json:"trace"`
	Goal  string `json:"goal"`
	// Program is one as a file has it, in place of Collective and Ranks.
	Program json.RawMessage `json:"program"`
	program *program.Checked
}

// mostRequest is the most bytes of a request, which may have a program and a network.
const mostRequest = 64<<10 + program.MostText + 2*sim.MostNetText

// parseRequest reads a JSON object that has the fields of a struct.
func parseRequest(request string, to any) error {
	if len(request) > mostRequest {
		return fmt.Errorf("it is longer than %d bytes", mostRequest)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(request)))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the object")
	}
	return nil
}

// parseSimulation reads a request.
func parseSimulation(request string) (s simulation, err error) {
	bad := func(err error) (simulation, error) {
		return s, errorf(C.GOCCL_INVALID_ARGUMENT, "simulate: request: %v", err)
	}
	if err := parseRequest(request, &s); err != nil {
		return bad(err)
	}
	if s.Program != nil {
		if s.Collective != "" || s.Ranks != 0 {
			return bad(errors.New("collective and ranks are the program's, and must not be given beside it"))
		}
		var err error
		if s.program, err = formats.Read(s.Program); err != nil {
			return bad(err)
		}
		s.Ranks = s.program.Ranks
	}
	if s.Estimate && (s.Trace != "" || s.Goal != "") {
		return bad(errors.New("estimate is true, and there are neither a trace nor GOAL of formulas"))
	}
	if s.Trace != "" && s.Trace == s.Goal {
		return bad(fmt.Errorf("trace and goal are both %q; they must be two files", s.Goal))
	}
	if s.PerHost == 0 {
		s.PerHost = s.Ranks
	}
	if s.CPUs == 0 {
		s.CPUs = s.PerHost
	}
	if s.Transport == "" {
		s.Transport = "shm"
	}
	return s, nil
}

//export apiSimulate
func apiSimulate(request, json *C.char, size C.size_t, needed *C.size_t) C.goccl_result {
	return export("simulate", func() error {
		if err := needs(request, "simulate: request"); err != nil {
			return err
		}
		s, err := parseSimulation(text(request))
		if err != nil {
			return err
		}
		trace, goal := output{name: s.Trace}, output{name: s.Goal}
		what := core.Simulated{Question: tune.Question{Collective: s.Collective, Ranks: s.Ranks,
			Program: s.program, PerHost: s.PerHost, PerDomain: s.PerDomain, ByTurns: s.ByTurns,
			CPUs: s.CPUs, Bytes: s.Bytes}, Transport: s.Transport, Net: s.Net, Trace: trace.writer(),
			Goal: goal.writer()}
		if s.Estimate {
			found, err := process.Estimate(what)
			if err != nil {
				return err
			}
			return giveJSON("simulate", found, json, size, needed)
		}
		found, err := process.Simulate(what)
		if err = errors.Join(err, trace.close(), goal.close()); err != nil {
			return err
		}
		return giveJSON("simulate", found, json, size, needed)
	})
}

// output is a file that is made when something is written to it, so that a request which is refused
// leaves what there was.
type output struct {
	name string
	file *os.File
}

// writer is nil where the file has no name.
func (o *output) writer() io.Writer {
	if o.name == "" {
		return nil
	}
	return o
}

func (o *output) Write(text []byte) (n int, err error) {
	if o.file == nil {
		o.file, err = os.Create(o.name)
	}
	if err == nil {
		n, err = o.file.Write(text)
	}
	if err != nil {
		return n, fault.Errorf(fault.ErrSystem, "simulate: %v", err)
	}
	return n, nil
}

func (o *output) close() error {
	if o.file == nil {
		return nil
	}
	if err := o.file.Close(); err != nil {
		return fault.Errorf(fault.ErrSystem, "simulate: %v", err)
	}
	return nil
}
