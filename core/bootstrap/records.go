package bootstrap

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goccl/goccl/core/internal/printable"
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
	// MaxSetting is the longest name or value of a setting, in bytes, and MaxSettings how many
	// there may be.
	MaxSetting  = 4 << 10
	MaxSettings = 16

	nonceSize  = 16
	proofSize  = sha256.Size
	secretSize = 32
	maxProblem = 4096
	maxJoin    = 256 << 10 // of an encoded join
)

const (
	joinMagic    = "GCJ2"
	rosterMagic  = "GCR2"
	confirmMagic = "GCC2"
)

const (
	flagKeyed   = 1 // the writer has a secret of its own, so the record is sealed with it
	flagProblem = 2 // the record tells why there can be no group, or why its rank takes no part
	flagYes     = 4 // of a confirmation: see confirmRecord
)

type nonce [nonceSize]byte

// cause is the kind of a problem.
type cause byte

const (
	causeMismatch cause = iota // of settings, or of records
	causeAbsent                // ranks have not joined in time
	causeUnfit                 // a rank's Check has failed
	causes
)

// joinRecord is what a rank says of itself. Where the rank has a secret, proof covers all the rest,
// so that whoever can write the store, but holds no secret, can change nothing in it.
type joinRecord struct {
	rank, size int
	nonce      nonce
	keyed      bool
	problem    string // why the rank can be in no group; "" where it can
	settings   []Setting
	member     []byte
	encoded    []byte // the whole record, in one that encode or decodeJoin has made
}

func (j *joinRecord) encode(key string) []byte {
	b := append([]byte(joinMagic), flags(j.keyed, j.problem != ""))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.size))
	b = append(b, j.nonce[:]...)
	if j.problem != "" {
		b = appendBytes(b, j.problem)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(j.settings)))
	for _, s := range j.settings {
		b = appendBytes(appendBytes(b, s.Name), s.Value)
	}
	b = appendBytes(b, j.member)
	j.encoded = appendProof(b, j.keyed, key, "goccl join")
	return j.encoded
}

func decodeJoin(b []byte) (*joinRecord, error) {
	r := reader{b: b}
	f := r.header(joinMagic)
	j := &joinRecord{rank: r.number(MaxSize - 1), size: r.number(MaxSize), keyed: f&flagKeyed != 0,
		encoded: b}
	r.fixed(j.nonce[:])
	if f&flagProblem != 0 {
		j.problem = r.text(maxProblem)
	}
	for n := r.number(MaxSettings); len(j.settings) < n && !r.bad; {
		j.settings = append(j.settings, Setting{r.text(MaxSetting), r.text(MaxSetting)})
	}
	j.member = r.bytes(MaxMember)
	if f&^(flagKeyed|flagProblem) != 0 || (j.problem != "") != (f&flagProblem != 0) ||
		j.rank >= j.size {
		r.fail()
	}
	r.take(proofSize)
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("a join record: %w", err)
	}
	return j, nil
}

// rosterRecord is what rank 0 says of all: the group, or why there is none. Where rank 0 has a
// secret, proof covers all the rest.
type rosterRecord struct {
	nonce   nonce // the group's
	job     uint64
	secret  [secretSize]byte // zero where keyed
	keyed   bool
	problem string // "" where there is a group
	cause   cause  // of the problem
	size    int    // rank 0's
	// nonces are the ranks', by rank. With a problem there may be more than size of them, and a
	// zero nonce stands for a rank that has not joined.
	nonces  []nonce
	joins   []*joinRecord // by rank; none with a problem
	encoded []byte        // the whole record, in one that encode or decodeRoster has made
}

func (r *rosterRecord) encode(key string) []byte {
	b := append([]byte(rosterMagic), flags(r.keyed, r.problem != ""), byte(r.cause))
	b = append(b, r.nonce[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.job)
	b = append(b, r.secret[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.size))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.nonces)))
	if r.problem != "" {
		for _, n := range r.nonces {
			b = append(b, n[:]...)
		}
		b = appendBytes(b, r.problem)
	} else {
		for _, j := range r.joins {
			b = appendBytes(b, j.encoded)
		}
	}
	r.encoded = appendProof(b, r.keyed, key, "goccl roster")
	return r.encoded
}

func decodeRoster(b []byte) (*rosterRecord, error) {
	r := reader{b: b}
	f := r.header(rosterMagic)
	problem := f&flagProblem != 0
	o := &rosterRecord{keyed: f&flagKeyed != 0, cause: cause(r.byte()), encoded: b}
	r.fixed(o.nonce[:])
	o.job = r.uint64()
	r.fixed(o.secret[:])
	o.size = r.number(MaxSize)
	n := r.number(MaxSize)
	if f&^(flagKeyed|flagProblem) != 0 || o.cause >= causes || o.cause != 0 && !problem ||
		o.size < 1 || n < o.size || !problem && n != o.size {
		r.fail()
	}
	for i := 0; i < n && !r.bad; i++ {
		var x nonce
		if problem {
			r.fixed(x[:])
		} else if j, err := decodeJoin(r.bytes(maxJoin)); err != nil || j.rank != i || j.size != o.size ||
			j.problem != "" {
			r.fail()
		} else {
			x = j.nonce
			o.joins = append(o.joins, j)
		}
		o.nonces = append(o.nonces, x)
	}
	if problem {
		if o.problem = r.text(maxProblem); o.problem == "" {
			r.fail()
		}
	}
	r.take(proofSize)
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("a roster: %w", err)
	}
	return o, nil
}

