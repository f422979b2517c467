package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/rdma/fake"
)

// loadFake gives a double and its library. When the test ends, nothing made with it may be left.
func loadFake(t testing.TB) (*fake.Library, *Library) {
	t.Helper()
	f := fake.New(t)
	t.Cleanup(func() {
		if n := f.Live(""); n != 0 {
			t.Errorf("%d objects are left", n)
		}
	})
	return f, loadAt(t, f.Path)
}

func loadAt(t testing.TB, path string) *Library {
	t.Helper()
	l, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	l.sysfs = t.TempDir()
	return l
}

// openFake opens the device of a double.
func openFake(t testing.TB) (*fake.Library, *Device) {
	t.Helper()
	f, l := loadFake(t)
	ports, err := l.Ports()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Choose(ports, Want{GIDIndex: -1})
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return f, d
}

// pages gives memory that is not Go's.
func pages(t *testing.T, bytes int) unsafe.Pointer {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return unsafe.Pointer(&mem[0])
}

func says(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, wanted one that says %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

func TestLoad(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "libibverbs.so.1"))
	says(t, err, "libibverbs cannot be loaded", "No such file", "install rdma-core",
		"ibverbs-providers", "TCP")

	partial := filepath.Join(t.TempDir(), "partial.so")
	compile := exec.Command(fake.Compiler(t), "-shared", "-fPIC", "-x", "c", "-o", partial, "-")
	compile.Stdin = strings.NewReader("void *ibv_get_device_list(int *n) { return 0; }\n")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, err = Load(partial)
	says(t, err, "partial.so has no ibv_free_device_list of version IBVERBS_1.1")

	f, l := loadFake(t)
	if again, err := Load(f.Path); again != l || err != nil {
		t.Errorf("loading again gives %p, %v, not %p", again, err, l)
	}
	if n := f.Calls("fork_init"); n != 1 || l.ForkProblem() != "" {
		t.Errorf("fork_init is called %d times; %q", n, l.ForkProblem())
	}
	l.verbs.fork_error = 22
	if s := l.ForkProblem(); !strings.Contains(s, "invalid argument") {
		t.Errorf("fork problem %q", s)
	}
}

