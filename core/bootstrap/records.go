package bootstrap

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// What ranks write into the store has a fixed binary form, little endian, and is read as foreign
// bytes: a store outlives the processes that wrote into it and may hold anything.

const (
	// MaxSize is the most ranks a communicator may have.
	MaxSize = 65536
	// MaxMember is the most bytes a rank may publish of itself.
	MaxMember = 64 << 10
	// MaxName is the longest group name and incarnation, in bytes.
	MaxName = 256

	nonceSize  = 16
	proofSize  = sha256.Size
	secretSize = 32
	maxProblem = 4096
)

const (
	joinMagic   = "GCJ1"
	rosterMagic = "GCR1"
)

const (
	flagKeyed   = 1 // the writer has a secret of its own, so the record is sealed with it
	flagProblem = 2 // the roster tells why there can be no group, the join why its rank takes no part
	flagAbsent  = 4 // and the reason is that ranks have not joined in time
)

type nonce [nonceSize]byte

// joinRecord is what a rank says of itself.
type joinRecord struct {
	rank, size int
	nonce      nonce
	keyed      bool
	proof      [proofSize]byte // of the secret, where keyed
	problem    string          // why the rank can be in no group; "" where it can
	member     []byte
}

func (j *joinRecord) prove(secret string) [proofSize]byte {
	return seal(secret, "goccl join", j.nonce[:], binary.LittleEndian.AppendUint32(nil, uint32(j.rank)))
}

func (j *joinRecord) encode() []byte {
	b := append([]byte(joinMagic), flags(j.keyed, j.problem != "", false))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.size))
	b = append(b, j.nonce[:]...)
	b = append(b, j.proof[:]...)
	if j.problem != "" {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(j.problem)))
		b = append(b, j.problem...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(j.member)))
	return append(b, j.member...)
}

func decodeJoin(b []byte) (*joinRecord, error) {
	r := reader{b: b}
	f := r.header(joinMagic)
	j := &joinRecord{rank: r.number(MaxSize - 1), size: r.number(MaxSize), keyed: f&flagKeyed != 0}
	r.fixed(j.nonce[:])
	r.fixed(j.proof[:])
	if f&flagProblem != 0 {
		j.problem = string(r.bytes(maxProblem))
	}
	j.member = r.bytes(MaxMember)
	if f&^(flagKeyed|flagProblem) != 0 || (j.problem != "") != (f&flagProblem != 0) || j.rank >= j.size {
		r.fail()
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("a join record: %w", err)
	}
	return j, nil
}

// rosterRecord is what rank 0 says of all: the group, or why there is none.
type rosterRecord struct {
	nonce   nonce // the group's
	job     uint64
	secret  [secretSize]byte // zero where keyed
	keyed   bool
	problem string // "" where there is a group
	absent  bool   // the problem is that ranks have not joined in time
	size    int    // rank 0's
	// ranks, by rank. With a problem there may be more than size of them, a zero nonce stands for a
	// rank that has not joined, and no member is given.
	nonces  []nonce
	members [][]byte
	sealed  []byte // what proof covers, in a decoded record
	proof   [proofSize]byte
}

func (r *rosterRecord) encode(secret string) []byte {
	b := append([]byte(rosterMagic), flags(r.keyed, r.problem != "", r.absent))
	b = append(b, r.nonce[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.job)
	b = append(b, r.secret[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.size))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.nonces)))
	for i, n := range r.nonces {
		b = append(b, n[:]...)
		if r.problem == "" {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(r.members[i])))
			b = append(b, r.members[i]...)
		}
	}
	if r.problem != "" {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(r.problem)))
		b = append(b, r.problem...)
	}
	var proof [proofSize]byte
	if r.keyed {
		proof = seal(secret, "goccl roster", b)
	}
	return append(b, proof[:]...)
}

func decodeRoster(b []byte) (*rosterRecord, error) {
	r := reader{b: b}
	f := r.header(rosterMagic)
	problem := f&flagProblem != 0
	o := &rosterRecord{keyed: f&flagKeyed != 0, absent: f&flagAbsent != 0}
	r.fixed(o.nonce[:])
	o.job = r.uint64()
	r.fixed(o.secret[:])
	o.size = r.number(MaxSize)
	n := r.number(MaxSize)
	if f&^(flagKeyed|flagProblem|flagAbsent) != 0 || o.absent && !problem || o.size < 1 || n < o.size || !problem && n != o.size {
		r.fail()
	}
	for i := 0; i < n && !r.bad; i++ {
		var x nonce
		r.fixed(x[:])
		o.nonces = append(o.nonces, x)
		if !problem {
			o.members = append(o.members, r.bytes(MaxMember))
		}
	}
	if problem {
		o.problem = string(r.bytes(maxProblem))
		if o.problem == "" {
			r.fail()
		}
	}
	if !r.bad {
		o.sealed = b[:len(b)-len(r.b)]
	}
	r.fixed(o.proof[:])
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("a roster: %w", err)
	}
	return o, nil
}

// authentic tells whether a decoded roster was sealed with the secret.
func (r *rosterRecord) authentic(secret string) bool {
	want := seal(secret, "goccl roster", r.sealed)
	return r.keyed && hmac.Equal(want[:], r.proof[:])
}

func flags(keyed, problem, absent bool) byte {
	var f byte
	if keyed {
		f |= flagKeyed
	}
	if problem {
		f |= flagProblem
	}
	if absent {
		f |= flagAbsent
	}
	return f
}

// seal is HMAC-SHA-256 over a label, which keeps the uses of one key apart, and the parts. All parts
// but the last are of fixed size.
func seal(secret, label string, parts ...[]byte) (sum [proofSize]byte) {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(label))
	h.Write([]byte{0})
	for _, p := range parts {
		h.Write(p)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

var errMalformed = errors.New("malformed: not written by this version of GoCCL")

// reader takes foreign bytes apart. After the first thing that does not fit it returns zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) fail() { r.b, r.bad = nil, true }

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.fail()
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) header(magic string) byte {
	if m := r.take(len(magic)); !bytes.Equal(m, []byte(magic)) {
		r.fail()
	}
	if f := r.take(1); f != nil {
		return f[0]
	}
	return 0
}

func (r *reader) fixed(to []byte) { copy(to, r.take(len(to))) }

func (r *reader) uint64() uint64 {
	if v := r.take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func (r *reader) number(most int) int {
	v := r.take(4)
	if v == nil {
		return 0
	}
	n := binary.LittleEndian.Uint32(v)
	if uint64(n) > uint64(most) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) bytes(most int) []byte {
	return append([]byte{}, r.take(r.number(most))...)
}

func (r *reader) end() error {
	if r.bad || len(r.b) != 0 {
		return errMalformed
	}
	return nil
}
