package exec

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// Channels in C under the thread sanitizer: threads put, wait, close and deregister at once.
func TestChannelThreads(t *testing.T) {
	runThreads(t, "testdata/channel.c", "channel.c", "exec.c", "get.c", "stream.c")
}

// A FIFO in C under the thread sanitizer: eight threads push, and one takes.
func TestFIFOThreads(t *testing.T) {
	if _, err := os.Stat("../../capi/goccl_fifo.h"); err != nil { // so that `go test` knows of it
		t.Fatal(err)
	}
	runThreads(t, "testdata/fifo.c")
}

// runThreads runs a program in C under the thread sanitizer.
func runThreads(t *testing.T, source string, others ...string) {
	t.Helper()
	if _, err := os.Stat(source); err != nil { // so that `go test` knows of it
		t.Fatal(err)
	}
	folder := t.TempDir()
	build := func(name string, args ...string) error {
		args = append([]string{"-fsanitize=thread", "-g", "-O1", "-pthread", "-o",
			filepath.Join(folder, name)}, args...)
		out, err := exec.Command("cc", args...).CombinedOutput()
		if err != nil {
			t.Logf("cc %v: %v\n%s", args, err, out)
		}
		return err
	}
	// It does not know of fences; those of bells order words that are atomic.
	err := build("program", append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Wno-tsan", source},
		others...)...)
	if err != nil {
		empty := filepath.Join(folder, "empty.c")
		if err := os.WriteFile(empty, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if build("empty", empty) == nil {
			t.Fatal(err)
		}
		t.Skip("the compiler has no thread sanitizer")
	}
	out, err := exec.Command(filepath.Join(folder, "program")).CombinedOutput()
	if strings.Contains(string(out), "unexpected memory mapping") {
		t.Skip("the thread sanitizer does not run on this system")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// Who waits for the copies that were there before does not wait for those that begin meanwhile,
// though there is always one.
func TestSettleAmidCopies(t *testing.T) {
	const size, threads, owner, mark = 1 << 20, 4, 5, 77
	arena, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	alloc := func(bytes int64) unsafe.Pointer {
		p, err := arena.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	semaphore, target := alloc(SemaphoreBytes), alloc(size)
	end, err := NewChannelEnd(semaphore, Waiting{})
	if err != nil {
		t.Fatal(err)
	}
	region, err := NewRegion(owner, mark, size, RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	word := (*uint64)(alloc(8))
	atomic.StoreUint64(word, mark)
	region.Map(target, word)
	end.Meet(owner, semaphore)
	var putters sync.WaitGroup
	var over atomic.Bool
	var failed atomic.Int64
	for i := range threads {
		putters.Go(func() {
			src := make([]byte, size)
			for k := 0; !over.Load(); k++ {
				n := uint64(size)
				if (i+k)%16 == 0 {
					n = 100
				}
				if end.Put(region.Handle, 0, unsafe.Pointer(&src[0]), n, 0) != CarriedAll {
					failed.Add(1)
					return
				}
			}
		})
	}
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		for range 50 {
			end.Settle()
		}
	}()
	select {
	case <-settled:
	case <-time.After(time.Minute):
		t.Error("it waits for copies that have come later")
	}
	over.Store(true)
	putters.Wait()
	<-settled
	if failed.Load() != 0 || end.Copies() {
		t.Errorf("%d puts failed, copies under way: %v", failed.Load(), end.Copies())
	}
	end.Close()
	end.Free()
	region.Close()
	region.Free()
}
