package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/tune"
)

// journal keeps the records of a world.
type journal struct {
	mu  sync.Mutex
	all []logs.Record // guarded by mu
}

func (j *journal) logger(level slog.Level) *slog.Logger {
	return logtest.Logger(level, func(r logs.Record) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.all = append(j.all, r)
	})
}

// of is the texts of a subsystem's records of a rank.
func (j *journal) of(s logs.Subsystem, rank int) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var texts []string
	for _, r := range j.all {
		if r.Subsystem == s && r.InGroup && r.Rank == rank {
			texts = append(texts, r.Text)
		}
	}
	return texts
}

// A group tells why TCP joins ranks that cannot share their host's memory.
func TestTCPInPlaceOfMemoryIsLogged(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	limit := func(bytes uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: old.Max}); err != nil {
			t.Fatal(err)
		}
	}
	var j journal
	limit(32 << 20) // less than windows need, and more than the log of the tests
	_, errs := tryWorld(t, 2, func(_ int, r *RuntimeConfig, _ *Config) {
		r.Logger = j.logger(logs.Info)
	})
	limit(old.Cur)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	const want = "the limit on the file size, which holds for memfds too, is 33554432 bytes; raise it"
	for rank := range 2 {
		texts := strings.Join(j.of(logs.Init, rank), "\n")
		if !strings.Contains(texts, "tcp (they cannot share memory: ") ||
			!strings.Contains(texts, want) {
			t.Errorf("rank %d: %s", rank, texts)
		}
	}
}

func TestGroupIsLogged(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for kind, why := range map[string]string{
		"mem": "mem (they are threads of one process)", "shm": "shm (\"shm\" is demanded)",
		"tcp": "tcp (\"tcp\" is demanded)",
	} {
		t.Run(kind, func(t *testing.T) {
			var j journal
			w := newWorldWith(t, RuntimeConfig{Logger: j.logger(logs.Info)}, kind, 3,
				Config{Timeout: time.Minute, AllToAllSchedule: "window=2", GlobalRanks: []int{4, 5, 9}})
			w.close()
			congestion := ""
			if kind == "tcp" {
				congestion = `congestion=\w+ `
			}
			others := []string{"1-2", "0,2", "0-1"}
			for rank := range 3 {
				made := regexp.MustCompile(`^a group is made size=3 hosts="` + host +
					`: 0-2" global_ranks=4-5,9 ` +
					`transports="` + regexp.QuoteMeta(strings.ReplaceAll(why, `"`, `\"`)) + `: ` + others[rank] +
					`" interface=\S+ address=\S+:\d+ ` +
					`(rdma=\S+ )?` + congestion +
					`oversubscribed=(true|false) alltoall_schedule="window=2" algorithms=any ` +
					`thresholds="direct_min=\d+,.*,window_min=\d+" version=` + Version + `$`)
				said := j.of(logs.Init, rank)
				if !made.MatchString(said[0]) || said[len(said)-1] != "the group is destroyed collectives=0" {
					t.Errorf("rank %d: %q", rank, said)
				}
				// What else there may be is that others were destroyed before it.
				for _, text := range said[1 : len(said)-1] {
					if !strings.HasPrefix(text, "a peer is gone peer=") {
						t.Errorf("rank %d: %q", rank, text)
					}
				}
			}
		})
	}
}

// What a better numbering would gain is told where there is one.
func TestNumberingIsLogged(t *testing.T) {
	at := func(hosts string) (all []tune.Place) {
		for _, host := range hosts {
			all = append(all, tune.Place{Host: string(host)})
		}
		return all
	}
	for hosts, want := range map[string]string{
		"aabb": "", "aaaa": "", "ab": "", "aaaabbb": "",
		"abcabc": "host by host, sums would go between hosts 1/2 as often: for each 2 ranks, " +
			"not for each 1",
		"abab": "host by host, sums would go between hosts 1/2 as often: for each 2 ranks, " +
			"not for each 1",
		"aabbaabb": "host by host, sums would go between hosts 1/2 as often: for each 4 ranks, " +
			"not for each 2",
	} {
		places := at(hosts)
		topology := tune.Survey(places)
		if got := numbering(&topology); got != want {
			t.Errorf("%s: %q, want %q", hosts, got, want)
		}
	}
}

// A rank tells of each host, and of each kind of pair, once.
func TestHostsAreLogged(t *testing.T) {
	e := &epoch.Epoch{Roster: roster.Roster{Rank: 1, Peers: make(roster.Peers, 5)}}
	for rank, host := range []string{"a", "a", "b", "b", "c"} {
		e.Peers[rank].Host = host
	}
	d := &Description{Hosts: []string{"a", "a", "b", "b", "b"},
		Transports: []string{"shm", "self", "tcp", "tcp", "verbs"},
		Reasons: []string{"one host", "", "two hosts: b, pid 7: no device",
			"two hosts: b, pid 8: no device", "ports"}}
	if got, want := hosts(&e.Roster, d), "a: 0-1; b: 2-3; b: 4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := domains(e, d); got != "" {
		t.Errorf("of one domain: %q", got)
	}
	e.Shape().Domain = 2
	for rank, domain := range []int{1, 1, 9, 9, 0} {
		e.Peers[rank].Domain = domain
	}
	if got, want := domains(e, d), "a, CPU 0: 0-1; b, CPU 8: 2-3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	want := "shm (one host): 0; tcp (two hosts: b, pid 7: no device): 2-3; verbs (ports): 4"
	if got := joinedBy(&e.Roster, d); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFailureIsLogged(t *testing.T) {
	var j journal
	w := newWorldWith(t, RuntimeConfig{Logger: j.logger(logs.Info)}, "tcp", 2,
		Config{Timeout: time.Minute})
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
	w.comms[0].Abort("enough")
	if err := run(w.comms[1], allReduce(t, 10)); err == nil {
		t.Error("nothing has failed")
	}
	for rank := range 2 {
		<-*private[chan struct{}](w.comms[rank], "stopped") // works may end before the failure is logged
		if said := j.of(logs.Init, rank); len(said) < 2 ||
			!strings.HasPrefix(said[1], "the group has failed cause=") ||
			!strings.Contains(said[1], "enough") {
			t.Errorf("rank %d: %q", rank, said)
		}
	}
}

