package main

// #include <stdlib.h>
// #include "api.h"
// extern char **environ;
import "C"

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/logs"
)

// process is this process's end of all communicators: the one global state of the library, beside
// what the handles name.
var process = core.NewRuntime(core.RuntimeConfig{
	Getenv:  getenv,
	Environ: environ,
	Notify:  notify,
	OnFD: func(fd int, open bool) {
		var n C.int
		if open {
			n = 1
		}
		C.api_socket(C.int(fd), n)
	},
	Logger: logs.New(&journal),
})

// settle makes the Go runtime modest in the process of another, whatever GOGC says: buffers are not
// in its heap, so a small one does; and threads that poll must not starve the others.
var settle = sync.OnceFunc(func() {
	const softMemoryLimit = 256 << 20
	debug.SetGCPercent(100)
	debug.SetMemoryLimit(softMemoryLimit)
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
})

// getenv reads C's environment. Go's own is that of the time of exec, and does not see what the
// process (Python's os.environ) has set since.
func getenv(name string) string {
	key := C.CString(name)
	defer C.free(unsafe.Pointer(key))
	if v := C.getenv(key); v != nil {
		return C.GoString(v)
	}
	return ""
}

// environ lists what getenv reads.
func environ() []string {
	var all []string
	for entry := C.environ; entry != nil && *entry != nil; {
		all = append(all, C.GoString(*entry))
		entry = (**C.char)(unsafe.Add(unsafe.Pointer(entry), unsafe.Sizeof(*entry)))
	}
	return all
}

// milliseconds makes a duration of a number of milliseconds, which may be too great for one.
func milliseconds(ms C.int64_t) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(int64(ms), -1), most)) * time.Millisecond
}

// limit is how long a call may take; 0: as long as others of its communicator.
func limit(name string, ms C.int64_t) (time.Duration, error) {
	if ms < 0 {
		return 0, invalid(name, ms, "it must be positive, or 0 for the default")
	}
	return milliseconds(ms), nil
}

// maxStruct is beyond what any later version of a struct will take: a greater size is garbage.
const maxStruct = 4096

// takeStruct copies a struct of the caller, who may know an older or a newer version of it: fields
// that only we know are zero; fields that only the caller knows must be.
func takeStruct[T any](from *T, least uintptr, name string) (to T, err error) {
	given := *(*C.size_t)(unsafe.Pointer(from)) // struct_size is always the first field
	own := unsafe.Sizeof(to)
	if uintptr(given) < least || given > maxStruct {
		return to, invalid(name+".struct_size", given,
			"allowed is sizeof(goccl_%s): %d here, %d at least", name, own, least)
	}
	theirs := unsafe.Slice((*byte)(unsafe.Pointer(from)), int(given))
	n := copy(unsafe.Slice((*byte)(unsafe.Pointer(&to)), int(own)), theirs)
	for i, b := range theirs[n:] {
		if b != 0 {
			return to, errorf(C.GOCCL_UNSUPPORTED, "%s.struct_size is %d, and byte %d of the struct is not "+
				"0: this library (%s, %d bytes) is older than the caller, and does not know the field there",
				name, given, n+i, core.Version, own)
		}
	}
	return to, nil
}

func text(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}

// roots are the meeting points that this process has opened.
var roots bootstrap.Roots

func newRoot() ([bootstrap.IDSize]byte, error) {
	// One that is never used must not stay for ever.
	id, err := roots.Open(process.Getenv(core.EnvInterface), core.DefaultTimeout)
	switch {
	case errors.Is(err, bootstrap.ErrInvalid):
		return id, errorf(codeInvalidArgument, "get_unique_id: %v", err)
	case err != nil:
		return id, errorf(C.GOCCL_SYSTEM, "get_unique_id: %v", err)
	}
	return id, nil
}

// leastConfig is what the first version of goccl_config had before its optional fields.
const leastConfig = unsafe.Offsetof(C.goccl_config{}.unique_id)

// given is a goccl_config, copied. Nothing of it is the caller's any more but its store's context.
type given struct {
	core.Config // but for the way by which ranks meet
	fields      C.goccl_config
	id          *[bootstrap.IDSize]byte
	store       *store // nil: there is none, or storeErr says what is wrong with it
	storeErr    error
}

