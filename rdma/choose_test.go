package rdma

import (
	"net/netip"
	"strings"
	"testing"
)

// named allows one network interface.
func named(name string) func(string) bool {
	return func(other string) bool { return other == name }
}

func gid(index int, kind GIDType, addr, netdev string) GID {
	return GID{Index: index, Raw: netip.MustParseAddr(addr).As16(), Type: kind, NetDev: netdev}
}

// roce is a port with the four GIDs that an address makes.
func roce(device string, number int, gbps float64, netdev, addr string) Port {
	return Port{
		Device: device, Number: number, State: PortActive, LinkLayer: Ethernet, MTU: 4096, Gbps: gbps,
		NetDev: netdev,
		GIDs: []GID{
			gid(0, GIDRoCEv1, "fe80::1", netdev), gid(1, GIDRoCEv2, "fe80::1", netdev),
			gid(2, GIDRoCEv1, addr, netdev), gid(3, GIDRoCEv2, addr, netdev),
		},
	}
}

func infiniBand(device string, number int, gbps float64, lid uint16) Port {
	return Port{
		Device: device, Number: number, State: PortActive, LinkLayer: InfiniBand, LID: lid, MTU: 4096,
		Gbps: gbps, NetDev: "ib0",
		GIDs: []GID{gid(0, GIDInfiniBand, "fe80::2", "")},
	}
}

func without(p Port, keep ...int) Port {
	var l []GID
	for _, i := range keep {
		l = append(l, p.GIDs[i])
	}
	p.GIDs = l
	return p
}

func broken(p Port, problem string) Port {
	p.Problem = problem
	return p
}

