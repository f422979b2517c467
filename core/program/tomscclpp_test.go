package program

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// foreign is a plan of MSCCL++ that runs on numbers, in three runs that follow one another: blocks
// of all ranks do their operations at once, each of which reads at one time and writes at another.
// It reads the JSON by itself.
type foreign struct {
	Name, Collective string
	InPlace          bool
	GPUs             []struct {
		ID                          int
		Input_chunks, Output_chunks int
		Scratch_chunks              int
		Threadblocks                []foreignBlock
		Channels                    []struct{ Connected_to []int }
		Remote_buffers              []struct {
			Rank int
			Type string
		}
	}
}

type foreignBlock struct {
	Ops                []foreignOp
	Channels           []struct{ Channel_ids []int }
	Remote_buffer_refs []struct{ Remote_buffer_ids []int }
}

type foreignOp struct {
	Name               string
	Channel_ids        []int
	Src_buff, Dst_buff []foreignRef
}

type foreignRef struct {
	Buffer_id   *int
	Type        string
	Index, Size int
}

// foreignRun is where the ranks are.
type foreignRun struct {
	*foreign
	c       *Checked
	rnd     *rand.Rand
	memory  []map[string][]uint64 // by rank and letter
	signals map[[2]int]int        // by sender and receiver: not waited for
	at      []int                 // by rank: the operation
	runs    []int                 // by rank: how many have ended
	pending [][]uint64            // by rank: what the operation has read
}

const foreignRuns = 3

// value is the contribution of a rank to a chunk of its input in a run.
func contributed(run, rank, chunk int) uint64 {
	return uint64(run*1_000_003+rank*7919+chunk*31+1) * 2654435761 % (1 << 40)
}

func (f *foreignRun) places(rank int, refs []foreignRef) (all [][]uint64) {
	g := &f.GPUs[rank]
	for _, ref := range refs {
		owner, letter := rank, ref.Type
		if ref.Buffer_id != nil {
			b := g.Remote_buffers[g.Threadblocks[0].Remote_buffer_refs[0].Remote_buffer_ids[*ref.Buffer_id]]
			owner, letter = b.Rank, b.Type
		}
		all = append(all, f.memory[owner][letter][ref.Index:ref.Index+ref.Size])
	}
	return all
}

// enter lays out the buffers of a rank's next run, which the user owns until then.
func (f *foreignRun) enter(rank int) {
	g, run := &f.GPUs[rank], f.runs[rank]
	m := f.memory[rank]
	for i := range m["o"] {
		m["o"][i] = 0xdead
	}
	for i := range g.Input_chunks {
		m["i"][i] = contributed(run, rank, i)
	}
}

// leave compares the outputs of a rank's run with the promise.
func (f *foreignRun) leave(rank int) error {
	run := f.runs[rank]
	for k, got := range f.memory[rank]["o"] {
		want, of := uint64(0), f.c.promised(rank, k)
		for r := range f.c.Ranks {
			for chunk := range f.c.In {
				v := f.c.contribution(r, chunk)
				if v.block == of.block && v.chunk == of.chunk && (of.tree == 0 || v.tree == of.tree) {
					want += contributed(run, r, chunk)
				}
			}
		}
		if got != want && f.c.Collective != plan.Custom {
			return fmt.Errorf("run %d, rank %d, output chunk %d: it is %x, not %x", run, rank, k, got, want)
		}
	}
	return nil
}

// run runs all ranks to their ends.
func (f *foreignRun) run() error {
	n := len(f.GPUs)
	f.at, f.runs, f.pending = make([]int, n), make([]int, n), make([][]uint64, n)
	f.signals = map[[2]int]int{}
	for rank := range f.GPUs {
		g := &f.GPUs[rank]
		m := map[string][]uint64{"i": make([]uint64, g.Input_chunks),
			"o": make([]uint64, g.Output_chunks),
			"s": make([]uint64, g.Scratch_chunks)}
		switch c := f.c.Collective; {
		case f.InPlace && c == plan.AllReduce:
			m["i"] = m["o"]
		case f.InPlace && c == plan.AllGather:
			m["i"] = m["o"][rank*g.Input_chunks:][:g.Input_chunks]
		case f.InPlace && c == plan.ReduceScatter:
			m["o"] = m["i"][rank*g.Output_chunks:][:g.Output_chunks]
		}
		f.memory = append(f.memory, m)
		f.enter(rank)
	}
	for {
		moved, ended := false, true
		for _, rank := range f.rnd.Perm(n) {
			for range f.rnd.IntN(5) {
				done, err := f.step(rank)
				if err != nil {
					return err
				}
				if !done {
					break
				}
				moved = true
			}
			ended = ended && f.runs[rank] == foreignRuns
		}
		if ended {
			break
		}
		if !moved && f.isStuck() {
			return fmt.Errorf("deadlock: ranks are at %v", f.at)
		}
	}
	for pair, k := range f.signals {
		if k != 0 {
			return fmt.Errorf("%d signals of %v are left", k, pair)
		}
	}
	return nil
}

