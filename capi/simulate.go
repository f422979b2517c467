package main

// #include "api.h"
import "C"

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/formats"
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
	// Program is one as a file has it, in place of Collective and Ranks.
	Program json.RawMessage `json:"program"`
	program *program.Checked
}

// mostRequest is the most bytes of a request, which may have a program.
const mostRequest = 64<<10 + program.MostText

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
		p, err := formats.Read(s.Program)
		if err == nil {
			s.program, err = program.Check(p)
		}
		if err != nil {
			return bad(err)
		}
		s.Ranks = p.Ranks
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
		found, err := process.Simulate(tune.Question{Collective: s.Collective, Ranks: s.Ranks,
			PerHost: s.PerHost, PerDomain: s.PerDomain, ByTurns: s.ByTurns, CPUs: s.CPUs,
			Bytes: s.Bytes}, s.Transport, s.Net, s.program)
		if err != nil {
			return err
		}
		return giveJSON("simulate", found, json, size, needed)
	})
}
