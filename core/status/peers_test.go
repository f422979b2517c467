package status

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

// link is to a peer.
type link struct {
	made atomic.Bool
	ask  func()
}

// to is a link that is there, with what the peer does with a question.
func to(ask func()) *link {
	l := &link{ask: ask}
	l.made.Store(true)
	return l
}

// links are those of a rank to some peers.
type links map[int]*link

func (l links) Linked(peer int) bool { return l[peer] != nil && l[peer].made.Load() }

func (l links) Ask(peer int) { l[peer].ask() }

// Connect connects to those that there are; the others never answer.
func (l links) Connect(ctx context.Context, peer int) error {
	if l[peer] == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	l[peer].made.Store(true)
	return nil
}

func report(what string) []byte {
	return (&Report{Call: Call{Sequence: 1, What: what, Peer: -1}}).encode()
}

func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Peers
		if others := p.Ask(0, []int{1}, true); others != nil {
			t.Errorf("of no epoch: %+v", others)
		}
		asked := map[int]int{}
		answers := func(rank int) func() {
			return func() {
				asked[rank]++
				go p.Hear(rank, report("barrier"))
			}
		}
		p.Use(3, links{1: to(answers(1)), 2: to(func() { asked[2]++ })}, 4)
		ask := func(ranks ...int) (said string) {
			for _, o := range p.Ask(3, ranks, false) {
				said += map[bool]string{true: o.Call.What, false: "silent"}[o.Answers] + " "
			}
			return said
		}

		began := time.Now()
		if said := ask(1, 3); said != "barrier " || time.Since(began) > 0 {
			t.Errorf("%q after %v", said, time.Since(began))
		}
		if said := ask(1, 2); said != "barrier silent " || time.Since(began) != askTime {
			t.Errorf("%q after %v", said, time.Since(began))
		}
		if p.Ask(2, []int{1}, true) != nil {
			t.Error("another epoch is asked")
		}
		for range 100 { // in 50 s: one that is silent is asked seldom, and each time less
			ask(1, 2)
		}
		if asked[2] > 8 || asked[1] < 90 {
			t.Errorf("asked so often: %v", asked)
		}
		if p.Hear(2, report("late")) != nil {
			t.Error("a late answer is refused")
		}
		if said := ask(1, 2); said != "barrier late " {
			t.Error(said)
		}
		p.Hear(1, report("not asked for"))
		if said := ask(1); said != "barrier " {
			t.Error(said)
		}
		ended := make(chan []Other)
		go func() { ended <- p.Ask(3, []int{2}, false) }()
		synctest.Wait() // it has asked again, without an end
		time.Sleep(fresh)
		go func() { ended <- p.Ask(3, []int{2}, false) }()
		synctest.Wait()
		p.Use(3, nil, 0)
		<-ended
		if others := <-ended; others != nil {
			t.Errorf("after the epoch: %+v", others)
		}
	})
}

// Peers that there is no link to are connected where that is asked for.
func TestPeersAreConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Peers
		p.Use(0, links{1: to(func() { go p.Hear(1, report("barrier")) }), 2: {ask: func() {}}}, 4)
		for _, c := range []struct {
			dials bool
			ranks int
			takes time.Duration
		}{{false, 1, 0}, {true, 2, dialTime + askTime}} {
			began := time.Now()
			others := p.Ask(0, []int{1, 2, 3}, c.dials)
			if len(others) != c.ranks || !others[0].Answers || time.Since(began) != c.takes {
				t.Errorf("%+v after %v", others, time.Since(began))
			}
			time.Sleep(fresh)
		}
	})
}

// A peer that asks and asks is answered now and then. One that asks as Peers does always is.
func TestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := trace.New()
		if err != nil {
			t.Fatal(err)
		}
		var p Peers
		p.Use(0, links{}, 2)
		if p.Answer(1, tr) != nil {
			t.Error("there is no group yet")
		}
		tr.Enter(trace.Group{ID: 5, PIDs: []int{1, 2}}, nil)
		answered := 0
		for range 1000 {
			if p.Answer(1, tr) != nil {
				answered++
			}
			time.Sleep(time.Millisecond)
		}
		if answered != int(time.Second/seldom) {
			t.Errorf("%d answers in a second", answered)
		}
		for range 10 {
			time.Sleep(fresh)
			if p.Answer(1, tr) == nil {
				t.Error("no answer")
			}
		}
	})
}

