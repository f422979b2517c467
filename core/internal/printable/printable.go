// Package printable writes what errors and logs tell: foreign texts, made fit for them, and lists.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mark stands at the end of a text that has been cut.
const mark = "..."

// Text returns a text of another process in at most limit bytes of one line. Runes that are not
// printable, which a terminal may obey, and bytes that are no UTF-8 are written as Go escapes them.
// A text that is printable and short enough stays as it is, so that to call Text again changes
// nothing.
func Text(s string, limit int) string {
	var b strings.Builder
	fits := 0 // the length at which a mark still has room
	for i, r := range s {
		n := utf8.RuneLen(r)
		bad := r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError))
		var piece string
		switch {
		case bad:
			piece = fmt.Sprintf(`\x%02x`, s[i])
		case unicode.IsPrint(r):
			piece = s[i : i+n]
		default:
			quoted := fmt.Sprintf("%+q", r)
			piece = quoted[1 : len(quoted)-1]
		}
		if b.Len()+len(piece) > limit {
			return b.String()[:fits] + mark[:min(len(mark), limit-fits)]
		}
		b.WriteString(piece)
		if b.Len()+len(mark) <= limit {
			fits = b.Len()
		}
	}
	return b.String()
}

// Error is an error whose text is [Text] of another's, which it wraps.
func Error(err error, limit int) error { return &cleaned{err, limit} }

type cleaned struct {
	error
	limit int
}

func (c *cleaned) Error() string { return Text(c.error.Error(), c.limit) }

func (c *cleaned) Unwrap() error { return c.error }

// Ranges writes a list of numbers with runs of them put together, as in "0-3,8".
func Ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i + 1
		for j < len(numbers) && numbers[j] == numbers[j-1]+1 {
			j++
		}
		text := strconv.Itoa(numbers[i])
		if j > i+1 {
			text += "-" + strconv.Itoa(numbers[j-1])
		}
		parts = append(parts, text)
		i = j
	}
	return strings.Join(parts, ",")
}

// Grouped puts ranks with the same key together, under the name that the first of them has, as in
// "node-a: 0-3; node-b: 4-7". Those that are not ok are left out.
func Grouped(size int, of func(rank int) (key, name string, ok bool)) string {
	var keys []string
	names, ranks := map[string]string{}, map[string][]int{}
	for rank := range size {
		key, name, ok := of(rank)
		if !ok {
			continue
		}
		if ranks[key] == nil {
			keys = append(keys, key)
			names[key] = name
		}
		ranks[key] = append(ranks[key], rank)
	}
	var parts []string
	for _, key := range keys {
		parts = append(parts, names[key]+": "+Ranges(ranks[key]))
	}
	return strings.Join(parts, "; ")
}