// take copies a configuration.
func take(from *C.goccl_config) (g given, err error) {
	in, err := takeStruct(from, leastConfig, "config")
	settle()
	timeout, noTimeout := limit("config.timeout_ms", in.timeout_ms)
	grace, noGrace := limit("config.liveness_grace_ms", in.liveness_grace_ms)
	err = cmp.Or(err, noTimeout, noGrace)
	g.fields = in
	g.Config = core.Config{Rank: int(in.rank), Size: int(in.size), GroupName: text(in.group_name),
		Transport: text(in.transport), Interface: text(in.interface_), StoreHost: text(in.store_host),
		Secret: text(in.secret), Incarnation: text(in.incarnation), MinSize: int(in.min_size),
		Quorum: text(in.quorum), Recovery: text(in.recovery), Meeting: text(in.meeting),
		AllToAllSchedule: text(in.alltoall_schedule), Timeout: timeout,
		LivenessGrace: grace, Net: text(in.net), HCA: text(in.ib_hca),
		GIDIndex: text(in.ib_gid_index), Algorithms: text(in.algorithms),
		Thresholds: text(in.thresholds), Links: text(in.links), Plans: text(in.plans),
		WireDType: text(in.wire_dtype), SideStep: text(in.side_step)}
	if in.global_ranks != nil && in.size >= 1 && in.size <= bootstrap.MaxSize {
		g.GlobalRanks = ints(in.global_ranks, in.size)
	}
	if in.unique_id != nil {
		id := *(*[bootstrap.IDSize]byte)(unsafe.Pointer(in.unique_id))
		g.id = &id
	}
	if in.store != nil {
		g.store, g.storeErr = newStore(in.store)
	}
	return g, err
}

// drop ends the use of the store.
func (g *given) drop() {
	if g.store != nil {
		_ = g.store.Close()
	}
}

//export apiCommInit
func apiCommInit(to *C.goccl_comm, config *C.goccl_config, work *C.goccl_work) C.goccl_result {
	return export("comm_init", func() error {
		if work != nil {
			*work = 0
		}
		if err := needs(config, "comm_init: config"); err != nil {
			return err
		}
		g, err := take(config)
		if err == nil {
			err = cmp.Or(needs(to, "comm_init: comm"), g.check())
		}
		return begin("comm_init", nil, work, g.drop, func(t *task) error {
			made, err := g.initialize(t.ctx, err)
			if err == nil {
				t.makes(to, made)
			}
			return err
		})
	})
}

