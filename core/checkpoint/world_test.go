package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goccl/goccl/core/fault"
)

// world is ranks with their stores, whose collectives are calls in this process.
type world struct {
	t      *testing.T
	stores []*Store
	hosts  []string
	epoch  uint32
	death  *death // in the next calls; nil: nobody dies
	calls  int    // that the last calls have made of their service
	kinds  []string
}

// death says at which call of the service a rank dies. Its part of that has come to the others, as
// far as they have heard from all: these are through.
type death struct {
	rank, call int
	through    uint // ranks, a bit each
}

var (
	errDead = errors.New("this rank has died")
	errPeer = errors.New("a peer has died")
	errGone = errors.New("a peer has left the call")
)

func newWorld(t *testing.T, hosts string) *world {
	w := &world{t: t, epoch: 1}
	w.join(hosts)
	return w
}

// join adds ranks, on some hosts.
func (w *world) join(hosts string) {
	for _, host := range strings.Split(hosts, "") {
		w.stores, w.hosts = append(w.stores, NewStore()), append(w.hosts, host)
	}
	w.epoch++
}

// of is the world that is left of some ranks, in this order.
func (w *world) of(ranks ...int) *world {
	left := &world{t: w.t, epoch: w.epoch + 1}
	for _, rank := range ranks {
		left.stores, left.hosts = append(left.stores, w.stores[rank]), append(left.hosts, w.hosts[rank])
	}
	return left
}

// try has all ranks call something at once.
func (w *world) try(call func(rank int, m Members) error) []error {
	group := fault.NewGroup("", nil, make([]int, len(w.stores)))
	r := &rendezvous{w: w, death: w.death, here: len(w.stores)}
	r.changed.L = &r.mu
	w.death = nil
	errs := make([]error, len(w.stores))
	var all sync.WaitGroup
	for rank := range w.stores {
		all.Go(func() {
			errs[rank] = call(rank, Members{Service: &member{r: r, rank: rank}, Group: &group, Rank: rank,
				Hosts: w.hosts, Epoch: w.epoch, Logger: slog.New(slog.DiscardHandler)})
			r.mu.Lock()
			defer r.mu.Unlock()
			r.here--
			r.changed.Broadcast()
		})
	}
	all.Wait()
	w.calls, w.kinds = len(r.calls), nil
	for _, c := range r.calls {
		w.kinds = append(w.kinds, c.kind)
	}
	return errs
}

func (w *world) each(call func(rank int, m Members) error) {
	w.t.Helper()
	for rank, err := range w.try(call) {
		if err != nil {
			w.t.Fatalf("rank %d: %v", rank, err)
		}
	}
}

// rendezvous is where the ranks of a world meet for each call of their service.
type rendezvous struct {
	w       *world
	mu      sync.Mutex
	changed sync.Cond
	death   *death
	here    int // ranks that have not left
	calls   []*serviceCall
}

type serviceCall struct {
	kind  string
	given map[int][][]byte // by rank
}

type member struct {
	r     *rendezvous
	rank  int
	calls int
}

// meet gives blocks, and returns those of all ranks.
func (m *member) meet(kind string, blocks ...[]byte) (map[int][][]byte, error) {
	r, n := m.r, m.calls
	m.calls++
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.death
	if d != nil && n > d.call {
		return nil, errPeer
	}
	if n == len(r.calls) {
		r.calls = append(r.calls, &serviceCall{kind, map[int][][]byte{}})
	}
	c := r.calls[n]
	if c.kind != kind {
		r.w.t.Errorf("rank %d calls %s, others %s", m.rank, kind, c.kind)
		return nil, errGone
	}
	for i := range blocks {
		blocks[i] = bytes.Clone(blocks[i])
	}
	c.given[m.rank] = blocks
	r.changed.Broadcast()
	for len(c.given) < len(r.w.stores) {
		if r.here < len(r.w.stores) {
			return nil, errGone
		}
		r.changed.Wait()
	}
	switch {
	case d == nil || n < d.call:
		return c.given, nil
	case m.rank == d.rank:
		return nil, errDead
	case d.through>>m.rank&1 == 0:
		return nil, errPeer
	}
	return c.given, nil
}

