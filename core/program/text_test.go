package program

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

func TestTextIsReadAgain(t *testing.T) {
	again := func(p Program) {
		t.Helper()
		text := p.Text()
		got, err := Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(got, p) {
			t.Fatalf("%v\nbecame\n%v", p, got)
		}
		if !bytes.Equal(got.Text(), text) || got.Digest() != p.Digest() {
			t.Fatalf("the text of %s is another", text)
		}
	}
	for _, make := range written {
		p := make(4, 2)
		for i := range p.Moves {
			p.Moves[i].Line = "a.py:1"
		}
		p.MinBytes, p.MaxBytes, p.PerHost, p.AnyOrder = 4, 1<<40, 2, true
		again(p)
	}
	for seed := range uint64(50) {
		again(randomProgram(rand.New(rand.NewPCG(seed, 3))))
	}
}

// A symmetric program is written once for all ranks.
func TestSymmetricText(t *testing.T) {
	p := Program{Name: "two_shot", Collective: plan.AllReduce, Ranks: 200, In: 400, Out: 400,
		Scratch: 400}
	for d := 1; d < p.Ranks; d++ {
		for me := range p.Ranks {
			to := (me + d) % p.Ranks
			p.copy(at(to, Scratch, 2*me, 2), at(me, Input, 2*to, 2))
		}
	}
	for me := range p.Ranks {
		var to, from []Place
		for d := range p.Ranks {
			r := (me + d) % p.Ranks
			to = append(to, at(r, Output, 2*me, 2))
			if d == 0 {
				from = append(from, at(me, Input, 2*me, 2))
			} else {
				from = append(from, at(me, Scratch, 2*r, 2))
			}
		}
		p.reduce(to, from...)
	}
	text := p.Text()
	if len(text) > 40_000 {
		t.Errorf("the text has %d bytes", len(text))
	}
	got, err := Parse(text)
	if err != nil || !reflect.DeepEqual(got, p) {
		t.Fatalf("it is not read again: %v", err)
	}
	if _, err := Check(got); err != nil {
		t.Error(err)
	}
}

func TestDigest(t *testing.T) {
	p, q := twoShot(4, 1), twoShot(4, 1)
	q.Name, q.Moves[0].Line = "another", "x.py:2"
	if p.Digest() != q.Digest() {
		t.Error("a name and a line count")
	}
	seen := map[[32]byte]bool{p.Digest(): true}
	for i, change := range []func(p *Program){
		func(p *Program) { p.Moves[0], p.Moves[1] = p.Moves[1], p.Moves[0] },
		func(p *Program) { p.Scratch++ },
		func(p *Program) { p.AnyOrder = true },
		func(p *Program) { p.MaxBytes = 1 },
		func(p *Program) { p.PerHost = 1 },
		func(p *Program) { p.Collective = plan.Custom },
	} {
		q := twoShot(4, 1)
		change(&q)
		if seen[q.Digest()] {
			t.Errorf("change %d does not count", i)
		}
		seen[q.Digest()] = true
	}
}

const someText = `{"format": "goccl.plan/1", "name": "x", "collective": "allreduce", "ranks": 2,
"chunks": {"in": 1, "out": 1}, "moves": [
{"to": [[0, "o", 0, 1], [1, "o", 0, 1]], "from": [[0, "i", 0, 1], [1, "i", 0, 1]], "line": "x:1"}]}`

