package membership

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/scripts"
	"github.com/goccl/goccl/core/plan"
)

// rank is one rank's machine, and what it has come to.
type rank struct {
	machine Machine
	last    uint64         // its last collective
	awaited []plan.Message // collectives that peers wait in, which it has not come to
}

func lostError(peer int) *fault.Error {
	return fault.Errorf(fault.ErrPeerFailed, "rank %d has failed", peer).Blaming(peer)
}

func leftError(peer int) *fault.Error {
	return fault.Errorf(fault.ErrAborted, "rank %d has left", peer).Blaming(peer)
}

func describe(a Action) string {
	switch a := a.(type) {
	case Stop:
		return "stop: " + a.Cause.Text
	case Tell:
		return "tell"
	case EndWorks:
		return "end works"
	case Part:
		return fmt.Sprintf("part from %d: %s (%v)", a.Peer, a.Cause.Text, a.Evidence)
	}
	return fmt.Sprintf("%T", a)
}

// TestScripts runs the scripts of testdata, which answer with the actions that follow. The commands
// are those of one rank:
//
//	rank N                    begins anew, as rank N
//	lose PEER [exited] [suspected] [broken]
//	leave PEER
//	call [ROOT]               the rank comes to its next collective
//	await SEQUENCE [ROOT]     peers wait in a collective that the rank has not come to
//	fail WHY                  the rank cannot go on
//	quit WHY                  the same, and peers hear of it in another way
//	err                       what Err says
//
// or those of several processes that agree:
//
//	members N [JOINERS [MINSIZE [ANY [WAITS]]]]   begins anew
//
// and what [world.perform] has.
func TestScripts(t *testing.T) {
	scripts.Run(t, func() func([]string) []string {
		r, w := new(rank), (*world)(nil)
		return func(words []string) []string {
			switch {
			case words[0] == "members":
				a := append(parse(words).args, 0, 0, 0, 0)
				w = setting{a[0], a[1], max(a[2], 1), a[3], a[4]}.world()
				w.traced = true
				return nil
			case w != nil:
				w.trace = nil
				w.perform(parse(words))
				return w.trace
			}
			return r.perform(words)
		}
	})
}

func (r *rank) perform(words []string) (answer []string) {
	number := func(i, otherwise int) int {
		if i >= len(words) {
			return otherwise
		}
		n, err := strconv.Atoi(words[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	has := func(option string) bool { return strings.Contains(strings.Join(words, " "), option) }
	var e Event
	switch words[0] {
	case "rank":
		*r = rank{machine: New(number(1, 0))}
		return nil
	case "err":
		if err := r.machine.Err(); err != nil {
			return []string{err.Text}
		}
		return []string{"none"}
	case "lose":
		evidence := Proof
		if has("suspected") {
			evidence = Suspicion
		}
		e = Lost{Peer: number(1, 0), Cause: lostError(number(1, 0)), Evidence: evidence,
			Exited: has("exited"), Broken: has("broken"), Last: r.last, Awaited: r.awaited}
	case "leave":
		e = Left{Peer: number(1, 0), Cause: leftError(number(1, 0)), Last: r.last, Awaited: r.awaited}
	case "call":
		r.last++
		e = Needs{collective(r.last, number(1, -1))}
	case "await":
		m := collective(uint64(number(1, 0)), number(2, -1))
		r.awaited = append(r.awaited, m)
		e = Awaits{m}
	case "fail", "quit":
		cause := fault.Errorf(fault.ErrTimeout, "%s", strings.Join(words[1:], " "))
		e = Failure{Cause: cause, Quiet: words[0] == "quit"}
	default:
		panic(words[0])
	}
	for _, a := range r.machine.Step(e) {
		answer = append(answer, describe(a))
	}
	return answer
}

// collective is an allreduce, or (with a root) a broadcast.
func collective(sequence uint64, root int) plan.Message {
	m := plan.Message{Collective: uint8(plan.AllReduce), Root: int32(root), Sequence: sequence}
	if root >= 0 {
		m.Collective = uint8(plan.Broadcast)
	}
	return m
}

// TestInterleavings has all news that one rank of three can have come in every order. The first
// cause stays, the rank stops before it tells, and it fails exactly once.
func TestInterleavings(t *testing.T) {
	news := []string{"lose 1", "leave 2", "call", "await 2", "fail it", "fail again"}
	var order []string
	var visit func(left []string)
	visit = func(left []string) {
		if len(left) == 0 {
			run(t, order)
			return
		}
		for i := range left {
			rest := append(append([]string{}, left[:i]...), left[i+1:]...)
			order = append(order, left[i])
			visit(rest)
			order = order[:len(order)-1]
		}
	}
	visit(news)
}

func run(t *testing.T, order []string) {
	t.Helper()
	r := rank{machine: New(0)}
	var all []string
	var first string
	for _, line := range order {
		actions := r.perform(strings.Fields(line))
		all = append(all, actions...)
		for _, a := range actions {
			if cause, ok := strings.CutPrefix(a, "stop: "); ok && first == "" {
				first = cause
			}
		}
		if err := r.machine.Err(); first != "" && (err == nil || err.Text != first) {
			t.Fatalf("%v: after %q the cause is %v, not %q", order, line, err, first)
		}
	}
	var failure []string
	parts := 0
	for _, a := range all {
		if strings.HasPrefix(a, "part ") {
			parts++
		} else {
			failure = append(failure, a)
		}
	}
	if want := fmt.Sprint([]string{"stop: " + first, "tell",
		"end works"}); fmt.Sprint(failure) != want {
		t.Fatalf("%v: %v, want %s", order, failure, want)
	}
	if departed := r.machine.Departed(); parts != 2 || fmt.Sprint(departed) != "[1 2]" {
		t.Fatalf("%v: %d parted, departed are %v", order, parts, departed)
	}
}
