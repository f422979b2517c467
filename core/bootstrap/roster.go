package bootstrap

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goccl/goccl/core/internal/seal"
	"github.com/goccl/goccl/core/internal/untrusted"
)

// rosterRecord is what rank 0 says of all: the group, or why there is none. Where rank 0 has a
// secret, proof covers all the rest. What it says of each rank is in a table of its own, which is
// large and whose digest is a part of the record: wherever a rank gets the table from, it is the
// one that rank 0 wrote.
type rosterRecord struct {
	nonce   nonce // the group's
	job     uint64
	secret  [secretSize]byte // zero where keyed
	keyed   bool
	problem string // "" where there is a group
	cause   cause  // of the problem
	// The size and the settings are rank 0's.
	size     int
	settings settingsDigest
	count    int // of the ranks in the table: with a problem there may be more than size
	digest   [sha256.Size]byte
	bytes    int              // of the table
	root     []netip.AddrPort // of the tree of leaders, none where there is none: see share.go
	encoded  []byte           // the whole record, in one that encode or decodeRoster has made
	table    []byte
	rows
}

// rows are what the table of a roster says of each rank.
type rows struct {
	marks   []mark   // by rank; zero for a rank that has not joined
	members []Member // by rank; none with a problem
}

const maxTable = maxValue

// maxRow is for a row, and what its rank alone has in common with others.
const maxRow = markSize + 2 + 2 + MaxMember + 4 + MaxMember

// tabulate encodes the table, whose digest the record has.
func (r *rosterRecord) tabulate() {
	r.table, r.count = r.rows.encode(), len(r.marks)
	r.digest, r.bytes = sha256.Sum256(r.table), len(r.table)
}

// encode encodes the record of a roster whose table is encoded.
func (r *rosterRecord) encode(key string) {
	b := append([]byte(rosterMagic), flags(r.keyed, r.problem != ""), byte(r.cause))
	b = append(b, r.nonce[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.job)
	b = append(b, r.secret[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.size))
	b = append(b, r.settings[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.count))
	b = append(b, r.digest[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.bytes))
	b = appendAddresses(b, r.root)
	if r.problem != "" {
		b = untrusted.AppendBytes(b, r.problem)
	}
	r.encoded = appendProof(b, r.keyed, key, "goccl roster")
}

// decodeRoster reads a record. Its table is still to come: see fill.
func decodeRoster(b []byte) (*rosterRecord, error) {
	r := reader{untrusted.NewReader(b)}
	f := r.header(rosterMagic)
	problem := f&flagProblem != 0
	o := &rosterRecord{keyed: f&flagKeyed != 0, cause: cause(r.Byte()), encoded: b}
	r.Fixed(o.nonce[:])
	o.job = r.Uint64()
	r.Fixed(o.secret[:])
	o.size = r.Number(MaxSize)
	r.Fixed(o.settings[:])
	o.count = r.Number(3 * MaxSize)
	r.Fixed(o.digest[:])
	o.bytes = r.Number(maxTable)
	o.root = readAddresses(&r.Reader)
	if problem {
		if o.problem = r.text(maxProblem); o.problem == "" {
			r.Fail()
		}
	}
	if f&^(flagKeyed|flagProblem) != 0 || o.cause >= causes || o.cause != 0 && !problem ||
		o.size < 1 || o.bytes > 4+o.count*maxRow || o.count < o.size || !problem && o.count != o.size {
		r.Fail()
	}
	r.Take(proofSize)
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("a roster: %w", err)
	}
	return o, nil
}

// errChanging tells that the news, the roster and its table are not of one: rank 0 is writing the
// next, or somebody else has.
var errChanging = errors.New("a roster that rank 0 is just writing, or that was changed")

// names tells whether a table is the roster's.
func (r *rosterRecord) names(table []byte) bool {
	return len(table) == r.bytes && sha256.Sum256(table) == r.digest
}

// fill reads the roster's table.
func (r *rosterRecord) fill(table []byte) error {
	if !r.names(table) {
		return errChanging
	}
	var err error
	r.table = table
	r.rows, err = decodeRows(table, r.count, r.problem == "")
	return err
}

// encode writes what ranks have in common once: first those texts, in the order of their first
// users, then a row for each rank.
func (t *rows) encode() []byte {
	var b []byte
	if t.members == nil {
		for _, m := range t.marks {
			b = append(b, m[:]...)
		}
		return b
	}
	places := map[string]int{}
	var ranks []byte
	for i, m := range t.members {
		place, ok := places[string(m.Shared)]
		if !ok {
			place = len(places)
			places[string(m.Shared)] = place
			b = untrusted.AppendBytes(b, m.Shared)
		}
		ranks = append(ranks, t.marks[i][:]...)
		ranks = binary.LittleEndian.AppendUint16(ranks, uint16(place))
		ranks = binary.LittleEndian.AppendUint16(ranks, uint16(len(m.Own)))
		ranks = append(ranks, m.Own...)
	}
	b = append(binary.LittleEndian.AppendUint32(nil, uint32(len(places))), b...)
	return append(b, ranks...)
}

