package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccl/goccl/core/plan"
)

// Format is the name of the format of files of programs, which each of them gives.
const Format = "goccl.plan/1"

// MostText is how long a file may be.
const MostText = 64 << 20

// mostNumber is up to where all JSON readers have the same numbers.
const mostNumber = 1 << 53

// collectives are those that programs may be of, by name.
var collectives = func() map[string]plan.Collective {
	all := map[string]plan.Collective{}
	for _, c := range []plan.Collective{plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather,
		plan.ReduceScatter, plan.Gather, plan.Scatter, plan.AllToAll, plan.Custom} {
		all[c.String()] = c
	}
	return all
}()

// Parse reads a program from the text of a file. The error says what is wrong where. It does not
// [Check] the program.
func Parse(text []byte) (Program, error) {
	switch {
	case len(text) > MostText:
		return Program{}, fmt.Errorf("the text has %d bytes; %d are allowed", len(text), MostText)
	case bytes.HasPrefix(text, []byte("\xef\xbb\xbf")):
		return Program{}, errors.New("the text begins with a byte order mark; it must be plain UTF-8")
	case !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0:
		return Program{}, errors.New("the text is not UTF-8")
	}
	p := parser{text: text, Decoder: json.NewDecoder(bytes.NewReader(text))}
	p.UseNumber()
	err := p.program()
	if err == nil {
		if _, err = p.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else {
			err = errors.New("something follows the end of the program")
		}
	}
	if err == nil {
		err = p.expand()
	}
	if err != nil {
		line, column := p.position()
		return Program{}, fmt.Errorf("line %d, column %d%s: %w", line, column, p.path(), err)
	}
	return p.made, nil
}

// parser reads a program token by token.
type parser struct {
	*json.Decoder
	text []byte
	made Program
	at   []string // in which field, and in which item

	symmetric bool
	moves     []relative
}

// relative is a move whose places may be relative to a rank.
type relative struct {
	Move
	to, from []bool // which chunks are
}

