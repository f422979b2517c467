package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A machine that is busy with other tests is no reason to read the store.
func init() { shareTime, leaderTime = limit, limit }

// counting is a store that counts the bytes that pass: keys, and values both ways.
type counting struct {
	Store
	bytes, tables, calls atomic.Int64
	polls, polled        atomic.Int64 // of the news: how many, and their bytes
	joins                sync.Map     // the keys of joins that were read
	again                atomic.Int64 // bytes of joins that were read once more
}

func (c *counting) Set(key string, value []byte) error {
	c.calls.Add(1)
	c.bytes.Add(int64(len(key) + len(value)))
	return c.Store.Set(key, value)
}

func (c *counting) Get(key string) ([]byte, bool, error) {
	v, ok, err := c.Store.Get(key)
	c.calls.Add(1)
	c.bytes.Add(int64(len(key) + len(v)))
	switch {
	case strings.HasSuffix(key, "/table"):
		c.tables.Add(1)
	case strings.HasSuffix(key, "/news"):
		c.polls.Add(1)
		c.polled.Add(int64(len(key) + len(v)))
	case strings.Contains(key, "/join/") && ok:
		if _, read := c.joins.LoadOrStore(key, true); read {
			c.again.Add(int64(len(key) + len(v)))
		}
	}
	return v, ok, err
}

// loopback is what the hosts of a test listen on.
var loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}

// manyRanks are ranks of several hosts, who say of themselves as much as those of core.
func manyRanks(size, each int) []JoinConfig {
	configs := ranks(size)
	for r := range configs {
		host := fmt.Sprint("host ", r/each)
		configs[r].host, configs[r].Listen = host, loopback
		configs[r].Member = Member{bytes.Repeat([]byte{byte(r)}, 40),
			[]byte(host + strings.Repeat("x", 240))}
		configs[r].Settings = []Setting{{strings.Repeat("n", 200), strings.Repeat("v", 50)}}
	}
	return configs
}

// TestJoinOfMany counts what passes through the store. It grows with the ranks, and not with the
// hosts.
func TestJoinOfMany(t *testing.T) {
	// Both ends of all connections are in this process, and 4,096 descriptors may be all it has.
	size := 1024
	if testing.Short() { // the race detector takes 20 times as long
		size = 512
	}
	most := int64(size) * 2048
	for _, each := range []int{64, 8} {
		c := &counting{Store: NewMemStore()}
		configs := manyRanks(size, each)
		agree(t, configs[:1], joinAll(within(t, 10*limit), c, configs))
		t.Logf("%d ranks, %d a host: %d bytes, %d calls, %d reads of the table, %d bytes of polls", size,
			each, c.bytes.Load(), c.calls.Load(), c.tables.Load(), c.polled.Load())
		// How often ranks poll, and look whether their joins still stand, depends on how long they wait.
		if b := c.bytes.Load() - c.polled.Load() - c.again.Load(); b > most {
			t.Errorf("%d a host: %d bytes have passed through the store, allowed are %d", each, b, most)
		}
		if b := c.polled.Load() / c.polls.Load(); b > 100 {
			t.Errorf("%d a host: a poll reads %d bytes", each, b)
		}
	}
}

// BenchmarkJoin is the meeting of many ranks in one process.
func BenchmarkJoin(b *testing.B) {
	for _, size := range []int{128, 512, 2048} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var bytes, calls int64
			for b.Loop() {
				c := &counting{Store: NewMemStore()}
				for _, r := range joinAll(context.Background(), c, manyRanks(size, 64)) {
					if r.err != nil {
						b.Fatal(r.err)
					}
				}
				bytes, calls = bytes+c.bytes.Load(), calls+c.calls.Load()
			}
			b.ReportMetric(float64(bytes)/float64(b.N), "store-B/op")
			b.ReportMetric(float64(calls)/float64(b.N), "calls/op")
		})
	}
}

// onHost is a rank of a host, that reads a table, but does not join.
func onHost(t *testing.T, s Store, host string) *joiner {
	j := &joiner{ctx: within(t, limit), store: s, prefix: "goccl//g/",
		config: JoinConfig{host: host}}
	t.Cleanup(j.close)
	return j
}

// largeRoster is one whose table is handed on.
func largeRoster() *rosterRecord {
	r := &rosterRecord{nonce: newNonce(), size: 512}
	random(r.secret[:])
	for rank := range r.size {
		r.marks = append(r.marks, mark{byte(rank)})
		r.members = append(r.members, Member{[]byte{byte(rank)}, []byte("host")})
	}
	return r
}

