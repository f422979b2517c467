package bootstrap

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/internal/seal"
	"github.com/goccl/goccl/core/internal/untrusted"
)

// What ranks write into the store has a fixed binary form, little endian, and is read as foreign
// bytes: a store outlives the processes that wrote into it and may hold anything.

const (
	// MaxSize is the most ranks a communicator may have.
	MaxSize = 65536
	// MaxMember is the most bytes that each part of a [Member] may have.
	MaxMember = 16 << 10
	// MaxName is the longest group name and incarnation, in bytes.
	MaxName = 256
	// MaxSetting is the longest name or value of a setting, in bytes, and MaxSettings how many
	// there may be.
	MaxSetting  = 4 << 10
	MaxSettings = 16

	nonceSize  = 16
	markSize   = 16
	proofSize  = sha256.Size
	secretSize = 32
	maxProblem = 4096
)

const (
	joinMagic    = "GCJ4"
	rosterMagic  = "GCR4"
	confirmMagic = "GCC4"
)

const (
	flagKeyed   = 1 // the writer has a secret of its own, so the record is sealed with it
	flagProblem = 2 // the record tells why there can be no group, or why its rank takes no part

	flagSettings = 4 // of a confirmation: it has them, see confirmRecord
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
// so that a writer of the store that holds no secret can change nothing in it.
type joinRecord struct {
	rank, size int
	nonce      nonce
	keyed      bool
	attempt    attemptDigest
	problem    string // why the rank can be in no group; "" where it can
	settings   settingsDigest
	member     Member
	encoded    []byte // the whole record, in one that encode or decodeJoin has made
	out        bool   // it is a text, see out.go
	conflict   string // why the rank cannot be in one group with rank 0, as that finds
}

// attemptDigest tells whether two ranks were told the same attempt.
type attemptDigest [8]byte

func digestAttempt(attempt string) (d attemptDigest) {
	sum := sha256.Sum256([]byte(attempt))
	copy(d[:], sum[:])
	return d
}

// settingsDigest tells whether two ranks have the same settings. Which ones differ is told on
// demand: see confirmRecord.
type settingsDigest [16]byte

func digestSettings(settings []Setting) (d settingsDigest) {
	sum := sha256.Sum256(appendSettings(nil, settings))
	copy(d[:], sum[:])
	return d
}

func appendSettings(b []byte, settings []Setting) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(settings)))
	for _, s := range settings {
		b = untrusted.AppendBytes(untrusted.AppendBytes(b, s.Name), s.Value)
	}
	return b
}

// mark names a join: the first half of its nonce, which tells whose it is, and of the digest of the
// whole record, which tells whether it was changed. It is zero where there is none.
type mark [markSize]byte

func (j *joinRecord) mark() (m mark) {
	if j == nil {
		return m
	}
	digest := sha256.Sum256(j.encoded)
	copy(m[:], j.nonce[:markSize/2])
	copy(m[markSize/2:], digest[:])
	return m
}

// of tells whether a mark is that of a join with a nonce.
func (m mark) of(n nonce) bool { return bytes.Equal(m[:markSize/2], n[:markSize/2]) }

func (j *joinRecord) encode(key string) []byte {
	b := append([]byte(joinMagic), flags(j.keyed, j.problem != ""))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.size))
	b = append(append(b, j.nonce[:]...), j.attempt[:]...)
	if j.problem != "" {
		b = untrusted.AppendBytes(b, j.problem)
	}
	b = append(b, j.settings[:]...)
	b = untrusted.AppendBytes(untrusted.AppendBytes(b, j.member.Own), j.member.Shared)
	j.encoded = appendProof(b, j.keyed, key, "goccl join")
	return j.encoded
}

func decodeJoin(b []byte) (*joinRecord, error) {
	r := reader{untrusted.NewReader(b)}
	f := r.header(joinMagic)
	j := &joinRecord{rank: r.Number(MaxSize - 1), size: r.Number(MaxSize), keyed: f&flagKeyed != 0,
		encoded: b}
	r.Fixed(j.nonce[:])
	r.Fixed(j.attempt[:])
	if f&flagProblem != 0 {
		j.problem = r.text(maxProblem)
	}
	r.Fixed(j.settings[:])
	j.member = Member{r.Bytes(MaxMember), r.Bytes(MaxMember)}
	if f&^(flagKeyed|flagProblem) != 0 || (j.problem != "") != (f&flagProblem != 0) ||
		j.rank >= j.size {
		r.Fail()
	}
	r.Take(proofSize)
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("a join record: %w", err)
	}
	return j, nil
}