// TestSystem looks for devices on this machine, whatever it has.
func TestSystem(t *testing.T) {
	l, err := Load("")
	if err != nil {
		t.Skip(err)
	}
	ports, err := l.Ports()
	t.Logf("%v, %v", describe(ports), err)
	c, err := Choose(ports, Want{GIDIndex: -1})
	if err != nil {
		t.Skip(err)
	}
	t.Logf("%+v", c)
	d, err := l.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestPorts(t *testing.T) {
	f, l := loadFake(t)
	global := func(s string) [16]byte { return netip.MustParseAddr(s).As16() }
	f.Devices(4)
	f.Device(1, "ib", 0, 2)
	f.Port(1, 1, fake.Port{State: int(PortActive), LinkLayer: int(InfiniBand), LID: 7, MTU: 3,
		Width: 8, Speed: 16})
	f.GID(1, 1, 0, int(GIDInfiniBand), 0, global("fe80::7"))
	f.Port(1, 2, fake.Port{State: int(PortInit), LinkLayer: int(InfiniBand), MTU: 5, Width: 2,
		Speed: 64})
	f.Device(2, "iwarp", 1, 1)
	f.Port(2, 1, fake.Port{State: int(PortActive), LinkLayer: int(Ethernet), MTU: 5, Width: 1})
	f.Device(3, "down", 0, 1)
	f.Port(3, 1, fake.Port{State: int(PortDown), LinkLayer: int(Ethernet), MTU: 5})
	for name, text := range map[string]string{
		"iwarp/ports/1/rate":             "2.5 Gb/sec (1X SDR)\n",
		"ib/device/net/ib1/dev_port":     "1\n",
		"ib/device/net/ib0/dev_port":     "0\n",
		"down/device/net/eth9/dev_port":  "0\n",
		"down/device/net/eth10/dev_port": "x\n",
	} {
		writeFile(t, filepath.Join(l.sysfs, name), text)
	}
	ports, err := l.Ports()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"fake0:1 (Ethernet, 100 Gbit/s, lo)",
		"ib:1 (InfiniBand, 168 Gbit/s, ib0)",
		"ib:2 (InfiniBand, 200 Gbit/s, ib1): the link waits for a subnet manager: start one in the " +
			"fabric (opensm)",
		"iwarp:1 (Ethernet, 2.5 Gbit/s): it speaks iWARP, which GoCCL cannot connect: use an adapter " +
			"for RoCE or InfiniBand, or TCP",
		"down:1 (Ethernet, eth9): the link is down: check the cable, the switch and the interface (ip " +
			"link set eth9 up)",
	}
	if got := describe(ports); !slices.Equal(got, want) {
		t.Errorf("the ports are\n%s\nwanted\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if p := ports[1]; p.LID != 7 || p.MTU != 1024 || len(p.GIDs) != 1 ||
		p.GIDs[0].Type != GIDInfiniBand {
		t.Errorf("the first port of InfiniBand is %+v", p)
	}
	checkLoopback(t, ports[0])
}

// checkLoopback looks at the port that doubles begin with.
func checkLoopback(t *testing.T, p Port) {
	t.Helper()
	var gids []string
	for _, g := range p.GIDs {
		gids = append(gids, fmt.Sprintf("%v %s", g, g.NetDev))
	}
	want := []string{
		"0 (RoCE v1 fe80::200:ff:fe00:1) lo", "1 (RoCE v2 fe80::200:ff:fe00:1) lo",
		"2 (RoCE v1 127.0.0.1) lo", "3 (RoCE v2 127.0.0.1) lo",
	}
	if !slices.Equal(gids, want) || p.MTU != 4096 || p.State != PortActive {
		t.Errorf("%+v with the GIDs %q, wanted %q", p, gids, want)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPortsOld reads the types of GIDs from the kernel, where the library cannot tell them.
func TestPortsOld(t *testing.T) {
	l := loadAt(t, fake.NewOld(t).Path)
	attrs := filepath.Join(l.sysfs, "fake0", "ports", "1", "gid_attrs")
	for i, kind := range []string{"IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"} {
		writeFile(t, filepath.Join(attrs, "types", fmt.Sprint(i)), kind+"\n")
		writeFile(t, filepath.Join(attrs, "ndevs", fmt.Sprint(i)), "lo\n")
	}
	ports, err := l.Ports()
	if err != nil || len(ports) != 1 {
		t.Fatalf("%+v, %v", ports, err)
	}
	checkLoopback(t, ports[0])
}

// TestPortsFail makes each verb fail that asks for ports.
func TestPortsFail(t *testing.T) {
	for verb, texts := range map[string][]string{
		"open_device":  {"fake0: ibv_open_device fails: permission denied", "--device=/dev/infiniband"},
		"query_device": {"fake0: ibv_query_device fails: permission denied"},
		"query_port":   {"fake0:1 (an unknown link): ibv_query_port fails: permission denied"},
	} {
		f, l := loadFake(t)
		f.Fail(verb, 1, 1, syscall.EACCES)
		ports, err := l.Ports()
		if err != nil {
			t.Fatal(err)
		}
		_, err = Choose(ports, Want{GIDIndex: -1})
		says(t, err, texts...)
	}
	f, l := loadFake(t)
	f.Fail("get_device_list", 1, 1, syscall.EPERM)
	_, err := l.Ports()
	says(t, err, "ibv_get_device_list fails: operation not permitted", "/dev/infiniband")
	f.Fail("get_device_list", 1, 1, syscall.ENOSYS)
	for range 2 { // a kernel without RDMA, then one without devices
		if ports, err := l.Ports(); len(ports) != 0 || err != nil {
			t.Errorf("without devices: %v, %v", ports, err)
		}
		f.Devices(0)
	}
	_, err = l.Open(Choice{Device: "fake0"})
	says(t, err, "RDMA device fake0 is gone")
}

func TestOpenFails(t *testing.T) {
	for _, verb := range []string{"open_device", "alloc_pd"} {
		f, l := loadFake(t)
		f.Fail(verb, 1, 1, syscall.ENOMEM)
		d, err := l.Open(Choice{Device: "fake0", Port: 1})
		says(t, err, "ibv_"+verb+" on fake0 fails: cannot allocate memory")
		if d != nil || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%v, %v", d, err)
		}
	}
}

func TestOrderOfRelease(t *testing.T) {
	f, d := openFake(t)
	mem := pages(t, 1<<16)
	r, err := d.Register(mem, 1<<16, LocalWrite|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if r.LKey == 0 || r.RKey == 0 || r.LKey == r.RKey {
		t.Errorf("keys %#x and %#x", r.LKey, r.RKey)
	}
	err = d.Close()
	says(t, err, "ibv_dealloc_pd on fake0 fails: device or resource busy")
	if !errors.Is(err, syscall.EBUSY) || f.Live("mr") != 1 || f.Live("pd") != 1 ||
		f.Live("context") != 1 {
		t.Errorf("a device in use was closed: %v", err)
	}
	f.Trace()
	for range 2 { // the second time nothing happens
		if err := errors.Join(r.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
	if got, want := f.Trace(), []string{"dereg_mr", "dealloc_pd", "close_device"}; !slices.Equal(got,
		want) {
		t.Errorf("released as %v, wanted %v", got, want)
	}
}

func TestRegisterFails(t *testing.T) {
	f, d := openFake(t)
	defer d.Close()
	mem := pages(t, 1<<16)
	f.Fail("reg_mr", 1, 1, syscall.ENOMEM)
	_, err := d.Register(mem, 1<<16, LocalWrite)
	says(t, err, "ibv_reg_mr of 64 KiB on fake0 fails: cannot allocate memory")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	says(t, err, lockedHint(limit.Cur))
	if !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v is not ENOMEM", err)
	}
	_, err = d.Register(mem, 1<<16, RemoteWrite)
	says(t, err, "invalid argument")
	says(t, errors.New(lockedHint(8<<20)), "is 8 MiB", "ulimit -l unlimited", "LimitMEMLOCK=infinity",
		"--ulimit memlock=-1")
	says(t, errors.New(lockedHint(unix.RLIM_INFINITY)), "not limited")

	r, err := d.Register(mem, 1<<16, LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	f.Fail("dereg_mr", 1, 1, syscall.EBUSY)
	says(t, r.Close(), "ibv_dereg_mr on fake0 fails: device or resource busy")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestEvents(t *testing.T) {
	f, d := openFake(t)
	defer d.Close()
	next := func(want string, fatal bool) {
		t.Helper()
		e, ok, err := d.NextEvent()
		if err != nil || !ok || !strings.Contains(e.String(), want) || e.Fatal() != fatal {
			t.Errorf("event %q, %v, %v, fatal %v; wanted %q, fatal %v", e, ok, err, e.Fatal(), want, fatal)
		}
	}
	none := func() {
		t.Helper()
		if e, ok, err := d.NextEvent(); ok || err != nil {
			t.Errorf("event %q, %v, %v; wanted none", e, ok, err)
		}
	}
	none()
	f.Link(0, 1, false)
	p := []unix.PollFd{{Fd: int32(d.AsyncFD()), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); n != 1 {
		t.Errorf("the descriptor is not readable: %v", err)
	}
	f.Link(0, 1, true)
	f.Event(0, int(EventGIDChange), 1, 0)
	f.Event(0, int(EventLIDChange), 1, 0)
	f.Event(0, 17, 1, 0)
	next("fake0:1: link down", false)
	next("fake0:1: link up", false)
	next("fake0:1: its addresses have changed", false)
	next("fake0:1: a new LID", false)
	next("fake0:1: event 17", false)
	none()
	f.Fail("get_async_event", 1, 1, syscall.EINTR)
	none()
	f.Remove(0)
	next("fake0: failed, or was removed", true)
	f.Fail("get_async_event", 1, 1, syscall.EIO)
	_, _, err := d.NextEvent()
	says(t, err, "ibv_get_async_event on fake0", "removed")
	_, err = d.Register(pages(t, 4096), 4096, LocalWrite)
	says(t, err, "ibv_reg_mr of 4 KiB on fake0 fails: input/output error; the device has been removed")
}

// TestCloseFails gives everything back although a verb fails on the way.
func TestCloseFails(t *testing.T) {
	f := fake.New(t)
	d, err := loadAt(t, f.Path).Open(Choice{Device: "fake0", Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	f.Fail("dealloc_pd", 1, 1, syscall.EIO)
	f.Fail("close_device", 1, 1, syscall.EIO)
	says(t, d.Close(), "ibv_dealloc_pd on fake0 fails")
	if got, want := f.Trace(), []string{"open_device", "alloc_pd", "dealloc_pd",
		"close_device"}; !slices.Equal(got, want) {
		t.Errorf("%v, wanted %v", got, want)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestError(t *testing.T) {
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{&Error{Verb: "RDMA write", Device: "mlx5_0", Status: 12, Vendor: 0x81},
			"RDMA write on mlx5_0 fails: the peer does not answer (RETRY_EXC_ERR, status 12, " +
				"vendor error 0x81); it may be dead"},
		{&Error{Verb: "send", Status: 13},
			"send fails: the peer takes no messages (RNR_RETRY_EXC_ERR, status 13, vendor error 0x0); is " +
				"its"},
		{&Error{Verb: "send", Status: 99}, "send fails: it is unknown what happened (unknown, status 99"},
		{&Error{Verb: "send", Status: 4, Hint: "that"},
			"(LOC_PROT_ERR, status 4, vendor error 0x0); that"},
		{&Error{Verb: "ibv_post_send", Status: -1, Errno: syscall.EINVAL},
			"ibv_post_send fails: invalid argument"},
		{newError("ibv_open_device", "x", syscall.ENOENT),
			"ibv_open_device on x fails: no such file or directory; the device has no file"},
		{newError("ibv_modify_qp", "x", syscall.ENOENT),
			"ibv_modify_qp on x fails: no such file or directory"},
	} {
		if got := c.err.Error(); !strings.Contains(got, c.want) {
			t.Errorf("%q does not say %q", got, c.want)
		}
	}
	var e error = &Error{Verb: "send", Status: 12}
	if errors.Unwrap(e) != nil {
		t.Errorf("a status unwraps to %v", errors.Unwrap(e))
	}
	for i, s := range statuses {
		if s.name == "" || s.text == "" || i > 0 && s.hint == "" {
			t.Errorf("status %d has no text or hint", i)
		}
	}
}