func (m *member) Gather(_ context.Context, mine ...int64) (numbers []int64, err error) {
	given, err := m.meet("gather", []byte(strings.Trim(fmt.Sprint(mine), "[]")))
	for rank := range len(given) {
		fields := strings.Fields(string(given[rank][0]))
		if len(fields) != len(mine) {
			m.r.w.t.Errorf("rank %d gathers %d numbers, rank %d %d", m.rank, len(mine), rank, len(fields))
		}
		for _, field := range fields {
			var n int64
			fmt.Sscan(field, &n)
			numbers = append(numbers, n)
		}
	}
	return numbers, err
}

func (m *member) Broadcast(_ context.Context, root int, data []byte) error {
	given, err := m.meet(fmt.Sprint("broadcast of ", root), data)
	if err == nil && copy(data, given[root][0]) != len(given[root][0]) {
		m.r.w.t.Errorf("rank %d has room for %d bytes of %d", m.rank, len(data), len(given[root][0]))
	}
	return err
}

func (m *member) Exchange(_ context.Context, in, out [][]byte) error {
	given, err := m.meet("exchange", slices.Clone(in)...)
	for rank := range len(given) {
		if got := given[rank][m.rank]; len(got) != len(out[rank]) {
			m.r.w.t.Errorf("rank %d has room for %d bytes of %d from %d", m.rank, len(out[rank]), len(got),
				rank)
		} else {
			copy(out[rank], got)
		}
	}
	return err
}

func (m *member) Barrier(context.Context) error {
	_, err := m.meet("barrier")
	return err
}

// makes has the ranks make a version of models that tell which it is, and whose.
func (w *world) makes(number, replicas int, owners ...int) {
	w.t.Helper()
	w.each(func(rank int, m Members) error { return w.make(m, number, replicas, owners[rank]) })
}

func (w *world) make(m Members, number, replicas, owner int) error {
	s := w.stores[m.Rank]
	global, local := fmt.Append(nil, "global ", number), fmt.Append(nil, "local ", number, owner)
	err := s.Make(context.Background(), m, global, local, replicas)
	clear(global) // they have been copied
	clear(local)
	if n := s.Version(); err == nil && n != uint64(number) {
		return fmt.Errorf("version %d, not %d", n, number)
	}
	return err
}

// loads checks that ranks get a version, and which local models: "0", "-" for none, and after it
// orphans, as in "0 2" or, lost, "0 2?".
func (w *world) loads(number int, want ...string) {
	w.t.Helper()
	w.each(func(rank int, m Members) error {
		v, err := w.stores[rank].Load(context.Background(), m)
		if err != nil {
			return err
		}
		global, local := "", "-"
		if number > 0 {
			global = fmt.Sprint("global ", number)
		}
		if v.Local != nil {
			local = strings.TrimPrefix(string(v.Local), fmt.Sprint("local ", number, " "))
		}
		for _, o := range v.Orphans {
			mark := "?"
			if string(o.Model) == fmt.Sprint("local ", number, o.Rank) {
				mark = ""
			} else if o.Model != nil {
				mark = " is " + string(o.Model)
			}
			local += fmt.Sprint(" ", o.Rank, mark)
		}
		if v.Version != uint64(number) || string(v.Global) != global || local != want[rank] ||
			w.stores[rank].Version() != v.Version {
			return fmt.Errorf("version %d, %q, %q; not %d, %q, %q", v.Version, v.Global, local, number,
				global, want[rank])
		}
		return nil
	})
}

// refuses checks what all ranks are told where a version is not loaded.
func (w *world) refuses(text string) {
	w.t.Helper()
	for rank, err := range w.try(func(rank int, m Members) error {
		_, err := w.stores[rank].Load(context.Background(), m)
		return err
	}) {
		if !errors.Is(err, fault.ErrMismatch) || !strings.Contains(err.Error(), text) {
			w.t.Errorf("rank %d: %v, want %q", rank, err, text)
		}
	}
}
