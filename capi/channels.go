package main

// #include "api.h"
import "C"

import (
	"context"
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core"
)

func init() {
	C.api_use_channels((*C.goccl_channel_calls)(core.Channels()))
}

// memories and channels are those that have a handle, by it. Handles are core's: callers in C find
// them without Go.
var (
	memories sync.Map // of *userMemory
	channels sync.Map // of *core.Channel
)

// userMemory is what a goccl_memory names.
type userMemory struct {
	*core.Memory
	comm *core.Comm
}

func giveMemory(comm *core.Comm, m *core.Memory) C.goccl_memory {
	memories.Store(m.Handle(), &userMemory{m, comm})
	return C.goccl_memory(m.Handle())
}

func memory(h C.goccl_memory, what string) (*userMemory, error) {
	if m, ok := memories.Load(uint64(h)); ok {
		return m.(*userMemory), nil
	}
	return nil, errorf(codeInvalidHandle, "%s is %#x, which is not a valid handle of memory: it is "+
		"stale or was never given out", what, h)
}

// dropMemories takes the handles of a communicator's memory back, which has been destroyed, but for
// what is still mapped.
func dropMemories(comm *core.Comm) {
	memories.Range(func(h, m any) bool {
		if m := m.(*userMemory); m.comm == comm && !m.Kept() {
			memories.Delete(h)
		}
		return true
	})
}

// onMemory is export for a function of memory.
func onMemory(name string, h C.goccl_memory, f func(*userMemory) error) C.goccl_result {
	return export(name, func() error {
		m, err := memory(h, name+": memory")
		if err != nil {
			return err
		}
		return f(m)
	})
}

// onChannel is export for a function of a channel.
func onChannel(name string, h C.goccl_channel, f func(*core.Channel) error) C.goccl_result {
	return export(name, func() error {
		c, ok := channels.Load(uint64(h))
		if !ok {
			return badHandle(uint64(h), "channel")
		}
		return f(c.(*core.Channel))
	})
}

//export apiMemoryRegister
func apiMemoryRegister(
	handle C.goccl_comm, address unsafe.Pointer, bytes C.uint64_t, access C.int, to *C.goccl_memory,
) C.goccl_result {
	return onComm("memory_register", handle, func(c *commHandle) error {
		if err := put(to, "memory_register: memory", 0); err != nil {
			return err
		}
		m, err := c.comm.Register(address, uint64(bytes), int(access))
		if err == nil {
			*to = giveMemory(c.comm, m)
		}
		return err
	})
}

//export apiMemoryDeregister
func apiMemoryDeregister(h C.goccl_memory) C.goccl_result {
	return onMemory("memory_deregister", h, func(m *userMemory) error {
		if memories.CompareAndDelete(uint64(h), m) {
			m.Deregister()
		}
		return nil
	})
}

//export apiMemoryExport
func apiMemoryExport(h C.goccl_memory, to *C.goccl_memory_handle) C.goccl_result {
	return onMemory("memory_export", h, func(m *userMemory) error {
		if err := needs(to, "memory_export: handle"); err != nil {
			return err
		}
		b, err := m.comm.Export(m.Memory)
		if err == nil {
			*(*[core.HandleSize]byte)(unsafe.Pointer(to)) = b
		}
		return err
	})
}

//export apiMemoryImport
func apiMemoryImport(
	handle C.goccl_comm, rank C.int, from *C.goccl_memory_handle, to *C.goccl_memory,
) C.goccl_result {
	return onComm("memory_import", handle, func(c *commHandle) error {
		if err := put(to, "memory_import: memory", 0); err != nil {
			return err
		}
		if err := needs(from, "memory_import: handle"); err != nil {
			return err
		}
		b := *(*[core.HandleSize]byte)(unsafe.Pointer(from))
		m, err := c.comm.Import(int(rank), b[:])
		if err == nil {
			*to = giveMemory(c.comm, m)
		}
		return err
	})
}

