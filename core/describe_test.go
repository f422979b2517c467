package core

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDescribe(t *testing.T) {
	env := map[string]string{EnvNet: "tcp", EnvSecret: "pssst", EnvThresholds: "flat_max=4096"}
	r := NewRuntime(RuntimeConfig{Getenv: func(name string) string { return env[name] }})
	c, err := r.Init(context.Background(), Config{Size: 1, GroupName: "g", GlobalRanks: []int{7},
		Timeout: 5 * time.Second, AllToAllSchedule: "window=02"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Destroy()
	d := c.Describe()
	if d.Name != "g" || d.Size != 1 || !slices.Equal(d.GlobalRanks, []int{7}) ||
		!slices.Equal(d.Transports, []string{"self"}) ||
		len(d.Hosts) != 1 || d.Hosts[0] == "" || d.Schedule != "window=2" || d.TimeoutMS != 5000 ||
		d.LivenessGraceMS != 10_000 || d.Thresholds["flat_max"] != 4096 {
		t.Errorf("%+v", d)
	}
	if got := d.Settings[EnvNet]; got.Value != "tcp" || got.Source != SourceEnvironment {
		t.Errorf("%+v", d.Settings)
	}
	text, err := json.Marshal(d)
	if err != nil || strings.Contains(string(text), "pssst") {
		t.Errorf("%s, %v", text, err)
	}
}

// A description tells of every rank, and that of a split is of the split.
func TestDescribeRanks(t *testing.T) {
	for tr, why := range map[string]string{"mem": "they are threads of one process",
		"shm": `"shm" is demanded`, "tcp": `"tcp" is demanded`} {
		w := newWorld(t, tr, 3, time.Minute)
		check := func(c *Comm, globalRanks []int) error {
			d := c.Describe()
			for rank, kind := range d.Transports {
				want, reason := tr, why
				if rank == c.Rank() {
					want, reason = "self", ""
				}
				if kind != want || d.Reasons[rank] != reason {
					return fmt.Errorf("rank %d: %q because %q", rank, kind, d.Reasons[rank])
				}
			}
			if d.Size != c.Size() || d.Rank != c.Rank() || !slices.Equal(d.GlobalRanks, globalRanks) ||
				d.Interface == "" || len(d.Addresses) == 0 || d.Congestion == "" ||
				d.Settings[EnvSchedule].Source != SourceDefault {
				return fmt.Errorf("%+v", d)
			}
			return nil
		}
		w.each(func(rank int) error {
			if err := check(w.comms[rank], []int{0, 1, 2}); err != nil {
				return err
			}
			child, err := w.comms[rank].Split(context.Background(), min(rank, 1), -rank)
			if err != nil || rank == 0 {
				return err
			}
			defer child.Destroy()
			return check(child, []int{2, 1})
		})
	}
}
