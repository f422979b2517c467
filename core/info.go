package core

import (
	"runtime"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/cpus"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
)

// Info describes this host for people: the version, and of each transport whether it can be used,
// and if not why and what to do. It opens what a communicator would, and closes it again.
// "settings" are what the environment and files set. "problems" are all for which Init would refuse
// that, and "warnings" is what Init would log of it. "variables" are the names that it reads there.
func (r *Runtime) Info() map[string]any {
	transports := map[string]any{}
	completed, _ := Config{Size: 1}.Complete(r.environment())
	problems := append([]string{}, completed.Problems...)
	note := func(problem string) {
		if problem != "" && !slices.Contains(problems, problem) {
			problems = append(problems, problem)
		}
	}
	listen := transport.Config{Interface: completed.Interface,
		StoreHost: r.config.Getenv("MASTER_ADDR"),
		Grace:     DefaultLivenessGrace, Verbs: r.verbs(completed), OnFD: r.config.OnFD}
	problem, err := transport.Check(listen, completed.Transport)
	if err == nil {
		note(problem)
	}
	end, err := transport.Listen(listen)
	if err != nil {
		note(err.Error())
		transports["tcp"] = map[string]any{"usable": false, "problem": err.Error()}
		for _, name := range []string{"shm", "verbs"} {
			transports[name] = map[string]any{"usable": false,
				"problem": "no endpoint could be opened: see tcp"}
		}
	} else {
		a := end.Address()
		verbs := map[string]any{"usable": a.Verbs != "", "problem": a.VerbsProblem}
		if p, ok := end.RDMAPort(); ok {
			verbs["network"], verbs["device"], verbs["port"], verbs["interface"] = a.Verbs, p.Device, p.Port,
				p.NetDev
			verbs["gid_index"], verbs["why"] = p.GIDIndex, p.Why
		}
		transports["verbs"] = verbs
		transports["tcp"] = map[string]any{"usable": true, "address": a.TCP}
		shm := map[string]any{"usable": a.ShmProblem == "", "problem": a.ShmProblem}
		if a.ShmProblem == "" {
			shm["long_blocks"] = longBlocks()
		}
		transports["shm"], transports["mem"] = shm, shm
		_ = end.Close() // there is nobody to tell
	}
	domains := []string{}
	for _, domain := range cpus.Domains(cpus.Sysfs) {
		domains = append(domains, domain.String())
	}
	return map[string]any{"version": Version, "go": runtime.Version(), "cpus": cpus.Usable(),
		"domains": domains, "domain": cpus.Domain(cpus.Sysfs, cpus.Allowed()).String(),
		"problems": problems, "warnings": r.environment().Warnings(r.config.Environ()),
		"variables": config.Variables(), "settings": r.environment().Told(), "transports": transports}
}

// longBlocks says how the longest blocks get from one rank's memory to another's, and what to do
// where there is a better way.
func longBlocks() string {
	if problem := exec.GetProblem(); problem != "" {
		return "are copied twice, through shared memory, for ranks cannot read each other's memory: " +
			problem
	}
	const once = "are copied once, straight from one rank's memory to another's, instead of twice " +
		"through shared memory"
	switch tune.ReadsAt(exec.ReadCost()) {
	case tune.SlowReads:
		return "are copied twice, through shared memory, which has been measured to be faster than to " +
			"read them once; huge pages may change that: echo always > " + exec.HugePagesFile
	case tune.FastReads:
		return once + "; but those of sends between ranks that have a CPU each are copied twice, by " +
			"both ranks at once, which has been measured to be faster"
	}
	return once
}

// AllToAllPeaks proves the plans of an all-to-all among so many ranks of this host, joined by
// "shm", "tcp" or "verbs", in which each sends so many bytes to each. It returns the most that one
// rank may have under way at once.
func AllToAllPeaks(ranks int, by, schedule string, bytes uint64) (plan.Peaks, error) {
	if err := checkTransport("alltoall_peaks", by); err != nil {
		return plan.Peaks{}, err
	}
	return tune.AllToAllPeaks(ranks, cpus.Usable(), address.IsPort(by), schedule, bytes)
}

