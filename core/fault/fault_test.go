package fault

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// What a peer tells of an error is kept as far as it makes sense, whatever the peer sends.
func TestDecode(t *testing.T) {
	g := NewGroup("test", []int{5, 3, 8}, []int{12, 13, 14})
	sent := g.Errorf(ErrTimeout, "not all came").Blaming(2, 1, -1)
	sent.Operation, sent.Sequence, sent.Calls = "barrier", 7, map[int]string{0: "a", 1: "b"}
	got := g.Decode(ErrTimeout, sent.Encode())
	if got.Error() != sent.Error() || got.Operation != "barrier" || got.Sequence != 7 ||
		!slices.Equal(got.Ranks, []int{1, 2}) || !maps.Equal(got.Calls, sent.Calls) ||
		got.GlobalRank(2) != 8 {
		t.Errorf("%+v", *got)
	}
	for payload, want := range map[string]string{
		"":                                   "it gave no reason",
		"no JSON":                            "it gave no reason",
		`{"Text":"a\u001b[31m"}`:             `a\x1b[31m`,
		`{"Text":"b","Ranks":[-1,3,1,1000]}`: "b",
		`{"Text":"c","Calls":{"9":"x","1":"\u0007"}}`: "c",
	} {
		e := g.Decode(ErrAborted, []byte(payload))
		if e.Text != want || len(e.Ranks) > 0 && !slices.Equal(e.Ranks, []int{1}) ||
			len(e.Calls) > 0 && !maps.Equal(e.Calls, map[int]string{1: `\a`}) {
			t.Errorf("%q: %+v", payload, *e)
		}
	}
	many := g.Errorf(ErrTimeout, "%s", strings.Repeat("<", 2*MaxText))
	for r := range 2 * maxRanks {
		many.Ranks = append(many.Ranks, 60_000+r)
	}
	many.Calls = map[int]string{
		0: strings.Repeat("\x00", MaxText), 1: strings.Repeat(`"`, MaxText), 2: "x",
	}
	if n := len(many.Encode()); n > 128<<10 {
		t.Errorf("a frame of %d bytes", n)
	}
}

func TestText(t *testing.T) {
	unnamed := NewGroup("", []int{0, 1}, []int{12, 13})
	named := NewGroup("g", []int{4, 7}, []int{12, 13})
	late := named.Errorf(ErrTimeout, "#3 barrier: late")
	for _, c := range []struct {
		e    *Error
		want string
	}{
		{Errorf(ErrInvalidArgument, "rank is %d", 7), "rank is 7"},
		{unnamed.Errorf(ErrSystem, "no memory"), "the communicator has failed: no memory"},
		{named.Errorf(ErrAborted, "why"),
			`communicator "g" has failed: why. ` + hints[ErrAborted]},
		{named.Errorf(ErrTimeout, "why").Ending("#3 barrier", ""),
			`communicator "g": #3 barrier failed: why. ` + hints[ErrTimeout]},
		{late.Ending("#3 barrier", "Its output holds no usable data"),
			`communicator "g": #3 barrier: late. Its output holds no usable data. ` +
				hints[ErrTimeout]},
		{Errorf(ErrSystem, "why.").Because("More").In(&named), "why. More"},
	} {
		if got := c.e.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if !errors.Is(c.e, c.e.Kind) {
			t.Errorf("%v is not of its kind", c.e)
		}
	}
	if got, want := named.Names(1), "rank 1 (global rank 7, pid 13)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := unnamed.Names(0, 1), "ranks 0 (pid 12), 1 (pid 13)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if e := Errorf(ErrSystem, "x").In(&named); e.Group != "g" || e.GlobalRank(1) != 7 {
		t.Errorf("%+v", e)
	}
}

// What is added to an error changes no other.
// TestTextsArePrintable makes errors of texts that a terminal would obey.
func TestTextsArePrintable(t *testing.T) {
	const bad, good = "a\x1b[2J\nb\xff", `a\x1b[2J\nb\xff`
	group := NewGroup(bad, []int{0}, nil)
	for _, e := range []*Error{Errorf(ErrSystem, "%s", bad), group.Errorf(ErrSystem, "%s", bad),
		From(errors.New(bad), ErrSystem, "%s", bad)} {
		if text := e.Error(); !strings.Contains(text, good) || strings.ContainsAny(text, "\x1b\n") {
			t.Errorf("%q", text)
		}
	}
}

func TestCopies(t *testing.T) {
	g := NewGroup("g", nil, []int{12, 13})
	e := g.Errorf(ErrMismatch, "why").Blaming(1)
	before := fmt.Sprintf("%+v", *e)
	e.Blaming(0).During("barrier", 3).Calling(map[int]string{0: "x"})
	e.Ending("call", "state").Because("y")
	if after := fmt.Sprintf("%+v", *e); after != before {
		t.Errorf("%s, was %s", after, before)
	}
}

func TestNumbersOfKinds(t *testing.T) {
	for n, kind := range kinds {
		if Number(kind) != uint8(n) || KindOf(uint8(n)) != kind {
			t.Errorf("%v has number %d, not %d", kind, Number(kind), n)
		}
	}
	if KindOf(200) != ErrInternal || Number(errors.New("?")) != 0 {
		t.Error("an unknown kind is not an internal error")
	}
}
