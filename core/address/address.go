// Package address says what a process publishes of itself, and what joins two processes that have
// each other's. Package transport listens and dials.
package address

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// The kinds of channel, as [Decide] names them.
const (
	Mem   = "mem" // both ranks live in one endpoint
	Shm   = "shm" // one host: a Unix socket, and windows that both map
	TCP   = "tcp"
	Verbs = "verbs" // RDMA; TCP where it turns out not to work, unless it is demanded
)

// IsPort tells whether a kind of channel shares no memory.
func IsPort(kind string) bool { return kind == TCP || kind == Verbs }

// MaxHostName is the longest host name, host or namespace of an address, in bytes.
const MaxHostName = 256

const maxText = 1024 // bytes of any other text

// ProcessID names an endpoint: random, never used again.
type ProcessID [16]byte

func (p ProcessID) String() string { return hex.EncodeToString(p[:]) }

// Address says all that a peer must know to reach an endpoint. It need not be believed: the process
// that answers there must prove to be Process and to hold the group's secret, which is made of all
// the ranks' addresses as they were published.
type Address struct {
	Process   ProcessID
	PID       int
	UID       int    // effective
	PIDSpace  string // the namespace of PID, "" where unknown
	UserSpace string // and that of UID
	Name      string // host name, for texts
	Host      string // boot id and network namespace
	// Unix is the process's abstract socket, "" where shared memory cannot work.
	Unix       string
	ShmProblem string   // why it cannot, and what to do
	TCP        []string // host:port, the preferred one first
	// Verbs is the kind of network that the RDMA port is in, "" where there is none. Ports of one
	// kind are taken to reach each other.
	Verbs        string
	VerbsProblem string // why there is none, and what to do
	CPUs         int    // that the process may use
	CPUSet       int    // tells sets of CPUs that processes of a host may use apart; 0: unknown
	Domain       int    // that these are in: its first CPU, plus 1; 0: several, or unknown
	Mark         Mark
	Life         int    // the descriptor of its life word, 0 where there is none
	Forced       string // the transport that this process's user demands
	Net          string // and what it demands where no memory is shared
}

// Mark is a place in the process's memory, and what stands there, by which others find out whether
// they can read it.
type Mark struct {
	At    uint64
	Value uint64
}

// DemandsVerbs tells whether TCP must not stand in for verbs.
func (a *Address) DemandsVerbs() bool {
	return a.Forced == Verbs || a.Forced == "" && a.Net == Verbs
}

// Who names the process in texts.
func (a *Address) Who() string { return fmt.Sprintf("host %s, pid %d", a.Name, a.PID) }

// KnowsHost tells whether the process can tell which host it is on. One that cannot names itself
// there, and ShmProblem says why.
func (a *Address) KnowsHost() bool { return a.Host != a.Process.String() }

// SharesPIDs tells whether a process has the same number for both.
func (a *Address) SharesPIDs(b *Address) bool {
	return a.PIDSpace != "" && a.PIDSpace == b.PIDSpace
}

// Reachable lists the TCP addresses of a that one can dial from b. Loopback means another host
// there, unless it is the same. Two processes that cannot tell may be on one, in one sandbox: who
// answers must prove to be the process.
func (a *Address) Reachable(b *Address) []string {
	local := a.Host == b.Host || !a.KnowsHost() && !b.KnowsHost()
	var l []string
	for _, t := range a.TCP {
		p, err := netip.ParseAddrPort(t)
		if err == nil && (local || !p.Addr().IsLoopback()) {
			l = append(l, t)
		}
	}
	return l
}

