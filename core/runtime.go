// Package core is communicators, works and operations, for the public package goccl and for the C
// ABI. It is internal: programs import goccl, and what is here may change with each commit.
//
// A [Runtime] is a process's end. [Runtime.Init] joins ranks into a [Comm]; [Comm.Start] starts a
// collective, a send or a receive, or several as one, and gives a [Work] to wait for. Every rank
// must start the same collectives in the same order; sends and receives are matched by peer and
// tag.
//
// Every work ends: done, timed out, aborted, with a mismatch, or because a peer failed; see the Err
// variables. After a collective has failed its communicator is broken, and each later call returns
// the first cause, until all ranks have called [Comm.Renew]. Results are bitwise the same on every
// run, transport and message size: values are combined in one order, the balanced binary tree over
// ranks.
package core

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/flight"
	"github.com/goccl/goccl/core/internal/interfaces"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/watch"
)

// RuntimeConfig says how a runtime meets its process.
type RuntimeConfig struct {
	Getenv  func(string) string     // default: os.Getenv
	Environ func() []string         // all of it, each as "name=value"; default: os.Environ
	OnFD    func(fd int, open bool) // told of each socket that opens or closes
	Logger  *slog.Logger            // default: records are discarded
	Verbs   string                  // the path of libibverbs; default: the system's
	// Notify tells of a signal; nil where the program has a handler; default: os/signal's.
	Notify func(syscall.Signal) <-chan os.Signal

	host   string // in tests: the name of the host that this process claims to be on
	unread bool   // in tests: no process can read this one's memory
}

// Runtime is a process's end of all its communicators. It starts nothing before the first Init.
type Runtime struct {
	config        RuntimeConfig
	environment   func() *config.Environment // read when it is asked for first
	mu            sync.Mutex
	life          context.Context    // until the next Close; guarded by mu
	endLife       context.CancelFunc // guarded by mu
	endpoints     endpoint.Pool
	comms         map[*Comm]bool // guarded by mu
	watch         *watch.Watch
	lingering     epoch.Lingering
	arenas        memory.Arenas
	images        memory.Images // copies of inputs: see package suspended
	tellVariables sync.Once
	warnOfStore   sync.Once
}

// NewRuntime makes a runtime.
func NewRuntime(c RuntimeConfig) *Runtime {
	if c.Getenv == nil {
		c.Getenv = os.Getenv
	}
	if c.Environ == nil {
		c.Environ = os.Environ
	}
	if c.Notify == nil {
		c.Notify = flight.Notify
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{config: c, endpoints: endpoint.Pool{Logger: c.Logger, OnFD: c.OnFD},
		comms:  map[*Comm]bool{},
		arenas: memory.Arenas{Logger: logs.For(c.Logger, logs.Mem)}}
	r.environment = sync.OnceValue(func() *config.Environment {
		return config.ReadEnvironment(c.Getenv)
	})
	r.watch = watch.New(watch.Config{Getenv: r.Getenv, Notify: c.Notify, OnFD: c.OnFD,
		Memory: r.memory, Logger: c.Logger})
	r.life, r.endLife = context.WithCancel(context.Background())
	return r
}

// Getenv is a setting that no field of a [Config] gives: what the environment has, or else a file
// of settings. The files are read once.
func (r *Runtime) Getenv(name string) string { return r.environment().Get(name) }

// errClosed is the cause of the end of a context: see Until.
var errClosed error = closed{}

type closed struct{}

func (closed) Error() string { return "all communicators of this process were ended" }

func (closed) Unwrap() error { return fault.ErrAborted }

// Until returns a context that also ends when the runtime is closed. Its cause is an [ErrAborted]
// then.
func (r *Runtime) Until(ctx context.Context) (context.Context, context.CancelFunc) {
	r.mu.Lock()
	life := r.life
	r.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// tellEnvironment logs what is wrong with the environment, and what is set in it.
func (r *Runtime) tellEnvironment() {
	log := r.log(logs.Env)
	for _, text := range r.environment().Warnings(r.config.Environ()) {
		log.Warn(text)
	}
	if !log.Enabled(context.Background(), logs.Info) {
		return
	}
	for _, v := range r.environment().Told() {
		if v.Source == config.SourceEnvironment {
			log.Info("an environment variable is set", "name", v.Name, "value", v.Value)
		} else {
			log.Info("a file sets a variable", "name", v.Name, "value", v.Value, "file", v.Source)
		}
	}
}

func (r *Runtime) log(s logs.Subsystem) *slog.Logger { return logs.For(r.config.Logger, s) }

// endpoint opens the endpoint for a configuration.
func (r *Runtime) endpoint(config config.Completed) (*endpoint.Endpoint, error) {
	end, err := r.endpoints.Open(endpoint.Key{Interface: config.Interface,
		StoreHost: config.StoreHost, Grace: config.LivenessGrace, Verbs: r.verbs(config)})
	if err != nil {
		return nil, listenError(err)
	}
	return end, nil
}

// listenError returns the error of a rank that cannot listen for its peers.
func listenError(err error) *fault.Error {
	kind := fault.ErrSystem
	if errors.As(err, new(*interfaces.Error)) {
		kind = fault.ErrInvalidArgument
	}
	return fault.From(err, kind, "init")
}

// forget drops a communicator that is destroyed, and gives its endpoint back.
func (r *Runtime) forget(c *Comm) {
	r.mu.Lock()
	delete(r.comms, c)
	r.mu.Unlock()
	r.watch.Remove(c.Trace())
	if c.shared.End != nil {
		c.shared.End.Leave()
	}
}

// Alloc returns shareable memory, aligned to 128 bytes, of undefined contents. Collectives on it
// work as on any other memory. They are faster where all ranks of a communicator share a host and
// all their buffers of a call are shareable. Over verbs they are faster, too: a rank reads
// another's shareable memory without a copy. A forked child shares the memory with its parent: each
// sees what the other writes.
func (r *Runtime) Alloc(bytes int64) (unsafe.Pointer, error) { return r.arenas.Alloc(bytes) }

// Free gives memory of Alloc back. No work may be using it; it may outlive every communicator.
func (r *Runtime) Free(p unsafe.Pointer) error { return r.arenas.Free(p) }

// Close destroys all communicators, and ends each Init and Join that waits, with ErrAborted. Nobody
// can ask for decisions of their members any more.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.endLife()
	r.life, r.endLife = context.WithCancel(context.Background())
	var all []*Comm
	for c := range r.comms {
		all = append(all, c)
	}
	r.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range all { // at once: each may wait for peers that cannot be told
		wg.Go(c.Destroy)
	}
	wg.Wait()
	r.lingering.Close()
}
