package order

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/plan"
)

// Refused is the collective of a call that was refused, in place of plan's.
const Refused plan.Collective = math.MaxUint8

// MaxRefusals bounds what is kept of one rank: of this rank's own, all that its log holds. A peer's
// beyond it are found out when this rank waits in a call that the peer was refused, and announces
// that. A power of two.
const MaxRefusals = 64

// refusal is a row of calls, one after the other in the order, that were refused for one reason.
type refusal struct {
	first, last uint64
	reason      string
}

func (f refusal) String() string {
	if f.first == f.last {
		return fmt.Sprintf("#%d (%s)", f.last, f.reason)
	}
	return fmt.Sprintf("#%d to #%d (%s)", f.first, f.last, f.reason)
}

// refusals are one rank's, in the order.
type refusals []refusal

func (r refusals) add(f refusal) refusals {
	if n := len(r); n > 0 && r[n-1].last+1 == f.first && r[n-1].reason == f.reason {
		r[n-1].last = f.last
		return r
	}
	return append(r, f)
}

// at reports whether and why the call at a place was refused.
func (r refusals) at(sequence uint64) (reason string, ok bool) {
	i := slices.IndexFunc(r, func(f refusal) bool { return f.first <= sequence && sequence <= f.last })
	if i < 0 {
		return "", false
	}
	return r[i].reason, true
}

// Announcement is what a peer waits in, or what it was refused.
type Announcement struct {
	// Message is the collective that it waits in; or the last call that was refused in a row of
	// Count ones.
	Message plan.Message
	reason  string // why it was refused
}

// Waits reports whether the peer waits in the message.
func (a Announcement) Waits() bool { return a.Message.Collective != uint8(Refused) }

func (a Announcement) refusal() refusal {
	m := a.Message
	return refusal{m.Sequence - m.Count + 1, m.Sequence, a.reason}
}

func (o *Order) refusedMessage(sequence uint64) plan.Message {
	return plan.Message{Collective: uint8(Refused), Root: -1, Group: o.group, Epoch: o.epoch,
		Sequence: sequence}
}

// encode is the announcement of a refusal. That of a wait is its message alone.
func (o *Order) encode(f refusal) []byte {
	m := o.refusedMessage(f.last)
	m.Count = f.last - f.first + 1
	return append(Encode(m), f.reason...)
}

// DecodeAnnouncement reads what a peer announces.
func DecodeAnnouncement(b []byte) (Announcement, error) {
	n := min(len(b), encodedBytes)
	m, err := Decode(b[:n])
	if err != nil {
		return Announcement{}, err
	}
	a, reason := Announcement{Message: m}, b[n:]
	switch {
	case a.Waits() && len(reason) > 0:
		return a, fmt.Errorf("an announcement of %d bytes", len(b))
	case a.Waits():
		return a, nil
	case m.Count == 0 || m.Count > m.Sequence || len(reason) > fault.MaxText:
		return a, fmt.Errorf("%d calls refused up to #%d, with a text of %d bytes", m.Count, m.Sequence,
			len(reason))
	}
	a.reason = printable.Text(string(reason), fault.MaxText)
	return a, nil
}

const encodedBytes = 48

// Encode writes a message for a peer.
func Encode(m plan.Message) []byte {
	b := make([]byte, 0, encodedBytes)
	for _, v := range []uint64{m.Group, m.Sequence, m.Count, m.Digest} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, m.Epoch)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Root))
	return append(b, m.Collective, m.DType, m.Op, m.Schedule, 0, 0, 0, 0)
}

// Decode reads what Encode writes. Its numbers may name nothing.
func Decode(b []byte) (plan.Message, error) {
	if len(b) != encodedBytes {
		return plan.Message{}, fmt.Errorf("a message of %d bytes, expected %d", len(b), encodedBytes)
	}
	u := binary.LittleEndian.Uint64
	return plan.Message{Group: u(b), Sequence: u(b[8:]), Count: u(b[16:]), Digest: u(b[24:]),
		Epoch: binary.LittleEndian.Uint32(b[32:]), Root: int32(binary.LittleEndian.Uint32(b[36:])),
		Collective: b[40], DType: b[41], Op: b[42], Schedule: b[43]}, nil
}
