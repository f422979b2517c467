package exec

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The mappings of a memfd are over with the last one, whoever has it, and for good.
func TestMappings(t *testing.T) {
	const size = 8192
	fd := must(newMemfd("goccl-test", "a test", size))
	peer := must(unix.Dup(fd))
	defer unix.Close(peer)
	own, others := must(mapMemfd(fd, size)), must(mapMemfd(peer, size))
	own[0] = 1
	m := must(MappingsOf(fd))
	defer m.Close()
	unix.Close(fd)
	for _, mem := range [][]byte{own, others} {
		if m.Over() {
			t.Fatal("they are over before the last one")
		}
		if err := unix.Munmap(mem); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if !m.Over() {
			t.Fatal("they are not over")
		}
	}
	if _, err := mapMemfd(peer, size); err == nil {
		t.Error("a mapping was made when they were over")
	}
}
