package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program/internal/scan"
)

// Format is the name of the format of files of programs, which each of them gives.
const Format = "goccl.plan/1"

// MostText is how long a file may be.
const MostText = scan.MostText

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
	if err := scan.Check(text); err != nil {
		return Program{}, err
	}
	p := parser{Scanner: scan.New(text)}
	err := p.program()
	if err == nil {
		err = p.End()
	}
	if err == nil {
		err = p.expand()
	}
	if err != nil {
		return Program{}, p.Where(err)
	}
	return p.made, nil
}

// parser reads a program token by token.
type parser struct {
	*scan.Scanner
	made Program

	symmetric bool
	moves     []relative
}

// relative is a move whose places may be relative to a rank.
type relative struct {
	Move
	to, from []bool // which chunks are
}

// program reads all.
func (p *parser) program() error {
	m := &p.made
	format := ""
	required := []string{"format", "name", "collective", "ranks", "chunks", "moves"}
	err := p.Object(required, func(name string) (bool, error) {
		switch name {
		case "format":
			err := p.String(&format)
			if err == nil && format != Format {
				err = fmt.Errorf("the format is %q; it must be %q", format, Format)
			}
			return true, err
		case "name":
			return true, p.String(&m.Name)
		case "collective":
			return true, p.collective()
		case "ranks":
			return true, p.Number(&m.Ranks, false)
		case "root":
			return true, p.Number(&m.Root, false)
		case "per_host":
			return true, p.Number(&m.PerHost, false)
		case "symmetric":
			return true, p.Bool(&p.symmetric)
		case "order":
			return true, p.order()
		case "chunks":
			return true, p.Object([]string{"in", "out"}, func(name string) (bool, error) {
				to, ok := map[string]*int{"in": &m.In, "out": &m.Out, "scratch": &m.Scratch}[name]
				if !ok {
					return false, nil
				}
				return true, p.Number(to, false)
			})
		case "bytes":
			return true, p.bytes()
		case "moves":
			return true, p.Array(func(i int) error {
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
	if err := p.String(&name); err != nil {
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
	if err := p.String(&name); err != nil {
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
	err := p.Object(nil, func(name string) (bool, error) {
		switch name {
		case "min":
			return true, p.Number(&least, false)
		case "max":
			return true, p.Number(&most, false)
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
		return p.Array(func(int) error {
			at, is, err := p.place()
			*to, *relative = append(*to, at), append(*relative, is)
			return err
		})
	}
	err := p.Object([]string{"to", "from"}, func(name string) (bool, error) {
		switch name {
		case "to":
			return true, places(&m.To, &m.to)
		case "from":
			return true, places(&m.From, &m.from)
		case "line":
			return true, p.String(&m.Line)
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
	err = p.Array(func(i int) error {
		n++
		switch i {
		case 0:
			return p.Number(&at.Rank, true)
		case 1:
			name := ""
			if err := p.String(&name); err != nil {
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
			return p.Number(&at.Count, false)
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
	t, err := p.Next()
	if err != nil {
		return false, err
	}
	if t != json.Delim('[') {
		return false, scan.WholeNumber(t, to, false)
	}
	r := ""
	if err = p.String(&r); err == nil && r != "r" {
		err = fmt.Errorf(`%q must be "r"`, r)
	}
	if err == nil {
		err = p.Number(to, true)
	}
	if err == nil {
		err = p.Begin(']', "the end of the chunk")
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