// initialize is goccl_comm_init. A rank that is refused tells the others why.
func (g *given) initialize(ctx context.Context, refused error) (*core.Comm, error) {
	if g.store != nil {
		defer g.store.leave()
	}
	if refused != nil {
		g.stayOut(ctx, refused)
		return nil, refused
	}
	ctx, cancel := context.WithTimeout(ctx, process.Limit(g.Config))
	defer cancel()
	c := g.Config
	switch {
	case g.fields.reconfigurable != 0:
		return process.Open(ctx, c)
	case meetsAtEtcd():
		if err := nameMeeting(&c, g.id); err != nil {
			return nil, err
		}
	case g.storeErr != nil:
		return nil, g.storeErr
	case g.store != nil:
		c.Store = g.store
	case g.id != nil:
		done, err := meetAtRoot(ctx, &c, *g.id)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	return process.Init(ctx, c)
}

// check refuses what core cannot know to be wrong.
func (g *given) check() error {
	in := &g.fields
	switch {
	case in.reconfigurable < 0 || in.reconfigurable > 1:
		return invalid("config.reconfigurable", in.reconfigurable, "allowed are 0 and 1")
	case in.reconfigurable == 1: // ranks are not looked at
	case in.size < 1 || in.size > bootstrap.MaxSize:
		return invalid("config.size", in.size, "allowed are 1 to %d", bootstrap.MaxSize)
	case in.rank < 0 || in.rank >= in.size:
		return invalid("config.rank", in.rank, "allowed are 0 to %d", in.size-1)
	case in.unique_id != nil && in.store != nil:
		return errorf(codeInvalidArgument, "config.unique_id and config.store are both given, "+
			"exactly one of them is allowed")
	case in.size > 1 && in.unique_id == nil && in.store == nil && !meetsAtEtcd():
		return errorf(codeInvalidArgument, "config.unique_id and config.store are both NULL, "+
			"one of them (or %s) must be given where size is %d", core.EnvStore, in.size)
	}
	return nil
}

// stayOut tells the other ranks why this one is refused, wherever the config says that they meet.
func (g *given) stayOut(ctx context.Context, why error) {
	c := g.Config
	if c.Size < 2 || c.Rank < 0 || c.Rank >= c.Size || g.fields.reconfigurable != 0 {
		return
	}
	if meetsAtEtcd() {
		if nameMeeting(&c, g.id) == nil {
			_ = process.StayOut(ctx, c, why)
		}
		return
	}
	if g.store != nil {
		c.Store = g.store
		_ = process.StayOut(ctx, c, why)
	}
	if g.id != nil {
		ctx, cancel := context.WithTimeout(ctx, bootstrap.Linger)
		defer cancel()
		if done, err := meetAtRoot(ctx, &c, *g.id); err == nil {
			defer done()
			_ = process.StayOut(ctx, c, why)
		}
	}
}

// meetAtRoot fills in how to meet the other ranks at a root address. The caller calls done when it
// has.
func meetAtRoot(
	ctx context.Context, c *core.Config, id [bootstrap.IDSize]byte,
) (done func(), err error) {
	if err := takeSecret(c, id); err != nil {
		return nil, err
	}
	if c.Rank == 0 {
		if c.Store, done = roots.Meet(id); done != nil {
			return done, nil
		}
	}
	s, closer, err := bootstrap.DialRoot(ctx, id)
	switch {
	case errors.Is(err, core.ErrAborted):
		return nil, c.InitError(core.ErrAborted, err)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, c.InitError(core.ErrTimeout, err, 0)
	case err != nil:
		return nil, c.InitError(core.ErrSystem, err)
	}
	c.Store = s
	return func() { _ = closer.Close() }, nil // nothing is lost with it
}

// takeSecret makes an id's secret that of the meeting, unless the job has one.
func takeSecret(c *core.Config, id [bootstrap.IDSize]byte) error {
	secret, err := bootstrap.IDSecret(id)
	if err != nil {
		return errorf(codeInvalidArgument, "config.unique_id: %v", err)
	}
	c.StoreSecret = secret
	return nil
}

// meetsAtEtcd tells whether ranks meet where the environment says, whatever the config has.
func meetsAtEtcd() bool { return process.Getenv(core.EnvStore) != "" }

// nameMeeting adds a unique id to the name under which ranks meet at an etcd, and takes its secret.
// So groups with other ids meet apart. Nobody meets at the id's root address, whose listener is
// closed. A NULL id adds nothing.
func nameMeeting(c *core.Config, id *[bootstrap.IDSize]byte) error {
	if id == nil {
		return nil
	}
	if err := takeSecret(c, *id); err != nil {
		return err
	}
	roots.Close(*id)
	name := sha256.Sum256(id[:])
	c.Meeting += hex.EncodeToString(name[:16])
	return nil
}

// giveJSON writes a value as JSON to memory of the caller, as much of it as fits, and sets *needed,
// unless it is nil, to what holds all.
func giveJSON(function string, value any, to *C.char, size C.size_t, needed *C.size_t) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return errorf(C.GOCCL_INTERNAL, "%s: no JSON can be made of it: %v", function, err)
	}
	return giveText(function+": json", text, to, size, needed)
}

// giveText writes text to C's memory, which an argument names, and tells how much it takes.
func giveText(name string, text []byte, to *C.char, size C.size_t, needed *C.size_t) error {
	if size > 0 {
		if err := needs(to, name); err != nil {
			return err
		}
	}
	copyOut(to, size, text)
	if needed != nil {
		*needed = C.size_t(len(text) + 1)
	}
	return nil
}

// copyOut writes text and a closing NUL to C's memory, as much of it as fits.
func copyOut(to *C.char, size C.size_t, s []byte) {
	if size == 0 {
		return
	}
	out := unsafe.Slice((*byte)(unsafe.Pointer(to)), int(min(uint64(size), uint64(len(s)+1))))
	n := copy(out[:len(out)-1], s)
	out[n] = 0
}
