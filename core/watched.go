package core

import (
	"github.com/goccl/goccl/core/metrics"
	"github.com/goccl/goccl/core/status"
	"github.com/goccl/goccl/core/trace"
)

// Dump writes what the communicators of the process have done, for torchfrtrace: a file a rank,
// whose name is the prefix and the rank in the job. It waits for no collective. An error tells why
// a file is not written, or that a dump is being written already.
func (r *Runtime) Dump(prefix string) error { return r.watch.Dump(prefix) }

// Stats is what the communicators of the process have done, as numbers. It may be called at any
// time, by any goroutine, and waits for no collective.
func (r *Runtime) Stats() Stats { return r.watch.Stats() }

// Status tells what the communicators of the process do. It waits for nothing.
func (r *Runtime) Status() status.Process { return r.watch.Status() }

// Failed implements epoch.Owner.
func (o owner) Failed() { o.c.runtime.watch.Failed() }

// memory is what adapters do with the process's shareable memory.
func (r *Runtime) memory() metrics.Memory {
	m := r.MemoryStats()
	return metrics.Memory{RegisteredBytes: m.Registered, ReadByPeersBytes: m.Given,
		ReadFromPeersBytes: m.Taken}
}

// Trace is what the communicator has done and does.
func (c *Comm) Trace() *trace.Trace { return c.shared.FastPath.Trace() }