// read checks that a rank reads the table of a roster, and how often the store is read for it.
func (c *counting) read(t *testing.T, j *joiner, r *rosterRecord, fromStore int64) {
	t.Helper()
	before := c.tables.Load()
	table, err := j.table(r)
	if err != nil || !bytes.Equal(table, r.table) {
		t.Fatalf("%d bytes, %v", len(table), err)
	}
	if n := c.tables.Load() - before; n != fromStore {
		t.Errorf("the store is read %d times, want %d", n, fromStore)
	}
}

// TestTableOfAHost has ranks of one host read a table, while nobody, a member, a member that has
// gone, or a stranger listens in their place.
func TestTableOfAHost(t *testing.T) {
	s := &counting{Store: NewMemStore()}
	newJoiner := func() *joiner { return onHost(t, s, t.Name()) }
	r := largeRoster()
	r.tabulate()
	r.encode("")
	if err := s.Set("goccl//g/table", r.table); err != nil {
		t.Fatal(err)
	}
	read := func(j *joiner, fromStore int64) {
		t.Helper()
		s.read(t, j, r, fromStore)
	}
	first, second := newJoiner(), newJoiner()
	read(first, 1)
	read(second, 0)
	first.close()
	read(second, 1)
	read(newJoiner(), 0)
	second.close()
	secret, socket := first.shareSecret(r)
	secret[0]++
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	stranger := newJoiner()
	root := stranger.newLeader()
	root.secret, root.listeners = secret, append(root.listeners, l)
	root.start()
	if err := root.set("table", []byte("forged")); err != nil {
		t.Fatal(err)
	}
	read(first, 1)
}

// TestTreeOfLeaders has the leaders of many hosts read a table, while their parents serve it, have
// gone, are silent, or are strangers.
func TestTreeOfLeaders(t *testing.T) {
	s := &counting{Store: NewMemStore()}
	host := 0
	newLeader := func() *joiner {
		host++
		j := onHost(t, s, fmt.Sprint(t.Name(), host))
		j.config.Listen = loopback
		return j
	}
	r, zero := largeRoster(), newLeader()
	if err := zero.write(r); err != nil {
		t.Fatal(err)
	}
	var leaders []*joiner
	enter := func(fromStore int64) {
		t.Helper()
		leaders = append(leaders, newLeader())
		s.read(t, leaders[len(leaders)-1], r, fromStore)
	}
	for len(leaders) < 2*radix { // the root and leader 0 have all their children
		enter(0)
	}
	leaders[1].close()
	for range radix { // the children of leader 1
		enter(1)
	}
	// The children of leader 2 find somebody there who says nothing, and then a stranger.
	leaders[2].close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	leaderTime = short
	replace(zero.sharing, 2, silent.Addr())
	enter(1)
	leaderTime = limit
	stranger := onHost(t, s, "").newLeader()
	if err := stranger.listen(loopback); err != nil {
		t.Fatal(err)
	}
	stranger.start()
	replace(zero.sharing, 2, stranger.listeners[0].Addr())
	enter(1)
	// One that no other host reaches has no place in the tree.
	s.read(t, onHost(t, s, t.Name()+" cut off"), r, 1)
	zero.close() // and waits for its goroutines
	if n := len(zero.sharing.leaders); n != len(leaders) {
		t.Errorf("%d leaders have entered, want %d", n, len(leaders))
	}
	enter(1)
}

// TestTableOfALiar has a rank that holds the roster's secret hand out something else: another
// table, one that is too long, and as much as can be. The ranks of the host read the store, and so
// does a leader whose parent it is.
func TestTableOfALiar(t *testing.T) {
	for name, length := range map[string]int{"another": 0, "too long": 1,
		"as long as can be": maxValue - 64<<10} {
		t.Run(name, func(t *testing.T) {
			s := &counting{Store: NewMemStore()}
			r := largeRoster()
			zero := onHost(t, s, t.Name())
			zero.config.Listen = loopback
			if err := zero.write(r); err != nil {
				t.Fatal(err)
			}
			forged := append(bytes.Clone(r.table), make([]byte, length)...)
			forged[0]++
			if err := zero.sharing.set("table", forged); err != nil {
				t.Fatal(err)
			}
			s.read(t, onHost(t, s, t.Name()), r, 1)
			leader := onHost(t, s, t.Name()+" another")
			leader.config.Listen = loopback
			s.read(t, leader, r, 1)
			s.read(t, onHost(t, s, t.Name()+" another"), r, 0) // it hands on the true one
		})
	}
}

