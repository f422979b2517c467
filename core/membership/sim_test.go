package membership

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// setting is how a world begins.
type setting struct{ members, joiners, minSize, any, waits int }

func (s setting) world() *world {
	return newWorld(s.members, s.joiners, Config{MinSize: s.minSize, Any: s.any == 1, Patience: 1,
		Waits: s.waits == 1})
}

func (s setting) String() string {
	return fmt.Sprintf("members %d %d %d %d %d", s.members, s.joiners, s.minSize, s.any, s.waits)
}

// schedule makes a world and what happens in it of a seed.
func schedule(seed uint64) (setting, []command, *world) {
	r := rand.New(rand.NewPCG(seed, 0))
	s := setting{members: 1 + r.IntN(5), joiners: max(r.IntN(8)-3, 0), minSize: 1}
	if r.IntN(8) == 0 {
		s.minSize = 2
	}
	if r.IntN(16) == 0 {
		s.any = 1
	}
	s.waits = r.IntN(2)
	w := s.world()
	// How much of each there is differs by seed, so that schedules without deaths, without
	// suspicions and so on are among them.
	deaths, doubts, cuts := r.IntN(s.members+s.joiners+1), r.IntN(3)*r.IntN(4), r.IntN(3)*r.IntN(2)
	patient, ticks, losses := r.IntN(3) > 0, 2+r.IntN(20), r.IntN(2)*r.IntN(40)
	bursts := r.IntN(2) * r.IntN(30)
	jumps := r.IntN(8) / 7 * 3
	var commands []command
	do := func(name string, args ...int) {
		c := command{name, args}
		commands = append(commands, c)
		w.perform(c)
	}
	quick := func(side uint64, messages int) {
		for range messages {
			i := slices.IndexFunc(w.flight, func(e envelope) bool {
				return side>>e.from&1 != 0 && side>>e.to&1 != 0
			})
			if i < 0 {
				break
			}
			do("deliver", w.flight[i].from, w.flight[i].to, 0)
		}
	}
	// Where a side comes to a decision, or nearly so, before others hear of it, much can go wrong.
	for range r.IntN(2) * r.IntN(4) {
		side := r.Uint64()
		for range 1 + r.IntN(4) {
			for id := range s.members {
				if side>>id&1 != 0 {
					do("begin", id)
					do("tick", id)
				}
			}
			quick(side, r.IntN(24))
		}
		for id := range s.members {
			if side>>id&1 != 0 && deaths > 0 && r.IntN(2) == 0 {
				deaths--
				do("crash", id)
			}
		}
	}
	for range 10 + r.IntN(110) {
		if w.broken != "" {
			return s, commands, w
		}
		p, q := r.IntN(len(w.processes)), r.IntN(len(w.processes))
		switch k := r.IntN(100); {
		case r.IntN(100) < ticks:
			for range 1 + r.IntN(4) {
				do("tick", p)
			}
		case r.IntN(100) < bursts: // some are quick
			quick(r.Uint64()|r.Uint64(), r.IntN(16))
		case k < 65 && len(w.flight) > 0:
			e := w.flight[r.IntN(len(w.flight))]
			skip := 0
			for _, f := range w.flight {
				if f.from == e.from && f.to == e.to {
					skip++
				}
			}
			name := "deliver"
			if r.IntN(100) < losses {
				name = "lose"
			}
			do(name, e.from, e.to, r.IntN(skip))
		case k < 75:
			do("begin", p)
		case k < 79:
			for _, other := range w.processes {
				if other.ended() && r.IntN(2) == 0 {
					do("prove", p, other.id)
				}
			}
		case k < 83 && deaths > 0:
			deaths--
			do("crash", p)
		case k < 86 && doubts > 0:
			doubts--
			do("suspect", p, q)
		case k < 88 && cuts > 0:
			cuts--
			side := r.Uint64()
			for i := range w.processes {
				for j := range i {
					if side>>i&1 != side>>j&1 {
						do("cut", i, j)
					}
				}
			}
		case k < 90 && len(w.cut) > 0:
			do("heal", p, q)
		case k < 95 && s.joiners > 0:
			do("join", p, s.members+r.IntN(s.joiners))
		case k < 96 && s.joiners > 0:
			do("unjoin", p, s.members+r.IntN(s.joiners))
		case k < 98 && s.joiners > 0 && r.IntN(2) == 0:
			do("exclude", p, q)
		case k < 97 && s.waits == 1:
			do("wait", p)
		case k < 98 && !patient:
			do("expire", p)
		case k < 99 && jumps > 0:
			jumps--
			do("jump", p, []int{9, reach - 1, reach, math.MaxInt}[r.IntN(4)])
		default:
			do("meet", p)
		}
	}
	do("finish", r.IntN(3)/2, r.IntN(2))
	return s, commands, w
}

// replay tells what is broken by a schedule.
func replay(s setting, commands []command) string {
	w := s.world()
	for _, c := range commands {
		w.perform(c)
		if w.broken != "" {
			break
		}
	}
	return w.broken
}

// minimise leaves out of a schedule what it breaks without.
func minimise(s setting, commands []command) []command {
	for size := len(commands) / 2; size > 0; {
		shrunk := false
		for at := 0; at+size <= len(commands); {
			less := slices.Delete(slices.Clone(commands), at, at+size)
			if replay(s, less) != "" {
				commands, shrunk = less, true
			} else {
				at += size
			}
		}
		if !shrunk || size > 1 {
			size /= 2
		}
	}
	return commands
}

func script(s setting, commands []command) string {
	lines := []string{s.String()}
	for _, c := range commands {
		lines = append(lines, c.String())
	}
	return strings.Join(lines, "\n")
}

// TestSimulation runs seeded schedules: messages in any order, crashes at any event, partitions,
// false suspicions, joiners that die. GOCCL_MEMBERSHIP_SEEDS says how many, or which ones, as in
// "1000-2000"; without it there are as many as take some seconds. The script of one that breaks a
// promise can go into testdata.
func TestSimulation(t *testing.T) {
	first, last, until := uint64(0), ^uint64(0), time.Now().Add(8*time.Second)
	if testing.Short() {
		until = time.Now().Add(time.Second)
	}
	if seeds := os.Getenv("GOCCL_MEMBERSHIP_SEEDS"); seeds != "" {
		from, to, span := strings.Cut(seeds, "-")
		if !span {
			from, to = "0", from
		}
		var err, err2 error
		first, err = strconv.ParseUint(from, 10, 64)
		last, err2 = strconv.ParseUint(to, 10, 64)
		if err != nil || err2 != nil {
			t.Fatal("GOCCL_MEMBERSHIP_SEEDS:", seeds)
		}
		until = time.Time{}
	}
	seed := first
	for ; seed < last && (until.IsZero() || seed%256 != 0 || time.Now().Before(until)); seed++ {
		s, commands, w := schedule(seed)
		if w.broken != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.broken, script(s, minimise(s, commands)))
		}
	}
	t.Log(seed-first, "schedules")
}
