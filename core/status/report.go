package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/judge"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

// Report is what a rank tells of itself.
type Report struct {
	Failed   string    `json:"failed"` // why the group has failed there; "": it has not
	Call     Call      `json:"call"`
	Messages []Message `json:"messages"` // sends and receives under way: the oldest
	UnderWay int       `json:"under_way"`
}

// Call is the collective that a rank is in, or has called last.
type Call struct {
	Sequence uint64 `json:"sequence"` // 0: it has called none
	What     string `json:"what"`     // as in "allreduce(float32, 8 elements, SUM)"
	State    string `json:"state"`    // as package trace names it
	ForUS    int64  `json:"for_us"`   // how long it is in the collective, or in none
	Peer     int    `json:"peer"`     // for whom it waits; -1: for nobody, or not for long
	Input    bool   `json:"input"`    // it waits for its own input
}

// Message is a send or receive that has not ended.
type Message struct {
	Send  bool   `json:"send"`
	Peer  int    `json:"peer"` // -1: a receive from any rank
	Tag   int    `json:"tag"`
	Bytes uint64 `json:"bytes"`
	ForUS int64  `json:"for_us"`
}

// reportMost is the most bytes of a report for a peer, and messagesMost how many sends and
// receives it tells of.
const (
	reportMost   = 4 << 10
	messagesMost = 8
)

// reportOf reads a trace, for an epoch of it.
func reportOf(t *trace.Trace, g *trace.Group) Report {
	r := Report{Failed: printable.Text(g.Failed, textMost), Call: Call{Peer: -1},
		Messages: []Message{}}
	records, _ := t.ReadCollectives()
	clock := t.Clock()
	for i := range records {
		c := &records[i]
		if c.Message.Epoch != g.Epoch || c.Message.Group != g.ID {
			continue
		}
		r.Call = callOf(c, clock)
		r.Call.Input = t.Unfed() == c.Number
		if underWay(c) { // those behind it wait for it
			break
		}
	}
	records, _ = t.ReadMessages()
	for i := range records {
		c := &records[i]
		if c.Message.Epoch != g.Epoch || c.Message.Group != g.ID || !underWay(c) {
			continue
		}
		r.UnderWay++
		if len(r.Messages) < messagesMost {
			r.Messages = append(r.Messages, Message{
				Send: plan.Collective(c.Message.Collective) == plan.Send, Peer: int(c.Message.Root),
				Tag: int(c.Message.Digest), Bytes: c.Bytes,
				ForUS: clock.Since(c.Created).Microseconds()})
		}
	}
	return r
}

func underWay(c *trace.Record) bool { return c.State == trace.Queued || c.State == trace.Begun }

func callOf(c *trace.Record, clock trace.Clock) Call {
	s := Call{Sequence: c.Number, What: printable.Text(call.Describe(c.Message), textMost),
		State: c.State.String(), Peer: -1}
	if plan.Collective(c.Message.Collective) == order.Refused {
		s.What = "a call that was refused"
	}
	since := c.Created
	switch c.State {
	case trace.Begun:
		if c.Waiting > 0 {
			s.Peer = c.Peer
		}
	case trace.Ended, trace.Failed:
		since = c.Ended
	}
	s.ForUS = clock.Since(since).Microseconds()
	return s
}

// encode writes a report for a peer.
func (r *Report) encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(r) != nil || b.Len() > reportMost {
		return nil
	}
	return b.Bytes()
}

// decode reads the report of a peer in a group of so many ranks.
func decode(b []byte, size int) (r Report, err error) {
	if len(b) > reportMost {
		return r, fmt.Errorf("a report of %d bytes: at most %d are allowed", len(b), reportMost)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("a report that is none: %w", err)
	}
	return r, r.clean(size)
}

// clean makes texts fit for a terminal, and refuses what cannot be in a group of so many ranks.
func (r *Report) clean(size int) error {
	for _, s := range []*string{&r.Failed, &r.Call.What, &r.Call.State} {
		*s = printable.Text(*s, textMost)
	}
	exists := func(peer int) bool { return -1 <= peer && peer < size }
	if !exists(r.Call.Peer) || len(r.Messages) > messagesMost || r.UnderWay < len(r.Messages) {
		return fmt.Errorf("a report of %d of %d messages, and of a wait for rank %d, in a group of %d",
			len(r.Messages), r.UnderWay, r.Call.Peer, size)
	}
	for i := range r.Messages {
		if m := &r.Messages[i]; !exists(m.Peer) || m.Tag < 0 {
			return fmt.Errorf("a report of a message with rank %d and tag %d, in a group of %d", m.Peer,
				m.Tag, size)
		}
	}
	return nil
}

// judged is the report of a rank that answers, as package judge knows it.
func (r *Report) judged(rank int) judge.Rank {
	j := judge.Rank{Rank: rank, Failed: r.Failed, UnderWay: r.UnderWay, Call: judge.Call{
		Sequence: r.Call.Sequence, What: r.Call.What, Peer: r.Call.Peer, Input: r.Call.Input,
		Ended: r.Call.State != trace.Queued.String() && r.Call.State != trace.Begun.String(),
		For:   microseconds(r.Call.ForUS)}}
	for _, m := range r.Messages {
		j.Messages = append(j.Messages, judge.Message{Send: m.Send, Peer: m.Peer, Tag: m.Tag,
			Bytes: m.Bytes, For: microseconds(m.ForUS)})
	}
	return j
}

func microseconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(time.Duration(1<<63-1)/time.Microsecond))) *
		time.Microsecond
}