// isStuck reports whether no rank can do anything.
func (f *foreignRun) isStuck() bool {
	for rank := range f.GPUs {
		if f.runs[rank] < foreignRuns && !f.waits(rank) {
			return false
		}
	}
	return true
}

// ops are those of a rank.
func (f *foreignRun) ops(rank int) []foreignOp {
	if len(f.GPUs[rank].Threadblocks) == 0 {
		return nil
	}
	return f.GPUs[rank].Threadblocks[0].Ops
}

// peers are the ranks at the other ends of channels.
func (f *foreignRun) peers(rank int, op *foreignOp) (all []int) {
	g := &f.GPUs[rank]
	for _, id := range op.Channel_ids {
		all = append(all, g.Channels[0].Connected_to[g.Threadblocks[0].Channels[0].Channel_ids[id]])
	}
	return all
}

// waits reports whether a rank's operation waits for a signal.
func (f *foreignRun) waits(rank int) bool {
	ops := f.ops(rank)
	if f.at[rank] == len(ops) || ops[f.at[rank]].Name != "wait" {
		return false
	}
	for _, peer := range f.peers(rank, &ops[f.at[rank]]) {
		if f.signals[[2]int{peer, rank}] == 0 {
			return true
		}
	}
	return false
}

// step does half of an operation.
func (f *foreignRun) step(rank int) (bool, error) {
	if f.runs[rank] == foreignRuns || f.waits(rank) {
		return false, nil
	}
	ops := f.ops(rank)
	if f.at[rank] == len(ops) {
		if err := f.leave(rank); err != nil {
			return false, err
		}
		f.at[rank] = 0
		if f.runs[rank]++; f.runs[rank] < foreignRuns {
			f.enter(rank)
		}
		return true, nil
	}
	op := &ops[f.at[rank]]
	from, to := f.places(rank, op.Src_buff), f.places(rank, op.Dst_buff)
	switch op.Name {
	case "nop":
	case "signal":
		for _, peer := range f.peers(rank, op) {
			f.signals[[2]int{rank, peer}]++
		}
	case "wait":
		for _, peer := range f.peers(rank, op) {
			f.signals[[2]int{peer, rank}]--
		}
	case "copy", "put", "re", "rre":
		if f.pending[rank] == nil {
			f.pending[rank] = f.result(op, from)
			return true, nil
		}
		for i, at := range to {
			copy(at, f.pending[rank][i*len(at):])
		}
		f.pending[rank] = nil
	default:
		return false, fmt.Errorf("there is no operation %q", op.Name)
	}
	f.at[rank]++
	return true, nil
}

// result is what an operation writes to each of its destinations.
func (f *foreignRun) result(op *foreignOp, from [][]uint64) []uint64 {
	if op.Name == "put" || op.Name == "copy" {
		return slices.Concat(from...)
	}
	sum := slices.Clone(from[0])
	for _, other := range from[1:] {
		for i := range sum {
			sum[i] += other[i]
		}
	}
	return sum
}

// parseForeign reads a plan, and asks that it has no more than MSCCL++ has room for.
func parseForeign(t *testing.T, text []byte) *foreign {
	t.Helper()
	f := &foreign{}
	d := json.NewDecoder(strings.NewReader(string(text)))
	if err := d.Decode(f); err != nil {
		t.Fatal(err)
	}
	for rank, g := range f.GPUs {
		if g.ID != rank || len(g.Threadblocks) > 1 || len(g.Channels) > 1 {
			t.Fatalf("rank %d has %d blocks, and lists of %d types", rank, len(g.Threadblocks),
				len(g.Channels))
		}
		for _, b := range g.Threadblocks {
			if len(b.Ops) > 64 || len(b.Channels) > 0 && len(b.Channels[0].Channel_ids) > 16 {
				t.Fatalf("rank %d: %d operations", rank, len(b.Ops))
			}
			for _, op := range b.Ops {
				if max(len(op.Channel_ids), len(op.Src_buff), len(op.Dst_buff)) > 8 {
					t.Fatalf("rank %d: %+v", rank, op)
				}
			}
		}
	}
	return f
}

