package etcd

import (
	"encoding/json"
	"errors"
	"io"
)

// errTooLong tells that an answer has more bytes than what was asked for can have. Who lies in
// etcd's place may send bytes without end.
var errTooLong = errors.New("its answer is longer than what was asked for can be")

// messages are JSON that somebody else sends. What holds lists is taken apart element by element,
// for an element of three bytes takes up some hundred in memory.
type messages struct {
	*json.Decoder
	from io.Reader
	left int // bytes that may come
}

func newMessages(from io.Reader, most int) *messages {
	m := &messages{from: from, left: most}
	m.Decoder = json.NewDecoder(m)
	return m
}

// Read is for the decoder.
func (m *messages) Read(b []byte) (int, error) {
	if m.left <= 0 {
		return 0, errTooLong
	}
	n, err := m.from.Read(b[:min(len(b), m.left)])
	m.left -= n
	return n, err
}

// object hands on the name of each member, whose value is to be read then.
func (m *messages) object(member func(name string) error) error {
	if t, err := m.Token(); t != json.Delim('{') {
		return broken(err)
	}
	for m.More() {
		name, err := m.Token()
		if err != nil {
			return err
		}
		if err := member(name.(string)); err != nil {
			return err
		}
	}
	_, err := m.Token()
	return err
}

// list has each element of a list read.
func (m *messages) list(element func() error) error {
	if t, err := m.Token(); t != json.Delim('[') {
		return broken(err)
	}
	for m.More() {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := m.Token()
	return err
}

func broken(err error) error {
	if err == nil {
		err = errors.New("its answer is not of etcd's form")
	}
	return err
}

// skip passes over a value.
func (m *messages) skip() error {
	var unused json.RawMessage
	return m.Decode(&unused)
}

// events reads a message of a watch.
func (m *messages) events(each func(event) error) error {
	var failed *status
	ended := false
	err := m.object(func(name string) error {
		switch name {
		case "error":
			return m.Decode(&failed)
		case "result":
			return m.object(func(name string) error {
				switch name {
				case "canceled":
					return m.Decode(&ended)
				case "events":
					return m.list(func() error {
						var e event
						if err := m.Decode(&e); err != nil {
							return err
						}
						return each(e)
					})
				}
				return m.skip()
			})
		}
		return m.skip()
	})
	switch {
	case err != nil:
		return err
	case failed != nil:
		return &refusal{status: *failed}
	case ended:
		return &refusal{status: status{Message: "the watch has ended"}}
	}
	return nil
}

// answer is what is to become of an answer.
type answer interface {
	most() int // bytes
	read(m *messages) error
}

// small is an answer that has no lists.
type small struct{ to any }

func (s small) most() int              { return maxSmall }
func (s small) read(m *messages) error { return m.Decode(s.to) }

// found are the entries that etcd has of some keys.
type found struct {
	covers   func(key string) bool
	limit    int              // of the size
	entries  map[string]entry // by key
	size     int              // see entry.size
	revision int64            // of etcd
}

func (f *found) most() int { return inJSON(f.limit) }

func (f *found) read(m *messages) error {
	*f = found{covers: f.covers, limit: f.limit, entries: map[string]entry{}}
	return m.object(func(name string) error {
		switch name {
		case "header":
			var h header
			err := m.Decode(&h)
			f.revision = h.Revision
			return err
		case "kvs":
			return m.list(func() error {
				var kv keyValue
				if err := m.Decode(&kv); err != nil {
					return err
				}
				return f.put(string(kv.Key), kv.entry())
			})
		}
		return m.skip()
	})
}

// put takes an entry over, unless there is a newer one of its key. It fails where that is too much.
func (f *found) put(key string, e entry) error {
	old, ok := f.entries[key]
	if !f.covers(key) || ok && old.revision >= e.revision {
		return nil
	}
	size := f.size + e.size(key)
	if ok {
		size -= old.size(key)
	}
	if size > f.limit {
		return errTooLong
	}
	f.entries[key], f.size = e, size
	return nil
}
