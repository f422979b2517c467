package program

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Text is the program as a file, in a form that equal programs have alike. It is symmetric where
// the moves are: where each Ranks moves in succession are one of each rank.
func (p *Program) Text() []byte {
	var t bytes.Buffer
	moves, symmetric := p.symmetric()
	if !symmetric {
		moves = make([]relative, len(p.Moves))
		for i, m := range p.Moves {
			moves[i].Move = m
		}
	}
	name, _ := json.Marshal(p.Name) // of a string that cannot fail
	fmt.Fprintf(&t, "{\n\"format\": %q,\n\"name\": %s,\n", Format, name)
	p.head(&t)
	if symmetric {
		t.WriteString("\"symmetric\": true,\n")
	}
	t.WriteString("\"moves\": [")
	for i := range moves {
		if i > 0 {
			t.WriteByte(',')
		}
		t.WriteByte('\n')
		moves[i].write(&t, true)
	}
	t.WriteString("\n]\n}\n")
	return t.Bytes()
}

// Digest stands for what the program does: its name and the lines of its moves do not count.
func (p *Program) Digest() [sha256.Size]byte {
	h := sha256.New()
	var t bytes.Buffer
	p.head(&t)
	for i := range p.Moves {
		m := relative{Move: p.Moves[i]}
		m.write(&t, false)
		t.WriteByte('\n')
		h.Write(t.Bytes())
		t.Reset()
	}
	h.Write(t.Bytes())
	return [sha256.Size]byte(h.Sum(nil))
}

// head writes what the program is, but for its name and its moves.
func (p *Program) head(t *bytes.Buffer) {
	fmt.Fprintf(t, "\"collective\": %q,\n\"ranks\": %d,\n", p.Collective.String(), p.Ranks)
	if p.Collective.Rooted() {
		fmt.Fprintf(t, "\"root\": %d,\n", p.Root)
	}
	fmt.Fprintf(t, "\"chunks\": {\"in\": %d, \"out\": %d, \"scratch\": %d},\n", p.In, p.Out, p.Scratch)
	if p.AnyOrder {
		t.WriteString("\"order\": \"plan\",\n")
	}
	if p.MinBytes > 0 || p.MaxBytes > 0 {
		fmt.Fprintf(t, "\"bytes\": {\"min\": %d", p.MinBytes)
		if p.MaxBytes > 0 {
			fmt.Fprintf(t, ", \"max\": %d", p.MaxBytes)
		}
		t.WriteString("},\n")
	}
	if p.PerHost > 0 {
		fmt.Fprintf(t, "\"per_host\": %d,\n", p.PerHost)
	}
}

// write writes a move, with its line or without.
func (m *relative) write(t *bytes.Buffer, line bool) {
	places := func(name string, places []Place, relative []bool) {
		fmt.Fprintf(t, "%q: [", name)
		for i, at := range places {
			if i > 0 {
				t.WriteString(", ")
			}
			chunk := strconv.Itoa(at.Chunk)
			if relative != nil && relative[i] {
				chunk = `["r", ` + chunk + "]"
			}
			fmt.Fprintf(t, "[%d, \"%c\", %s, %d]", at.Rank, "ios"[at.Space], chunk, at.Count)
		}
		t.WriteByte(']')
	}
	t.WriteByte('{')
	places("to", m.To, m.to)
	t.WriteString(", ")
	places("from", m.From, m.from)
	if line && m.Line != "" {
		text, _ := json.Marshal(m.Line)
		fmt.Fprintf(t, ", \"line\": %s", text)
	}
	t.WriteByte('}')
}

// symmetric are the moves of rank 0, from which those of all ranks follow, if they do.
func (p *Program) symmetric() ([]relative, bool) {
	n := p.Ranks
	if n < 2 || len(p.Moves) == 0 || len(p.Moves)%n != 0 {
		return nil, false
	}
	var all []relative
	for i := 0; i < len(p.Moves); i += n {
		first, second := &p.Moves[i], &p.Moves[i+1]
		if len(first.To) != len(second.To) || len(first.From) != len(second.From) {
			return nil, false
		}
		m := relative{Move: *first}
		m.To, m.to = offsets(n, first.To, second.To)
		m.From, m.from = offsets(n, first.From, second.From)
		for r := range n {
			got := &p.Moves[i+r]
			if got.Line != first.Line || !slices.Equal(relativeTo(r, n, m.To, m.to), got.To) ||
				!slices.Equal(relativeTo(r, n, m.From, m.from), got.From) {
				return nil, false
			}
		}
		all = append(all, m)
	}
	return all, true
}

// offsets are the places of a move of rank 0, given that of rank 1, and which chunks are relative
// to the rank.
func offsets(n int, first, second []Place) (places []Place, relative []bool) {
	places, relative = slices.Clone(first), make([]bool, len(first))
	for i, at := range first {
		if at.Chunk != second[i].Chunk {
			relative[i] = true
			places[i].Chunk /= max(at.Count, 1)
		}
	}
	return places, relative
}