//export apiMemoryExchange
func apiMemoryExchange(
	handle C.goccl_comm, mine C.goccl_memory, byRank *C.goccl_memory, work *C.goccl_work,
) C.goccl_result {
	const name = "memory_exchange"
	return onLong(name, handle, work, func(c *commHandle) (longCall, error) {
		var own *core.Memory
		refused := needs(byRank, name+": by_rank")
		if refused == nil && mine != 0 {
			m, err := memory(mine, name+": mine")
			if err == nil && m.comm != c.comm {
				err = invalid(name+": mine", mine, "which was registered with another communicator")
			}
			if err != nil {
				refused = err
			} else {
				own = m.Memory
			}
		}
		return func(t *task) error {
			all, err := c.comm.Exchange(t.ctx, own, refused)
			if err != nil {
				return err
			}
			handles := make([]C.goccl_memory, len(all))
			for rank, m := range all {
				switch {
				case m == nil:
				case m == own:
					handles[rank] = mine
				default:
					handles[rank] = giveMemory(c.comm, m)
				}
			}
			t.deliver = func() error {
				copy(unsafe.Slice(byRank, len(handles)), handles)
				return nil
			}
			t.discard = func() {
				for rank, m := range all {
					if m != nil && m != own {
						memories.Delete(uint64(handles[rank]))
						m.Deregister()
					}
				}
			}
			return nil
		}, nil
	})
}

//export apiMemoryMap
func apiMemoryMap(h C.goccl_memory, address *unsafe.Pointer, bytes *C.uint64_t) C.goccl_result {
	return onMemory("memory_map", h, func(m *userMemory) error {
		if address != nil {
			p, err := m.comm.MapMemory(m.Memory)
			if err != nil {
				return err
			}
			*address = p
		}
		if bytes != nil {
			*bytes = C.uint64_t(m.Bytes())
		}
		return nil
	})
}

// leastChannel is what the first version of goccl_channel_config had.
const leastChannel = unsafe.Offsetof(C.goccl_channel_config{}.window)

//export apiChannelOpen
func apiChannelOpen(
	handle C.goccl_comm, peer, tag C.int, config *C.goccl_channel_config, to *C.goccl_channel,
) C.goccl_result {
	return onComm("channel_open", handle, func(c *commHandle) error {
		if err := put(to, "channel_open: channel", 0); err != nil {
			return err
		}
		var given C.goccl_channel_config
		if config != nil {
			var err error
			if given, err = takeStruct(config, leastChannel, "channel_config"); err != nil {
				return err
			}
		}
		number := int(tag)
		if given.window != 0 && tag >= 0 {
			number = core.WindowTag(number)
		}
		opened, err := c.comm.OpenChannel(int(peer), number, text(given.kind))
		if err == nil {
			channels.Store(opened.Handle(), opened)
			*to = C.goccl_channel(opened.Handle())
		}
		return err
	})
}

//export apiChannelClose
func apiChannelClose(h C.goccl_channel) C.goccl_result {
	return onChannel("channel_close", h, func(c *core.Channel) error {
		if channels.CompareAndDelete(uint64(h), c) {
			c.Close()
		}
		return nil
	})
}

//export apiChannelPut
func apiChannelPut(
	h C.goccl_channel, dst C.goccl_memory, offset C.uint64_t, src unsafe.Pointer, bytes C.uint64_t,
) C.goccl_result {
	return putBy("channel_put", h, dst, offset, src, bytes, 0)
}

//export apiChannelPutSignal
func apiChannelPutSignal(
	h C.goccl_channel, dst C.goccl_memory, offset C.uint64_t, src unsafe.Pointer, bytes C.uint64_t,
	n C.uint64_t,
) C.goccl_result {
	const name = "channel_put_signal"
	if n == 0 {
		return onChannel(name, h, func(*core.Channel) error {
			return invalid(name+": n", n, "it must be 1 or more")
		})
	}
	return putBy(name, h, dst, offset, src, bytes, n)
}

func putBy(
	name string, h C.goccl_channel, dst C.goccl_memory, offset C.uint64_t, src unsafe.Pointer,
	bytes, signals C.uint64_t,
) C.goccl_result {
	return onChannel(name, h, func(c *core.Channel) error {
		m, err := memory(dst, name+": dst")
		if err == nil {
			err = fitsMemory(name, bytes)
		}
		if err != nil {
			return err
		}
		return c.PutFrom(m.Memory, uint64(offset), src, uint64(bytes), uint64(signals))
	})
}

// fitsMemory refuses more bytes than any memory has.
func fitsMemory(name string, bytes C.uint64_t) error {
	if bytes > math.MaxInt64 {
		return invalid(name+": bytes", bytes, "it must fit memory")
	}
	return nil
}