func TestCallsAreTraced(t *testing.T) {
	for _, kind := range []string{"shm", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			var j journal
			w := newWorldWith(t, RuntimeConfig{Logger: j.logger(logs.Trace)}, kind, 2,
				Config{Timeout: time.Minute})
			for range 3 { // in Go
				w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
			}
			w.each(func(rank int) error {
				op := Operation{Collective: plan.Send, Root: 1 - rank, Tag: 7, DType: reduce.Int64,
					InCounts: []uint64{0}}
				if rank == 1 {
					op.Collective, op.InCounts, op.OutCounts = plan.Recv, nil, []uint64{0}
				}
				op.In, op.Out = make([]unsafe.Pointer, len(op.InCounts)),
					make([]unsafe.Pointer, len(op.OutCounts))
				return run(w.comms[rank], op)
			})
			w.close()
			var want []string
			for _, n := range []string{"1", "2", "3"} {
				want = append(want, "allreduce(int32, 10 elements, SUM) starts sequence="+n+" bytes=40",
					"allreduce(int32, 10 elements, SUM) ends sequence="+n+" algorithm=one_shot")
			}
			for rank := range 2 {
				if said := j.of(logs.Coll, rank); !slices.Equal(said, want) {
					t.Errorf("rank %d: %q, want %q", rank, said, want)
				}
				said := j.of(logs.P2P, rank)
				if len(said) != 2 || !strings.Contains(said[0], "of 0 bytes with tag 7") ||
					!strings.HasSuffix(said[0], " starts") || !strings.HasSuffix(said[1], " ends") {
					t.Errorf("rank %d: %q", rank, said)
				}
				if said := j.of(logs.Bootstrap, rank); len(said) != 2 {
					t.Errorf("rank %d: %q", rank, said)
				}
			}
			var made, closed int
			for _, r := range j.all {
				made += strings.Count(r.Text, "a link is made kind="+kind)
				closed += strings.Count(r.Text, "a link is closed kind="+kind)
			}
			if made == 0 || closed != made {
				t.Errorf("%d links were made, %d closed", made, closed)
			}
		})
	}
}

// To look at collectives does not change how they run: the fast path is open.
func TestFastPathIsOpenWhileTraced(t *testing.T) {
	for _, level := range []slog.Level{logs.Warn, logs.Info, logs.Trace} {
		var j journal
		w := newWorldWith(t, RuntimeConfig{Logger: j.logger(level)}, "mem", 2,
			Config{Timeout: time.Minute})
		w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
		for rank, c := range w.comms {
			if !fastPathIsOpen(c) {
				t.Errorf("level %v, rank %d: the fast path is shut", level, rank)
			}
		}
	}
}

// What has run by the fast path is logged soon, in its order, before what is called next, and at
// the end. Of what is noted no more the number is logged.
func TestFastPathIsTraced(t *testing.T) {
	var j journal
	w := newWorldWith(t, RuntimeConfig{Logger: j.logger(logs.Trace)}, "mem", 1,
		Config{Timeout: time.Minute})
	c := w.comms[0]
	op := allReduce(t, 10)
	inC := func(n int) { // as the fast path notes it
		defer lockOrder(c)()
		for range n {
			m := op.Message()
			c.shared.FastPath.Append(&m, trace.Queued)
			c.Trace().End(&m, trace.Ending{State: trace.Ended, Algorithm: plan.OneShot})
		}
	}
	ran := func(n int) string {
		return fmt.Sprintf("allreduce(int32, 10 elements, SUM) has run by the fast path sequence=%d "+
			"algorithm=one_shot", n)
	}
	said := func() []string {
		return slices.DeleteFunc(j.of(logs.Coll, 0), func(s string) bool {
			return !strings.Contains(s, "fast path") && !strings.Contains(s, "starts")
		})
	}
	inC(2)
	polltest.Until(t, "they are logged", func() bool { return len(said()) == 2 })
	inC(1)
	if err := run(c, op); err != nil {
		t.Fatal(err)
	}
	inC(trace.Collectives + 36)
	w.close()
	want := []string{ran(1), ran(2), ran(3),
		"allreduce(int32, 10 elements, SUM) starts sequence=4 bytes=40",
		"earlier collectives ran by the fast path, too collectives=36"}
	for n := 41; n < 41+trace.Collectives; n++ {
		want = append(want, ran(n))
	}
	if got := said(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAloneIsLogged(t *testing.T) {
	var j journal
	r := NewRuntime(RuntimeConfig{Logger: j.logger(logs.Info)})
	c, err := r.Init(context.Background(), Config{Size: 1, GroupName: "me"})
	if err != nil {
		t.Fatal(err)
	}
	c.Destroy()
	if said := j.of(logs.Init, 0); len(said) != 2 ||
		!strings.HasPrefix(said[0], "a group is made size=1 hosts=") {
		t.Errorf("%q", said)
	}
}
