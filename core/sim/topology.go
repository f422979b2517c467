package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// NetFormat is the name of the format of files of networks, which each of them gives.
const NetFormat = "goccl.net/1"

// MostNetText is how long the text of such a file may be.
const MostNetText = 16 << 20

// Limits of networks of files.
const (
	mostSwitches  = 4096
	mostLinks     = 1 << 18 // those that count stands for included
	mostName      = 64      // bytes
	mostLatencyUs = 1_000_000
)

// netFile is a file of a network: hosts, switches, and links between two of them in both
// directions.
type netFile struct {
	Format   string     `json:"format"`
	Hosts    []string   `json:"hosts"` // of which the first are the job's
	Switches []string   `json:"switches"`
	Links    []fileLink `json:"links"`
}

type fileLink struct {
	Between []string `json:"between"`
	Speed   string   `json:"speed"`
	Latency float64  `json:"latency_us"`
	Count   *int     `json:"count"` // so many alike; nil: one
}

// topology is a network as a file tells it.
type topology struct {
	net     *Net
	names   []string   // of hosts, then of switches
	hosts   int        // of the file
	nics    [][]outlet // by host: its links to switches, in the order of the file
	outlets [][]outlet // by switch: its links to switches
	// hops are by switch how far all switches are from it, as far as somebody has asked.
	hops [][]uint16
}

// outlet is a link of a host or a switch to a switch.
type outlet struct {
	to        int32 // a switch
	out, back int32 // links, from here and to here
}

const unreached = math.MaxUint16

// parseTopology reads the text of a file for so many hosts.
func parseTopology(text string, hosts int) (*Net, error) {
	bad := func(err error) (*Net, error) { return nil, fmt.Errorf("net: %w", err) }
	if len(text) > MostNetText {
		return bad(fmt.Errorf("the text has %d bytes, allowed are %d", len(text), MostNetText))
	}
	var f netFile
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return bad(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return bad(errors.New("something follows the object"))
	}
	t := &topology{net: &Net{hosts: hosts}, hosts: len(f.Hosts)}
	if err := t.read(&f, hosts); err != nil {
		return bad(err)
	}
	if err := t.joined(); err != nil {
		return bad(err)
	}
	t.net.way, t.net.interfaces = t.way, func(host int) int { return len(t.nics[host]) }
	return t.net, nil
}

// read takes over what the file has.
func (t *topology) read(f *netFile, hosts int) error {
	switch {
	case f.Format != NetFormat:
		return fmt.Errorf("format is %q, allowed is %q", f.Format, NetFormat)
	case len(f.Hosts) == 0 || len(f.Hosts) > mostHosts:
		return fmt.Errorf("there are %d hosts, allowed are 1 to %d", len(f.Hosts), mostHosts)
	case len(f.Hosts) < hosts:
		return fmt.Errorf("it has %d hosts, and the job needs %d", len(f.Hosts), hosts)
	case len(f.Switches) > mostSwitches:
		return fmt.Errorf("there are %d switches, allowed are %d", len(f.Switches), mostSwitches)
	}
	t.names = append(append(t.names, f.Hosts...), f.Switches...)
	number := make(map[string]int, len(t.names))
	for i, name := range t.names {
		other := func(r rune) bool { return r < ' ' || r > '~' }
		if name == "" || len(name) > mostName || strings.ContainsFunc(name, other) {
			return fmt.Errorf("a name is %.70q, allowed are 1 to %d printable ASCII characters", name,
				mostName)
		}
		if _, twice := number[name]; twice {
			return fmt.Errorf("two hosts or switches are called %q; each needs a name of its own", name)
		}
		number[name] = i
	}
	t.nics = make([][]outlet, t.hosts)
	t.outlets, t.hops = make([][]outlet, len(f.Switches)), make([][]uint16, len(f.Switches))
	pairs := make(map[[2]int]bool, len(f.Links))
	for i := range f.Links {
		if err := t.link(&f.Links[i], number, pairs); err != nil {
			return fmt.Errorf("link %d: %w", i+1, err)
		}
	}
	return nil
}