// Decide tells what joins two processes: Mem where they are one, Shm where they share a host on
// which shared memory works, Verbs between hosts where both have an RDMA port of one kind, else
// TCP. forced ("", Shm, TCP or Verbs), or the Forced of either address, demands one, and their Net
// one of TCP and Verbs where no memory is shared; where that cannot be had the error tells why and
// what to do. Both sides decide alike.
func Decide(a, b Address, forced string) (kind string, err error) {
	for _, f := range []string{a.Forced, b.Forced} {
		if forced == "" {
			forced = f
		}
		if f != "" && f != forced {
			return "", fmt.Errorf(
				"one process demands transport %q and another %q: set the same one on all ranks",
				forced, f)
		}
	}
	switch forced {
	case "", Shm:
		if a.Process == b.Process {
			return Mem, nil
		}
		if forced == "" && a.Host != b.Host {
			break // without a text of why not, which would take long for thousands of hosts
		}
		problem := shmProblem(&a, &b)
		if problem == "" {
			return Shm, nil
		}
		if forced == Shm {
			return "", fmt.Errorf("transport \"shm\" cannot work: %s", problem)
		}
	case TCP, Verbs:
		if a.Process == b.Process {
			return "", fmt.Errorf(
				"transport %q cannot join ranks of one process, which are joined by its memory: "+
					"do not force it there, or run each rank in a process of its own", forced)
		}
	default:
		return "", fmt.Errorf(
			"unknown transport %q: allowed are \"shm\", \"tcp\", \"verbs\" and \"\" (automatic)",
			forced)
	}
	for _, p := range [][2]*Address{{&a, &b}, {&b, &a}} {
		if len(p[0].Reachable(p[1])) == 0 {
			hint := "name an interface that both share by GOCCL_SOCKET_IFNAME"
			if problem := hostProblem(&a, &b); problem != "" {
				hint = problem
			}
			return "", fmt.Errorf("%s cannot be reached from %s: it listens on %s only; %s", p[0].Who(),
				p[1].Who(), strings.Join(p[0].TCP, ", "), hint)
		}
	}
	if forced == "" {
		forced = a.Net
		if a.Net != b.Net {
			return "", fmt.Errorf(
				"one process demands the network %q and another %q: set the same one on all ranks",
				a.Net, b.Net)
		}
	}
	if forced == TCP || forced == "" && a.Host == b.Host {
		return TCP, nil
	}
	switch {
	case a.Verbs != "" && a.Verbs == b.Verbs:
		return Verbs, nil
	case forced == Verbs:
		return "", fmt.Errorf("transport \"verbs\" cannot work: %s", verbsProblem(&a, &b))
	}
	return TCP, nil
}

// Memory names what the process shares memory with: two that Decide joins by Mem or Shm have the
// same name, and no others have it. "" is that of one which shares memory with none.
func (a *Address) Memory(forced string) string {
	switch {
	case IsPort(cmp.Or(forced, a.Forced)):
		return ""
	case a.ShmProblem != "" || a.Unix == "":
		return a.Process.String()
	}
	return a.Host
}

// Fabric names the kind of network in which RDMA joins the process to other hosts' that name the
// same one; "" where TCP does.
func (a *Address) Fabric(forced string) string {
	forced = cmp.Or(forced, a.Forced, a.Net)
	if forced == TCP {
		return ""
	}
	return a.Verbs
}

// hostProblem tells why it is not known whether two processes share a host; "" where it is.
func hostProblem(a, b *Address) string {
	for _, p := range []*Address{a, b} {
		if !p.KnowsHost() {
			return p.Who() + ": " + p.ShmProblem
		}
	}
	return ""
}

// shmProblem tells why two processes cannot share memory, and what to do; "" where they can.
func shmProblem(a, b *Address) string {
	switch {
	case hostProblem(a, b) != "":
		return hostProblem(a, b)
	case a.Host != b.Host:
		return fmt.Sprintf(
			"hosts %s and %s are not the same one, or their containers have separate network "+
				"namespaces: use transport \"tcp\", or share the host's network", a.Name, b.Name)
	case a.ShmProblem != "":
		return a.Who() + ": " + a.ShmProblem
	case b.ShmProblem != "":
		return b.Who() + ": " + b.ShmProblem
	case a.Unix == "" || b.Unix == "":
		return "a process has no Unix socket"
	}
	return ""
}

// verbsProblem tells why RDMA devices cannot join two processes, and what to do; "" where they can.
func verbsProblem(a, b *Address) string {
	switch {
	case a.Verbs == "":
		return a.Who() + ": " + a.VerbsProblem
	case b.Verbs == "":
		return b.Who() + ": " + b.VerbsProblem
	case a.Verbs != b.Verbs:
		return fmt.Sprintf(
			"the RDMA port of %s is in a network of kind %q and that of %s of kind %q: choose "+
				"others by %s and %s",
			a.Who(), a.Verbs, b.Who(), b.Verbs, "GOCCL_IB_HCA", "GOCCL_IB_GID_INDEX")
	}
	return ""
}

// Why tells in words why two processes are joined by a kind of channel that [Decide] has told.
func Why(a, b Address, kind string) string {
	demanded := cmp.Or(a.Forced, b.Forced)
	if demanded == "" && kind != Mem && kind != Shm {
		demanded = a.Net
	}
	switch {
	case kind == Mem:
		return "they are threads of one process"
	case kind == demanded:
		return fmt.Sprintf("%q is demanded", kind)
	case kind == Shm:
		return "they share a host and its memory"
	case kind == Verbs:
		return fmt.Sprintf("both hosts have an RDMA port of kind %q", a.Verbs)
	case a.Host == b.Host || hostProblem(&a, &b) != "":
		return "they cannot share memory: " + shmProblem(&a, &b)
	}
	return "they are on two hosts, and cannot use RDMA: " + verbsProblem(&a, &b)
}