// members are what the ranks of a group publish, by rank.
func (r *rosterRecord) members() [][]byte {
	var m [][]byte
	for _, j := range r.joins {
		m = append(m, j.member)
	}
	return m
}

// groupSecret is the secret of the group that a roster makes. It is of the whole record, that is of
// all that every rank has published. All proofs between ranks are keyed with it, so ranks that have
// read different rosters can prove nothing to each other: who puts another address or another user
// into the roster that one rank reads has no link made by it.
func (r *rosterRecord) groupSecret(key string) []byte {
	if !r.keyed {
		key = string(r.secret[:])
	}
	digest := sha256.Sum256(r.encoded)
	secret := Seal(key, "goccl group", digest[:])
	return secret[:]
}

// confirmRecord is what a rank says of a roster that lists it.
type confirmRecord struct {
	nonce   nonce  // the roster's
	problem string // why the rank cannot be in the group; "" where it can
	cause   cause  // of the problem
	yes     bool   // what the rank's Check has answered; false with a problem
	proof   [proofSize]byte
}

// prove proves that the rank has read the very roster that the group's secret is made of.
func (c *confirmRecord) prove(secret []byte, rank int) [proofSize]byte {
	head := binary.LittleEndian.AppendUint32(c.nonce[:], uint32(rank))
	return Seal(string(secret), "goccl confirm", append(head, c.flags(), byte(c.cause)),
		[]byte(c.problem))
}

// proven tells whether it was.
func (c *confirmRecord) proven(secret []byte, rank int) bool {
	want := c.prove(secret, rank)
	return hmac.Equal(want[:], c.proof[:])
}

func (c *confirmRecord) flags() byte {
	f := flags(false, c.problem != "")
	if c.yes {
		f |= flagYes
	}
	return f
}

func (c *confirmRecord) encode() []byte {
	b := append([]byte(confirmMagic), c.flags(), byte(c.cause))
	b = append(b, c.nonce[:]...)
	if c.problem != "" {
		b = appendBytes(b, c.problem)
	}
	return append(b, c.proof[:]...)
}

func decodeConfirm(b []byte) (*confirmRecord, error) {
	r := reader{b: b}
	f := r.header(confirmMagic)
	c := &confirmRecord{cause: cause(r.byte()), yes: f&flagYes != 0}
	r.fixed(c.nonce[:])
	if f&flagProblem != 0 {
		c.problem = r.text(maxProblem)
	}
	r.fixed(c.proof[:])
	if f&^(flagProblem|flagYes) != 0 || (c.problem != "") != (f&flagProblem != 0) ||
		c.cause >= causes || c.cause != 0 && c.problem == "" || c.yes && c.problem != "" {
		r.fail()
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("a confirmation: %w", err)
	}
	return c, nil
}

// appendProof seals a record that has a key. One that has none ends in zeros.
func appendProof(b []byte, keyed bool, key, label string) []byte {
	var proof [proofSize]byte
	if keyed {
		proof = Seal(key, label, b)
	}
	return append(b, proof[:]...)
}

// authentic tells whether an encoded record was sealed with the key.
func authentic(encoded []byte, key, label string) bool {
	sealed, proof := encoded[:len(encoded)-proofSize], encoded[len(encoded)-proofSize:]
	want := Seal(key, label, sealed)
	return hmac.Equal(want[:], proof)
}

func appendBytes[T string | []byte](b []byte, v T) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(v))), v...)
}

func flags(keyed, problem bool) byte {
	var f byte
	if keyed {
		f |= flagKeyed
	}
	if problem {
		f |= flagProblem
	}
	return f
}

// Seal is HMAC-SHA-256 over a label, which keeps the uses of one key apart, and the parts. All
// parts but the last are of fixed size.
func Seal(secret, label string, parts ...[]byte) (sum [proofSize]byte) {
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
	return r.byte()
}

func (r *reader) byte() byte {
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

// text is foreign text. Every writer makes its texts printable, so what is not is no record.
func (r *reader) text(most int) string {
	t := string(r.take(r.number(most)))
	if printable.Text(t, most) != t {
		r.fail()
		return ""
	}
	return t
}

func (r *reader) end() error {
	if r.bad || len(r.b) != 0 {
		return errMalformed
	}
	return nil
}