func TestChoose(t *testing.T) {
	addr := netip.MustParseAddr
	slow := roce("rxe0", 1, 10, "eth0", "10.0.0.1")
	fast := roce("mlx5_0", 1, 100, "eth1", "10.1.0.1")
	faster := roce("mlx5_1", 1, 200, "eth2", "10.2.0.1")
	second := roce("mlx5_0", 2, 100, "eth3", "10.3.0.1")
	ib := infiniBand("mlx5_9", 1, 400, 17)
	both := roce("mlx5_0", 1, 100, "eth1", "10.1.0.1")
	both.GIDs = append([]GID{gid(9, GIDRoCEv2, "2001:db8::1", "eth1")}, both.GIDs...)
	vlan := roce("mlx5_0", 1, 100, "eth1", "10.1.0.1")
	vlan.GIDs = append(vlan.GIDs, gid(5, GIDRoCEv2, "10.9.0.1", "eth1.9"))

	for _, c := range []struct {
		name  string
		ports []Port
		want  Want
		port  string
		gid   int
		why   string // part of it
	}{
		{"one", []Port{fast}, Want{GIDIndex: -1}, "mlx5_0:1", 3,
			"the only usable port; its GID is 3 (RoCE v2 10.1.0.1)"},
		{"fastest", []Port{slow, fast, faster}, Want{GIDIndex: -1}, "mlx5_1:1", 3, "the fastest of 3"},
		{"first of equals", []Port{fast, second}, Want{GIDIndex: -1}, "mlx5_0:1", 3, "the fastest of 2"},
		{"InfiniBand", []Port{faster, ib}, Want{GIDIndex: -1}, "mlx5_9:1", 0, "its LID is 17"},
		{"InfiniBand without GIDs", []Port{without(ib)}, Want{GIDIndex: -1}, "mlx5_9:1", 0,
			"its LID is 17"},
		{"TCP's interface", []Port{slow, faster}, Want{GIDIndex: -1, OnTCP: named("eth0")}, "rxe0:1", 3,
			"TCP uses its interface eth0"},
		{"TCP's interface over InfiniBand", []Port{faster, ib}, Want{GIDIndex: -1, OnTCP: named("ib0")},
			"mlx5_9:1", 0, "ib0"},
		{"TCP's interface is none of theirs", []Port{slow, faster}, Want{GIDIndex: -1,
			OnTCP: named("eth7")},
			"mlx5_1:1", 3, "fastest"},
		{"TCP's address", []Port{slow, faster}, Want{GIDIndex: -1,
			NetAddr: []netip.Addr{addr("127.0.0.1"), addr("::ffff:10.0.0.1")}},
			"rxe0:1", 3, "its GID 3 (RoCE v2 10.0.0.1) is TCP's address"},
		{"TCP's IPv6 address before an IPv4 one", []Port{both},
			Want{GIDIndex: -1, NetAddr: []netip.Addr{addr("2001:db8::1")}},
			"mlx5_0:1", 9, "is TCP's address"},
		{"IPv4 before IPv6", []Port{both}, Want{GIDIndex: -1}, "mlx5_0:1", 3, "10.1.0.1"},
		{"IPv6 before link-local", []Port{without(both, 0, 1, 2)}, Want{GIDIndex: -1}, "mlx5_0:1", 9,
			"2001:db8::1"},
		{"the interface's own GID", []Port{vlan}, Want{GIDIndex: -1, OnTCP: named("eth1.9")}, "mlx5_0:1",
			5,
			"10.9.0.1"},
		{"link-local", []Port{without(fast, 0, 1)}, Want{GIDIndex: -1}, "mlx5_0:1", 1,
			"only hosts on the same Ethernet"},
		{"routable before fast", []Port{without(faster, 0, 1), slow}, Want{GIDIndex: -1}, "rxe0:1", 3,
			""},
		{"version 1 if nothing else", []Port{without(fast, 0, 2)}, Want{GIDIndex: -1}, "mlx5_0:1", 2,
			"none of RoCE v2"},
		{"version 1 last", []Port{without(faster, 0, 2), without(fast, 1)}, Want{GIDIndex: -1},
			"mlx5_0:1", 1, ""},
		{"GID asked for", []Port{slow, fast}, Want{GIDIndex: 1}, "mlx5_0:1", 1,
			"asked for by GOCCL_IB_GID_INDEX"},
		{"GID that one has", []Port{faster, vlan}, Want{GIDIndex: 5}, "mlx5_0:1", 5,
			"the only usable port"},
		{"down", []Port{broken(faster, "down"), slow}, Want{GIDIndex: -1}, "rxe0:1", 3,
			"the only usable port"},
		{"device", []Port{slow, fast, faster}, Want{HCA: "mlx5_0", GIDIndex: -1}, "mlx5_0:1", 3,
			"that GOCCL_IB_HCA=mlx5_0 allows"},
		{"prefix", []Port{slow, fast, faster}, Want{HCA: "mlx5", GIDIndex: -1}, "mlx5_1:1", 3,
			"the fastest of 2"},
		{"port", []Port{fast, second}, Want{HCA: "mlx5_0:2", GIDIndex: -1}, "mlx5_0:2", 3, ""},
		{"list", []Port{slow, fast, second}, Want{HCA: "rxe0, mlx5_0:2", GIDIndex: -1}, "mlx5_0:2", 3,
			""},
		{"excluded", []Port{slow, fast, faster}, Want{HCA: "^mlx5_1", GIDIndex: -1}, "mlx5_0:1", 3, ""},
		{"excluded prefix", []Port{slow, fast, faster}, Want{HCA: "^mlx5", GIDIndex: -1}, "rxe0:1", 3,
			""},
		{"excluded port", []Port{fast, second}, Want{HCA: "^mlx5_0:1", GIDIndex: -1}, "mlx5_0:2", 3, ""},
		{"exact", []Port{fast, faster, roce("mlx5_10", 1, 400, "eth8", "10.8.0.1")},
			Want{HCA: "=mlx5_1", GIDIndex: -1}, "mlx5_1:1", 3, ""},
		{"excluded exactly", []Port{faster, roce("mlx5_10", 1, 50, "eth8", "10.8.0.1")},
			Want{HCA: "^=mlx5_1", GIDIndex: -1},
			"mlx5_10:1", 3, ""},
		{"device before TCP's interface", []Port{slow, faster},
			Want{HCA: "mlx5", GIDIndex: -1, OnTCP: named("eth0")}, "mlx5_1:1", 3, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(c.ports, c.want)
			if err != nil {
				t.Fatal(err)
			}
			p := Port{Device: got.Device, Number: got.Port}
			if p.String() != c.port || got.GIDIndex != c.gid || !strings.Contains(got.Why, c.why) {
				t.Errorf("%v, GID %d, because %q; wanted %s, GID %d, because %q", p.String(), got.GIDIndex,
					got.Why, c.port, c.gid, c.why)
			}
		})
	}

	got, err := Choose([]Port{slow}, Want{GIDIndex: -1})
	want := Choice{Device: "rxe0", Port: 1, LinkLayer: Ethernet, GIDIndex: 3, GIDType: GIDRoCEv2,
		GID: addr("10.0.0.1").As16(), MTU: 4096,
		Gbps: 10, NetDev: "eth0", Why: got.Why}
	if err != nil || got != want {
		t.Errorf("%+v, %v; wanted %+v", got, err, want)
	}
}

