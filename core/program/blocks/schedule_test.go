package blocks_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/blocks"
)

// machine runs a plan on numbers, one read or write of one cell at a time, blocks at random. It
// knows nothing of clocks: what it sees is what memory that is always in order would show. Users
// change their inputs and outputs as soon as a run of their rank has ended.
type machine struct {
	*blocks.Plan
	rnd      *rand.Rand
	cells    int // of a chunk
	unit     int // of a round, in cells, for a pipeline of its Unit; 0: there is none
	memory   map[place]word
	given    map[place]uint64 // inputs of a run
	counters [][]int          // by run
	threads  []*thread
	run      []int // by rank
	arrived  map[[2]int]int
}

// place is a cell. Half is which half of scratch memory, or in which run a message is.
type place struct {
	rank   int
	space  program.Space
	half   int
	packet bool
	cell   int
}

type word struct {
	value uint64
	run   int // of a packet, counted from 1
}

// thread is a block that runs.
type thread struct {
	*blocks.Block
	todo     []func() bool // reports whether it could be done
	done     []int         // by op: in how many runs
	run      int
	barriers map[int]int
}

const machineRuns = 3

// newMachine makes one whose pipelines have about so many rounds.
func newMachine(p *blocks.Plan, rnd *rand.Rand, rounds int) *machine {
	m := &machine{Plan: p, rnd: rnd, cells: 4, memory: map[place]word{}, given: map[place]uint64{},
		run: make([]int, p.Ranks), arrived: map[[2]int]int{}}
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			if len(op.Body) > 0 {
				m.unit, m.cells = max(op.Chunks, 1), rounds
			}
		}
	}
	m.counters = make([][]int, machineRuns)
	for run := range m.counters {
		for _, c := range p.Counters {
			m.counters[run] = append(m.counters[run], c.Initial)
		}
	}
	for i := range p.Blocks {
		m.threads = append(m.threads, &thread{Block: &p.Blocks[i], barriers: map[int]int{},
			done: make([]int, len(p.Blocks[i].Ops))})
	}
	for rank := range p.Ranks {
		m.begin(rank)
	}
	return m
}

// at is a cell of a place in a run.
func (m *machine) at(ref blocks.Ref, run, i int) place {
	at := place{rank: ref.Rank, space: ref.Space, packet: ref.Packet, cell: ref.Chunk*m.cells + i}
	switch {
	case ref.Space == blocks.Mail:
		at.half = run
	case ref.Space == program.Scratch && m.Double:
		at.half = run % 2
	case ref.Space == program.Input && m.InPlace:
		at.space = program.Output
		if m.Collective == plan.AllGather {
			at.cell += ref.Rank * m.In * m.cells
		}
	case ref.Space == program.Output && m.InPlace && m.Collective == plan.ReduceScatter:
		at.cell += ref.Rank * m.Out * m.cells
	}
	return at
}

// begin has a user give inputs, and starts the rank's blocks.
func (m *machine) begin(rank int) {
	for _, space := range []program.Space{program.Output, program.Input} {
		n := []int{m.In, m.Out}[space]
		for i := range n * m.cells {
			at := m.at(blocks.Ref{Place: program.Place{Rank: rank, Space: space}}, m.run[rank], i)
			m.memory[at] = word{value: m.rnd.Uint64()}
			if space == program.Input {
				m.given[place{rank: rank, half: m.run[rank], cell: i}] = m.memory[at].value
			}
		}
	}
	for _, t := range m.threads {
		if t.Rank == rank {
			t.run = m.run[rank]
			m.start(t)
		}
	}
}

// start lists what a block has to do in a run.
func (m *machine) start(t *thread) {
	for i := range t.Ops {
		op := &t.Ops[i]
		if len(op.Body) == 0 {
			m.plan(t, op, 0, -1)
		} else if op.Chunks > 0 {
			for round := 0; round*m.unit < op.Chunks*m.cells; round++ {
				for k := range op.Body {
					m.plan(t, &op.Body[k], round*m.unit, m.unit)
				}
			}
		}
		t.todo = append(t.todo, func() bool { t.done[i]++; return true })
	}
}