func TestHearLiars(t *testing.T) {
	for _, c := range []struct {
		answer string
		text   string
	}{
		{"", "a report that is none"},
		{"[1]", "a report that is none"},
		{`{"call": {"peer": 4}}`, "a wait for rank 4, in a group of 4"},
		{`{"call": {"peer": -2}}`, "a wait for rank -2"},
		{`{"messages": [{"peer": 0}]}`, "a report of 1 of 0 messages"},
		{`{"messages": [{"peer": 9}], "under_way": 1}`, "a message with rank 9"},
		{`{"messages": [{"tag": -1}], "under_way": 1}`, "a message with rank 0 and tag -1"},
		{`{"messages": [` + strings.Repeat(`{}, `, 8) + `{}], "under_way": 9}`, "a report of 9 of 9"},
		{`{"failed": "` + strings.Repeat("x", reportMost) + `"}`, "at most 4096 are allowed"},
	} {
		var p Peers
		p.Use(0, links{1: to(func() {})}, 4)
		p.ask(0, 1, time.Now())
		if err := p.Hear(1, []byte(c.answer)); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%.60q: %v, want %q", c.answer, err, c.text)
		}
	}
	var p Peers
	p.Use(0, links{1: to(func() {})}, 4)
	p.ask(0, 1, time.Now())
	if err := p.Hear(1, []byte(`{"failed": "\u001b[2J", "call": {"for_us": -5}}`)); err != nil {
		t.Fatal(err)
	}
	others := p.Ask(0, []int{1}, false)
	if others[0].Failed != `\x1b[2J` {
		t.Errorf("%+v", others)
	}
}

// The longest report fits.
func TestReport(t *testing.T) {
	tr, err := trace.New()
	if err != nil {
		t.Fatal(err)
	}
	g := trace.Group{ID: 1<<64 - 1, Epoch: 1<<32 - 1, PIDs: []int{1, 2},
		Failed: strings.Repeat(`"\`, 10_000)}
	tr.Enter(g, nil)
	for i := range 300 {
		c := plan.Send
		if i%2 > 0 {
			c = plan.Recv
		}
		m := tr.QueueMessage(plan.Message{Collective: uint8(c), Root: 1<<31 - 1, Digest: 1<<31 - 1},
			1<<64-1)
		if i%3 > 0 {
			m.Begin(1)
		}
		if i < 250 && i%10 > 0 {
			m.End(trace.Ending{State: trace.Ended})
		}
	}
	tr.Queue(&plan.Message{Collective: uint8(plan.AllReduce), Group: g.ID, Epoch: g.Epoch,
		Sequence: 1, Count: 1<<64 - 1}, trace.Queued)
	r := reportOf(tr, &g)
	if r.UnderWay != 70 || len(r.Messages) != messagesMost ||
		r.Messages[0].ForUS < r.Messages[7].ForUS ||
		!r.Messages[0].Send || r.Messages[0].Tag != 1<<31-1 || r.Call.State != "queued" {
		t.Errorf("%+v", r)
	}
	b := r.encode()
	if b == nil || len(b) > reportMost {
		t.Fatalf("%d bytes", len(b))
	}
	if again, err := decode(b, 1<<31); err != nil || again.Failed != r.Failed {
		t.Errorf("%+v, %v", again, err)
	}
}

func FuzzHear(f *testing.F) {
	f.Add(report("barrier"))
	f.Add([]byte(`{"messages": [{"peer": -1, "tag": 3}], "under_way": 1}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		r, err := decode(answer, 4)
		if err != nil {
			return
		}
		told := []*Group{{Hosts: []string{"a", "b"}, PIDs: []int{1, 2}, Near: []bool{true, false},
			Report: r, Others: []Other{{Rank: 1, Answers: true, Report: r}}}}
		j := judged(0, told, func(int) string { return "" })
		if strings.ContainsFunc(j.Verdict.Text, func(r rune) bool { return r < ' ' }) {
			t.Errorf("%q", j.Verdict.Text)
		}
	})
}
