package status

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/goccl/goccl/core/trace"
)

const (
	// askTime is how long peers have to answer.
	askTime = 500 * time.Millisecond
	// dialTime is how long they have before that where they are to be connected first.
	dialTime = time.Second
	// dialsAtOnce is how many of them are connected at the same time.
	dialsAtOnce = 32
	// fresh is how long an answer is used again. A peer that has answered is asked no earlier.
	fresh = 100 * time.Millisecond
	// seldom is how long a peer that asks again gets no answer. It is less than fresh: whoever asks
	// as Peers does is always answered.
	seldom = fresh / 2
	// patience is how long an answer may be late before the question is put again. It doubles each
	// time: few questions wait for a peer that is stopped.
	patience = time.Second
)

// Links are what joins a rank to its peers in an epoch.
type Links interface {
	// Linked reports whether there is a link to a peer.
	Linked(peer int) bool
	// Ask sends a peer that there is a link to the question what it does. It waits for nobody.
	Ask(peer int)
	// Connect makes a link to a peer, until the context ends.
	Connect(ctx context.Context, peer int) error
}

// Peers asks the peers of a rank what they do, over the links that are there, and answers them. It
// outlives the epochs of its communicator. The zero one has no peers. Its methods may be called
// from any goroutine, and none but Ask waits.
type Peers struct {
	mu      sync.Mutex // guards what follows; held for a moment
	epoch   uint32
	links   Links // nil: there are none
	size    int
	peers   map[int]*peer
	changed chan struct{} // closed with the next answer
	own     []byte        // this rank's report
	made    time.Time     // when own was read
}

// peer is what is known of one.
type peer struct {
	asked    time.Time     // when it was asked last
	patience time.Duration // from then on
	due      bool          // it has not answered
	asks     int           // how many questions have no answer
	heard    time.Time     // when it has answered last
	report   Report        // its last answer
	answered time.Time     // when it was answered last
}

// Other is what a rank has been told by a peer that is on another host.
type Other struct {
	Rank    int  `json:"rank"`
	Answers bool `json:"answers"` // else there is a link to it, and no answer came
	Report
}

// Use tells of the links of an epoch that begins, with so many ranks. Links are nil when it ends.
func (p *Peers) Use(epoch uint32, links Links, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch, p.links, p.size, p.peers, p.own = epoch, links, size, map[int]*peer{}, nil
	p.wake()
}

// wake wakes those who wait for answers. It is called with mu held.
func (p *Peers) wake() {
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
}

// of is what is known of a peer. It is called with mu held.
func (p *Peers) of(rank int) *peer {
	if p.peers[rank] == nil {
		p.peers[rank] = &peer{}
	}
	return p.peers[rank]
}

// Ask asks some peers of an epoch that there is a link to, for askTime at most. Dials tells that
// links to the others are to be made first.
func (p *Peers) Ask(epoch uint32, ranks []int, dials bool) []Other {
	began := time.Now()
	linked, apart := p.askThese(epoch, ranks)
	if dials {
		p.connect(epoch, apart)
		more, _ := p.askThese(epoch, apart)
		linked = append(linked, more...)
	}
	over := time.NewTimer(askTime)
	defer over.Stop()
	for {
		others, all, changed := p.heard(epoch, linked, began.Add(-fresh))
		if all {
			return others
		}
		select {
		case <-changed:
		case <-over.C:
			return others
		}
	}
}

// askThese asks peers, and tells those that there is a link to from those that there is none to.
func (p *Peers) askThese(epoch uint32, ranks []int) (linked, apart []int) {
	now := time.Now()
	for _, rank := range ranks {
		if p.ask(epoch, rank, now) {
			linked = append(linked, rank)
		} else {
			apart = append(apart, rank)
		}
	}
	return linked, apart
}

// connect makes links to peers of an epoch, for dialTime at most. Of a link that cannot be made
// nothing is told: there is none then.
func (p *Peers) connect(epoch uint32, ranks []int) {
	links := p.linksOf(epoch)
	if links == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	turn := make(chan struct{}, dialsAtOnce)
	var dialing sync.WaitGroup
	for _, rank := range ranks {
		dialing.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			_ = links.Connect(ctx, rank)
		})
	}
	dialing.Wait()
}

// ask asks a peer, unless it has just answered or is being asked. It reports whether there is a
// link to it.
func (p *Peers) ask(epoch uint32, rank int, now time.Time) (linked bool) {
	links := p.linksOf(epoch)
	if links == nil || !links.Linked(rank) { // without mu: links have locks of their own
		return false
	}
	if p.mayAsk(epoch, rank, now) {
		links.Ask(rank)
	}
	return true
}

// linksOf are the links of an epoch; nil: it is not the present one.
func (p *Peers) linksOf(epoch uint32) Links {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch != epoch {
		return nil
	}
	return p.links
}

// mayAsk reports whether a peer is to be asked, and notes that it is.
func (p *Peers) mayAsk(epoch uint32, rank int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links == nil || p.epoch != epoch {
		return false
	}
	q := p.of(rank)
	switch {
	case q.due && now.Sub(q.asked) < q.patience, !q.due && now.Sub(q.heard) < fresh:
		return false
	case q.due:
		q.patience *= 2
	default:
		q.patience = patience
	}
	q.asked, q.due, q.asks = now, true, q.asks+1
	return true
}

// heard is what peers have answered since a moment, and whether all have.
func (p *Peers) heard(epoch uint32, ranks []int, since time.Time) (
	others []Other, all bool, changed <-chan struct{},
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links == nil || p.epoch != epoch {
		return nil, true, nil
	}
	all = true
	for _, rank := range ranks {
		o := Other{Rank: rank}
		if q := p.of(rank); q.heard.After(since) {
			o.Answers, o.Report = true, q.report
		}
		all = all && o.Answers
		others = append(others, o)
	}
	return others, all, p.changed
}

// Hear takes a peer's answer. One that nobody waits for is left alone. An error means that it is
// what no correct peer answers.
func (p *Peers) Hear(rank int, answer []byte) error {
	p.mu.Lock()
	q := p.peers[rank]
	asked, size := q != nil && q.asks > 0, p.size
	p.mu.Unlock()
	if !asked && len(answer) <= reportMost {
		return nil
	}
	r, err := decode(answer, size)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q.due, q.asks, q.heard, q.report = false, q.asks-1, time.Now(), r
	p.wake()
	return nil
}

// Answer returns what a peer is answered that asks; nil: nothing, since it asks too often. Trace is
// that of this rank.
func (p *Peers) Answer(rank int, t *trace.Trace) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, groups := time.Now(), t.Groups()
	if p.links == nil || len(groups) == 0 {
		return nil
	}
	q := p.of(rank)
	if now.Sub(q.answered) < seldom {
		return nil
	}
	q.answered = now
	if p.own == nil || now.Sub(p.made) > seldom { // many may ask at once
		r := reportOf(t, &groups[len(groups)-1])
		p.own, p.made = r.encode(), now
	}
	return slices.Clip(p.own)
}