func decodeRows(b []byte, count int, group bool) (rows, error) {
	r := reader{untrusted.NewReader(b)}
	var t rows
	var shared [][]byte
	if group {
		seen := map[string]bool{}
		for n := r.Number(MaxSize); len(shared) < n && !r.Failed(); {
			text := r.Bytes(MaxMember)
			if seen[string(text)] {
				r.Fail()
			}
			seen[string(text)] = true
			shared = append(shared, text)
		}
	}
	most := min(count, r.Left()/markSize)
	t.marks = make([]mark, 0, most)
	if group {
		t.members = make([]Member, 0, most)
	}
	used := 0
	for len(t.marks) < count && !r.Failed() {
		var m mark
		r.Fixed(m[:])
		t.marks = append(t.marks, m)
		if !group {
			continue
		}
		place := int(r.Uint16())
		own := r.Take(int(r.Uint16()))
		if place > used || place >= len(shared) || len(own) > MaxMember {
			r.Fail()
			break
		}
		used = max(used, place+1)
		t.members = append(t.members, Member{own, shared[place]})
	}
	if used != len(shared) {
		r.Fail()
	}
	if err := r.End(); err != nil {
		return rows{}, fmt.Errorf("a roster's table: %w", err)
	}
	return t, nil
}

// lists tells whether a roster lists a rank's join.
func (r *rosterRecord) lists(j *joinRecord) bool {
	return j.rank < len(r.marks) && r.marks[j.rank].of(j.nonce)
}

// unlisted are the ranks that had not joined when a roster was made.
func (r *rosterRecord) unlisted() (ranks []int) {
	for rank, m := range r.marks[:r.size] {
		if m == (mark{}) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// holds tells whether a roster that lists a rank's join has it as the rank wrote it.
func (r *rosterRecord) holds(j *joinRecord) bool {
	m := r.members[j.rank]
	return r.marks[j.rank] == j.mark() && bytes.Equal(m.Own, j.member.Own) &&
		bytes.Equal(m.Shared, j.member.Shared)
}

// groupSecret is the secret of the group that a roster makes. It is of the whole record and by its
// digest of the table, that is of all that every rank has published. All proofs between ranks are
// keyed with it, so ranks that have read different rosters can prove nothing to each other. An
// attacker that puts another address or user into the roster that one rank reads gets no link.
func (r *rosterRecord) groupSecret(key string) []byte {
	if !r.keyed {
		key = string(r.secret[:])
	}
	digest := sha256.Sum256(r.encoded)
	secret := seal.Of(key, "goccl group", digest[:])
	return secret[:]
}

// news is what ranks poll, so that they need not read the roster again and again: the word of the
// roster that was settled last, and the name of the one that stands.
type news struct {
	word   word
	roster name
}

// word says that a roster is settled, and to what all ranks have answered yes. Where there is no
// group all but the nonce is zero.
type word struct {
	nonce     nonce // the roster's
	unanimous Answers
	proof     [proofSize]byte
}

// name is the first half of a roster's digest.
type name [sha256.Size / 2]byte

func (r *rosterRecord) name() (n name) {
	digest := sha256.Sum256(r.encoded)
	copy(n[:], digest[:])
	return n
}

// word is what rank 0 publishes when a roster is settled.
func (r *rosterRecord) word(key string, unanimous Answers) word {
	if r.problem != "" {
		return word{nonce: r.nonce}
	}
	proof := seal.Of(string(r.groupSecret(key)), "goccl go", []byte{byte(unanimous)})
	return word{r.nonce, unanimous, proof}
}

func (n *news) encode() []byte {
	b := append(n.word.nonce[:], byte(n.word.unanimous))
	b = append(b, n.word.proof[:]...)
	return append(b, n.roster[:]...)
}

// decodeNews returns no news where a value holds none.
func decodeNews(b []byte) (n news) {
	r := reader{untrusted.NewReader(b)}
	r.Fixed(n.word.nonce[:])
	n.word.unanimous = Answers(r.Byte())
	r.Fixed(n.word.proof[:])
	r.Fixed(n.roster[:])
	if r.End() != nil {
		return news{}
	}
	return n
}
