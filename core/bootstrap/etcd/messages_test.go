package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// liar sends a beginning, and then something without end. It looks at the memory that is in use.
type liar struct {
	rest            string
	more            func(i int) string
	i, sent, looked int
	first, top      uint64 // bytes
}

func (l *liar) Read(b []byte) (int, error) {
	if len(l.rest) < len(b) {
		var s strings.Builder
		s.WriteString(l.rest)
		for s.Len() < len(b) {
			s.WriteString(l.more(l.i))
			l.i++
		}
		l.rest = s.String()
	}
	if l.first == 0 || l.sent-l.looked > 64<<10 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		l.first, l.top, l.looked = cmp.Or(l.first, m.HeapAlloc), max(l.top, m.HeapAlloc), l.sent
	}
	n := copy(b, l.rest)
	l.rest = l.rest[n:]
	l.sent += n
	return n, nil
}

// TestAnswersWithoutEnd has who stands in etcd's place send without end what takes up memory.
func TestAnswersWithoutEnd(t *testing.T) {
	same := func(text string) func(int) string {
		text = strings.Repeat(text, 1+1000/len(text))
		return func(int) string { return text }
	}
	key := func(form string) func(int) string {
		return func(i int) string { return fmt.Sprintf(form, fmt.Sprintf("%08d", i)) }
	}
	const mirror = 2 << 20
	for name, c := range map[string]struct {
		head string
		more func(i int) string
	}{
		"range: a value":         {`{"header":{},"kvs":[{"key":"QUFB","value":"`, same("QUFB")},
		"range: a key":           {`{"kvs":[{"key":"`, same("QUFB")},
		"range: keys":            {`{"kvs":[{}`, key(`,{"key":"%s","value":"QUFB","mod_revision":"1"}`)},
		"range: one key":         {`{"kvs":[{}`, same(`,{"key":"QUFB"}`)},
		"range: nothing":         {`{"kvs":[{}`, same(`,{}`)},
		"range: other members":   {`{"a":0`, same(`,"a":[[[[]]]]`)},
		"range: an unknown list": {`{"a":[0`, same(`,{}`)},
		"range: a name":          {`{"`, same(`a`)},
		"range: spaces":          {`{`, same(" ")},
		"watch: a value":         {`{"result":{"events":[{"kv":{"key":"QUFB","value":"`, same("QUFB")},
		"watch: events":          {`{"result":{"events":[{}`, same(`,{}`)},
		"watch: an error":        {`{"error":{"message":"`, same("a")},
		"watch: keys": {`{"result":{"created":true}}`,
			key(`{"result":{"events":[{"kv":{"key":"%s","mod_revision":"1"}}]}}`)},
		"watch: keys that end": {`{"result":{"created":true}}`,
			key(`{"result":{"events":[{"type":"DELETE","kv":{"key":"%s","mod_revision":"1"}}]}}`)},
	} {
		t.Run(name, func(t *testing.T) {
			l := &liar{rest: c.head, more: c.more}
			f := &found{covers: func(string) bool { return true }, limit: mirror}
			m := newMessages(l, f.most())
			var err error
			if strings.HasPrefix(name, "range") {
				err = f.read(m)
			} else {
				f.entries = map[string]entry{}
				for err == nil {
					m.left = f.most()
					err = m.events(func(e event) error { return f.put(string(e.KV.Key), e.KV.entry()) })
				}
			}
			if !errors.Is(err, errTooLong) || f.size > mirror {
				t.Errorf("it ends by %v, with %d bytes", err, f.size)
			}
			if l.sent > 2*f.most() {
				t.Errorf("%d bytes have been read, %d is the most", l.sent, f.most())
			}
			if grown := int(l.top - min(l.top, l.first)); grown > 24<<20 {
				t.Errorf("memory has grown by %d MiB", grown>>20)
			}
		})
	}
}
