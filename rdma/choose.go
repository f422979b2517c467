package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// What users say about devices.
const (
	EnvHCA      = "GOCCL_IB_HCA"
	EnvGIDIndex = "GOCCL_IB_GID_INDEX"
)

// Want is what the port to choose should be like.
type Want struct {
	// HCA names devices: "mlx5" means all that begin so, "=mlx5_1" that one only; "mlx5_0:1,mlx5_2"
	// lists several, with a port or without; "^" in front excludes them, "^=" those of exactly these
	// names.
	HCA string
	// GIDIndex is the GID to use, -1 for any.
	GIDIndex int
	// OnTCP reports whether TCP was told to use a network interface; nil: it was not told any. NetAddr
	// are the addresses that it listens on.
	OnTCP   func(name string) bool
	NetAddr []netip.Addr
}

// Choice is the port and the address that connections are made with.
type Choice struct {
	Device    string
	Port      int
	LinkLayer LinkLayer
	GIDIndex  int
	GIDType   GIDType
	GID       [16]byte
	LID       uint16
	MTU       int // bytes
	Gbps      float64
	NetDev    string
	Why       string
}

// How far packets from an address go, the farthest first.
const (
	routable = iota
	linkLocal
	oldRoCE // version 1
)

// candidate is a port that can be used, with the best of its GIDs.
type candidate struct {
	port   *Port
	gid    GID
	reach  int
	onTCP  bool // the interface that TCP uses
	sameIP bool // even its address
}

// Choose chooses among active ports: first one on the interface that TCP uses, then one whose
// address goes farther, then the fastest. Among the addresses of a port it takes RoCE v2 with the
// address that TCP uses, then with an IPv4 address, an IPv6 one, a link-local one, and RoCE v1 if
// there is nothing else.
func Choose(ports []Port, want Want) (Choice, error) {
	filter, err := parseHCA(want.HCA)
	if err != nil {
		return Choice{}, err
	}
	if len(ports) == 0 {
		return Choice{},
			errors.New("this host has no RDMA device that its kernel knows: load the adapter's driver " +
				"and ib_uverbs " +
				"(ibv_devices then lists it), or use TCP; SoftRoCE needs no adapter (rdma link add rxe0 " +
				"type rxe netdev INTERFACE)")
	}
	named := slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return !filter.allows(&p) })
	if len(named) == 0 {
		return Choice{}, fmt.Errorf("%s=%s leaves no RDMA port: there is %s", EnvHCA, want.HCA,
			strings.Join(describe(ports), "; "))
	}
	var usable []candidate
	for i := range named {
		p := &named[i]
		if p.Problem != "" {
			continue
		}
		var c candidate
		if c, p.Problem = bestGID(p, want); p.Problem == "" {
			usable = append(usable, c)
		}
	}
	if len(usable) == 0 {
		text := "no RDMA port can be used: "
		if want.HCA != "" {
			text = fmt.Sprintf("no RDMA port that %s=%s allows can be used: ", EnvHCA, want.HCA)
		}
		return Choice{}, errors.New(text + strings.Join(describe(named), "; "))
	}
	best := slices.MinFunc(usable, func(a, b candidate) int {
		return cmp.Or(first(a.onTCP, b.onTCP), cmp.Compare(a.reach, b.reach),
			cmp.Compare(b.port.Gbps, a.port.Gbps))
	})
	return Choice{
		Device:    best.port.Device,
		Port:      best.port.Number,
		LinkLayer: best.port.LinkLayer,
		GIDIndex:  best.gid.Index,
		GIDType:   best.gid.Type,
		GID:       best.gid.Raw,
		LID:       best.port.LID,
		MTU:       best.port.MTU,
		Gbps:      best.port.Gbps,
		NetDev:    cmp.Or(best.gid.NetDev, best.port.NetDev),
		Why:       best.why(want, usable),
	}, nil
}

// first orders what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// bestGID chooses among the GIDs of a port, or tells why none will do.
func bestGID(p *Port, want Want) (candidate, string) {
	var l []candidate
	for _, g := range p.GIDs {
		if want.GIDIndex < 0 || g.Index == want.GIDIndex {
			l = append(l, newCandidate(p, g, want))
		}
	}
	switch {
	case len(l) == 0 && want.GIDIndex >= 0:
		var have []string
		for _, g := range p.GIDs {
			have = append(have, g.String())
		}
		return candidate{}, fmt.Sprintf("it has no GID of index %d, which %s asks for; it has %s",
			want.GIDIndex, EnvGIDIndex,
			cmp.Or(strings.Join(have, ", "), "none"))
	case len(l) == 0 && p.LinkLayer == InfiniBand && p.LID != 0:
		return newCandidate(p, GID{}, want), ""
	case len(l) == 0:
		return candidate{}, "it has no GID: give its network interface an IP address"
	case p.LinkLayer == InfiniBand:
		return l[0], ""
	}
	return slices.MinFunc(l, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.reach, b.reach), first(a.sameIP, b.sameIP), first(a.onTCP, b.onTCP),
			first(a.gid.Addr().Is4(), b.gid.Addr().Is4()))
	}), ""
}

