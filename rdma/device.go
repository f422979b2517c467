package rdma

// #include "device.h"
// #include "stream.h"
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access says what may be done with a Region. The owner can always read it.
type Access int

// Accesses; what peers may write the owner must be allowed to write.
const (
	LocalWrite  Access = C.IBV_ACCESS_LOCAL_WRITE
	RemoteWrite Access = C.IBV_ACCESS_REMOTE_WRITE
	RemoteRead  Access = C.IBV_ACCESS_REMOTE_READ
)

// Device is an opened device, at the port that was chosen, with a protection domain. Open,
// Register, NewStream and NextEvent are safe for several goroutines; Close comes after everything
// else.
type Device struct {
	Choice  Choice
	lib     *Library
	context *C.struct_ibv_context
	pd      *C.struct_ibv_pd
	reads   int // RDMA READs that it makes for a queue pair at a time, and answers
}

// Open opens the device that was chosen.
func (l *Library) Open(c Choice) (d *Device, err error) {
	d = &Device{Choice: c, lib: l}
	defer func() {
		if err != nil {
			d.Close()
			d = nil
		}
	}()
	if err := l.devices(func(dev *C.struct_ibv_device) error {
		if d.context != nil || l.name(dev) != c.Device {
			return nil
		}
		var err error
		if d.context, err = C.goccl_open_device(l.verbs, dev); d.context == nil {
			return newError("ibv_open_device", c.Device, errnoOf(err))
		}
		return nil
	}); err != nil {
		return d, err
	}
	if d.context == nil {
		return d, fmt.Errorf("RDMA device %s is gone", c.Device)
	}
	// So that NextEvent can ask without waiting.
	if err := unix.SetNonblock(d.AsyncFD(), true); err != nil {
		return d, fmt.Errorf("events of %s: %w", c.Device, err)
	}
	if d.pd, err = C.goccl_alloc_pd(l.verbs, d.context); d.pd == nil {
		return d, newError("ibv_alloc_pd", c.Device, errnoOf(err))
	}
	var limits C.struct_ibv_device_attr
	if e := C.goccl_query_device(l.verbs, d.context, &limits); e != 0 {
		return d, newError("ibv_query_device", c.Device, syscall.Errno(e))
	}
	// no more are ever under way
	d.reads = max(0, min(int(limits.max_qp_rd_atom), int(limits.max_qp_init_rd_atom),
		C.GOCCL_STREAM_READS))
	return d, nil
}

// Close ends the protection domain and closes the device. While anything made with the device still
// lives it returns EBUSY, and can be called again. Closing a closed device does nothing.
func (d *Device) Close() error {
	var first error
	if d.pd != nil {
		e := syscall.Errno(C.goccl_dealloc_pd(d.lib.verbs, d.pd))
		if e != 0 {
			first = newError("ibv_dealloc_pd", d.Choice.Device, e)
		}
		if e == syscall.EBUSY {
			return first
		}
		d.pd = nil
	}
	if d.context != nil {
		e := syscall.Errno(C.goccl_close_device(d.lib.verbs, d.context))
		if e != 0 && first == nil {
			first = newError("ibv_close_device", d.Choice.Device, e)
		}
		if e == syscall.EBUSY {
			return first
		}
		d.context = nil
	}
	return first
}

// Region is registered memory.
type Region struct {
	LKey, RKey uint32
	device     *Device
	mr         *C.struct_ibv_mr
}

// Register registers memory, which is not Go's and must outlive the Region.
func (d *Device) Register(mem unsafe.Pointer, length int, access Access) (*Region, error) {
	mr, err := C.goccl_reg_mr(d.lib.verbs, d.pd, mem, C.size_t(length), C.int(access))
	if mr == nil {
		e := newError("ibv_reg_mr", d.Choice.Device, errnoOf(err))
		e.Verb += fmt.Sprintf(" of %s", bytesText(uint64(length)))
		return nil, e
	}
	return &Region{LKey: uint32(mr.lkey), RKey: uint32(mr.rkey), device: d, mr: mr}, nil
}

// Close ends the registration. After an error it may be called again; closing twice does nothing,
// nor does closing nil.
func (r *Region) Close() error {
	if r == nil || r.mr == nil {
		return nil
	}
	if e := C.goccl_dereg_mr(r.device.lib.verbs, r.mr); e != 0 {
		return newError("ibv_dereg_mr", r.device.Choice.Device, syscall.Errno(e))
	}
	r.mr = nil
	return nil
}