// Programs as plans of MSCCL++ give what they promise on any timing, over three runs.
func TestMSCCLPP(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(written)) {
		for _, n := range []int{1, 2, 3, 4, 8} {
			c, err := Check(written[name](n, 2))
			if err != nil {
				t.Fatal(err)
			}
			text, err := MSCCLPP(c)
			if _, ok := mscclppNames[c.Collective]; !ok {
				if err == nil || !strings.Contains(err.Error(), c.Collective.String()) {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			if err != nil {
				if strings.Contains(err.Error(), "has room for 64") && n == 8 {
					continue
				}
				t.Fatalf("%s among %d ranks: %v", name, n, err)
			}
			runForeign(t, c, text, 20)
		}
	}
	for n := 1; n <= 5; n++ {
		eachBuilt(n, func(b *built) {
			c, err := Export(b.Algorithm.String(), b.Params)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := mscclppNames[c.Collective]; !ok || b.elements == 1 || b.Root > 0 {
				return
			}
			text, err := MSCCLPP(c)
			if err != nil {
				t.Fatalf("%v: %v", b, err)
			}
			runForeign(t, c, text, 3)
		})
	}
}

// Random programs, whose scratch memory is used again and again, are as right as plans of MSCCL++.
func TestMSCCLPPOfRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		c, err := Check(randomProgram(rnd))
		if err != nil {
			t.Fatal(err)
		}
		text, err := MSCCLPP(c)
		if err == nil {
			runForeign(t, c, text, 5)
		} else if mscclppNames[c.Collective] != "" && !strings.Contains(err.Error(), "has room for") {
			t.Fatal(err)
		}
	}
}

// runForeign runs a plan on so many timings.
func runForeign(t *testing.T, c *Checked, text []byte, seeds uint64) {
	t.Helper()
	f := parseForeign(t, text)
	for seed := range seeds {
		r := foreignRun{foreign: f, c: c, rnd: rand.New(rand.NewPCG(seed, 0))}
		if err := r.run(); err != nil {
			t.Fatalf("%s among %d ranks: %v\n%s", c.Name, c.Ranks, err, text)
		}
	}
}

// What MSCCL++ has no room for is refused by name.
func TestMSCCLPPRefuses(t *testing.T) {
	spread := oneShot(4, 1)
	spread.PerHost = 2
	for _, c := range []struct {
		Program
		want string
	}{
		{ringAllReduce(32, 1), "operations; a block of threads has room for 64"},
		{oneShot(18, 1), "17 peers; a block of threads has room for 16 channels"},
		{treeBroadcast(4, 1), "it has no collective broadcast"},
		{spread, "meant for 2 ranks on each host"},
	} {
		checked, err := Check(c.Program)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = MSCCLPP(checked); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v among %d ranks: %v, want %q", c.Name, c.Ranks, err, c.want)
		}
	}
}

// Where a rank does not wait for another, some timing is wrong: so the test above sees it.
func TestMSCCLPPWithoutSignals(t *testing.T) {
	for name, make := range map[string]func(n, chunks int) Program{"two_shot": twoShot,
		"ring": ringAllGather, "in place": twoShotInPlace} {
		c, err := Check(make(4, 1))
		if err != nil {
			t.Fatal(err)
		}
		text, err := MSCCLPP(c)
		if err != nil {
			t.Fatal(err)
		}
		f := parseForeign(t, text)
		for from := range c.Ranks {
			for to := range c.Ranks {
				r := foreignRun{foreign: f}
				waits := slices.ContainsFunc(r.ops(to), func(op foreignOp) bool {
					return op.Name == "wait" && slices.Contains(r.peers(to, &op), from)
				})
				if waits && !isWrongWithout(t, text, c, from, to) {
					t.Errorf("%s: rank %d need not wait for %d\n%s", name, to, from, text)
				}
			}
		}
	}
}

// isWrongWithout runs a plan without the signals from a rank to another, and the waits for them.
func isWrongWithout(t *testing.T, text []byte, c *Checked, from, to int) bool {
	t.Helper()
	f := parseForeign(t, text)
	r := foreignRun{foreign: f}
	drop := func(rank, peer int, name string) {
		ops := r.ops(rank)
		for i := range ops {
			at := slices.Index(r.peers(rank, &ops[i]), peer)
			if ops[i].Name == name && at >= 0 {
				ops[i].Channel_ids = slices.Delete(ops[i].Channel_ids, at, at+1)
			}
		}
	}
	drop(from, to, "signal")
	drop(to, from, "wait")
	for seed := range uint64(500) {
		r := foreignRun{foreign: f, c: c, rnd: rand.New(rand.NewPCG(seed, 1))}
		if r.run() != nil {
			return true
		}
	}
	return false
}