// position is how far the text has been read.
func (p *parser) position() (line, column int) {
	before := p.text[:min(int(p.InputOffset()), len(p.text))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

func (p *parser) path() string {
	if len(p.at) == 0 {
		return ""
	}
	return ", in " + strings.TrimPrefix(strings.Join(p.at, ""), ".")
}

// in reads what a field or an item holds.
func (p *parser) in(name string, read func() error) error {
	p.at = append(p.at, name)
	err := read()
	if err == nil {
		p.at = p.at[:len(p.at)-1]
	}
	return err
}

// next is the next token. What is no JSON is told as such.
func (p *parser) next() (json.Token, error) {
	t, err := p.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("the text ends too early")
	case err != nil:
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	return t, nil
}

// begin reads a delimiter.
func (p *parser) begin(d json.Delim, what string) error {
	t, err := p.next()
	if err == nil && t != d {
		err = fmt.Errorf("%s must be here, not %v", what, t)
	}
	return err
}

// object reads an object, of which no field may come twice; field reads the value of one, and
// reports whether there is such a field.
func (p *parser) object(required []string, field func(name string) (bool, error)) error {
	if err := p.begin('{', "an object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.More() {
		t, err := p.next()
		if err != nil {
			return err
		}
		name := fmt.Sprint(t)
		if seen[name] {
			return fmt.Errorf("field %q comes twice", name)
		}
		seen[name] = true
		if err := p.in("."+name, func() error {
			known, err := field(name)
			if err == nil && !known {
				err = fmt.Errorf("there is no field %q", name)
			}
			return err
		}); err != nil {
			return err
		}
	}
	if _, err := p.next(); err != nil {
		return err
	}
	for _, name := range required {
		if !seen[name] {
			return fmt.Errorf("field %q is missing", name)
		}
	}
	return nil
}

// array reads an array; item reads one of its items.
func (p *parser) array(item func(i int) error) error {
	if err := p.begin('[', "an array"); err != nil {
		return err
	}
	for i := 0; p.More(); i++ {
		if err := p.in(fmt.Sprintf("[%d]", i), func() error { return item(i) }); err != nil {
			return err
		}
	}
	_, err := p.next()
	return err
}

func (p *parser) string(to *string) error {
	t, err := p.next()
	if err != nil {
		return err
	}
	s, ok := t.(string)
	if !ok {
		return fmt.Errorf("a string must be here, not %v", t)
	}
	*to = s
	return nil
}

// number reads a whole number of at least -most, or 0 where it must not be negative.
func (p *parser) number(to *int, negative bool) error {
	t, err := p.next()
	if err != nil {
		return err
	}
	return wholeNumber(t, to, negative)
}

func wholeNumber(t json.Token, to *int, negative bool) error {
	least := int64(0)
	if negative {
		least = -mostNumber
	}
	n, ok := t.(json.Number)
	v, err := strconv.ParseInt(string(n), 10, 64)
	if !ok || err != nil || v < least || v > mostNumber {
		return fmt.Errorf("a whole number in %d..2^53 must be here, not %v", least, t)
	}
	*to = int(v)
	return nil
}

func (p *parser) bool(to *bool) error {
	t, err := p.next()
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

// program reads all.
func (p *parser) program() error {
	m := &p.made
	format := ""
	required := []string{"format", "name", "collective", "ranks", "chunks", "moves"}
	err := p.object(required, func(name string) (bool, error) {
		switch name {
		case "format":
			err := p.string(&format)
			if err == nil && format != Format {
				err = fmt.Errorf("the format is %q; it must be %q", format, Format)
			}
			return true, err
		case "name":
			return true, p.string(&m.Name)
		case "collective":
			return true, p.collective()
		case "ranks":
			return true, p.number(&m.Ranks, false)
		case "root":
			return true, p.number(&m.Root, false)
		case "per_host":
			return true, p.number(&m.PerHost, false)
		case "symmetric":
			return true, p.bool(&p.symmetric)
		case "order":
			return true, p.order()
		case "chunks":
			return true, p.object([]string{"in", "out"}, func(name string) (bool, error) {
				to, ok := map[string]*int{"in": &m.In, "out": &m.Out, "scratch": &m.Scratch}[name]
				if !ok {
					return false, nil
				}
				return true, p.number(to, false)
			})
		case "bytes":
			return true, p.bytes()
		case "moves":
			return true, p.array(func(i int) error {
				if i >= MostMoves {
					return fmt.Errorf("there are more than %d moves", MostMoves)
				}
				return p.move()
			})
		}
		return false, nil
	})
	return err
}

func (p *parser) collective() error {
	name := ""
	if err := p.string(&name); err != nil {
		return err
	}
	c, ok := collectives[name]
	if !ok {
		return fmt.Errorf("there is no collective %q", name)
	}
	p.made.Collective = c
	return nil
}

func (p *parser) order() error {
	name := ""
	if err := p.string(&name); err != nil {
		return err
	}
	if name != "canonical" && name != "plan" {
		return fmt.Errorf(`the order is %q; it must be "canonical" or "plan"`, name)
	}
	p.made.AnyOrder = name == "plan"
	return nil
}

func (p *parser) bytes() error {
	least, most := 0, 0
	err := p.object(nil, func(name string) (bool, error) {
		switch name {
		case "min":
			return true, p.number(&least, false)
		case "max":
			return true, p.number(&most, false)
		}
		return false, nil
	})
	p.made.MinBytes, p.made.MaxBytes = int64(least), int64(most)
	return err
}

// move reads one move.
func (p *parser) move() error {
	m := relative{}
	places := func(to *[]Place, relative *[]bool) error {
		return p.array(func(int) error {
			at, is, err := p.place()
			*to, *relative = append(*to, at), append(*relative, is)
			return err
		})
	}
	err := p.object([]string{"to", "from"}, func(name string) (bool, error) {
		switch name {
		case "to":
			return true, places(&m.To, &m.to)
		case "from":
			return true, places(&m.From, &m.from)
		case "line":
			return true, p.string(&m.Line)
		}
		return false, nil
	})
	p.moves = append(p.moves, m)
	return err
}

// place reads [rank, space, chunk, count], of which the chunk may be relative to the rank: ["r",
// k].
func (p *parser) place() (at Place, relative bool, err error) {
	n := 0
	err = p.array(func(i int) error {
		n++
		switch i {
		case 0:
			return p.number(&at.Rank, true)
		case 1:
			name := ""
			if err := p.string(&name); err != nil {
				return err
			}
			space := strings.Index("ios", name)
			if len(name) != 1 || space < 0 {
				return fmt.Errorf(`there is no memory %q; there are "i", "o" and "s"`, name)
			}
			at.Space = Space(space)
		case 2:
			relative, err = p.chunk(&at.Chunk)
			return err
		case 3:
			return p.number(&at.Count, false)
		default:
			return errors.New("a place has 4 items: rank, memory, chunk and count")
		}
		return nil
	})
	if err == nil && n < 4 {
		err = errors.New("a place has 4 items: rank, memory, chunk and count")
	}
	return at, relative, err
}

// chunk reads a number, or ["r", k].
func (p *parser) chunk(to *int) (relative bool, err error) {
	t, err := p.next()
	if err != nil {
		return false, err
	}
	if t != json.Delim('[') {
		return false, wholeNumber(t, to, false)
	}
	r := ""
	if err = p.string(&r); err == nil && r != "r" {
		err = fmt.Errorf(`%q must be "r"`, r)
	}
	if err == nil {
		err = p.number(to, true)
	}
	if err == nil {
		err = p.begin(']', "the end of the chunk")
	}
	return true, err
}

// expand makes the moves of all ranks.
func (p *parser) expand() error {
	n := p.made.Ranks
	if !p.symmetric {
		for i, m := range p.moves {
			for _, relative := range append(m.to, m.from...) {
				if relative {
					return fmt.Errorf("moves[%d] has a chunk relative to a rank; the program is not symmetric", i)
				}
			}
			p.made.Moves = append(p.made.Moves, m.Move)
		}
		return nil
	}
	if n < 1 || n > MostRanks || len(p.moves) > MostMoves/n {
		return fmt.Errorf("a symmetric program of %d ranks and %d moves: there may be %d ranks, and %d "+
			"moves of all ranks", n, len(p.moves), MostRanks, MostMoves)
	}
	for i, m := range p.moves {
		for _, places := range [][]Place{m.To, m.From} {
			for _, at := range places {
				if at.Rank <= -n || at.Rank >= n || at.Count > MostChunks {
					return fmt.Errorf("moves[%d] has rank %d and %d chunks; ranks are offsets in %d..%d, and "+
						"there are at most %d chunks", i, at.Rank, at.Count, 1-n, n-1, MostChunks)
				}
			}
		}
		for r := range n {
			p.made.Moves = append(p.made.Moves, Move{relativeTo(r, n, m.To, m.to),
				relativeTo(r, n, m.From, m.from), m.Line})
		}
	}
	return nil
}

// relativeTo are places that are relative to a rank.
func relativeTo(r, n int, places []Place, relative []bool) []Place {
	all := make([]Place, len(places))
	for i, at := range places {
		at.Rank = (r + at.Rank + n) % n
		if relative[i] {
			at.Chunk = ((r+at.Chunk%n)%n + n) % n * at.Count
		}
		all[i] = at
	}
	return all
}
