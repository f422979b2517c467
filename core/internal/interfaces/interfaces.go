// Package interfaces chooses network interfaces by a text, as NCCL does by NCCL_SOCKET_IFNAME.
package interfaces

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// most is how many addresses are listened on. It is also NCCL's number of interfaces.
const most = 16

// Selection is a parsed text. The zero value allows all.
type Selection struct {
	names          []string
	exact, exclude bool
}

// Parse reads a list of interfaces, separated by commas. Each item is what a name begins with. With
// "=" in front the items are whole names; with "^" the interfaces are all others; "^=" is both. ""
// allows all.
func Parse(text string) (s Selection, err error) {
	if text == "" {
		return s, nil
	}
	list, exclude := strings.CutPrefix(text, "^")
	list, exact := strings.CutPrefix(list, "=")
	s.exclude, s.exact = exclude, exact
	for _, name := range strings.Split(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			s.names = append(s.names, name)
		}
	}
	if len(s.names) == 0 {
		return s, wrong(text, "which names none: give names, or what they begin with, as \"eth,ib0\", "+
			"after \"=\" for whole names, or after \"^\" for all others")
	}
	return s, nil
}

// Allows reports whether the selection has an interface of a name.
func (s Selection) Allows(name string) bool {
	if len(s.names) == 0 {
		return true
	}
	return s.exclude != slices.ContainsFunc(s.names, func(given string) bool {
		return given == name || !s.exact && strings.HasPrefix(name, given)
	})
}

// Error says why the interfaces that were asked for cannot be listened on.
type Error struct{ text string }

func (e *Error) Error() string { return e.text }

func wrong(given, why string) *Error {
	return &Error{fmt.Sprintf("interface is %q (from the option or GOCCL_SOCKET_IFNAME), %s", given,
		why)}
}

// Addresses lists the addresses of the interfaces that a text allows, the preferred ones first:
// those of whole names, then those of interfaces that have a link; IPv4 before IPv6; loopback comes
// last. Link-local addresses of IPv6 are left out, because their scope has no meaning on another
// host. Where there are none, the error is an [Error] that lists the interfaces of this host.
func Addresses(text string) ([]netip.Addr, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("the network interfaces cannot be listed: %w", err)
	}
	return addressesOf(text, all, (*net.Interface).Addrs)
}

// addressesOf is [Addresses] of the given interfaces.
func addressesOf(
	text string, all []net.Interface, addrs func(*net.Interface) ([]net.Addr, error),
) ([]netip.Addr, error) {
	s, err := Parse(text)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	allowed := slices.DeleteFunc(slices.Clone(all), func(i net.Interface) bool {
		return !s.Allows(i.Name)
	})
	if len(allowed) == 0 {
		return nil, wrong(text, "this host has "+strings.Join(names, ", "))
	}
	slices.SortStableFunc(allowed, func(a, b net.Interface) int { return s.rank(&a) - s.rank(&b) })
	var found []netip.Addr
	var loopback []netip.Addr
	for i := range allowed {
		list, err := addrs(&allowed[i])
		if err != nil {
			return nil, fmt.Errorf("addresses of network interface %q: %w", allowed[i].Name, err)
		}
		for _, a := range list {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			switch ip = ip.Unmap(); {
			case !ok || ip.IsLinkLocalUnicast():
			case ip.IsLoopback():
				loopback = append(loopback, ip)
			default:
				found = append(found, ip)
			}
		}
	}
	ipv4First := func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) }
	slices.SortStableFunc(found, ipv4First)
	slices.SortStableFunc(loopback, ipv4First)
	if found = append(found, loopback...); len(found) == 0 {
		return nil, wrong(text, "which has no address that other hosts could reach: give it one, or "+
			"name another interface; this host has "+strings.Join(names, ", "))
	}
	return found[:min(len(found), most)], nil
}

// rank orders interfaces by preference, the least first.
func (s Selection) rank(i *net.Interface) int {
	switch {
	case slices.Contains(s.names, i.Name):
		return 0
	case i.Flags&net.FlagRunning != 0:
		return 1
	}
	return 2
}
