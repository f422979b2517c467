// Package scan reads JSON token by token, and says where what is wrong: line, column and field. It
// takes no more memory than what its users keep.
package scan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MostText is how long a text may be.
const MostText = 64 << 20

// MostNumber is up to where all JSON readers have the same numbers.
const MostNumber = 1 << 53

// Check refuses a text that is too long, or no plain UTF-8.
func Check(text []byte) error {
	switch {
	case len(text) > MostText:
		return fmt.Errorf("the text has %d bytes; %d are allowed", len(text), MostText)
	case bytes.HasPrefix(text, []byte("\xef\xbb\xbf")):
		return errors.New("the text begins with a byte order mark; it must be plain UTF-8")
	case !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0:
		return errors.New("the text is not UTF-8")
	}
	return nil
}

// Scanner reads a text.
type Scanner struct {
	*json.Decoder
	text []byte
	at   []string // in which field, and in which item
}

// New makes the scanner of a text that [Check] has taken.
func New(text []byte) *Scanner {
	s := &Scanner{text: text, Decoder: json.NewDecoder(bytes.NewReader(text))}
	s.UseNumber()
	return s
}

// Where adds to an error how far the text has been read.
func (s *Scanner) Where(err error) error {
	before := s.text[:min(int(s.InputOffset()), len(s.text))]
	path := ""
	if len(s.at) > 0 {
		path = ", in " + strings.TrimPrefix(strings.Join(s.at, ""), ".")
	}
	return fmt.Errorf("line %d, column %d%s: %w", bytes.Count(before, []byte("\n"))+1,
		len(before)-bytes.LastIndexByte(before, '\n'), path, err)
}

// End refuses what follows.
func (s *Scanner) End() error {
	if _, err := s.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the end of the program")
	}
	return nil
}

// In reads what a field or an item holds.
func (s *Scanner) In(name string, read func() error) error {
	s.at = append(s.at, name)
	err := read()
	if err == nil {
		s.at = s.at[:len(s.at)-1]
	}
	return err
}

// Next is the next token. What is no JSON is told as such.
func (s *Scanner) Next() (json.Token, error) {
	t, err := s.Token()
	return t, told(err)
}

// told says of an error of a decoder what it is.
func told(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the text ends too early")
	case err != nil:
		return fmt.Errorf("not JSON: %w", err)
	}
	return nil
}

// Begin reads a delimiter.
func (s *Scanner) Begin(d json.Delim, what string) error {
	t, err := s.Next()
	if err == nil && t != d {
		err = fmt.Errorf("%s must be here, not %v", what, t)
	}
	return err
}

// Object reads an object, of which no field may come twice; field reads the value of one, and
// reports whether there is such a field.
func (s *Scanner) Object(required []string, field func(name string) (bool, error)) error {
	if err := s.Begin('{', "an object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for s.More() {
		t, err := s.Next()
		if err != nil {
			return err
		}
		name := fmt.Sprint(t)
		if seen[name] {
			return fmt.Errorf("field %q comes twice", name)
		}
		seen[name] = true
		if err := s.In("."+name, func() error {
			known, err := field(name)
			if err == nil && !known {
				err = fmt.Errorf("there is no field %q", name)
			}
			return err
		}); err != nil {
			return err
		}
	}
	if _, err := s.Next(); err != nil {
		return err
	}
	for _, name := range required {
		if !seen[name] {
			return fmt.Errorf("field %q is missing", name)
		}
	}
	return nil
}

// Array reads an array; item reads one of its items.
func (s *Scanner) Array(item func(i int) error) error {
	if err := s.Begin('[', "an array"); err != nil {
		return err
	}
	for i := 0; s.More(); i++ {
		if err := s.In(fmt.Sprintf("[%d]", i), func() error { return item(i) }); err != nil {
			return err
		}
	}
	_, err := s.Next()
	return err
}

// String reads a string.
func (s *Scanner) String(to *string) error {
	t, err := s.Next()
	if err != nil {
		return err
	}
	v, ok := t.(string)
	if !ok {
		return fmt.Errorf("a string must be here, not %v", t)
	}
	*to = v
	return nil
}

// Number reads a whole number of at least -most, or 0 where it must not be negative.
func (s *Scanner) Number(to *int, negative bool) error {
	t, err := s.Next()
	if err != nil {
		return err
	}
	return WholeNumber(t, to, negative)
}

// WholeNumber reads one from a token.
func WholeNumber(t json.Token, to *int, negative bool) error {
	least := int64(0)
	if negative {
		least = -MostNumber
	}
	n, ok := t.(json.Number)
	v, err := strconv.ParseInt(string(n), 10, 64)
	if !ok || err != nil || v < least || v > MostNumber {
		return fmt.Errorf("a whole number in %d..2^53 must be here, not %v", least, t)
	}
	*to = int(v)
	return nil
}

// Bool reads true or false.
func (s *Scanner) Bool(to *bool) error {
	t, err := s.Next()
	if err != nil {
		return err
	}
	b, ok := t.(bool)
	if !ok {
		return fmt.Errorf("true or false must be here, not %v", t)
	}
	*to = b
	return nil
}

// Skip reads a value of any kind.
func (s *Scanner) Skip() error {
	var value json.RawMessage
	return told(s.Decode(&value))
}
