package address

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestDecide(t *testing.T) {
	a := Address{Process: ProcessID{1}, Host: "h", Unix: "@a", TCP: []string{"10.0.0.1:5"}}
	b := Address{Process: ProcessID{2}, Host: "h", Unix: "@b", TCP: []string{"10.0.0.1:6"}}
	far := Address{Process: ProcessID{3}, Host: "i", Unix: "@c", TCP: []string{"10.0.0.2:6"}}
	noShm := b
	noShm.Unix, noShm.ShmProblem = "", "no memfd; allow it"
	shy := far
	shy.TCP = []string{"127.0.0.1:6"}
	forced := far
	forced.Forced = Shm
	// Two that see no /proc: each names itself as its host.
	hidden, hidden2 := a, shy
	for _, p := range []*Address{&hidden, &hidden2} {
		p.Host, p.Unix, p.ShmProblem = p.Process.String(), "", "open /proc/x: it is hidden"
	}
	hidden.TCP = []string{"127.0.0.1:5"}
	for i, c := range []struct {
		a, b         Address
		forced, kind string // kind "": an error that contains text
		text         string
	}{
		{a, a, "", Mem, ""}, {a, a, Shm, Mem, ""}, {a, a, TCP, "", "one process"},
		{a, b, "", Shm, ""}, {a, b, TCP, TCP, ""}, {a, b, "ib", "", "unknown transport"},
		{a, far, "", TCP, ""}, {a, far, Shm, "", "namespaces"},
		{a, noShm, "", TCP, ""}, {a, noShm, Shm, "", "no memfd; allow it"},
		{a, shy, "", "", "GOCCL_SOCKET_IFNAME"},
		{hidden, hidden2, "", TCP, ""}, {hidden, hidden2, TCP, TCP, ""},
		{hidden, hidden2, Shm, "", "/proc/x: it is hidden"},
		{hidden, far, "", "", "/proc/x: it is hidden"},
		{a, forced, "", "", "cannot work"}, {a, forced, TCP, "", "one process demands"},
	} {
		k1, err1 := Decide(c.a, c.b, c.forced)
		k2, err2 := Decide(c.b, c.a, c.forced)
		if k1 != k2 || (err1 == nil) != (err2 == nil) || k1 != c.kind {
			t.Errorf("case %d: %q %v, %q %v, want %q", i, k1, err1, k2, err2, c.kind)
		}
		if c.kind == "" && (err1 == nil || !strings.Contains(err1.Error(), c.text)) {
			t.Errorf("case %d: error %v lacks %q", i, err1, c.text)
		}
	}
}

func TestWhy(t *testing.T) {
	a := Address{Process: ProcessID{1}, Name: "h", Host: "h", Unix: "@a", VerbsProblem: "no card"}
	b := a
	b.Process = ProcessID{2}
	noShm := b
	noShm.ShmProblem = "no memfd; allow it"
	far := b
	far.Name, far.Host = "i", "i"
	forced, net := a, far
	forced.Forced, net.Net = TCP, TCP
	hidden := noShm
	hidden.Host, hidden.ShmProblem = b.Process.String(), "no /proc"
	rdma, card := far, a
	rdma.Verbs, card.Verbs = "roce2", "roce2"
	for _, c := range []struct {
		a, b       Address
		kind, want string
	}{
		{a, a, Mem, "threads of one process"},
		{a, b, Shm, "share a host"},
		{forced, b, TCP, `"tcp" is demanded`},
		{net, net, TCP, `"tcp" is demanded`},
		{a, noShm, TCP, "cannot share memory: host h, pid 0: no memfd; allow it"},
		{a, far, TCP, "on two hosts, and cannot use RDMA: host h, pid 0: no card"},
		{a, hidden, TCP, "cannot share memory: host h, pid 0: no /proc"},
		{card, rdma, Verbs, `RDMA port of kind "roce2"`},
		{card, a, Shm, "share a host"},
	} {
		if got := Why(c.a, c.b, c.kind); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q lacks %q", c.kind, got, c.want)
		}
	}
}

