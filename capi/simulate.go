package main

// #include "api.h"
import "C"

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

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
}

// mostRequest is the most bytes of a request.
const mostRequest = 64 << 10

// parseSimulation reads a request.
func parseSimulation(request string) (s simulation, err error) {
	bad := func(err error) (simulation, error) {
		return s, errorf(C.GOCCL_INVALID_ARGUMENT, "simulate: request: %v", err)
	}
	if len(request) > mostRequest {
		return bad(errors.New("it is longer than 64 KiB"))
	}
	d := json.NewDecoder(bytes.NewReader([]byte(request)))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return bad(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return bad(errors.New("something follows the object"))
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
			Bytes: s.Bytes}, s.Transport, s.Net)
		if err != nil {
			return err
		}
		return giveJSON("simulate", found, json, size, needed)
	})
}
