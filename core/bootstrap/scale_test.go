package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// A machine that is busy with other tests is no reason to read the store.
func init() { shareTime = limit }

// counting is a store that counts the bytes that pass: keys, and values both ways.
type counting struct {
	Store
	bytes, tables, calls atomic.Int64
	polls, polled        atomic.Int64 // of the news: how many, and their bytes
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
	}
	return v, ok, err
}

// manyRanks are ranks of several hosts, who say of themselves as much as those of core.
func manyRanks(size, each int) []JoinConfig {
	configs := ranks(size)
	for r := range configs {
		host := fmt.Sprint("host ", r/each)
		configs[r].host = host
		configs[r].Member = Member{bytes.Repeat([]byte{byte(r)}, 40),
			[]byte(host + strings.Repeat("x", 240))}
		configs[r].Settings = []Setting{{strings.Repeat("n", 200), strings.Repeat("v", 50)}}
	}
	return configs
}

// TestJoinOfMany counts what passes through the store. It grows with the ranks times the hosts.
func TestJoinOfMany(t *testing.T) {
	const size, each, most = 2048, 64, 10 << 20
	c := &counting{Store: NewMemStore()}
	configs := manyRanks(size, each)
	agree(t, configs[:1], joinAll(within(t, limit), c, configs))
	t.Logf("%d ranks: %d bytes, %d calls, %d reads of the table, %d bytes of polls", size,
		c.bytes.Load(), c.calls.Load(), c.tables.Load(), c.polled.Load())
	// How often ranks poll depends on how long they wait.
	if b := c.bytes.Load() - c.polled.Load(); b > most*9/10 {
		t.Errorf("%d bytes have passed through the store, allowed are %d", b, most*9/10)
	}
	if b := c.polled.Load() / c.polls.Load(); b > 100 {
		t.Errorf("a poll reads %d bytes", b)
	}
	if n := c.tables.Load(); n > size/each {
		t.Errorf("%d ranks have read the table, of %d hosts", n, size/each)
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

// TestTableOfAHost has ranks of one host read a table, while nobody, a member, a member that has
// gone, or a stranger listens in their place.
func TestTableOfAHost(t *testing.T) {
	s := &counting{Store: NewMemStore()}
	newJoiner := func() *joiner {
		j := &joiner{ctx: within(t, limit), store: s, prefix: "goccl//g/",
			config: JoinConfig{host: t.Name()}}
		t.Cleanup(j.close)
		return j
	}
	r := &rosterRecord{nonce: newNonce(), size: 512}
	random(r.secret[:])
	for rank := range r.size {
		r.marks = append(r.marks, mark{byte(rank)})
		r.members = append(r.members, Member{[]byte{byte(rank)}, []byte("host")})
	}
	r.encode("")
	if r.bytes < shareFrom {
		t.Fatalf("%d bytes are not shared", r.bytes)
	}
	if err := s.Set("goccl//g/table", r.table); err != nil {
		t.Fatal(err)
	}
	read := func(j *joiner, fromStore int64) {
		t.Helper()
		before := s.tables.Load()
		table, err := j.table(r)
		if err != nil || !bytes.Equal(table, r.table) {
			t.Fatalf("%d bytes, %v", len(table), err)
		}
		if n := s.tables.Load() - before; n != fromStore {
			t.Errorf("the store is read %d times, want %d", n, fromStore)
		}
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
	if err := stranger.serve(l, secret).set("table", []byte("forged")); err != nil {
		t.Fatal(err)
	}
	read(first, 1)
}
