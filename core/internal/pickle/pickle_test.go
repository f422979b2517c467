package pickle

import (
	"bytes"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

var values = []struct {
	value any
	repr  string // Python's, in ASCII
}{
	{nil, "None"},
	{true, "True"},
	{false, "False"},
	{0, "0"},
	{-1, "-1"},
	{math.MaxInt32, "2147483647"},
	{math.MinInt32, "-2147483648"},
	{int64(math.MaxInt32 + 1), "2147483648"},
	{int64(math.MinInt32 - 1), "-2147483649"},
	{int64(1)<<39 - 1, "549755813887"},
	{int64(1) << 39, "549755813888"},
	{-(int64(1) << 39), "-549755813888"},
	{int64(math.MaxInt64), "9223372036854775807"},
	{int64(math.MinInt64), "-9223372036854775808"},
	{uint64(math.MaxInt64), "9223372036854775807"},
	{uint64(math.MaxUint64), "18446744073709551615"},
	{"", "''"},
	{"größer\n'", `"gr\xf6\xdfer\\n'"`}, // as Python escapes it
	{List{}, "[]"},
	{List{1, List{2}}, "[1, [2]]"},
	{Tuple{}, "()"},
	{Tuple{"a", nil, 3}, "('a', None, 3)"},
	{Dict{}, "{}"},
	{Dict{"b", 1, "a", Dict{"c", List{false}}}, "{'b': 1, 'a': {'c': [False]}}"},
}

// Python reads what is written.
func TestPythonReads(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no Python")
	}
	var in bytes.Buffer
	for _, v := range values {
		in.Write(Marshal(v.value))
	}
	cmd := exec.Command(python, "-c", "import pickle, sys\nfor _ in range(int(sys.argv[1])): "+
		"print(repr(pickle.load(sys.stdin.buffer)).encode('unicode_escape').decode())",
		strconv.Itoa(len(values)))
	cmd.Stdin = &in
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(values) {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	for i, v := range values {
		if lines[i] != v.repr {
			t.Errorf("%#v is read as %s, want %s", v.value, lines[i], v.repr)
		}
	}
}

func TestOtherTypes(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a float is written")
		}
	}()
	Marshal(List{1.5})
}
