package flight

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/internal/pickle"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/trace"
)

// get is the value of a key.
func get(t *testing.T, d pickle.Dict, key string) any {
	t.Helper()
	for i := 0; i < len(d); i += 2 {
		if d[i] == key {
			return d[i+1]
		}
	}
	t.Fatalf("no %s in %v", key, d)
	return nil
}

// columns are some values of each entry.
func columns(t *testing.T, d *dump, keys ...string) (rows [][]any) {
	t.Helper()
	for _, e := range d.value("1")[9].(pickle.List) {
		var row []any
		for _, key := range keys {
			row = append(row, get(t, e.(pickle.Dict), key))
		}
		rows = append(rows, row)
	}
	return rows
}

func dumpOf(s Source) *dump {
	d := &dump{known: map[string]bool{}}
	d.add(&s)
	return d
}

func digest(counts ...uint64) uint64 { return call.Digest(counts) }

func TestShapes(t *testing.T) {
	n := func(n uint64) pickle.List { return pickle.List{pickle.List{n}} }
	none := pickle.List{}
	for _, test := range []struct {
		what    plan.Message
		bytes   uint64
		title   string
		in, out pickle.List
	}{
		{plan.Message{Collective: uint8(plan.AllReduce), Count: 6}, 24, "all_reduce", n(6), n(6)},
		{plan.Message{Collective: uint8(plan.Broadcast), Count: 6}, 24, "broadcast", n(6), n(6)},
		{plan.Message{Collective: uint8(plan.AllGather), Count: 6, Digest: digest(2, 2, 2)}, 24,
			"_all_gather_base", n(2), n(6)},
		{plan.Message{Collective: uint8(plan.AllGather), Count: 6, Digest: digest(1, 2, 3)}, 24,
			"all_gather_v", n(6), n(6)},
		{plan.Message{Collective: uint8(plan.ReduceScatter), Count: 6, Digest: digest(2, 2, 2)}, 24,
			"_reduce_scatter_base", n(6), n(2)},
		{plan.Message{Collective: uint8(plan.ReduceScatter), Count: 7, Digest: digest(2, 2, 3)}, 28,
			"reduce_scatter_v", n(7), n(7)},
		{plan.Message{Collective: uint8(plan.Gather), Count: 6, Root: 1, Digest: digest(2, 2, 2)}, 24,
			"gather", n(2), n(6)},
		{plan.Message{Collective: uint8(plan.Gather), Count: 6, Digest: digest(2, 2, 2)}, 24,
			"gather", n(2), none},
		{plan.Message{Collective: uint8(plan.Scatter), Count: 6, Digest: digest(2, 2, 2)}, 24,
			"scatter", none, n(2)},
		{plan.Message{Collective: uint8(plan.AllToAll)}, 40, "all_to_all", n(10), n(10)},
		{plan.Message{Collective: uint8(plan.Barrier)}, 0, "barrier", none, none},
		{call.SideStep(plan.AllReduce, "gloo"), 0, "all_reduce", none, none},
		{call.SideStep(plan.AllGather, "gloo"), 0, "_all_gather_base", none, none},
		{plan.Message{Collective: uint8(plan.MonitoredBarrier)}, 0, "barrier", none, none},
		{plan.Message{Collective: uint8(plan.Split), Count: 3}, 24, "split", none, none},
		{plan.Message{Collective: uint8(plan.Custom), Count: 6}, 24, "barrier", n(6), n(6)},
	} {
		if !call.IsSideStep(&test.what) {
			test.what.DType = uint8(reduce.Float32)
		}
		title, in, out := shape(&trace.Record{Message: test.what, Bytes: test.bytes}, 1, 3)
		if got, want := pickle.Marshal(pickle.List{title, in, out}),
			pickle.Marshal(pickle.List{test.title, test.in, test.out}); string(got) != string(want) {
			t.Errorf("%v: %s %v %v, want %s %v %v", test.what, title, in, out, test.title, test.in,
				test.out)
		}
	}
}

func message(number uint64, c plan.Collective, peer int, s trace.State) trace.Record {
	return trace.Record{Message: plan.Message{Collective: uint8(c), Root: int32(peer),
		DType: uint8(reduce.Float32), Count: 1, Sequence: number}, Number: number, State: s,
		Created: number, Peer: -1}
}

// What one rank sends to another has the numbers that it has where it is received.
func TestMessagesOfPairs(t *testing.T) {
	sender := Source{Groups: []trace.Group{{Name: "g", Rank: 2, Ranks: []int{5, 6, 7}}},
		Messages: []trace.Record{message(1, plan.Send, 0, trace.Ended),
			message(2, plan.Send, 1, trace.Ended), message(3, plan.Recv, 0, trace.Ended),
			message(4, plan.Send, 0, trace.Queued), message(5, plan.Send, 2, trace.Ended),
			message(6, plan.Recv, -1, trace.Queued)}}
	receiver := Source{Groups: []trace.Group{{Name: "g", Rank: 0, Ranks: []int{5, 6, 7}}},
		Messages: []trace.Record{message(1, plan.Recv, 2, trace.Ended),
			message(2, plan.Recv, 2, trace.Begun), message(3, plan.Send, 2, trace.Ended)}}
	receiver.Messages[1].Begun = 3
	keys := []string{"collective_seq_id", "profiling_name", "state", "peer"}
	for _, test := range []struct {
		source Source
		want   [][]any
	}{
		{sender, [][]any{{3, "goccl:send 1->0", "completed", 5}, {3, "goccl:send 1->0", "completed", 6},
			{2, "goccl:recv 1<-0", "completed", 5}, {5, "goccl:send 1->0", "scheduled", 5}}},
		{receiver, [][]any{{3, "goccl:recv 0<-1", "completed", 7}, {5, "goccl:recv 0<-1", "started", 7},
			{2, "goccl:send 0->1", "completed", 7}}},
	} {
		if got := columns(t, dumpOf(test.source), keys...); !slices.EqualFunc(got, test.want,
			slices.Equal[[]any]) {
			t.Errorf("%v, want %v", got, test.want)
		}
	}
	d := dumpOf(sender)
	if got := get(t, get(t, d.groups, "g:0-2").(pickle.Dict), "ranks"); got != "[5, 7]" {
		t.Errorf("the pair is of %v", got)
	}
	sender.Messages = sender.Messages[1:] // the first is kept no more
	if got := columns(t, dumpOf(sender), "state"); len(got) != 1 || got[0][0] != "scheduled" {
		t.Errorf("of a ring that has lost some: %v", got)
	}
}

