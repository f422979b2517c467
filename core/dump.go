package core

import (
	"time"

	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/flight"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/status"
)

// dumpTime is how long the end of a communicator waits for the flight recorder.
const dumpTime = 2 * time.Second

// Dump writes what the communicators of the process have done, for torchfrtrace: a file a rank,
// whose name is the prefix and the rank in the job. It waits for no collective. An error tells why
// a file is not written, or that a dump is being written already.
func (r *Runtime) Dump(prefix string) error {
	switch {
	case prefix == "":
		return fault.Errorf(fault.ErrInvalidArgument, "dump: prefix is empty, it must begin the names "+
			"of files, such as \"/tmp/goccl_rank_\"")
	case len(r.traces.All()) == 0:
		return fault.Errorf(fault.ErrInvalidArgument, "dump: this process has no communicator")
	}
	if _, err := r.recorder.Dump(prefix); err != nil {
		return fault.Errorf(fault.ErrSystem, "dump: %v", err)
	}
	return nil
}

// record has the recorder and `goccl ps` tell of a communicator, which is made, until it is
// destroyed.
func (r *Runtime) record(c *Comm) {
	t := c.shared.FastPath.Trace()
	r.traces.Add(t)
	r.shown.Add(status.Source{Trace: t, Peers: c.shared.Peers}, r.log(logs.Init))
	r.recorder.Listen(flight.Signal{Name: r.config.Getenv(config.EnvDumpSignal),
		Prefix: r.config.Getenv(config.EnvDump), Notify: r.config.Notify}, r.log(logs.Env))
}

// Failed implements epoch.Owner.
func (o owner) Failed() {
	if prefix := o.c.runtime.config.Getenv(config.EnvDump); prefix != "" {
		o.c.runtime.recorder.Failed(prefix, o.c.runtime.log(logs.Init))
	}
}
