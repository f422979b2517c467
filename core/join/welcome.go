package join

import (
	"encoding/json"
	"slices"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/roster"
)

// joinRequest is what a process says that asks to be a member.
type joinRequest struct {
	Handle   string // the process's own
	Group    string `json:",omitempty"` // the name of the one that is meant, where it is known
	Settings []bootstrap.Setting
}

// Welcome is the reply: the epoch whose member the process is.
type Welcome struct {
	Kind     uint8  `json:",omitempty"` // of the refusal: see fault.Number
	Problem  string `json:",omitempty"` // why the process is refused; nothing else is set then
	Name     string // the group's
	Number   uint32
	Job      uint64
	Group    uint64
	Seed     []byte   // see roster.Identity
	Own      [][]byte // the members' addresses, by rank: see address.Address.Encode
	Hosts    [][]byte // what they share
	HostOf   []int    // by rank: of Hosts
	Founders []byte
	Open     bool     `json:",omitempty"` // see membership.Value.Open
	Handles  []string // of those that join; they have the last ranks
}

// welcome encodes the reply to a process that is a member of the epoch.
func (e *Epoch) welcome() (reply []byte, err error) {
	r := e.Roster
	w := Welcome{Name: r.Members.Name, Number: e.Number, Job: r.Identity.Job, Group: r.Identity.Group,
		Seed: r.Identity.Seed, Founders: r.Founders, Open: r.Contested}
	for _, j := range r.Joined {
		w.Handles = append(w.Handles, string(j.Handle))
	}
	if w.Own, w.Hosts, w.HostOf, err = address.EncodeAll(r.Peers.Addresses()); err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// Roster returns the roster of the epoch that a welcome makes this process a member of.
func (a *Acceptor) Roster(w *Welcome) (ranks roster.Roster, err error) {
	l := a.listening()
	self := l.handle.String()
	rank := slices.Index(w.Handles, self) + len(w.Own) - len(w.Handles)
	shared := make([][]byte, len(w.Own))
	for r := range shared {
		if r >= len(w.HostOf) || w.HostOf[r] < 0 || w.HostOf[r] >= len(w.Hosts) {
			return ranks, malformedWelcome("of rank %d no host is told", r)
		}
		shared[r] = w.Hosts[w.HostOf[r]]
	}
	if !slices.Contains(w.Handles, self) || rank < 0 || len(w.Own) > bootstrap.MaxSize {
		return ranks, malformedWelcome("this process is not among %d members", len(w.Own))
	}
	if len(w.Founders) != len(membership.NewSet(len(w.Own))) {
		return ranks, malformedWelcome("%d bytes tell of founders", len(w.Founders))
	}
	addresses, hosts, err := address.Decode(w.Own, shared)
	if err != nil {
		return ranks, malformedWelcome("%v", err)
	}
	if addresses[rank].Process != l.handle.Address.Process {
		return ranks, malformedWelcome("rank %d is to be this process, but is another one", rank)
	}
	peers, err := roster.Join(addresses, hosts, rank, a.config.Settings.Transport)
	if err != nil {
		return ranks, fault.Errorf(fault.ErrUnsupported, "join: %v", err)
	}
	ranks = l.end.Roster(printable.Text(w.Name, maxName), rank, nil, peers)
	id := roster.Identity{Job: w.Job, Group: w.Group, Seed: w.Seed}
	ranks.Identity, err = id.Of(addresses)
	if err != nil {
		return ranks, malformedWelcome("%v", err)
	}
	ranks.Founders, ranks.Contested = w.Founders, w.Open
	for _, h := range w.Handles {
		ranks.Joined = append(ranks.Joined, membership.Joiner{Handle: []byte(h)})
	}
	return ranks, nil
}

func malformedWelcome(format string, args ...any) error {
	return fault.Errorf(fault.ErrInternal, "join: the reply breaks the protocol: "+format, args...)
}