func (m *machine) plan(t *thread, op *blocks.Op, from, count int) {
	run := t.run
	todo := func(f func() bool) { t.todo = append(t.todo, f) }
	for _, p := range op.After {
		todo(func() bool { return m.threads[p.Block].done[p.Op] > run })
	}
	for _, n := range op.Takes {
		todo(func() bool {
			if m.counters[run][n] == 0 {
				return false
			}
			m.counters[run][n]--
			return true
		})
	}
	if op.Blocks > 0 {
		key := [2]int{t.Rank, op.Barrier}
		todo(func() bool { m.arrived[key]++; t.barriers[op.Barrier]++; return true })
		todo(func() bool { return m.arrived[key] >= t.barriers[op.Barrier]*op.Blocks })
	}
	for _, transfer := range op.Transfers {
		n := transfer.To[0].Count * m.cells
		first, last := 0, n
		if op.Parts > 1 {
			first = op.Part*(n/op.Parts) + min(op.Part, n%op.Parts)
			last = (op.Part+1)*(n/op.Parts) + min(op.Part+1, n%op.Parts)
		}
		if count >= 0 {
			first += from
			last = min(last, first+count)
		}
		for i := first; i < last; i++ {
			sum := uint64(0)
			for k, ref := range transfer.From {
				todo(func() bool {
					w := m.memory[m.at(ref, run, i)]
					if ref.Packet && w.run != run+1 && !ref.Ready {
						return false
					}
					if k == 0 {
						sum = 0
					}
					sum += w.value
					return true
				})
			}
			for _, ref := range transfer.To {
				todo(func() bool { m.memory[m.at(ref, run, i)] = word{sum, run + 1}; return true })
			}
		}
	}
	for _, n := range op.Posts {
		todo(func() bool { m.counters[run][n]++; return true })
	}
}

// runAll runs all, and compares outputs with what the collective promises.
func (m *machine) runAll() error {
	for moved := true; moved; {
		moved = false
		for _, i := range m.rnd.Perm(len(m.threads)) {
			t := m.threads[i]
			for range 1 + m.rnd.IntN(1<<m.rnd.IntN(8)) {
				if len(t.todo) == 0 || !t.todo[0]() {
					break
				}
				t.todo = t.todo[1:]
				moved = true
			}
		}
		for rank := range m.run {
			ended := m.run[rank] < machineRuns
			for _, t := range m.threads {
				ended = ended && (t.Rank != rank || len(t.todo) == 0)
			}
			if !ended {
				continue
			}
			if err := m.check(rank, m.run[rank]); err != nil {
				return err
			}
			if m.run[rank]++; m.run[rank] < machineRuns {
				m.begin(rank)
			}
			moved = true
		}
	}
	for rank, run := range m.run {
		if run < machineRuns {
			return fmt.Errorf("rank %d is stuck in run %d", rank, run)
		}
	}
	return nil
}

func (m *machine) check(rank, run int) error {
	inputs := map[uint64]bool{}
	for at, v := range m.given {
		if at.half == run {
			inputs[v] = true
		}
	}
	each := m.In * m.cells
	for i := range m.Out * m.cells {
		want := uint64(0)
		switch m.Collective {
		case plan.AllReduce:
			for r := range m.Ranks {
				want += m.given[place{rank: r, half: run, cell: i}]
			}
		case plan.ReduceScatter:
			for r := range m.Ranks {
				want += m.given[place{rank: r, half: run, cell: rank*m.Out*m.cells + i}]
			}
		case plan.AllGather:
			want = m.given[place{rank: i / each, half: run, cell: i % each}]
		case plan.AllToAll:
			block := each / m.Ranks
			want = m.given[place{rank: i / block, half: run, cell: rank*block + i%block}]
		}
		at := m.at(blocks.Ref{Place: program.Place{Rank: rank, Space: program.Output}}, run, i)
		got := m.memory[at].value
		if m.Exchange && !inputs[got] || m.Collective != plan.Custom && got != want {
			return fmt.Errorf("run %d: cell %d of the output of rank %d is wrong", run, i, rank)
		}
	}
	return nil
}
