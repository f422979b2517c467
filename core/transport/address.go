package transport

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/interfaces"
)

// Check is for a process without peers: it tells what [Listen] would say of a configuration, and
// what [address.Decide] would of the transport that is demanded. It does not listen.
func Check(c Config, forced string) (problem string, err error) {
	if c.Interface != "" {
		if _, err := interfaces.Addresses(c.Interface); err != nil {
			return "", err
		}
	}
	switch forced {
	case address.Shm:
		problem = checkShm()
	case address.Verbs:
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

// listenAddrs chooses the IP addresses to listen on, the preferred one first. Of the interfaces
// that an exclusion leaves, that of the route to the store comes first.
func listenAddrs(iface, storeHost string) ([]netip.Addr, error) {
	if iface == "" {
		return routeAddrs(storeHost), nil
	}
	allowed, err := interfaces.Addresses(iface)
	if err == nil && strings.HasPrefix(iface, "^") {
		route := routeAddrs(storeHost)[0]
		if i := slices.Index(allowed, route); i > 0 && !route.IsLoopback() {
			allowed = slices.Insert(slices.Delete(allowed, i, i+1), 0, route)
		}
	}
	return allowed, err
}

// routeAddrs chooses the addresses to listen on where no interface is named.
func routeAddrs(storeHost string) []netip.Addr {
	if storeHost != "" {
		a, err := routeTo(storeHost)
		if err == nil && !a.IsLoopback() {
			return []netip.Addr{a}
		}
		literal, perr := netip.ParseAddr(storeHost)
		if err == nil && (storeHost == "localhost" || perr == nil && literal.IsLoopback()) {
			return []netip.Addr{a}
		}
		// A host's own name often stands for a loopback address in its /etc/hosts, while other
		// hosts know it by a real one. So the default route is asked, and loopback comes second.
		if err == nil {
			if d, ok := defaultRoute(); ok {
				return []netip.Addr{d, a}
			}
			return []netip.Addr{a}
		}
	}
	if d, ok := defaultRoute(); ok {
		return []netip.Addr{d}
	}
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
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

// newProcessID is random.
func newProcessID() (p address.ProcessID) {
	rand.Read(p[:])
	return p
}
