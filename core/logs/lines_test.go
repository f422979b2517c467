package logs

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A pipe that nobody reads holds no line's writer up. Its reader gets whole lines in order, once
// each, and the number of those that are missing.
func TestLinesNeverWait(t *testing.T) {
	for _, blocking := range []bool{true, false} {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		in := os.NewFile(uintptr(p[0]), "pipe")
		t.Cleanup(func() { in.Close() })
		filled := 0
		for {
			n, err := unix.Write(p[1], make([]byte, 4096))
			if err != nil {
				break
			}
			filled += n
		}
		if err := unix.SetNonblock(p[1], !blocking); err != nil {
			t.Fatal(err)
		}
		const written = 3 * maxLines
		l := &lines{fd: p[1]}
		for i := range written {
			fmt.Fprintf(l, "line %d\n", i)
		}
		from := bufio.NewReader(in)
		if _, err := from.Discard(filled); err != nil {
			t.Fatal(err)
		}
		missing := regexp.MustCompile(`^goccl: (\d+) lines`)
		last := -1
		for i := 0; ; i++ {
			line, err := from.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if m := missing.FindStringSubmatch(line); m != nil {
				if n, _ := strconv.Atoi(m[1]); n+i != written {
					t.Errorf("%d lines are said to be missing of %d, and %d have come", n, written, i)
				}
				break
			}
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(line, "line "), "\n"))
			if err != nil || n <= last {
				t.Fatalf("%q after line %d", line, last)
			}
			last = n
		}
		unix.Close(p[1])
	}
}