// link takes over a link of the file. number tells nodes by name, and pairs which have a link.
func (t *topology) link(l *fileLink, number map[string]int, pairs map[[2]int]bool) error {
	if len(l.Between) != 2 {
		return fmt.Errorf("between has %d names, allowed are 2", len(l.Between))
	}
	var ends [2]int
	for i, name := range l.Between {
		node, known := number[name]
		if !known {
			return fmt.Errorf("there is no host and no switch %.70q", name)
		}
		ends[i] = node
	}
	a, b := min(ends[0], ends[1]), max(ends[0], ends[1])
	count := 1
	if l.Count != nil {
		count = *l.Count
	}
	gap, err := parseSpeed(l.Speed)
	switch {
	case a == b:
		return fmt.Errorf("it joins %q and itself", t.names[a])
	case b < t.hosts:
		return fmt.Errorf("it joins the hosts %q and %q; one end at least must be a switch",
			t.names[a], t.names[b])
	case pairs[[2]int{a, b}]:
		return fmt.Errorf("%q and %q have a link already; count tells how many they have", t.names[a],
			t.names[b])
	case err != nil:
		return err
	case !(l.Latency >= 0 && l.Latency <= mostLatencyUs):
		return fmt.Errorf("latency_us is %g, allowed are 0 to %d", l.Latency, mostLatencyUs)
	case count < 1 || count > mostLinks-len(t.net.links)/2:
		return fmt.Errorf("count is %d, allowed are 1 to %d links in all", count, mostLinks)
	}
	pairs[[2]int{a, b}] = true
	for i := range count {
		which := ""
		if count > 1 {
			which = fmt.Sprintf(", link %d", i)
		}
		out := int32(len(t.net.links))
		for _, ends := range [][2]int{{a, b}, {b, a}} {
			t.net.links = append(t.net.links, link{gap: gap, delay: int64(math.Round(l.Latency * 1e6)),
				name: t.names[ends[0]] + " to " + t.names[ends[1]] + which})
		}
		to := int32(b - t.hosts)
		if a < t.hosts {
			t.nics[a] = append(t.nics[a], outlet{to, out, out + 1})
			continue
		}
		from := int32(a - t.hosts)
		t.outlets[from] = append(t.outlets[from], outlet{to, out, out + 1})
		t.outlets[to] = append(t.outlets[to], outlet{from, out + 1, out})
	}
	return nil
}

// joined refuses a network in which some host does not reach all others.
func (t *topology) joined() error {
	for host, nics := range t.nics {
		if len(nics) == 0 {
			return fmt.Errorf("host %q has no link", t.names[host])
		}
		if len(nics) > mostNICs {
			return fmt.Errorf("host %q has %d links, allowed are %d", t.names[host], len(nics), mostNICs)
		}
		for _, nic := range nics {
			if t.hopsTo(t.nics[0][0].to)[nic.to] == unreached {
				return fmt.Errorf("host %q does not reach host %q by its link to %q: no switches join them",
					t.names[host], t.names[0], t.names[t.hosts+int(nic.to)])
			}
		}
	}
	return nil
}

// hopsTo is by switch how many links it is away from one.
func (t *topology) hopsTo(to int32) []uint16 {
	if t.hops[to] != nil {
		return t.hops[to]
	}
	hops := make([]uint16, len(t.outlets))
	for i := range hops {
		hops[i] = unreached
	}
	hops[to] = 0
	for queue := []int32{to}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, o := range t.outlets[at] {
			if hops[o.to] == unreached {
				hops[o.to] = hops[at] + 1
				queue = append(queue, o.to)
			}
		}
	}
	t.hops[to] = hops
	return hops
}

// way is one with as few links as there can be. Among equal links the hash of the two hosts
// chooses, at each switch anew.
func (t *topology) way(to []int32, src, dst end) []int32 {
	first, last := &t.nics[src.host][src.nic], &t.nics[dst.host][dst.nic]
	to = append(to, first.out)
	hops, hash := t.hopsTo(last.to), pairHash(src.host, dst.host)
	for at := first.to; at != last.to; {
		equal := uint64(0)
		for _, o := range t.outlets[at] {
			if hops[o.to] < hops[at] {
				equal++
			}
		}
		which := hash % equal
		for _, o := range t.outlets[at] {
			if hops[o.to] >= hops[at] {
				continue
			}
			if which == 0 {
				to, at = append(to, o.out), o.to
				break
			}
			which--
		}
		hash = pairHash(int(hash>>32), int(hash&math.MaxUint32))
	}
	return append(to, last.back)
}