func TestChooseNone(t *testing.T) {
	fast := roce("mlx5_0", 1, 100, "eth1", "10.1.0.1")
	for _, c := range []struct {
		name  string
		ports []Port
		want  Want
		texts []string
	}{
		{"no device", nil, Want{GIDIndex: -1}, []string{"no RDMA device", "rdma link add"}},
		{"all down", []Port{broken(fast, "the link is down")}, Want{GIDIndex: -1},
			[]string{"no RDMA port can be used: mlx5_0:1 (Ethernet, 100 Gbit/s, eth1): the link is down"}},
		{"unopened", []Port{{Device: "mlx5_0", Problem: "ibv_open_device fails"}},
			Want{HCA: "mlx5_0:1", GIDIndex: -1},
			[]string{"mlx5_0: ibv_open_device fails"}},
		{"asked for is down", []Port{broken(fast, "the link is down"),
			roce("rxe0", 1, 1, "eth0", "10.0.0.1")},
			Want{HCA: "mlx5", GIDIndex: -1}, []string{"no RDMA port that GOCCL_IB_HCA=mlx5 allows",
				"the link is down"}},
		{"no such device", []Port{fast}, Want{HCA: "mlx4", GIDIndex: -1},
			[]string{"GOCCL_IB_HCA=mlx4 leaves no RDMA port", "mlx5_0:1"}},
		{"no such port", []Port{fast}, Want{HCA: "mlx5_0:3", GIDIndex: -1},
			[]string{"GOCCL_IB_HCA=mlx5_0:3 leaves no"}},
		{"no such GID", []Port{fast}, Want{GIDIndex: 7},
			[]string{"no GID of index 7", "GOCCL_IB_GID_INDEX", "3 (RoCE v2 10.1.0.1)"}},
		{"no GID", []Port{without(fast)}, Want{GIDIndex: -1},
			[]string{"it has no GID: give its network interface an IP address"}},
		{"no GID of that index", []Port{without(fast)}, Want{GIDIndex: 0}, []string{"it has none"}},
		{"bad port", []Port{fast}, Want{HCA: "mlx5_0:x", GIDIndex: -1},
			[]string{"GOCCL_IB_HCA=mlx5_0:x", `"mlx5_0:x"`}},
		{"port 0", []Port{fast}, Want{HCA: "mlx5_0:0", GIDIndex: -1}, []string{"ports from 1"}},
		{"empty name", []Port{fast}, Want{HCA: "mlx5_0,,", GIDIndex: -1}, []string{`"" is no device`}},
		{"nothing excluded", []Port{fast}, Want{HCA: "^", GIDIndex: -1}, []string{`"" is no device`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(c.ports, c.want)
			if err == nil {
				t.Fatalf("%+v is chosen", got)
			}
			for _, text := range c.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %q", err, text)
				}
			}
		})
	}
}

// TestChooseKeeps tells that Choose leaves the list as it was.
func TestChooseKeeps(t *testing.T) {
	ports := []Port{without(roce("a", 1, 1, "eth0", "10.0.0.1")), roce("b", 1, 1, "eth0", "10.0.0.1")}
	if _, err := Choose(ports, Want{HCA: "^b", GIDIndex: -1}); err == nil || ports[0].Problem != "" ||
		ports[1].Device != "b" {
		t.Errorf("%v; the list has become %+v", err, ports)
	}
}

// FuzzHCA reads filters as users write them. One that is let through names devices, and ports from
// 1 if any.
func FuzzHCA(f *testing.F) {
	for _, text := range []string{"", "^=mlx5_0:1, mlx5_1", "mlx5:0", "^", ":1",
		"a:9999999999999999999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := parseHCA(text)
		if err != nil {
			return
		}
		if (text == "") != (len(filter.items) == 0) {
			t.Fatalf("%q is %+v", text, filter)
		}
		for _, i := range filter.items {
			if i.device == "" || i.port < 0 {
				t.Fatalf("%q is %+v", text, filter)
			}
		}
	})
}