// confirmRecord is what a rank says of a roster that lists it.
type confirmRecord struct {
	nonce   nonce   // the roster's
	problem string  // why the rank cannot be in the group; "" where it can
	cause   cause   // of the problem
	answers Answers // of the rank's Check; none with a problem
	// settings are the rank's, where rank 0's are others and the roster has a problem.
	settings []Setting
	proof    [proofSize]byte
}

// prove proves that the rank has read the very roster that the group's secret is made of.
func (c *confirmRecord) prove(secret []byte, rank int) [proofSize]byte {
	head := binary.LittleEndian.AppendUint32(c.nonce[:], uint32(rank))
	head = append(head, c.flags(), byte(c.cause), byte(c.answers))
	return seal.Of(string(secret), "goccl confirm", head, []byte(c.problem))
}

// proven tells whether it was.
func (c *confirmRecord) proven(secret []byte, rank int) bool {
	want := c.prove(secret, rank)
	return hmac.Equal(want[:], c.proof[:])
}

func (c *confirmRecord) flags() byte {
	f := flags(false, c.problem != "")
	if c.settings != nil {
		f |= flagSettings
	}
	return f
}

func (c *confirmRecord) encode() []byte {
	b := append([]byte(confirmMagic), c.flags(), byte(c.cause), byte(c.answers))
	b = append(b, c.nonce[:]...)
	if c.problem != "" {
		b = untrusted.AppendBytes(b, c.problem)
	}
	if c.settings != nil {
		b = appendSettings(b, c.settings)
	}
	return append(b, c.proof[:]...)
}

func decodeConfirm(b []byte) (*confirmRecord, error) {
	r := reader{untrusted.NewReader(b)}
	f := r.header(confirmMagic)
	c := &confirmRecord{cause: cause(r.Byte()), answers: Answers(r.Byte())}
	r.Fixed(c.nonce[:])
	if f&flagProblem != 0 {
		c.problem = r.text(maxProblem)
	}
	if f&flagSettings != 0 {
		c.settings = []Setting{}
		for n := r.Number(MaxSettings); len(c.settings) < n && !r.Failed(); {
			c.settings = append(c.settings, Setting{r.text(MaxSetting), r.text(MaxSetting)})
		}
	}
	r.Fixed(c.proof[:])
	if f&^(flagProblem|flagSettings) != 0 || (c.problem != "") != (f&flagProblem != 0) ||
		c.cause >= causes || c.cause != 0 && c.problem == "" || c.answers != 0 && c.problem != "" {
		r.Fail()
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("a confirmation: %w", err)
	}
	return c, nil
}

// appendProof seals a record that has a key. One that has none ends in zeros.
func appendProof(b []byte, keyed bool, key, label string) []byte {
	var proof [proofSize]byte
	if keyed {
		proof = seal.Of(key, label, b)
	}
	return append(b, proof[:]...)
}

// authentic tells whether an encoded record was sealed with the key.
func authentic(encoded []byte, key, label string) bool {
	sealed, proof := encoded[:len(encoded)-proofSize], encoded[len(encoded)-proofSize:]
	want := seal.Of(key, label, sealed)
	return hmac.Equal(want[:], proof)
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

// reader takes foreign bytes apart. After the first thing that does not fit it returns zeros.
type reader struct{ untrusted.Reader }

func (r *reader) header(magic string) byte {
	if m := r.Take(len(magic)); !bytes.Equal(m, []byte(magic)) {
		r.Fail()
	}
	return r.Byte()
}

// text is foreign text. Every writer makes its texts printable, so what is not is no record.
func (r *reader) text(most int) string {
	t := string(r.Take(r.Number(most)))
	if printable.Text(t, most) != t {
		r.Fail()
		return ""
	}
	return t
}
