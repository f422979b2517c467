package sim

import (
	"bufio"
	"fmt"
	"io"

	"github.com/goccl/goccl/core/plan"
)

// mostTraced is the most events of a trace, so that viewers open it.
const mostTraced = 100_000

// traceHead is what an event of a trace has beside its name and its time: the track of its rank.
const traceHead = `"pid":%d,"tid":%d,"ts":%s`

// traced are the ranks of which a trace tells: all; where these have too many events the first rank
// of each host, and of these as many as fit.
func (s *simulation) traced() []int32 {
	var all, first []int32
	seen := make([]bool, len(s.hosts))
	for r := range s.ranks {
		all = append(all, int32(r))
		if !seen[s.ranks[r].host] {
			seen[s.ranks[r].host] = true
			first = append(first, int32(r))
		}
	}
	if s.fitting(all) == len(all) {
		return all
	}
	return first[:max(1, s.fitting(first))]
}

// fitting is how many of some ranks a trace has room for.
func (s *simulation) fitting(ranks []int32) int {
	events := 0
	for i, r := range ranks {
		k := &s.ranks[r]
		events += 2 + len(k.waits) + len(k.steps)
		for j := range k.steps {
			if k.steps[j].op == plan.Wait {
				events++
			}
			s.sends(r, &k.steps[j], func(int32) { events++ })
		}
		if events > mostTraced {
			return i
		}
	}
	return len(ranks)
}

// writeTrace writes a trace as Chrome's and Perfetto's viewers read it: a process a host, a track a
// rank, and an arrow a message between ranks of the trace. It returns of how many ranks it tells.
func (s *simulation) writeTrace(to io.Writer) (int, error) {
	ranks := s.traced()
	on := make([]bool, len(s.ranks))
	for _, r := range ranks {
		on[r] = true
	}
	w := bufio.NewWriter(to)
	fmt.Fprint(w, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")
	t := &tracer{simulation: s, w: w, on: on, taken: map[int32]int32{}, put: map[int32]int32{}}
	named := make([]bool, len(s.hosts))
	for _, r := range ranks {
		if h := s.ranks[r].host; !named[h] {
			named[h] = true
			t.event(`"ph":"M","name":"process_name","pid":%d,"args":{"name":"host %d"}`, h+1, h)
		}
		t.event(`"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":"rank %d"}`,
			s.ranks[r].host+1, r+1, r)
	}
	for _, r := range ranks {
		t.rank(r)
	}
	fmt.Fprint(w, "\n]}\n")
	return len(ranks), w.Flush()
}

// tracer writes a trace.
type tracer struct {
	*simulation
	w          *bufio.Writer
	on         []bool // by rank: the trace tells of it
	events     int
	put, taken map[int32]int32 // by ring: messages so far
}

func (t *tracer) event(format string, args ...any) {
	if t.events++; t.events > 1 {
		t.w.WriteByte(',')
	}
	t.w.WriteString("\n{")
	fmt.Fprintf(t.w, format, args...)
	t.w.WriteByte('}')
}

// rank writes the track of a rank. A rank that alone has too many events ends early.
func (t *tracer) rank(r int32) {
	k := &t.ranks[r]
	t.timeline(r, func(x span) bool {
		p := &k.steps[x.step]
		head := fmt.Sprintf(traceHead, k.host+1, r+1, exactMicros(x.begin))
		switch {
		case x.wait != nil:
			t.event(`"ph":"X","name":"wait for %s","cat":"%v",%s,"dur":%s,"args":{%s}`, x.wait.what(),
				x.wait.on, head, exactMicros(x.until-x.begin), x.wait.about())
			return t.events < mostTraced
		case x.until > x.begin || p.op == plan.Wait || p.op == plan.Put || p.op == plan.Offer ||
			p.op == plan.PutToAll:
			t.event(`"ph":"X","name":"%s","cat":"%v",%s,"dur":%s,"args":{%s}`, names[p.op], x.cause(), head,
				exactMicros(x.until-x.begin), t.about(&x, p))
		}
		t.sends(r, p, func(ring int32) {
			if n := t.put[ring]; t.on[t.rings[ring].receiver] {
				t.event(`"ph":"s","name":"message","cat":"message","id":"%d.%d",%s`, ring, n, head)
			}
			t.put[ring]++
		})
		if p.op == plan.Wait {
			if n := t.taken[p.ring]; t.on[t.rings[p.ring].sender] {
				t.event(`"ph":"f","bp":"e","name":"message","cat":"message","id":"%d.%d",%s`, p.ring, n, head)
			}
			t.taken[p.ring]++
		}
		return t.events < mostTraced
	})
}

var names = [...]string{plan.Put: "put", plan.Wait: "take", plan.Release: "release",
	plan.Copy: "copy", plan.Combine: "reduce", plan.Reclaim: "reclaim", plan.Expose: "expose",
	plan.Access: "access", plan.Offer: "offer", plan.Get: "get", plan.PutToAll: "put to all"}

// what is what a rank waited for.
func (w *wait) what() string {
	switch w.on {
	case Turns:
		return "a CPU"
	case Slots:
		return fmt.Sprintf("a slot of rank %d", w.peer)
	}
	return fmt.Sprintf("rank %d", w.peer)
}

// about is what the arguments of a wait tell.
func (w *wait) about() string {
	if w.on != Messages {
		return ""
	}
	c := &w.crossing
	return fmt.Sprintf(`"sent_us":%s,"wire_us":%s,"queue_us":%s,"latency_us":%s`, exactMicros(w.sent),
		exactMicros(c.wire), exactMicros(c.queued), exactMicros(c.arrival-w.sent-c.wire-c.queued))
}

// about is what the arguments of a step tell.
func (t *tracer) about(x *span, p *step) string {
	text := fmt.Sprintf(`"step":%d,"bytes":%d`, x.step, p.bytes)
	if p.op != plan.Copy && p.op != plan.Combine && p.op != plan.PutToAll {
		text += fmt.Sprintf(`,"peer":%d`, p.peer)
	}
	return text + fmt.Sprintf(`,"overhead_us":%s,"copying_us":%s,"reducing_us":%s`,
		exactMicros(x.does.overhead), exactMicros(x.does.copying), exactMicros(x.does.reducing))
}

// exactMicros are the microseconds of picoseconds, none of which is lost.
func exactMicros(ps int64) string { return fmt.Sprintf("%d.%06d", ps/1e6, ps%1e6) }
