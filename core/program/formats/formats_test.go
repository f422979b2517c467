package formats

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
)

// Each text is read as what it is, and what is none is refused as a file of our own.
func TestFormats(t *testing.T) {
	own := `{"format": "goccl.plan/1", "name": "own", "collective": "alltoall", "ranks": 1,
		"chunks": {"in": 1, "out": 1}, "moves": [{"to": [[0,"o",0,1]], "from": [[0,"i",0,1]]}]}`
	for name, want := range map[string]string{
		"":                                       "own",
		"../mscclpp/testdata/plans/reduce.json":  "reduce",
		"../mscclpp/testdata/made/old_rpkt.json": "rpkt",
		"../msccl/testdata/steps.xml":            "steps",
	} {
		text := []byte(own)
		if name != "" {
			var err error
			if text, err = os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
		}
		for _, before := range []string{"", " \r\n\t"} {
			p, err := Read(append([]byte(before), text...))
			if name == "../msccl/testdata/steps.xml" && before != "" {
				continue // what begins with a declaration begins with it
			}
			if err != nil || p.Name != want {
				t.Errorf("%s is %q, not %q: %v", name, p.Name, want, err)
			}
		}
	}
	for _, text := range []string{"", "{", "{}", "[]", "x", "\xff", `{"gpu": []}`,
		`{"format": "goccl.plan/1", "gpus": []}`} {
		if _, err := Read([]byte(text)); err == nil || strings.Contains(err.Error(), "gpus are") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Read([]byte(`{"gpus": [], "format": "x"}`)); err == nil ||
		!strings.Contains(err.Error(), `"name" is missing`) {
		t.Error(err)
	}
}

// FuzzRead reads any text as what it seems to be.
func FuzzRead(f *testing.F) {
	for _, text := range []string{`{"gpus": []}`, `<algo/>`, `{"format": "goccl.plan/1"}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Read(text)
		if err == nil && p.Ranks == 0 {
			t.Error("no ranks")
		}
	})
}

// What GoCCL does by itself, written as a plan of MSCCL++, is read again, and does the same.
func TestPlansThatWeWrite(t *testing.T) {
	algorithms := map[plan.Collective][]plan.Algorithm{
		plan.AllReduce: {plan.OneShot, plan.TwoShot}, plan.AllGather: {plan.Linear},
		plan.ReduceScatter: {plan.Linear}, plan.AllToAll: {plan.Linear}}
	for c, all := range algorithms {
		for _, a := range all {
			for n := 2; n <= 8; n++ {
				blocks := func(many bool) []int64 {
					if many {
						return slices.Repeat([]int64{1 << 10}, n)
					}
					return []int64{1 << 10}
				}
				q := plan.Params{Collective: c, Algorithm: a, Size: n, ElemSize: 4, Chunk: 1 << 16, Slots: 4,
					InBytes:  blocks(c == plan.ReduceScatter || c == plan.AllToAll),
					OutBytes: blocks(c == plan.AllGather || c == plan.AllToAll)}
				if a == plan.OneShot {
					q.OneShotMax = 1 << 20
				}
				p, err := program.Export("ours", q)
				if err != nil {
					t.Fatalf("%v by %v: %v", c, a, err)
				}
				text, err := program.MSCCLPP(p)
				if err != nil {
					t.Fatalf("%v by %v among %d: %v", c, a, n, err)
				}
				again, err := Read(text)
				if err != nil {
					t.Fatalf("%v by %v among %d: %v\n%s", c, a, n, err, text)
				}
				if again.Collective != c || !again.Canonical {
					t.Errorf("%v by %v among %d: %+v", c, a, n, again)
					continue
				}
				if _, _, err := again.Prove(1000); err != nil {
					t.Errorf("%v by %v among %d: %v", c, a, n, err)
				}
			}
		}
	}
}
