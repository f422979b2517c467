package core

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
)

// A failure and what follows are counted on each rank, and what ends in good order is none.
func TestFailuresAreCounted(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 2, time.Minute)
			renew := func() {
				t.Helper()
				w.each(func(rank int) error { return w.comms[rank].Renew(soon(t)) })
			}
			check := func(when string, failures, recoveries uint64) {
				t.Helper()
				for rank, c := range w.comms {
					sums := c.shared.FastPath.Trace().Counters()
					if sums.Failures["aborted"] != failures || len(sums.Failures) != int(failures) ||
						sums.Recoveries != recoveries {
						t.Errorf("%s on rank %d: %v, %d recoveries", when, rank, sums.Failures, sums.Recoveries)
					}
				}
			}
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 8)) })
			renew()
			check("after a good end", 0, 0)
			w.comms[0].Abort("to be counted")
			polltest.Until(t, "rank 1 has failed", func() bool { return w.comms[1].Err() != nil })
			check("after a failure", 1, 0)
			renew()
			check("after a recovery", 1, 1)
			w.each(func(rank int) error { return w.comms[rank].SideStep(plan.Reduce, "gloo") })
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 8)) })
			sums := w.comms[1].shared.FastPath.Trace().Counters()
			n := uint64(0)
			for i := range sums.Calls {
				if c := &sums.Calls[i]; c.Collective == plan.AllReduce {
					n += c.Operations()
				}
			}
			if n != 2 || sums.SideSteps["gloo"] != 1 {
				t.Errorf("%+v", sums)
			}
		})
	}
}

// The flight recorder writes at a failure, and not where an epoch ends in good order.
func TestDumpIsOfFailures(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "rank_")
	r := NewRuntime(RuntimeConfig{Getenv: func(name string) string {
		return map[string]string{config.EnvDump: prefix}[name]
	}})
	defer r.Close()
	for _, fails := range []bool{false, true} {
		c, err := r.Init(t.Context(), Config{Size: 1})
		if err != nil {
			t.Fatal(err)
		}
		if fails {
			c.Abort("to be recorded")
		} else if err := c.Renew(soon(t)); err != nil {
			t.Fatal(err)
		}
		c.Destroy() // it waits for the file
		if _, err := os.Stat(prefix + "0"); (err == nil) != fails {
			t.Errorf("fails: %v, and the file: %v", fails, err)
		}
	}
}

// The metrics of a process are told from its first communicator to its last, and count on after it.
func TestMetricsAreTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "goccl.prom")
	r := NewRuntime(RuntimeConfig{Getenv: func(name string) string {
		return map[string]string{config.EnvMetricsFile: path}[name]
	}})
	defer r.Close()
	for life := range 2 {
		c, err := r.Init(t.Context(), Config{Size: 1, GroupName: "told"})
		if err != nil {
			t.Fatal(err)
		}
		polltest.Until(t, "there is a file", func() bool {
			b, err := os.ReadFile(path)
			return err == nil && strings.HasSuffix(string(b), "# EOF\n")
		})
		if err := run(c, allReduce(t, 8)); err != nil {
			t.Fatal(err)
		}
		c.Destroy()
		if _, err := os.Stat(path); err == nil {
			t.Error("there is a file after the end")
		}
		s := r.Stats()
		if len(s.Operations) != 1 || s.Operations[0].Operations != uint64(life+1) ||
			s.Operations[0].Bytes != uint64(32*(life+1)) || s.Groups != 0 || s.Version != Version {
			t.Errorf("after life %d: %+v", life, s)
		}
	}
}

// A port that cannot be is refused.
func TestMetricsAreRefused(t *testing.T) {
	r := NewRuntime(RuntimeConfig{Getenv: func(name string) string {
		return map[string]string{config.EnvMetricsPort: "http"}[name]
	}})
	defer r.Close()
	const want = `(from GOCCL_METRICS_PORT) is "http", allowed are`
	if _, err := r.Init(t.Context(), Config{Size: 1}); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}
