package meeting

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/internal/seal"
	"github.com/goccl/goccl/core/internal/untrusted"
)

const (
	magic = "GCH\x02" // the last byte is the version
	// MaxHandle is how long a handle is at most, in bytes.
	MaxHandle  = 1 << 10
	maxProblem = 96 // bytes of what an address says of why something does not work
	maxNames   = 64 // bytes of a host's name
	maxHandles = 65536
	maxQuoted  = 40 // bytes of a bad handle, in texts
	tagSize    = 16
)

// Handle names a process's end of a communicator. It ends with a tag of all that it says, so that
// who passes it on cannot change it without the job's key.
type Handle struct {
	text    string
	id      uint64          // random
	shared  string          // the record of what all processes of the host say alike
	Address address.Address // of the process
}

// New makes a handle of the process at an address, which holds the job's key.
func New(a address.Address, key string) (Handle, error) {
	a.Name = a.Name[:min(len(a.Name), maxNames)]
	a.ShmProblem = a.ShmProblem[:min(len(a.ShmProblem), maxProblem)]
	a.VerbsProblem = a.VerbsProblem[:min(len(a.VerbsProblem), maxProblem)]
	own, shared, err := a.Encode()
	if err != nil {
		return Handle{}, err
	}
	b := append([]byte(magic), make([]byte, 8)...)
	rand.Read(b[len(magic):])
	b = binary.LittleEndian.AppendUint16(b, uint16(len(own)))
	b = append(append(b, own...), shared...)
	b = append(b, tag(key, b)...)
	text := base64.RawURLEncoding.EncodeToString(b)
	if len(text) > MaxHandle {
		return Handle{}, fmt.Errorf("this process's handle takes %d bytes, allowed are %d: name one "+
			"network interface by GOCCL_SOCKET_IFNAME", len(text), MaxHandle)
	}
	return Parse(text)
}

func tag(key string, b []byte) []byte {
	sum := seal.Of(key, "goccl handle", b)
	return sum[:tagSize]
}

// MadeWith reports whether the handle was made by a process that holds the job's key, and was not
// changed since.
func (h *Handle) MadeWith(key string) bool {
	b, _ := base64.RawURLEncoding.DecodeString(h.text) // Parse has read it
	end := len(b) - tagSize
	return hmac.Equal(b[end:], tag(key, b[:end]))
}

// String is the handle's text: base64, for URLs.
func (h *Handle) String() string { return h.text }

// ID names the communicator's end among those of its process.
func (h *Handle) ID() uint64 { return h.id }

// Parse reads the text of a handle, whoever has made it: see MadeWith.
func Parse(text string) (h Handle, err error) {
	if len(text) > MaxHandle {
		return h, fmt.Errorf("it has %d bytes, allowed are %d", len(text), MaxHandle)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return h, err
	}
	r := untrusted.NewReader(b)
	if !bytes.Equal(r.Take(len(magic)), []byte(magic)) {
		r.Fail()
	}
	h.text, h.id = text, r.Uint64()
	own := r.Take(int(r.Uint16()))
	shared := r.Take(max(r.Left()-tagSize, 0))
	r.Take(tagSize)
	if err := r.End(); err != nil {
		return h, err
	}
	a, _, err := address.Decode([][]byte{own}, [][]byte{shared})
	if err != nil {
		return h, untrusted.ErrMalformed
	}
	h.Address, h.shared = a[0], string(shared)
	return h, nil
}

// Who names the process in texts.
func (h *Handle) Who() string {
	return fmt.Sprintf("pid %d on host %s", h.Address.PID, h.Address.Name)
}

// NotMadeHere tells of a handle that was not made with this job's key.
func (h *Handle) NotMadeHere() string {
	return h.Who() + " and this process hold different secrets (GOCCL_SECRET), or its handle was " +
		"changed on its way"
}

// List is the handles of a group's members, by rank.
type List struct {
	Handles []Handle
	Hosts   []int // the same number for those that say the same of their host
	Rank    int   // this process's
	Members fault.Group
	leader  int               // the rank whose handle is the least
	digest  [sha256.Size]byte // of the handles in order
}

// NewList reads the handles of a meeting. Ordered tells that a handle's place is its rank; else the
// ranks are in the order of the handles' texts.
func (m *Meetings) NewList(group string, texts []string, ordered bool) (*List, error) {
	bad := func(format string, args ...any) (*List, error) {
		return nil, errorf(fault.ErrInvalidArgument, format, args...)
	}
	switch n := len(texts); {
	case n == 0:
		return bad("no handles are given: give those of all members, with this process's own")
	case n > maxHandles:
		return bad("%d handles are given, allowed are %d", n, maxHandles)
	}
	l := &List{Rank: -1}
	places := map[string]int{}
	for i, text := range texts {
		h, err := Parse(text)
		if err != nil {
			return bad("handle %d of %d, %q, is none: %v", i+1, len(texts),
				printable.Text(text, maxQuoted), err)
		}
		if first, twice := places[text]; twice {
			return bad("handles %d and %d of %d are the same, that of %s", first+1, i+1, len(texts),
				h.Who())
		}
		if !h.MadeWith(m.key) {
			return nil, errorf(fault.ErrMismatch, "handle %d of %d: %s", i+1, len(texts), h.NotMadeHere())
		}
		places[text] = i
		l.Handles = append(l.Handles, h)
	}
	if !ordered {
		slices.SortFunc(l.Handles, func(a, b Handle) int { return strings.Compare(a.text, b.text) })
	}
	all, hosts := sha256.New(), map[string]int{}
	pids := make([]int, len(texts))
	for rank := range l.Handles {
		h := &l.Handles[rank]
		pids[rank] = h.Address.PID
		if h.text < l.Handles[l.leader].text {
			l.leader = rank
		}
		if h.text == m.self.text {
			l.Rank = rank
		}
		if _, known := hosts[h.shared]; !known {
			hosts[h.shared] = len(hosts)
		}
		l.Hosts = append(l.Hosts, hosts[h.shared])
		fmt.Fprintln(all, h.text)
	}
	all.Sum(l.digest[:0])
	if l.Rank < 0 {
		return bad("this process's own handle is not among the %d that are given (it is that of %s)",
			len(texts), m.self.Who())
	}
	l.Members = fault.NewGroup(group, nil, pids)
	return l, nil
}

// name names a rank in texts.
func (l *List) name(rank int) string {
	return l.Members.Names(rank) + ", on host " + l.Handles[rank].Address.Name
}

func (l *List) names(ranks []int) string {
	if len(ranks) == 1 {
		return l.name(ranks[0])
	}
	return l.Members.Names(ranks...)
}

// rankOf is the rank of a handle, -1 where it is none of the list.
func (l *List) rankOf(text string) int {
	return slices.IndexFunc(l.Handles, func(h Handle) bool { return h.text == text })
}
