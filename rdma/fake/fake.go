// Package fake is a test double of libibverbs: adapters in this process that fail when they are
// told to. Their reliable connections lead from the process to itself. See testdata/double.h for
// how strict they are. It is for tests only.
package fake

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// The double's functions, which cannot be linked: each test has a double of its own.
struct control {
	void (*devices)(int n);
	void (*device)(int device, const char *name, int transport, int ports);
	void (*port)(int device, int port, int state, int layer, int lid, int mtu, int width, int speed);
	void (*gid)(int device, int port, int index, int type, int ifindex, const uint8_t *gid);
	void (*fail)(const char *verb, int nth, int times, int error);
	void (*complete)(int nth, int opcode, uint32_t qpn, int status, uint32_t vendor);
	void (*mend)(void);
	void (*event)(int device, int type, int port, uint32_t qpn);
	void (*remove)(int device);
	void (*link)(int device, int port, int up);
	void (*expire)(void);
	void (*hold)(int on);
	int (*step)(int n);
	int (*live)(const char *kind);
	int (*calls)(const char *verb);
	void (*trace)(char *text, size_t size);
};

static const char *load(struct control *c, const char *path) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) return dlerror();
	static const char *const names[] = {
		"fake_devices", "fake_device", "fake_port", "fake_gid", "fake_fail", "fake_complete", "fake_mend",
			"fake_event",
		"fake_remove", "fake_link", "fake_expire", "fake_hold", "fake_step", "fake_live", "fake_calls",
			"fake_trace",
	};
	for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
		void *f = dlsym(library, names[i]);
		if (!f) return dlerror();
		((void **)c)[i] = f;
	}
	return NULL;
}

static void devices(struct control *c, int n) { c->devices(n); }
static void device(struct control *c, int d, const char *name, int transport,
	int ports) { c->device(d, name, transport, ports); }
static void port(struct control *c, int d, int p, int state, int layer, int lid, int mtu, int width,
	int speed) {
	c->port(d, p, state, layer, lid, mtu, width, speed);
}
static void gid(struct control *c, int d, int p, int i, int type, int ifindex, const uint8_t *raw) {
	c->gid(d, p, i, type, ifindex, raw);
}
static void fail(struct control *c, const char *verb, int nth, int times,
	int error) { c->fail(verb, nth, times, error); }
static void complete(struct control *c, int nth, int opcode, uint32_t qpn, int status,
	uint32_t vendor) {
	c->complete(nth, opcode, qpn, status, vendor);
}
static void mend(struct control *c) { c->mend(); }
static void event(struct control *c, int d, int type, int p,
	uint32_t qpn) { c->event(d, type, p, qpn); }
static void pull(struct control *c, int d) { c->remove(d); }
static void set_link(struct control *c, int d, int p, int up) { c->link(d, p, up); }
static void expire(struct control *c) { c->expire(); }
static void hold(struct control *c, int on) { c->hold(on); }
static int step(struct control *c, int n) { return c->step(n); }
static int live(struct control *c, const char *kind) { return c->live(kind); }
static int calls(struct control *c, const char *verb) { return c->calls(verb); }
static void trace(struct control *c, char *text, size_t size) { c->trace(text, size); }
*/
import "C"