func newCandidate(p *Port, g GID, want Want) candidate {
	c := candidate{port: p, gid: g}
	netdev := cmp.Or(g.NetDev, p.NetDev)
	c.onTCP = want.OnTCP != nil && want.OnTCP(netdev)
	if p.LinkLayer == InfiniBand {
		return c
	}
	c.sameIP = slices.ContainsFunc(want.NetAddr,
		func(a netip.Addr) bool { return a.WithZone("").Unmap() == g.Addr() })
	c.onTCP = c.onTCP || c.sameIP
	switch {
	case g.Type != GIDRoCEv2:
		c.reach = oldRoCE
	case g.Addr().IsLinkLocalUnicast():
		c.reach = linkLocal
	}
	return c
}

// why explains the choice among those that were usable.
func (c *candidate) why(want Want, usable []candidate) string {
	var l []string
	switch netdev := cmp.Or(c.gid.NetDev, c.port.NetDev); {
	case len(usable) == 1 && want.HCA != "":
		l = append(l, fmt.Sprintf("the only usable port that %s=%s allows", EnvHCA, want.HCA))
	case len(usable) == 1:
		l = append(l, "the only usable port")
	case c.onTCP && netdev != "":
		l = append(l, fmt.Sprintf("TCP uses its interface %s", netdev))
	case c.onTCP:
		l = append(l, "TCP uses its address")
	case c.port.Gbps != 0:
		l = append(l, fmt.Sprintf("the fastest of %d usable ports", len(usable)))
	default:
		l = append(l, fmt.Sprintf("the first of %d usable ports", len(usable)))
	}
	switch {
	case want.GIDIndex >= 0:
		l = append(l, fmt.Sprintf("its GID %v was asked for by %s", c.gid, EnvGIDIndex))
	case c.port.LinkLayer == InfiniBand:
		l = append(l, fmt.Sprintf("its LID is %d", c.port.LID))
	case c.reach == oldRoCE:
		l = append(l,
			fmt.Sprintf("its GID is %v: it has none of RoCE v2, so only hosts on the same Ethernet are "+
				"reached", c.gid))
	case c.reach == linkLocal:
		l = append(l,
			fmt.Sprintf("its GID is %v: there is no IP address, so only hosts on the same Ethernet are "+
				"reached", c.gid))
	case c.sameIP:
		l = append(l, fmt.Sprintf("its GID %v is TCP's address", c.gid))
	default:
		l = append(l, fmt.Sprintf("its GID is %v", c.gid))
	}
	return strings.Join(l, "; ")
}

// hcaFilter is a parsed Want.HCA. The zero value allows all.
type hcaFilter struct {
	exclude, exact bool
	items          []hcaItem
}

type hcaItem struct {
	device string
	port   int // 0: any
}

func parseHCA(s string) (f hcaFilter, err error) {
	if s == "" {
		return f, nil
	}
	rest, exclude := strings.CutPrefix(s, "^")
	rest, exact := strings.CutPrefix(rest, "=")
	f.exclude, f.exact = exclude, exact
	for _, item := range strings.Split(rest, ",") {
		device, number, hasPort := strings.Cut(strings.TrimSpace(item), ":")
		i := hcaItem{device: device}
		if hasPort {
			i.port, err = strconv.Atoi(number)
		}
		if err != nil || device == "" || hasPort && i.port < 1 {
			return f, fmt.Errorf("%s=%s: %q is no device, nor device:port with ports from 1", EnvHCA, s,
				item)
		}
		f.items = append(f.items, i)
	}
	return f, nil
}

// CheckHCA refuses what cannot be Want.HCA.
func CheckHCA(s string) error {
	_, err := parseHCA(s)
	return err
}

func (f *hcaFilter) allows(p *Port) bool {
	if len(f.items) == 0 {
		return true
	}
	named := slices.ContainsFunc(f.items, func(i hcaItem) bool {
		same := i.device == p.Device || !f.exact && strings.HasPrefix(p.Device, i.device)
		return same && (i.port == 0 || p.Number == 0 || i.port == p.Number)
	})
	return named != f.exclude
}