// PlanInfo explains how the ranks of a group would run a collective, with the settings of the
// environment, on hosts with CPUs as this one. "shm", "tcp" or "verbs" joins the ranks; the
// question need not say it. Nothing is run.
func (r *Runtime) PlanInfo(q tune.Question, by string) (*tune.Explanation, error) {
	o, err := r.imagine("plan_info", &q, by)
	if err != nil {
		return nil, err
	}
	return tune.Explain(q, o)
}

// Builtin returns the program of a collective as it would go: with a root if it has one, and by an
// algorithm that is named as GOCCL_ALGO does, or if it is "" by the one that PlanInfo tells.
func (r *Runtime) Builtin(
	q tune.Question, by, algorithm string, root int,
) (*program.Program, error) {
	bad := func(format string, args ...any) (*program.Program, error) {
		return nil, fault.Errorf(fault.ErrInvalidArgument, "program_builtin: "+format, args...)
	}
	o, err := r.imagine("program_builtin", &q, by)
	if err != nil {
		return nil, err
	}
	if algorithm != "" {
		o.Algorithms = q.Collective + ":" + algorithm
	}
	g, err := tune.NewGroup("program_builtin", q, o)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(algorithm, "(")
	if by := g.Algorithm().String(); algorithm != "" && name != by {
		return bad("algorithm is %q; this would go by %s, whatever is named", algorithm, by)
	}
	var params plan.Params
	if _, err := g.Plans(0, func(p plan.Params) (*plan.Plan, error) {
		params = p
		return nil, nil
	}); err != nil {
		return nil, err
	}
	if root != 0 && (!params.Collective.Rooted() || root < 0 || root >= q.Ranks) {
		return bad("root is %d; it must be in 0..%d of a rooted collective, else 0", root, q.Ranks-1)
	}
	params.Root = root
	c, err := program.Export(g.Algorithm().String(), params)
	if err != nil {
		return bad("%v", err)
	}
	p := c.Program // what is checked never changes
	if q.PerHost < q.Ranks && !q.ByTurns {
		p.PerHost = q.PerHost
	}
	return &p, nil
}

// imagine completes a question about a group that need not exist, and returns what else its shape
// depends on: the settings of the environment, and the CPUs of this host where none are given.
func (r *Runtime) imagine(
	function string, q *tune.Question, by string,
) (o tune.Options, err error) {
	if err := checkTransport(function, by); err != nil {
		return o, err
	}
	completed, err := Config{Size: 1}.Complete(r.environment())
	if err != nil {
		return o, err
	}
	if q.CPUs == 0 {
		q.CPUs = cpus.Usable()
	}
	q.Ports = address.IsPort(by)
	q.RDMA = by == address.Verbs || completed.Net == address.Verbs
	return epoch.TuneOptions(&completed.Config), nil
}

// checkTransport refuses what does not join ranks of a host that are only thought of.
func checkTransport(function, by string) error {
	if by == address.Shm || address.IsPort(by) {
		return nil
	}
	return fault.Errorf(fault.ErrInvalidArgument, "%s: transport is %q, allowed are %q, %q and %q",
		function, by, address.Shm, address.TCP, address.Verbs)
}

// MemoryStats tells what adapters do with this process's shareable memory, in bytes.
type MemoryStats struct {
	Registered int64 // what they have access to now, windows of communicators included
	// since the process began: what peers have read there by themselves, and what was read so of
	// peers'
	Given, Taken int64
}

// MemoryStats may be called at any time, by any goroutine.
func (r *Runtime) MemoryStats() MemoryStats {
	known := &r.arenas.Devices
	return MemoryStats{Registered: known.Registered(), Given: known.Given.Load(),
		Taken: known.Taken.Load()}
}