func TestParseRefuses(t *testing.T) {
	if p, err := Parse([]byte(someText)); err != nil {
		t.Fatal(err)
	} else if _, err := Check(p); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, by, want string }{
		{"}]}", "}]", "the text ends too early"},
		{someText, "", "the text ends too early"},
		{someText, "[]", "an object must be here, not ["},
		{someText, "7", "an object must be here, not 7"},
		{"}]}", "}]} {}", "something follows"},
		{"}]}", "}]} x", "something follows"},
		{"{", "\xef\xbb\xbf{", "byte order mark"},
		{"{", "{\x00", "not UTF-8"},
		{`"x",`, "\"\xff\",", "not UTF-8"},
		{`"x:1"`, `"\u0007"`, ""}, // Check's
		{"plan/1", "plan/2", `the format is "goccl.plan/2"`},
		{`"name": "x"`, `"name": "x", "name": "y"`, `field "name" comes twice`},
		{`"name": "x", `, "", `field "name" is missing`},
		{`"name": "x"`, `"name": 1`, "in name: a string must be here, not 1"},
		{`"name": "x"`, `"nome": "x"`, `in nome: there is no field "nome"`},
		{"allreduce", "allsum", `there is no collective "allsum"`},
		{`"ranks": 2`, `"ranks": -2`, "line 1, column"},
		{`"ranks": 2`, `"ranks": 2.0`, "a whole number in 0..2^53 must be here, not 2.0"},
		{`"ranks": 2`, `"ranks": 2e0`, "not 2e0"},
		{`"ranks": 2`, `"ranks": 9007199254740993`, "not 9007199254740993"},
		{`"ranks": 2`, `"ranks": 18446744073709551616`, "not 18446744073709551616"},
		{`"ranks": 2`, `"ranks": NaN`, "not JSON: invalid character 'N'"},
		{`"ranks": 2`, `"ranks": "2"`, "a whole number"},
		{`"ranks": 2`, `"ranks": ` + strings.Repeat("[", 100), "a whole number"},
		{`"ranks": 2`, `"ranks": 2, "symmetric": 1`, "true or false must be here, not 1"},
		{`"ranks": 2`, `"ranks": 2, "order": "mine"`, `the order is "mine"`},
		{`"ranks": 2`, `"ranks": 2, "bytes": {"most": 1}`, `there is no field "most"`},
		{`"out": 1`, `"uot": 1`, `there is no field "uot"`},
		{`[0, "o", 0, 1]`, `[0, "o", 0]`, "in moves[0].to[0]: a place has 4 items"},
		{`[0, "o", 0, 1]`, `[0, "o", 0, 1, 1]`, "a place has 4 items"},
		{`[0, "o", 0, 1]`, `[0, "io", 0, 1]`, `there is no memory "io"`},
		{`[0, "o", 0, 1]`, `[0, "", 0, 1]`, `there is no memory ""`},
		{`[0, "o", 0, 1]`, `[0, "o", ["r", 0], 1]`, "the program is not symmetric"},
		{`[0, "o", 0, 1]`, `[0, "o", ["q", 0], 1]`, `"q" must be "r"`},
		{`[0, "o", 0, 1]`, `[0, "o", ["r", 0, 1], 1]`, "the end of the chunk"},
	} {
		text := strings.Replace(someText, c.old, c.by, 1)
		p, err := Parse([]byte(text))
		if err == nil && c.want == "" {
			_, err = Check(p)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: want an error with %q, got %v", c.by, c.old, c.want, err)
		}
	}
}

func TestSymmetricRefuses(t *testing.T) {
	for _, c := range []struct{ ranks, place string }{
		{"0", `[0, "o", 0, 1]`}, {"5000", `[0, "o", 0, 1]`}, {"2", `[2, "o", 0, 1]`},
		{"2", `[-2, "o", 0, 1]`}, {"2", `[0, "o", ["r", 0], 65537]`},
	} {
		text := strings.Replace(someText, `"ranks": 2`, `"symmetric": true, "ranks": `+c.ranks, 1)
		text = strings.Replace(text, `[0, "o", 0, 1]`, c.place, 1)
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), "symmetric") &&
			!strings.Contains(err.Error(), "offsets") {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// FuzzParse reads any text. What it takes it writes and reads again, and plans if it is right.
func FuzzParse(f *testing.F) {
	f.Add([]byte(someText))
	f.Add([]byte(strings.Replace(someText, `"ranks": 2`, `"symmetric": true, "ranks": 3`, 1)))
	for _, make := range written {
		p := make(3, 1)
		f.Add(p.Text())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		c, err := Check(p)
		if err != nil {
			return
		}
		again, err := Parse(c.Text())
		if err != nil || again.Digest() != p.Digest() {
			t.Fatalf("%v, of %s", err, c.Text())
		}
		if p.Ranks > 8 || p.each() > 64 {
			return
		}
		j := &job{Program: p, elements: []int64{100}, chunk: 128, slots: 3, ahead: 1,
			anyOrder: !c.Canonical, scratch: 1 << 30}
		if err := j.prove(c, nil); err != nil {
			t.Fatal(fmt.Errorf("%w, of %s", err, c.Text()))
		}
	})
}
