package interfaces

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var host = []string{"lo", "eth0", "eth1", "eth10", "eth0.5", "ib0", "docker0", "docker1", "wlan0"}

// The first examples are those of NCCL's documentation of NCCL_SOCKET_IFNAME.
func TestSelection(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"eth", "eth0 eth1 eth10 eth0.5"},
		{"=eth0", "eth0"},
		{"=eth0,eth1", "eth0 eth1"},
		{"^docker", "lo eth0 eth1 eth10 eth0.5 ib0 wlan0"},
		{"^=docker0", "lo eth0 eth1 eth10 eth0.5 ib0 docker1 wlan0"},
		{"", strings.Join(host, " ")},
		{"eth1", "eth1 eth10"},
		{"=eth", ""},
		{"ib,wlan0", "ib0 wlan0"},
		{" ib , wlan0,", "ib0 wlan0"},
		{"^lo,docker,wlan", "eth0 eth1 eth10 eth0.5 ib0"},
		{"^=lo,eth", "eth0 eth1 eth10 eth0.5 ib0 docker0 docker1 wlan0"},
		{"ETH0", ""},
		{"=^eth0", ""}, // "^" comes first
		{"eth0,^eth1", "eth0 eth0.5"},
	} {
		s, err := Parse(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
		}
		var got []string
		for _, name := range host {
			if s.Allows(name) {
				got = append(got, name)
			}
		}
		if want := strings.Fields(c.want); !slices.Equal(got, want) {
			t.Errorf("%q allows %v, want %v", c.text, got, want)
		}
	}
}

func TestNothingIsNamed(t *testing.T) {
	for _, text := range []string{"^", "=", "^=", ",", " ", "=, ,"} {
		var e *Error
		if _, err := Parse(text); !errors.As(err, &e) || !strings.Contains(e.Error(), "names none") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// network makes interfaces of texts such as "eth0 10.0.0.1 fe80::1"; a name after "-" has no link.
func network(lines ...string) ([]net.Interface, func(*net.Interface) ([]net.Addr, error)) {
	var all []net.Interface
	has := map[string][]net.Addr{}
	for _, line := range lines {
		words := strings.Fields(line)
		name, down := strings.CutPrefix(words[0], "-")
		flags := net.FlagUp | net.FlagRunning
		if down {
			flags = net.FlagUp
		}
		all = append(all, net.Interface{Name: name, Flags: flags})
		for _, ip := range words[1:] {
			has[name] = append(has[name], &net.IPNet{IP: net.ParseIP(ip)})
		}
	}
	return all, func(i *net.Interface) ([]net.Addr, error) { return has[i.Name], nil }
}

func TestAddresses(t *testing.T) {
	all, addrs := network("lo 127.0.0.1 ::1", "-docker0 172.17.0.1", "eth0.5 10.5.0.1",
		"eth0 2001:db8::7 10.0.0.1 fe80::1", "eth1 2001:db8::8", "ib0 fe80::2", "ib1")
	for _, c := range []struct{ text, want, wrong string }{
		{text: "eth0", want: "10.0.0.1 10.5.0.1 2001:db8::7"},
		{text: "=eth0", want: "10.0.0.1 2001:db8::7"},
		{text: "=eth1", want: "2001:db8::8"},
		{text: "eth", want: "10.5.0.1 10.0.0.1 2001:db8::7 2001:db8::8"},
		{text: "lo", want: "127.0.0.1 ::1"},
		{text: "lo,eth1", want: "2001:db8::8 127.0.0.1 ::1"},
		{text: "^eth", want: "172.17.0.1 127.0.0.1 ::1"},
		{text: "^=eth0.5,lo", want: "10.0.0.1 172.17.0.1 2001:db8::7 2001:db8::8"},
		{text: "docker,ib", want: "172.17.0.1"},
		{text: "^lo,eth,docker",
			wrong: `interface is "^lo,eth,docker" (from the option or GOCCL_SOCKET_IFNAME), which has no ` +
				`address that other hosts could reach: give it one, or name another interface; this host ` +
				`has lo, docker0, eth0.5, eth0, eth1, ib0, ib1`},
		{text: "=eth",
			wrong: `interface is "=eth" (from the option or GOCCL_SOCKET_IFNAME), this host has lo, ` +
				`docker0, eth0.5, eth0, eth1, ib0, ib1`},
		{text: "^", wrong: `interface is "^" (from the option or GOCCL_SOCKET_IFNAME), which names none`},
	} {
		got, err := addressesOf(c.text, all, addrs)
		var want []netip.Addr
		for _, ip := range strings.Fields(c.want) {
			want = append(want, netip.MustParseAddr(ip))
		}
		var e *Error
		if !slices.Equal(got, want) || (err != nil) != (c.wrong != "") ||
			err != nil && (!errors.As(err, &e) || !strings.HasPrefix(err.Error(), c.wrong)) {
			t.Errorf("%q: %v, %v", c.text, got, err)
		}
	}
}

// A host of many interfaces is reached at some of them.
func TestManyAddresses(t *testing.T) {
	var lines []string
	for i := range 3 * most {
		lines = append(lines, "veth"+string(rune('a'+i))+" 10.0.0.1")
	}
	all, addrs := network(lines...)
	if got, err := addressesOf("veth", all, addrs); len(got) != most || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// The interface that each host has is found.
func TestLoopbackOfThisHost(t *testing.T) {
	got, err := Addresses("=lo")
	if err != nil || !got[0].IsLoopback() {
		t.Errorf("%v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("^=eth0,lo", "eth0")
	f.Fuzz(func(t *testing.T, text, name string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		other, err := Parse("^" + text)
		if err == nil && text != "" && text[0] != '^' && s.Allows(name) == other.Allows(name) {
			t.Errorf("%q and ^%[1]q do not differ for %q", text, name)
		}
	})
}
