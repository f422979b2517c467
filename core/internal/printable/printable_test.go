package printable

import (
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for _, test := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 10, ""},
		{"plain text, \"quoted\" \\ é 漢字", 100, "plain text, \"quoted\" \\ é 漢字"},
		{"two\nlines\r\tand\x00more", 100, `two\nlines\r\tand\x00more`},
		{"\x1b[31mred\x1b]0;title\a", 100, `\x1b[31mred\x1b]0;title\a`},
		{"\u009b31m", 100, `\u009b31m`},                       // the terminal's other escape
		{"a\u202eb\u2028\ufeff", 100, `a\u202eb\u2028\ufeff`}, // turns a line round, ends one
		{"\xff\xc3(", 100, `\xff\xc3(`},
		{"\ufffd", 100, "\ufffd"},
		{"12345", 5, "12345"},
		{"123456", 5, "12..."},
		{"1\n2345", 5, "1..."}, // an escape is not cut
		{"éééé", 7, "éé..."},
		{"123456", 2, ".."},
		{"123456", 0, ""},
	} {
		if got := Text(test.text, test.limit); got != test.want {
			t.Errorf("%q in %d bytes: %q, want %q", test.text, test.limit, got, test.want)
		}
	}
}

func TestError(t *testing.T) {
	err := Error(errors.Join(io.EOF, errors.New("\x1b"+strings.Repeat("x", 100))), 20)
	if !errors.Is(err, io.EOF) || err.Error() != `EOF\n\x1bxxxxxxxx...` {
		t.Fatalf("%q", err)
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[0m\xff\u202e", 5)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 0 || limit > 1<<20 {
			t.Skip("not a limit of a text")
		}
		got := Text(s, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Fatalf("%q of %d bytes in %d", got, len(got), limit)
		}
		if i := strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("%q is not printable at %d", got, i)
		}
		if again := Text(got, limit); again != got {
			t.Fatalf("%q has become %q", got, again)
		}
	})
}

func TestRanges(t *testing.T) {
	for want, numbers := range map[string][]int{"": nil, "7": {7}, "0-3,8": {0, 1, 2, 3, 8},
		"1,3,5-6": {1, 3, 5, 6}, "2-3,1": {2, 3, 1}} {
		if got := Ranges(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}

func TestGrouped(t *testing.T) {
	got := Grouped(6, func(rank int) (key, name string, ok bool) {
		return []string{"x", "y", "x", "x", "", "y"}[rank], []string{"X", "Y", "?", "?", "", "?"}[rank],
			rank != 4
	})
	if want := "X: 0,2-3; Y: 1,5"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
