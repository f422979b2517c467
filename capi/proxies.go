package main

// #include "api.h"
import "C"

import (
	"context"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core"
)

// proxyHandle is what a goccl_proxy names.
type proxyHandle struct {
	issued
	*core.Proxy
}

// onProxy is export for a function of a proxy.
func onProxy(name string, h C.goccl_proxy, f func(*core.Proxy) error) C.goccl_result {
	return export(name, func() error {
		p, err := restore[*proxyHandle](uint64(h), "proxy")
		if err != nil {
			return err
		}
		return f(p.Proxy)
	})
}

// onProxyFor is onProxy for a function that has a timeout.
func onProxyFor(
	name string, h C.goccl_proxy, timeout C.int64_t, f func(*core.Proxy, time.Duration) error,
) C.goccl_result {
	return onProxy(name, h, func(p *core.Proxy) error {
		most, err := limit(name+": timeout_ms", timeout)
		if err != nil {
			return err
		}
		return f(p, most)
	})
}

//export apiProxyCreate
func apiProxyCreate(
	handle C.goccl_comm, size C.uint64_t, flags C.int, to *C.goccl_proxy,
) C.goccl_result {
	return onComm("proxy_create", handle, func(c *commHandle) error {
		if err := put(to, "proxy_create: proxy", 0); err != nil {
			return err
		}
		if flags&^C.GOCCL_PROXY_DEVICES != 0 {
			return invalid("proxy_create: flags", flags, "allowed are 0 and %d (GOCCL_PROXY_DEVICES)",
				C.GOCCL_PROXY_DEVICES)
		}
		p, err := c.comm.NewProxy(uint64(size), flags&C.GOCCL_PROXY_DEVICES != 0)
		if err == nil {
			*to = C.goccl_proxy(save(&proxyHandle{Proxy: p}))
		}
		return err
	})
}

//export apiProxyDestroy
func apiProxyDestroy(h C.goccl_proxy) C.goccl_result {
	return onProxy("proxy_destroy", h, func(p *core.Proxy) error {
		if drop(uint64(h)) {
			p.Close()
		}
		return nil
	})
}

//export apiProxyFIFO
func apiProxyFIFO(
	h C.goccl_proxy, fifo **C.struct_goccl_fifo, bytes *C.uint64_t,
) C.goccl_result {
	return onProxy("proxy_fifo", h, func(p *core.Proxy) error {
		memory, size := p.FIFO()
		if fifo != nil {
			*fifo = (*C.struct_goccl_fifo)(memory)
		}
		if bytes != nil {
			*bytes = C.uint64_t(size)
		}
		return nil
	})
}

//export apiProxyPush
func apiProxyPush(
	h C.goccl_proxy, trigger *C.struct_goccl_trigger, timeout C.int64_t, to *C.uint64_t,
) C.goccl_result {
	const name = "proxy_push"
	return onProxyFor(name, h, timeout, func(p *core.Proxy, most time.Duration) error {
		if err := needs(trigger, name+": trigger"); err != nil {
			return err
		}
		t := *(*core.Trigger)(unsafe.Pointer(trigger))
		position, err := p.Push(context.Background(), t, most)
		if err == nil && to != nil {
			*to = C.uint64_t(position)
		}
		return err
	})
}

//export apiProxyWait
func apiProxyWait(h C.goccl_proxy, position C.uint64_t, timeout C.int64_t) C.goccl_result {
	return onProxyFor("proxy_wait", h, timeout, func(p *core.Proxy, most time.Duration) error {
		return p.Wait(context.Background(), uint64(position), most)
	})
}

//export apiProxyStop
func apiProxyStop(h C.goccl_proxy, timeout C.int64_t) C.goccl_result {
	return onProxyFor("proxy_stop", h, timeout, func(p *core.Proxy, most time.Duration) error {
		return p.Stop(context.Background(), most)
	})
}