//export apiChannelPutSignalAsync
func apiChannelPutSignalAsync(
	h C.goccl_channel, dst C.goccl_memory, offset C.uint64_t, src unsafe.Pointer, bytes C.uint64_t,
	n C.uint64_t, timeout C.int64_t, work *C.goccl_work,
) C.goccl_result {
	const name = "channel_put_signal"
	return onChannelLater(name, h, timeout, work,
		func(c *core.Channel, most time.Duration) (func() error, error) {
			if n == 0 {
				return nil, invalid(name+": n", n, "it must be 1 or more")
			}
			if dst == 0 && bytes == 0 {
				return c.PutLater(nil, 0, nil, 0, uint64(n), most), nil
			}
			m, err := memory(dst, name+": dst")
			if err == nil {
				err = fitsMemory(name, bytes)
			}
			if err != nil {
				return nil, err
			}
			return c.PutLater(m.Memory, uint64(offset), src, uint64(bytes), uint64(n), most), nil
		})
}

//export apiChannelWaitAsync
func apiChannelWaitAsync(
	h C.goccl_channel, n C.uint64_t, timeout C.int64_t, work *C.goccl_work,
) C.goccl_result {
	return onChannelLater("channel_wait", h, timeout, work,
		func(c *core.Channel, most time.Duration) (func() error, error) {
			return c.WaitLater(uint64(n), most), nil
		})
}

// onChannelLater is onChannelFor for a function that is made as a work.
func onChannelLater(
	name string, h C.goccl_channel, timeout C.int64_t, work *C.goccl_work,
	f func(*core.Channel, time.Duration) (func() error, error),
) C.goccl_result {
	if work != nil {
		*work = 0
	}
	return onChannelFor(name, h, timeout, func(c *core.Channel, most time.Duration) error {
		later, err := f(c, most)
		if err != nil {
			return err
		}
		return begin(name, nil, work, nil, func(*task) error { return later() })
	})
}

//export apiChannelGet
func apiChannelGet(
	h C.goccl_channel, dst unsafe.Pointer, src C.goccl_memory, offset, bytes C.uint64_t,
) C.goccl_result {
	const name = "channel_get"
	return onChannel(name, h, func(c *core.Channel) error {
		m, err := memory(src, name+": src")
		if err == nil {
			err = fitsMemory(name, bytes)
		}
		if err != nil {
			return err
		}
		return c.GetTo(dst, m.Memory, uint64(offset), uint64(bytes))
	})
}

//export apiChannelSignal
func apiChannelSignal(h C.goccl_channel, n C.uint64_t) C.goccl_result {
	return onChannel("channel_signal", h, func(c *core.Channel) error { return c.Signal(uint64(n)) })
}

//export apiChannelWait
func apiChannelWait(h C.goccl_channel, n C.uint64_t, timeout C.int64_t) C.goccl_result {
	return onChannelFor("channel_wait", h, timeout, func(c *core.Channel, most time.Duration) error {
		return c.Wait(context.Background(), uint64(n), most)
	})
}

//export apiChannelFlush
func apiChannelFlush(h C.goccl_channel, timeout C.int64_t) C.goccl_result {
	return onChannelFor("channel_flush", h, timeout, func(c *core.Channel, most time.Duration) error {
		return c.Flush(context.Background(), most)
	})
}

// onChannelFor is onChannel for a function that has a timeout.
func onChannelFor(
	name string, h C.goccl_channel, timeout C.int64_t, f func(*core.Channel, time.Duration) error,
) C.goccl_result {
	return onChannel(name, h, func(c *core.Channel) error {
		most, err := limit(name+": timeout_ms", timeout)
		if err != nil {
			return err
		}
		return f(c, most)
	})
}

//export apiChannelPoll
func apiChannelPoll(h C.goccl_channel, n C.uint64_t) C.goccl_result {
	return onChannel("channel_poll", h, func(c *core.Channel) error {
		taken, err := c.Poll(uint64(n))
		if err == nil && !taken {
			return errInProgress
		}
		return err
	})
}

//export apiChannelKind
func apiChannelKind(h C.goccl_channel, name **C.char) C.goccl_result {
	return onChannel("channel_kind", h, func(c *core.Channel) error {
		return put(name, "channel_kind: name", staticName(c.Kind()))
	})
}