// Each epoch is a group, one that was refused is no call, and numbers go on from what is lost.
func TestEpochsAreGroups(t *testing.T) {
	collective := func(epoch uint32, number uint64, s trace.State) trace.Record {
		return trace.Record{Message: plan.Message{Epoch: epoch, Sequence: number, Count: 1,
			DType: uint8(reduce.Float32)}, Number: number, State: s,
			Created: uint64(epoch)*100 + number, Peer: 1}
	}
	d := dumpOf(Source{Groups: []trace.Group{
		{ID: 2, Name: "g", Ranks: []int{0, 1, 2}, Failed: "rank 2 died"},
		{ID: 3, Name: "g", Epoch: 1, Ranks: []int{0, 1}}},
		Collectives: []trace.Record{collective(0, 10, trace.Ended), collective(0, 11, trace.Failed),
			collective(1, 1, trace.Refused), collective(1, 20, trace.Begun)}})
	got := columns(t, d, "record_id", "collective_seq_id", "epoch", "goccl_state", "waits_for")
	want := [][]any{{uint64(27), uint64(10), 0, "ended", 1},
		{uint64(28), uint64(11), 0, "failed", 1}, {uint64(29), uint64(20), 1, "begun", 1}}
	if !slices.EqualFunc(got, want, slices.Equal[[]any]) {
		t.Errorf("%v, want %v", got, want)
	}
	if why := get(t, get(t, d.states, "g").(pickle.Dict), "failed"); why != "rank 2 died" {
		t.Errorf("it has failed because %v", why)
	}
	get(t, d.groups, "g@1")
}

// Files are by ranks in the job, and replaced as a whole.
func TestRecorder(t *testing.T) {
	var registry trace.Registry
	r := Recorder{Traces: &registry, Library: "1"}
	for rank := range 2 {
		traced, err := trace.New()
		if err != nil {
			t.Fatal(err)
		}
		traced.Enter(trace.Group{Name: "g", Rank: rank, Ranks: []int{7, 8}}, nil)
		registry.Add(traced, "g")
	}
	folder := t.TempDir()
	for range 2 {
		if _, err := r.Dump(filepath.Join(folder, "rank_")); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(folder)
	if err != nil || len(files) != 2 || files[0].Name() != "rank_7" || files[1].Name() != "rank_8" {
		t.Errorf("%v, %v", files, err)
	}
	missing := filepath.Join(folder, "missing", "rank_")
	if _, err := r.Dump(missing); err == nil ||
		!strings.Contains(err.Error(), missing+"7: no such file") {
		t.Errorf("without a folder: %v", err)
	}
	r.writing.Lock()
	if _, err := r.Dump(filepath.Join(folder, "rank_")); !errors.Is(err, ErrBusy) {
		t.Errorf("while another is written: %v", err)
	}
	r.writing.Unlock()
}

func TestSignals(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "usr2": syscall.SIGUSR2,
		"SIGUSR2": syscall.SIGUSR2, "": 0, "KILL": 0, "12": 0} {
		if got, err := ParseSignal(name); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q is %v, %v", name, got, err)
		}
	}
}

// A signal that cannot be listened for is told, and left alone.
func TestSignalsAreRefused(t *testing.T) {
	for _, test := range []struct {
		signal Signal
		says   string
	}{
		{Signal{Prefix: "p"}, ""},
		{Signal{Name: "KILL", Prefix: "p"}, "allowed are USR1 and USR2"},
		{Signal{Name: "USR2"}, "without GOCCL_DUMP"},
		{Signal{Name: "USR2", Prefix: "p", Notify: func(syscall.Signal) <-chan os.Signal { return nil }},
			"has a handler"},
	} {
		var said bytes.Buffer
		new(Recorder).Listen(test.signal, slog.New(slog.NewTextHandler(&said, nil)))
		if !strings.Contains(said.String(), test.says) || (said.Len() > 0) != (test.says != "") {
			t.Errorf("%+v: %s", test.signal, said.String())
		}
	}
}

func BenchmarkFiles(b *testing.B) {
	s := Source{Groups: []trace.Group{{Name: "g", Ranks: make([]int, 64)}}}
	for n := range uint64(2000) {
		s.Collectives = append(s.Collectives, trace.Record{Number: n, State: trace.Ended,
			Message: plan.Message{Collective: uint8(plan.AllGather), Count: 64 * n, Sequence: n}})
	}
	for b.Loop() {
		Files("1", []Source{s})
	}
}
