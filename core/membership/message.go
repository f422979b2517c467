package membership

import (
	"encoding/binary"
	"fmt"

	"github.com/goccl/goccl/core/internal/untrusted"
)

// A message has a fixed binary form, little endian, and is read as foreign bytes.

const (
	// MaxMessage is more than the most bytes that a message can have.
	MaxMessage = 128 << 10
	// MaxMembers is the most members that an epoch may have.
	MaxMembers = 65536
	// MaxJoiners is the most joiners that one decision lets in.
	MaxJoiners = 32
	// MaxHandle and MaxHost are the longest handle and host of a joiner, in bytes.
	MaxHandle = 1024
	MaxHost   = 256
	// MaxOpaque is the longest state and record, in bytes.
	MaxOpaque = 1024
)

// Kind is what a message says.
type Kind uint8

const (
	Call     Kind = iota // the sender takes the receiver for the one that is to propose
	Prepare              // what has the receiver accepted? It is to accept nothing of older ballots
	Promise              // the answer: the sender's report
	Accept               // the receiver is to accept the value
	Accepted             // it has
	Refuse               // it has promised a later ballot, which is the message's
	Decide               // the value is decided
	Notice               // what the sender knows of who has ended, and whether the epoch is stable
	kinds
)

func (k Kind) String() string {
	return []string{"call", "prepare", "promise", "accept", "accepted", "refuse", "decide",
		"notice"}[k]
}

// asks reports whether messages of the kind want an answer.
func (k Kind) asks() bool { return k == Call || k == Prepare || k == Accept }

// reports reports whether messages of the kind say what their sender knows.
func (k Kind) reports() bool { return k == Call || k == Promise }

// Message is what members send each other. Its sets are of the epoch's ranks.
type Message struct {
	Kind   Kind
	Epoch  uint32
	Ballot Ballot // none in Call, Decide and Notice

	// What the sender knows. Ended are those of whom it has proof, and those that have left.
	Ended    Set
	Excluded Set  // of those ended: see Excluded
	Stable   bool // see Stable

	Joiners []Joiner // of a Call and a Promise

	// Of a Promise.
	Suspected Set
	State     []byte
	Accepted  Ballot // of Value; the zero one: none

	Value *Value // of a Promise that tells of one, an Accept and a Decide
}

// before reports whether a message that asks was sent before another one of the same member.
func (m *Message) before(o *Message) bool {
	return m.Ballot.before(o.Ballot) || m.Ballot == o.Ballot && m.Kind < o.Kind
}

// Encode returns the bytes of a message.
func (m *Message) Encode() []byte {
	b := appendBool([]byte{byte(m.Kind)}, m.Stable)
	b = binary.LittleEndian.AppendUint32(b, m.Epoch)
	b = append(append(m.Ballot.append(b), m.Ended...), m.Excluded...)
	if m.Kind.reports() {
		b = appendJoiners(b, m.Joiners)
	}
	if m.Kind == Promise {
		b = append(b, m.Suspected...)
		b = m.Accepted.append(untrusted.AppendBytes(b, m.State))
	}
	if m.Value != nil {
		b = m.Value.append(b)
	}
	return b
}

// Decode reads a message of a member of an epoch of a size.
func Decode(b []byte, size int) (*Message, error) {
	r := untrusted.NewReader(b)
	m := &Message{Kind: Kind(r.Byte()), Stable: decodeBool(&r), Epoch: r.Uint32()}
	if m.Kind >= kinds || len(b) > MaxMessage {
		r.Fail()
	}
	m.Ballot, m.Ended = decodeBallot(&r, size), decodeSet(&r, size)
	m.Excluded = decodeSet(&r, size)
	if !m.Excluded.within(m.Ended) || m.Ballot.Ended > m.Ended.count() {
		r.Fail()
	}
	if m.Kind.reports() {
		m.Joiners = decodeJoiners(&r)
	}
	if m.Kind == Promise {
		m.Suspected = decodeSet(&r, size)
		m.State, m.Accepted = r.Bytes(MaxOpaque), decodeBallot(&r, size)
	}
	if m.Accepted != (Ballot{}) || m.Kind == Accept || m.Kind == Decide {
		m.Value = decodeValue(&r, size)
		if m.Value.Epoch != m.Epoch+1 {
			r.Fail()
		}
	}
	if none := m.Kind == Call || m.Kind == Decide || m.Kind == Notice; none != (m.Ballot == Ballot{}) {
		r.Fail()
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("a message of an agreement: %w", err)
	}
	return m, nil
}

func (b Ballot) append(to []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, uint32(b.Ended))
	to = binary.LittleEndian.AppendUint64(to, b.Attempt)
	return binary.LittleEndian.AppendUint32(to, uint32(b.Rank))
}

// decodeBallot reads a ballot, or the zero one.
func decodeBallot(r *untrusted.Reader, size int) Ballot {
	b := Ballot{r.Number(size - 1), r.Uint64(), r.Number(size - 1)}
	if b.Attempt == 0 && b != (Ballot{}) {
		r.Fail()
		return Ballot{}
	}
	return b
}

func appendBool(to []byte, b bool) []byte {
	if b {
		return append(to, 1)
	}
	return append(to, 0)
}

func decodeBool(r *untrusted.Reader) bool {
	b := r.Byte()
	if b > 1 {
		r.Fail()
	}
	return b == 1
}

func appendJoiners(b []byte, joiners []Joiner) []byte {
	b = append(b, byte(len(joiners)))
	for _, j := range joiners {
		b = untrusted.AppendBytes(untrusted.AppendBytes(b, j.Host), j.Handle)
	}
	return b
}

func decodeJoiners(r *untrusted.Reader) (joiners []Joiner) {
	n := int(r.Byte())
	if n > MaxJoiners {
		r.Fail()
	}
	for len(joiners) < n && !r.Failed() {
		joiners = append(joiners,
			Joiner{string(r.Bytes(MaxHost)), r.Bytes(MaxHandle)})
	}
	return joiners
}

func (v *Value) append(b []byte) []byte {
	b = append(binary.LittleEndian.AppendUint32(b, v.Epoch), v.Nonce[:]...)
	b = appendBool(append(append(b, v.Survivors...), v.Founders...), v.Open)
	b = appendJoiners(b, v.Joiners)
	return untrusted.AppendBytes(b, v.Record)
}

func decodeValue(r *untrusted.Reader, size int) *Value {
	v := &Value{Epoch: r.Uint32()}
	r.Fixed(v.Nonce[:])
	v.Survivors, v.Founders = decodeSet(r, size), decodeSet(r, size)
	v.Open, v.Joiners = decodeBool(r), decodeJoiners(r)
	v.Record = r.Bytes(MaxOpaque)
	if v.Survivors.count() == 0 || !v.Founders.within(v.Survivors) {
		r.Fail()
	}
	return v
}