func TestAddressRecord(t *testing.T) {
	a := Address{Process: ProcessID{9}, PID: 4, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[2]",
		Name: "node-a", Host: "boot net:[3]", Unix: "@x", TCP: []string{"127.0.0.1:9"}, CPUs: 8,
		Domain: 3, Mark: Mark{1 << 40, 7}, Life: 6}
	b := a
	b.Process, b.PID, b.TCP = ProcessID{1}, 5, []string{"10.0.0.1:65535", "[fd00::1]:1"}
	b.ShmProblem, b.VerbsProblem, b.Verbs, b.Net, b.Forced = "none", "no card", "ib", TCP, Shm
	c := b
	c.Process, c.TCP = ProcessID{2}, []string{"10.0.0.1:1", "[fd00::1]:2"}
	d := a
	d.Process, d.Unix, d.TCP = ProcessID{3}, "", nil
	e := a
	e.Process = ProcessID{4}
	all := []Address{a, b, c, d, e}
	var own, shared [][]byte
	for i := range all {
		if all[i].Unix != "" {
			all[i].Unix = all[i].Process.Socket()
		}
		o, s, err := all[i].Encode()
		if err != nil {
			t.Fatal(err)
		}
		own, shared = append(own, o), append(shared, s)
	}
	if n := len(own[0]); n > 48 {
		t.Errorf("what only a process says has %d bytes", n)
	}
	got, hosts, err := Decode(own, shared)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, all) {
		t.Errorf("%+v\nbecame\n%+v", all, got)
	}
	if want := []int{0, 1, 1, 2, 0}; !slices.Equal(hosts, want) {
		t.Errorf("hosts %v, want %v", hosts, want)
	}
	for i := range all {
		for n := range own[i] {
			if _, _, err := Decode([][]byte{own[i][:n]}, shared[i:i+1]); err == nil {
				t.Errorf("an own record cut at %d is taken", n)
			}
		}
		for n := range shared[i] {
			if _, _, err := Decode(own[i:i+1], [][]byte{shared[i][:n]}); err == nil {
				t.Errorf("a shared record cut at %d is taken", n)
			}
		}
	}
}

// What hosts say alike is written once, and Decode finds the same addresses in it.
func TestAddressesOfHosts(t *testing.T) {
	at := func(process byte, host string) Address {
		return Address{Process: ProcessID{process}, Host: host,
			TCP: []string{fmt.Sprintf("10.0.0.1:%d", process)}}
	}
	all := []Address{at(1, "a"), at(2, "b"), at(3, "a")}
	own, hosts, hostOf, err := EncodeAll(all)
	if err != nil || len(hosts) != 2 || !slices.Equal(hostOf, []int{0, 1, 0}) {
		t.Fatalf("%d hosts, of the ranks %v: %v", len(hosts), hostOf, err)
	}
	var shared [][]byte
	for _, host := range hostOf {
		shared = append(shared, hosts[host])
	}
	if got, _, err := Decode(own, shared); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%+v became %+v: %v", all, got, err)
	}
	all[1].TCP = []string{"somewhere"}
	if _, _, _, err := EncodeAll(all); err == nil || !strings.Contains(err.Error(), "of rank 1") {
		t.Errorf("an address without a port: %v", err)
	}
}

// FuzzDecode reads what other processes publish.
func FuzzDecode(f *testing.F) {
	a := Address{Process: ProcessID{1}, PID: 7, UID: 1000, Name: "a", Host: "h", Unix: "@x", CPUs: 2,
		Domain: 65535, TCP: []string{"127.0.0.1:1", "[::1]:2"}}
	own, shared, err := a.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own, shared)
	a.Unix, a.ShmProblem = "", "none"
	own, shared, err = a.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own, shared)
	f.Fuzz(func(t *testing.T, own, shared []byte) {
		got, hosts, err := Decode([][]byte{own, own}, [][]byte{shared, shared})
		if err != nil {
			return
		}
		if !reflect.DeepEqual(got[0], got[1]) || hosts[1] != 0 {
			t.Fatalf("%+v and %+v", got[0], got[1])
		}
		own, shared, err = got[0].Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := Decode([][]byte{own}, [][]byte{shared})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(again[0], got[0]) {
			t.Fatalf("%+v became %+v", got[0], again[0])
		}
	})
}

// Two processes share memory, by what Decide says, where their names of it are the same.
func TestMemoryIsNamed(t *testing.T) {
	var all []Address
	for _, process := range []byte{1, 2} {
		for _, host := range []string{"a", "b"} {
			for _, problem := range []string{"", "none"} {
				for _, socket := range []string{"", "socket"} {
					all = append(all, Address{Process: ProcessID{process}, Host: host, Unix: socket,
						ShmProblem: problem, TCP: []string{"10.0.0.1:1"}, Verbs: "v"})
				}
			}
		}
	}
	for _, forced := range []string{"", Shm, TCP, Verbs} {
		for _, a := range all {
			for _, b := range all {
				if a.Process == b.Process &&
					(a.Host != b.Host || a.Unix != b.Unix || a.ShmProblem != b.ShmProblem) {
					continue // they are one process, of which there is one address
				}
				kind, err := Decide(a, b, forced)
				shares := err == nil && !IsPort(kind)
				name := a.Memory(forced)
				if same := name != "" && name == b.Memory(forced); same != shares {
					t.Errorf("%q: %+v and %+v are joined by %q (%v), their memories are %q and %q",
						forced, a, b, kind, err, name, b.Memory(forced))
				}
			}
		}
	}
}
