package meeting

import (
	"encoding/binary"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/internal/untrusted"
)

// Messages are little endian. A text has its length, of two bytes, before it.

const (
	joins  = 1 // a rank comes to its leader
	visits = 2 // a leader calls a rank

	maxSettings = 32
	maxSetting  = 1 << 10 // bytes
)

// request is what a caller says.
type request struct {
	purpose byte
	from    Handle
	handles int // how many it was given
	digest  [32]byte
	left    time.Duration // how long it waits; 0: no limit is known
	part    Part
}

func (n *Meeting) request(purpose byte, left time.Duration) []byte {
	b := append([]byte{purpose}, n.list.digest[:]...)
	b = appendText(b, n.of.self.text)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(n.list.Handles)))
	b = binary.LittleEndian.AppendUint64(b, uint64(max(left, 0)))
	b = binary.LittleEndian.AppendUint32(b, n.own.Epoch)
	b = append(b, byte(n.own.Answers), byte(len(n.own.Settings)))
	for _, s := range n.own.Settings {
		b = appendText(appendText(b, s.Name), s.Value)
	}
	return b
}

func readRequest(b []byte) (*request, error) {
	r := untrusted.NewReader(b)
	q := &request{purpose: r.Byte()}
	r.Fixed(q.digest[:])
	from := readText(&r)
	q.handles = r.Number(maxHandles)
	q.left = time.Duration(r.Uint64() &^ (1 << 63))
	q.part.Epoch = r.Uint32()
	q.part.Answers = bootstrap.Answers(r.Byte())
	n := int(r.Byte())
	if n > maxSettings || q.purpose != joins && q.purpose != visits {
		r.Fail()
	}
	for range n {
		q.part.Settings = append(q.part.Settings,
			bootstrap.Setting{Name: readText(&r), Value: readText(&r)})
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	var err error
	q.from, err = Parse(from)
	return q, err
}

const (
	agreed = iota
	failed
	failedForeign // and the ranks are not the reader's
)

func (v outcome) bytes() []byte {
	if v.failure == nil {
		b := binary.LittleEndian.AppendUint32([]byte{agreed}, v.epoch)
		return append(b, byte(v.answers))
	}
	how := byte(failed)
	if v.foreign {
		how = failedForeign
	}
	return append([]byte{how, fault.Number(v.failure.Kind)}, v.failure.Encode()...)
}

func (l *List) readOutcome(b []byte) (v outcome, err error) {
	r := untrusted.NewReader(b)
	switch how := r.Byte(); how {
	case agreed:
		v.epoch, v.answers = r.Uint32(), bootstrap.Answers(r.Byte())
	case failed, failedForeign:
		kind := fault.KindOf(r.Byte())
		told := l.Members.Decode(kind, r.Take(r.Left()))
		v.foreign = how == failedForeign
		v.failure = fault.Errorf(kind, "%s", told.Text).In(&l.Members).Blaming(told.Ranks...)
	default:
		r.Fail()
	}
	return v, r.End()
}

func appendText(b []byte, text string) []byte {
	text = printable.Text(text, maxSetting)
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(text))), text...)
}

func readText(r *untrusted.Reader) string {
	n := int(r.Uint16())
	if n > maxSetting {
		r.Fail()
	}
	return printable.Text(string(r.Take(n)), maxSetting)
}
