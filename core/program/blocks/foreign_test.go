package blocks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/blocks"
	"github.com/goccl/goccl/core/program/msccl"
	"github.com/goccl/goccl/core/program/mscclpp"
)

// texts are files of a folder.
func texts(t *testing.T, pattern string) map[string][]byte {
	all := map[string][]byte{}
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(name)] = text
	}
	return all
}

func parse(text []byte) (*blocks.Plan, error) {
	if bytes.HasPrefix(text, []byte("<")) {
		return msccl.Parse(text)
	}
	return mscclpp.Parse(text)
}

// runs runs a plan at random, so often.
func runs(p *blocks.Plan, seed uint64, times int) error {
	for i := range times {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		if err := newMachine(p, rnd, 1+rnd.IntN(5)).runAll(); err != nil {
			return fmt.Errorf("schedule %d: %w", i, err)
		}
	}
	return nil
}

// sources are all plans of the test data.
func sources(t *testing.T) map[string][]byte {
	all := map[string][]byte{}
	for _, pattern := range []string{"../mscclpp/testdata/plans/*.json",
		"../mscclpp/testdata/old/*.json", "../mscclpp/testdata/made/*.json", "../msccl/testdata/*.xml"} {
		for name, text := range texts(t, pattern) {
			all[filepath.Base(filepath.Dir(pattern))+"/"+name] = text
		}
	}
	return all
}