import (
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// Library is a double, loaded. Its devices are counted from 0, their ports from 1. It begins with
// one device, "fake0", with one active RoCE port of 100 Gbit/s on the loopback interface; its GIDs
// 0 and 1 are link-local, 2 and 3 those of 127.0.0.1, of RoCE v1 and v2 each.
type Library struct {
	Path string // for rdma.Load
	c    C.struct_control
}

// New compiles and loads a double for this test only. It skips the test where there is no C
// compiler.
func New(t testing.TB) *Library { return load(t, "") }

// NewOld gives one that, like a library of before 2021, cannot tell the types of GIDs.
func NewOld(t testing.TB) *Library { return load(t, "-DFAKE_OLD") }

func load(t testing.TB, flag string) *Library {
	t.Helper()
	l := &Library{Path: build(t, flag)}
	path := C.CString(l.Path)
	defer C.free(unsafe.Pointer(path))
	if text := C.load(&l.c, path); text != nil {
		t.Fatal(C.GoString(text))
	}
	return l
}

func withText(s string, f func(c *C.char)) {
	c := C.CString(s)
	defer C.free(unsafe.Pointer(c))
	f(c)
}

// Devices sets how many devices there are.
func (l *Library) Devices(n int) { C.devices(&l.c, C.int(n)) }

// Device makes a device anew. Transport is an ibv_transport_type: 0 is InfiniBand's, RoCE's too.
func (l *Library) Device(device int, name string, transport, ports int) {
	withText(name,
		func(s *C.char) { C.device(&l.c, C.int(device), s, C.int(transport), C.int(ports)) })
}

// Port is what a port says of itself, in the codes of verbs.
type Port struct{ State, LinkLayer, LID, MTU, Width, Speed int }

// Port sets up a port, without GIDs.
func (l *Library) Port(device, number int, p Port) {
	C.port(&l.c, C.int(device), C.int(number), C.int(p.State), C.int(p.LinkLayer), C.int(p.LID),
		C.int(p.MTU),
		C.int(p.Width), C.int(p.Speed))
}

// GID gives a port an address, of an ibv_gid_type and with the index of a network interface.
func (l *Library) GID(device, port, index, gidType, ifindex int, raw [16]byte) {
	C.gid(&l.c, C.int(device), C.int(port), C.int(index), C.int(gidType), C.int(ifindex),
		(*C.uint8_t)(&raw[0]))
}

// Fail makes the nth call of a verb from now on ("reg_mr", "post_send") fail, and those after it:
// so many times in all, or always (-1).
func (l *Library) Fail(verb string, nth, times int, errno syscall.Errno) {
	withText(verb, func(s *C.char) { C.fail(&l.c, s, C.int(nth), C.int(times), C.int(errno)) })
}

// Complete makes the nth work request from now on, of an ibv_wr_opcode (-1: any) on a queue pair
// (0: any), end with a status instead of being done, or be done Twice.
func (l *Library) Complete(nth, opcode int, qpn uint32, status int, vendor uint32) {
	C.complete(&l.c, C.int(nth), C.int(opcode), C.uint32_t(qpn), C.int(status), C.uint32_t(vendor))
}

// Twice has a work request done twice, as by an adapter that is wrong. Success, which is 0, has it
// not done at all, and nobody told.
const Twice = -2

// Mend takes back what Fail and Complete said.
func (l *Library) Mend() { C.mend(&l.c) }

// Event raises an ibv_event_type on the device, with a port, or on a queue pair where qpn is not 0.
func (l *Library) Event(device, eventType, port int, qpn uint32) {
	C.event(&l.c, C.int(device), C.int(eventType), C.int(port), C.uint32_t(qpn))
}

// Remove pulls a device out: what is in flight comes back, and nothing can be made with it any
// more.
func (l *Library) Remove(device int) { C.pull(&l.c, C.int(device)) }

// Link cuts or mends a link. What is posted meanwhile waits.
func (l *Library) Link(device, port int, up bool) {
	C.set_link(&l.c, C.int(device), C.int(port), number(up))
}

// Expire has the retries run out of all that waits for a link or a peer.
func (l *Library) Expire() { C.expire(&l.c) }

// Hold makes work requests wait for Step.
func (l *Library) Hold(on bool) { C.hold(&l.c, number(on)) }

// Step does at most n work requests that are held, and returns how many it did.
func (l *Library) Step(n int) int { return int(C.step(&l.c, C.int(n))) }

// Live counts the objects that have not been destroyed: of kind "list" (of devices), "context",
// "pd", "mr", "channel", "cq" or "qp", or of all ("").
func (l *Library) Live(kind string) (n int) {
	withText(kind, func(s *C.char) { n = int(C.live(&l.c, s)) })
	return n
}

// Calls counts the calls of a verb; those of "wr" are the work requests.
func (l *Library) Calls(verb string) (n int) {
	withText(verb, func(s *C.char) { n = int(C.calls(&l.c, s)) })
	return n
}

// Trace lists the verbs that made, changed or ended something, since it was last called.
func (l *Library) Trace() []string {
	var text [1 << 14]C.char
	C.trace(&l.c, &text[0], C.size_t(len(text)))
	return strings.Fields(C.GoString(&text[0]))
}

func number(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
