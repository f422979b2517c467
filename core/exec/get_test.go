package exec

import (
	"errors"
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
)

const offeredBytes = 3 * 4096

// offered returns the runs of a Scatter from rank 0 to rank 1, which gets; the former has offered.
// The output lies so many bytes further in its page than the input.
func offered(t *testing.T, w [2]*Window, length, further int) (send, recv *Run, in, out []byte) {
	t.Helper()
	var runs [2]*Run
	var bufs [2][]byte
	for rank := range w {
		w[rank].UseProcess(1-rank, Process{os.Getpid(), -1})
		mem, err := unix.Mmap(-1, 0, length+rank*further, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, func() { _ = unix.Munmap(mem) })
		bufs[rank] = mem[rank*further:]
		p := plan.Params{Collective: plan.Scatter, Algorithm: plan.SingleCopy, Rank: rank, Size: 2,
			ElemSize: 1, Chunk: layout.Chunk, Slots: layout.Slots,
			// rank 0 keeps nothing
			InBytes: []int64{0, int64(length)}, Memory: true, Thresholds: plan.Thresholds{GetMin: 1}}
		at := unsafe.Pointer(&bufs[rank][0])
		p.OutBytes = p.InBytes[rank : rank+1]
		b := Binding{In: []unsafe.Pointer{at, at}, Out: []unsafe.Pointer{at}}
		built, err := plan.Build(p)
		if err != nil {
			t.Fatal(err)
		}
		c := must(Compile(built, false, false))
		atEnd(t, c.Free)
		runs[rank] = must(NewRun(w[rank].Lane(1)))
		atEnd(t, runs[rank].Free)
		runs[rank].Bind(b)
		runs[rank].Begin(c, 0)
	}
	for i := range bufs[0] {
		bufs[0][i] = byte(i / 7)
	}
	if s := runs[0].Continue(soon()); s != Blocked {
		t.Fatalf("send: status %d before anybody has got it", s)
	}
	return runs[0], runs[1], bufs[0], bufs[1]
}

func TestGet(t *testing.T) {
	w := newPair(t)
	for i := range 3 * layout.Slots {
		send, recv, in, out := offered(t, w, 100_001, i%2*31) // 31 bytes further rep movs would crawl
		if s := recv.Continue(soon()); s != Done {
			t.Fatalf("recv: status %d", s)
		}
		if s := send.Continue(soon()); s != Done {
			t.Fatalf("send: status %d", s)
		}
		if !slices.Equal(in, out) {
			t.Fatal("it has got something else")
		}
	}
}

// Who has stopped may have given its buffer back: what is read there then is not taken for good.
func TestGetFromStopped(t *testing.T) {
	w := newPair(t)
	_, recv, _, _ := offered(t, w, offeredBytes, 0)
	w[0].Stop()
	if s := recv.Continue(soon()); s != Blocked {
		t.Fatalf("status %d, though the sender has stopped", s)
	}
	w[1].Leave(0)
	if s := recv.Continue(soon()); s != Gone {
		t.Fatalf("status %d, though the sender has left", s)
	}
}

// The sender may stop, and give its buffer to others, at any moment of the copy.
func TestGetFromWhoStopsMeanwhile(t *testing.T) {
	const length, rounds = 1 << 20, 100
	w := newPair(t)
	_, recv, _, _ := offered(t, w, length, 0)
	begun := Now()
	if s := recv.Continue(soon()); s != Done {
		t.Fatalf("recv: status %d", s)
	}
	took := Now() - begun
	for round := range rounds {
		delay := 2 * took * time.Duration(round) / rounds
		t.Run(delay.String(), func(t *testing.T) {
			w := newPair(t)
			_, recv, in, out := offered(t, w, length, 0)
			want := slices.Clone(in)
			var receives atomic.Bool
			var stops sync.WaitGroup
			stops.Go(func() {
				for !receives.Load() {
				}
				for begun := Now(); Now()-begun < delay; {
				}
				w[0].Stop()
				clear(in)
			})
			receives.Store(true)
			status := recv.Continue(soon())
			stops.Wait()
			if status == Done && !slices.Equal(out, want) {
				t.Error("what the sender has given up is taken for what it offered")
			}
		})
	}
}

func TestGetUnreadable(t *testing.T) {
	w := newPair(t)
	_, recv, in, _ := offered(t, w, offeredBytes, 0)
	if err := unix.Munmap(in); err != nil {
		t.Fatal(err)
	}
	if s := recv.Continue(soon()); s != Unreadable || !errors.Is(recv.GetError(), unix.EFAULT) {
		t.Fatalf("status %d, %v", s, recv.GetError())
	}
}

// ended is a descriptor of a process that has ended.
func ended(t *testing.T) int {
	t.Helper()
	other := osexec.Command("true")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(other.Process.Pid, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := other.Wait(); err != nil {
		t.Fatal(err)
	}
	return fd
}

// The number of a process that has ended may be another's: what is read under it is not taken for
// good.
func TestGetFromWhoHasTheNumberOfAnother(t *testing.T) {
	w := newPair(t)
	_, recv, _, _ := offered(t, w, offeredBytes, 0)
	other := Process{os.Getpid(), ended(t)}
	w[1].UseProcess(0, other)
	if s := recv.Continue(soon()); s != Blocked {
		t.Fatalf("status %d, though the sender has ended", s)
	}
	if err := CanGet(other, OwnMark()); err == nil {
		t.Error("another process is taken for one that has ended")
	}
}

func TestCanGet(t *testing.T) {
	m := OwnMark()
	if err := CanGet(Process{os.Getpid(), -1}, m); err != nil {
		t.Error(err)
	}
	if err := CanGet(Process{os.Getpid(), -1}, Mark{m.At, m.Value + 1}); err == nil {
		t.Error("another process is taken for this one")
	}
	if err := CanGet(Process{os.Getpid(), -1}, Mark{}); !errors.Is(err, unix.EFAULT) {
		t.Errorf("at 0: %v", err)
	}
	if err := CanGet(Process{1 << 30, 0}, m); !errors.Is(err, unix.ESRCH) {
		t.Errorf("of no process: %v", err)
	}
}

// Of another process that has no descriptor nobody could tell whether the number is still its own.
func TestCanGetOnlyByADescriptor(t *testing.T) {
	child := osexec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait() // it was killed
	})
	err := CanGet(Process{child.Process.Pid, -1}, OwnMark())
	if err == nil || !strings.Contains(err.Error(), "no descriptor") {
		t.Errorf("without one: %v", err)
	}
}

// Reads of memory are measured where they are allowed, and what comes of it stays.
func TestReadTimes(t *testing.T) {
	copied, read := readTimes()
	if able := CanGet(Process{os.Getpid(), -1}, OwnMark()) == nil; able != (copied > 0 && read > 0) {
		t.Errorf("a copy takes %v, a read %v", copied, read)
	}
	if first := ReadCost(); first != ReadCost() {
		t.Error("it changes")
	}
}

func BenchmarkReadTimes(b *testing.B) {
	for b.Loop() {
		copied, read := readTimes()
		b.ReportMetric(float64(read)/float64(copied), "read/copy")
	}
}
