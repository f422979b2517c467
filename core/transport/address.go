package transport

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/rdma"
)

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

// demandsVerbs tells whether TCP must not stand in for verbs.
func (a *Address) demandsVerbs() bool {
	return a.Forced == Verbs || a.Forced == "" && a.Net == Verbs
}

// Who names the process in texts.
func (a *Address) Who() string { return fmt.Sprintf("host %s, pid %d", a.Name, a.PID) }

// knowsHost tells whether the process can tell which host it is on. One that cannot names itself
// there, and ShmProblem says why.
func (a *Address) knowsHost() bool { return a.Host != a.Process.String() }

// reachable lists the TCP addresses of a that one can dial from b. Loopback means another host
// there, unless it is the same. Two processes that cannot tell may be on one, in one sandbox: who
// answers must prove to be the process.
func (a *Address) reachable(b *Address) []string {
	local := a.Host == b.Host || !a.knowsHost() && !b.knowsHost()
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
		if len(p[0].reachable(p[1])) == 0 {
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
		if !p.knowsHost() {
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
			a.Who(), a.Verbs, b.Who(), b.Verbs, rdma.EnvHCA, rdma.EnvGIDIndex)
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

// Check is for a process without peers: it tells what [Listen] would say of a configuration, and
// what [Decide] would of the transport that is demanded. It does not listen.
func Check(c Config, forced string) (problem string, err error) {
	if c.Interface != "" {
		if _, err := interfaceAddrs(c.Interface); err != nil {
			return "", err
		}
	}
	switch forced {
	case Shm:
		problem = checkShm()
	case Verbs:
		addrs, err := listenAddrs(c.Interface, c.StoreHost)
		if err != nil {
			return "", err
		}
		if _, _, err := choosePort(c, addrs); err != nil {
			problem = err.Error()
		}
	}
	if problem != "" {
		problem = fmt.Sprintf("transport %q cannot work: %s", forced, problem)
	}
	return problem, nil
}

// hostIdentity is equal for processes that share a kernel and a network namespace.
func hostIdentity() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	ns, err := os.Readlink("/proc/self/ns/net")
	// a kernel without namespaces has one network
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return strings.TrimSpace(string(boot)) + " " + ns, nil
}

// leastFileSize is what windows of up to a thousand ranks need of the limit on the file size.
const leastFileSize = 64 << 20

// checkShm tries what shared windows need: a sealed memfd that goes through a Unix socket and is
// mapped. It returns "" or the problem and its remedy.
func checkShm() string {
	const remedy = "allow it in the sandbox (seccomp) profile of the container, " +
		"or use transport \"tcp\""
	fail := func(what string, err error) string {
		return fmt.Sprintf("%s fails: %v; %s", what, err, remedy)
	}
	const size = 4096
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &files); err == nil && files.Cur < leastFileSize {
		return fmt.Sprintf(
			"the limit on the file size, which holds for memfds too, is %d bytes; "+
				"raise it (ulimit -f) to %d, or use transport \"tcp\"", files.Cur, leastFileSize)
	}
	fd, err := unix.MemfdCreate("goccl", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fail("memfd_create", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		return fmt.Sprintf(
			"ftruncate of a memfd fails: %v; raise the memory limit, or use transport \"tcp\"", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return fail("sealing a memfd", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail("socketpair", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		return fail("passing a descriptor", err)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return fail("receiving a descriptor", err)
	}
	got := rights(oob[:n])
	defer closeFDs(got)
	if len(got) != 1 {
		return fail("receiving a descriptor", errors.New("none came"))
	}
	a, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail("mmap of a memfd", err)
	}
	defer unix.Munmap(a)
	b, err := unix.Mmap(got[0], 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail("mmap of a received memfd", err)
	}
	defer unix.Munmap(b)
	a[17] = 42
	if b[17] != 42 {
		return fail("mmap of a memfd", errors.New("two mappings do not show the same memory"))
	}
	return ""
}

// rights takes the descriptors out of control messages.
func rights(oob []byte) []int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range msgs {
		if f, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, f...)
		}
	}
	return fds
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// listenAddrs chooses the IP addresses to listen on, the preferred one first.
func listenAddrs(iface, storeHost string) ([]netip.Addr, error) {
	if iface != "" {
		return interfaceAddrs(iface)
	}
	if storeHost != "" {
		a, err := routeTo(storeHost)
		if err == nil && !a.IsLoopback() {
			return []netip.Addr{a}, nil
		}
		literal, perr := netip.ParseAddr(storeHost)
		if err == nil && (storeHost == "localhost" || perr == nil && literal.IsLoopback()) {
			return []netip.Addr{a}, nil
		}
		// A host's own name often stands for a loopback address in its /etc/hosts, while other
		// hosts know it by a real one. So the default route is asked, and loopback comes second.
		if err == nil {
			if d, ok := defaultRoute(); ok {
				return []netip.Addr{d, a}, nil
			}
			return []netip.Addr{a}, nil
		}
	}
	if d, ok := defaultRoute(); ok {
		return []netip.Addr{d}, nil
	}
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
}

// defaultRoute is the local address of the default route, if there is one. The addresses asked
// for are reserved for documentation.
func defaultRoute() (netip.Addr, bool) {
	for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
		if a, err := routeTo(to); err == nil && !a.IsLoopback() {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// routeTo is the local address of the route to a host. Connecting a UDP socket sends nothing.
func routeTo(host string) (netip.Addr, error) {
	c, err := net.Dial("udp", net.JoinHostPort(host, "9"))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// InterfaceError tells why the network interface that was asked for cannot be listened on.
type InterfaceError struct{ text string }

func (e *InterfaceError) Error() string { return e.text }

// interfaceAddrs lists an interface's addresses: IPv4 first, link-local IPv6 never, because its
// scope has no meaning on another host.
func interfaceAddrs(name string) ([]netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		var names []string
		if all, err := net.Interfaces(); err == nil {
			for _, i := range all {
				names = append(names, i.Name)
			}
		}
		return nil, &InterfaceError{fmt.Sprintf(
			"interface is %q (from the option or GOCCL_SOCKET_IFNAME), this host has %s",
			name, strings.Join(names, ", "))}
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of network interface %q: %w", name, err)
	}
	var l []netip.Addr
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && !ip.Unmap().IsLinkLocalUnicast() {
				l = append(l, ip.Unmap())
			}
		}
	}
	if len(l) == 0 {
		return nil, &InterfaceError{fmt.Sprintf(
			"interface is %q (from the option or GOCCL_SOCKET_IFNAME), "+
				"which has no address that other hosts could reach: give it one, or name another "+
				"interface", name)}
	}
	slices.SortStableFunc(l, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return l, nil
}

// newProcessID is random.
func newProcessID() (p ProcessID) {
	rand.Read(p[:])
	return p
}
