package exec

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A FIFO in Go lies as one in C does, and its trigger.
func TestFIFOLayout(t *testing.T) {
	var head fifoHead
	var trigger Trigger
	source := filepath.Join(t.TempDir(), "layout.c")
	program := "#include \"goccl_fifo.h\"\n#include <stddef.h>\n"
	if _, err := os.Stat("../../capi/goccl_fifo.h"); err != nil { // so that `go test` knows of it
		t.Fatal(err)
	}
	for expression, want := range map[string]uintptr{
		"sizeof(goccl_fifo)":                  unsafe.Sizeof(head),
		"offsetof(goccl_fifo, size)":          unsafe.Offsetof(head.size),
		"offsetof(goccl_fifo, ended)":         unsafe.Offsetof(head.ended),
		"offsetof(goccl_fifo, asleep)":        unsafe.Offsetof(head.asleep),
		"offsetof(goccl_fifo, bell)":          unsafe.Offsetof(head.bell),
		"offsetof(goccl_fifo, head)":          unsafe.Offsetof(head.head),
		"offsetof(goccl_fifo, cached_tail)":   unsafe.Offsetof(head.cachedTail),
		"offsetof(goccl_fifo, tail)":          unsafe.Offsetof(head.tail),
		"sizeof(goccl_trigger)":               unsafe.Sizeof(trigger),
		"offsetof(goccl_trigger, op)":         unsafe.Offsetof(trigger.Op),
		"offsetof(goccl_trigger, signals)":    unsafe.Offsetof(trigger.Signals),
		"offsetof(goccl_trigger, channel)":    unsafe.Offsetof(trigger.Channel),
		"offsetof(goccl_trigger, dst)":        unsafe.Offsetof(trigger.Dst),
		"offsetof(goccl_trigger, src)":        unsafe.Offsetof(trigger.Src),
		"offsetof(goccl_trigger, dst_offset)": unsafe.Offsetof(trigger.DstOffset),
		"offsetof(goccl_trigger, src_offset)": unsafe.Offsetof(trigger.SrcOffset),
		"offsetof(goccl_trigger, bytes)":      unsafe.Offsetof(trigger.Bytes),
		"offsetof(goccl_trigger, sequence)":   unsafe.Offsetof(trigger.sequence),
		"GOCCL_TRIGGER_PUT":                   TriggerPut,
		"GOCCL_TRIGGER_SIGNAL":                TriggerSignal,
		"GOCCL_TRIGGER_FLUSH":                 TriggerFlush,
		"GOCCL_TRIGGER_GET":                   TriggerGet,
	} {
		program += "_Static_assert(" + expression + " == " +
			strconv.FormatUint(uint64(want), 10) + ", \"\");\n"
	}
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("cc", "-std=c11", "-I", "../../capi", "-fsyntax-only", source)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Producers in Go and a consumer that sleeps: each trigger is taken once, those of a producer in
// order.
func TestFIFOInGo(t *testing.T) {
	const size, producers, times = 64, 8, 3000
	memory := make([]uint64, FIFOBytes(size)/8)
	f, err := NewFIFO(unsafe.Pointer(&memory[0]), size)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var wg sync.WaitGroup
	for i := range producers {
		wg.Go(func() {
			for n := range uint64(times) {
				for {
					if _, ok := f.TryPush(Trigger{Op: uint32(i), Src: n, Bytes: ^n}); ok {
						break
					}
					YieldCPU()
				}
			}
		})
	}
	var next [producers]uint64
	for all := range uint64(producers * times) {
		for {
			trigger, position, ok := f.Take()
			if !ok {
				f.Sleep(time.Minute, f.Coming)
				continue
			}
			if position != all || trigger.Src != next[trigger.Op] || trigger.Bytes != ^trigger.Src {
				t.Fatalf("at %d trigger %+v, of which %d were before", position, trigger, next[trigger.Op])
			}
			next[trigger.Op]++
			if f.Finish(position); !f.Done(position) || f.Done(position+1) {
				t.Fatalf("trigger %d is not the last that is done", position)
			}
			break
		}
	}
	wg.Wait()
	// A bell that nobody hears costs nothing, and one that is heard ends the sleep.
	var over atomic.Bool
	go func() {
		for atomic.LoadUint32(&f.at.asleep) == 0 {
			YieldCPU()
		}
		over.Store(true)
		f.Ring()
	}()
	sleepUntilRung(t, f, over.Load)
}

// sleepUntilRung fails the test where the bell does not end a sleep.
func sleepUntilRung(t *testing.T, f *FIFO, until func() bool) {
	t.Helper()
	begun := time.Now()
	f.Sleep(time.Minute, until)
	if time.Since(begun) >= time.Minute {
		t.Fatal("the bell wakes nobody")
	}
}

// A producer may fill the bell: nobody waits for room in it.
func TestFullBell(t *testing.T) {
	memory := make([]uint64, FIFOBytes(FIFOSizeLeast)/8)
	f, err := NewFIFO(unsafe.Pointer(&memory[0]), FIFOSizeLeast)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	full := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if _, err := unix.Write(f.fd, full); err != nil {
		t.Fatal(err)
	}
	atomic.StoreUint32(&f.at.asleep, 1)
	rung := make(chan struct{})
	go func() {
		defer close(rung)
		f.Ring()
	}()
	select {
	case <-rung:
	case <-time.After(time.Minute):
		t.Fatal("Ring waits")
	}
	sleepUntilRung(t, f, func() bool { return false })
}