// What is converted gives the same on whatever schedule, and races show.
func TestSchedules(t *testing.T) {
	racy := map[string]string{
		"plans/reduce_tbg.json": "rank 0, block 1, op 6 (rres): reads scratch chunk 0 of rank 1, which " +
			"rank 1, block 0, op 0 (copy) writes, and nothing says which is first",
		// Rank 0 may store its sums after rank 4 has returned to its user.
		"old/allreduce_nvls.json": "rank 1, block 0, op 3 (glres): writes input or output of rank 0, " +
			"and nothing has that wait for it before its run ends",
		// A rank may put what the other one has not copied in the run before.
		"old/sendrecv.json": "rank 0, block 0, op 0 (pwsf): writes scratch chunk 1 of rank 1, which " +
			"rank 1, block 0, op 3 (copy) reads, and nothing says which is first",
	}
	for name, text := range sources(t) {
		p, err := parse(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, err = blocks.Convert(p)
		if want, ok := racy[name]; ok {
			if err == nil || err.Error() != want {
				t.Errorf("%s: %v, not %s", name, err, want)
			}
			if runs(p, 1, 200) == nil {
				t.Errorf("%s: the race does not show", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := runs(p, 1, 20); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// object is one of JSON.
type object = map[string]any

// list is an array of a field.
func list(o any, field string) []any {
	l, _ := o.(object)[field].([]any)
	return l
}

// changes are the ways in which plans are changed at random. Each reports whether it has.
var changes = map[string]func(rnd *rand.Rand, p object, tb, op object) bool{
	"halves": func(_ *rand.Rand, p, _, _ object) bool {
		double, _ := p["use_double_scratch_buffer"].(bool)
		p["use_double_scratch_buffer"] = false
		return double
	},
	"place": func(_ *rand.Rand, p, _, _ object) bool {
		p["inplace"] = !p["inplace"].(bool)
		return true
	},
	"drop": func(_ *rand.Rand, _, tb, op object) bool {
		ops := list(tb, "ops")
		for i := range ops {
			if o := ops[i].(object); fmt.Sprintf("%p", o) == fmt.Sprintf("%p", op) {
				tb["ops"] = append(append([]any{}, ops[:i]...), ops[i+1:]...)
				return op["name"] != "nop"
			}
		}
		return false
	},
	"swap": func(rnd *rand.Rand, _, tb, _ object) bool {
		ops := list(tb, "ops")
		if len(ops) < 2 {
			return false
		}
		i := rnd.IntN(len(ops) - 1)
		ops[i], ops[i+1] = ops[i+1], ops[i]
		return true
	},
	"index": func(rnd *rand.Rand, _, _, op object) bool {
		all := append(append([]any{}, list(op, "src_buff")...), list(op, "dst_buff")...)
		if len(all) == 0 {
			return false
		}
		at := all[rnd.IntN(len(all))].(object)
		n, _ := at["index"].(json.Number).Int64()
		at["index"] = n + 1 - 2*rnd.Int64N(2)
		return true
	},
	"buffer": func(rnd *rand.Rand, _, _, op object) bool {
		all := append(append([]any{}, list(op, "src_buff")...), list(op, "dst_buff")...)
		if len(all) == 0 {
			return false
		}
		at := all[rnd.IntN(len(all))].(object)
		if _, ok := at["type"]; ok {
			at["type"] = []string{"i", "o", "s"}[rnd.IntN(3)]
			return true
		}
		if n, ok := at["buffer_id"]; ok {
			k, _ := n.(json.Number).Int64()
			at["buffer_id"] = k + 1
			return true
		}
		return false
	},
	"channel": func(rnd *rand.Rand, _, _, op object) bool {
		ids := list(op, "channel_ids")
		if len(ids) == 0 {
			return false
		}
		if len(ids) == 1 || rnd.IntN(2) == 0 {
			op["channel_ids"] = ids[1:]
			return true
		}
		op["channel_ids"] = append(ids[1:len(ids):len(ids)], ids[1])
		return true
	},
	"relax": func(_ *rand.Rand, _, _, op object) bool {
		name, _ := op["name"].(string)
		op["name"] = map[string]string{"signal": "rlxsignal", "wait": "rlxwait"}[name]
		return name == "signal" || name == "wait"
	},
	"scratch": func(rnd *rand.Rand, p, _, _ object) bool {
		for _, g := range list(p, "gpus") {
			n, _ := g.(object)["scratch_chunks"].(json.Number).Int64()
			if n == 0 {
				return false
			}
			g.(object)["scratch_chunks"] = n - 1
		}
		return true
	},
	"semaphore": func(rnd *rand.Rand, p, _, op object) bool {
		g := list(p, "gpus")[rnd.IntN(len(list(p, "gpus")))].(object)
		all := list(g, "semaphores")
		if len(all) == 0 {
			return false
		}
		s := all[rnd.IntN(len(all))].(object)
		n, _ := s["init_value"].(json.Number).Int64()
		s["init_value"] = max(0, n+1-2*rnd.Int64N(2))
		return true
	},
	"barrier": func(rnd *rand.Rand, _, _, op object) bool {
		if n, ok := op["num_threadblocks"].(json.Number); ok {
			k, _ := n.Int64()
			op["num_threadblocks"] = k + 1 - 2*rnd.Int64N(2)
			return true
		}
		return false
	},
}

// changed is a text with one change.
func changed(t *testing.T, text []byte, kind string, rnd *rand.Rand) ([]byte, object) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	p := object{}
	if err := d.Decode(&p); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		g := list(p, "gpus")[rnd.IntN(len(list(p, "gpus")))]
		blocks := list(g, "threadblocks")
		if len(blocks) == 0 {
			continue
		}
		tb := blocks[rnd.IntN(len(blocks))].(object)
		ops := list(tb, "ops")
		if len(ops) == 0 {
			continue
		}
		op := ops[rnd.IntN(len(ops))].(object)
		if body := list(op, "ops"); len(body) > 0 {
			tb = op
			op = body[rnd.IntN(len(body))].(object)
		}
		if changes[kind](rnd, p, tb, op) {
			to, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			return to, op
		}
	}
	return nil, nil
}

// Of plans with one change those that are not refused are right on whatever schedule, and their
// programs are. Others are refused with a place.
func TestChangedPlans(t *testing.T) {
	refused, taken := map[string]int{}, map[string]int{}
	for name, text := range texts(t, "../mscclpp/testdata/plans/*.json") {
		if name == "reduce_tbg.json" {
			continue
		}
		pipeline := bytes.Contains(text, []byte(`"pipeline"`))
		for kind := range changes {
			times := 2
			if pipeline {
				times = map[string]int{"semaphore": 6, "drop": 2}[kind] // it takes its time
			}
			for i := range times {
				rnd := rand.New(rand.NewPCG(uint64(i), uint64(len(name))))
				text, op := changed(t, text, kind, rnd)
				if text == nil {
					continue
				}
				p, err := parse(text)
				made := program.Program{}
				if err == nil {
					made, err = blocks.Convert(p)
				}
				if err != nil {
					refused[kind]++
					if !strings.Contains(err.Error(), "rank") && !strings.Contains(err.Error(), "gpus[") {
						t.Errorf("%s, %s: %v, which names no rank", name, kind, err)
					}
					continue
				}
				taken[kind]++
				drops := kind == "drop" && strings.Contains(" signal wait rlxsignal rlxwait sem_acquire "+
					"sem_release ppkt put pws pwsf ", fmt.Sprintf(" %s ", op["name"]))
				if drops {
					t.Errorf("%s without %v is taken", name, op)
				}
				if err := runs(p, 3, 5); err != nil {
					t.Errorf("%s, %s, %v: %v", name, kind, op, err)
				}
				c, err := program.Check(made)
				if err == nil {
					_, _, err = c.Prove(4 << 10)
				}
				if err != nil {
					t.Errorf("%s, %s: %v", name, kind, err)
				}
			}
		}
	}
	t.Log("refused", refused, "taken", taken)
	for kind := range changes {
		if refused[kind] == 0 && kind != "relax" {
			t.Errorf("%s: none is refused", kind)
		}
	}
}