// TestClientsOfALeaderOnlyRead: who holds the roster's secret cannot write where tables lie.
func TestClientsOfALeaderOnlyRead(t *testing.T) {
	r := largeRoster()
	zero := onHost(t, NewMemStore(), t.Name())
	zero.config.Listen = loopback
	if err := zero.write(r); err != nil {
		t.Fatal(err)
	}
	secret, socket := zero.shareSecret(r)
	for name, ask := range map[string]func(c *client) error{
		"set": func(c *client) error { return c.Set("table", nil) },
		"a long watch": func(c *client) error {
			_, _, err := c.Watch("table", make([]byte, 1<<10), limit)
			return err
		},
	} {
		c, err := dialOne(within(t, limit), "unix", socket, secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := ask(c); err == nil {
			t.Errorf("%s is answered", name)
		}
		_ = c.Close()
	}
	if v, _ := zero.sharing.get("table"); !bytes.Equal(v, r.table) {
		t.Error("the table is another one")
	}
}

// TestForgedRosterIsNotDialled has a writer of the store that holds no secret name the root of a
// roster.
func TestForgedRosterIsNotDialled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &counting{Store: NewMemStore()}
	j := onHost(t, s, t.Name())
	j.config.Listen, j.key = loopback, "the job's"
	for _, keyed := range []bool{false, true} {
		r := largeRoster()
		r.keyed, r.root = keyed, []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}
		r.tabulate()
		r.encode("a guess")
		if err := s.Set("goccl//g/table", r.table); err != nil {
			t.Fatal(err)
		}
		s.read(t, j, r, 1)
		if j.sharing != nil {
			t.Errorf("keyed %v: the rank is a leader by a forged roster", keyed)
		}
	}
	_ = l.(*net.TCPListener).SetDeadline(time.Now()) // who has dialled is in the queue
	if c, err := l.Accept(); err == nil {
		t.Errorf("%v has dialled", c.RemoteAddr())
	}
}

// replace has a leader listen elsewhere.
func replace(root *Root, leader int, to net.Addr) {
	root.mu.Lock()
	defer root.mu.Unlock()
	root.leaders[leader] = appendAddresses(nil, []netip.AddrPort{to.(*net.TCPAddr).AddrPort()})
}

// TestRootGivesPlaces checks that no leader has more children than it should, and that each has
// entered after its parent.
func TestRootGivesPlaces(t *testing.T) {
	var root Root
	children := map[string]int{}
	for place := range 1000 {
		own := fmt.Sprint(place)
		parent, ok := root.enter([]byte(own))
		if !ok {
			t.Fatal(place, "is refused")
		}
		if _, entered := children[string(parent)]; !entered && parent != nil {
			t.Fatalf("%d has parent %q", place, parent)
		}
		if children[string(parent)]++; children[string(parent)] > radix {
			t.Fatalf("%q has more than %d children", parent, radix)
		}
		children[own] = 0
	}
}

// deathOfLeader is the store as a rank sees it that dies when it has read the roster.
type deathOfLeader struct{ Store }

func (d deathOfLeader) Set(key string, value []byte) error {
	if strings.Contains(key, "/confirm/") {
		return errDead
	}
	return d.Store.Set(key, value)
}

// confirmed is a store that tells when so many ranks have confirmed.
type confirmed struct {
	Store
	left atomic.Int64
	all  func()
}

func (c *confirmed) Set(key string, value []byte) error {
	err := c.Store.Set(key, value)
	if strings.Contains(key, "/confirm/") && c.left.Add(-1) == 0 {
		c.all()
	}
	return err
}

// TestDeathOfALeader has a leader die once it has entered the tree. All others get the table, and
// rank 0 names the dead one when its time is up.
func TestDeathOfALeader(t *testing.T) {
	const size, each, dead = 256, 4, 4
	configs := manyRanks(size, each)
	for r := range each - 1 { // the dead rank is the leader: its host has no other
		configs[dead+1+r].host = "another host"
	}
	ctx, cancel := context.WithCancel(within(t, limit))
	s := &confirmed{Store: NewMemStore(), all: cancel}
	s.left.Store(size - 2)
	results := make(chan result)
	for _, c := range configs {
		own, store := context.WithoutCancel(ctx), Store(s)
		if c.Rank == 0 {
			own = ctx
		}
		if c.Rank == dead {
			store = deathOfLeader{s}
		}
		go func() {
			own, cancel := context.WithTimeout(own, limit)
			defer cancel()
			r, err := Join(own, store, c)
			results <- result{c.Rank, r, err}
		}()
	}
	for range configs {
		r := <-results
		var absent *AbsentError
		switch {
		case r.rank == dead && !errors.Is(r.err, errDead):
			t.Errorf("the dead rank: %v", r.err)
		case r.rank == 0 && (!errors.As(r.err, &absent) || !slices.Equal(absent.Ranks, []int{dead})):
			t.Errorf("rank 0: %v", r.err)
		case r.err == nil:
			t.Errorf("rank %d has a group", r.rank)
		}
	}
}
