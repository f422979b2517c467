package program_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/program/formats"
)

// foreign are the plans of other libraries that are right.
func foreign(t testing.TB) map[string][]byte {
	all := map[string][]byte{}
	for _, pattern := range []string{"mscclpp/testdata/plans/*.json", "mscclpp/testdata/old/*.json",
		"mscclpp/testdata/made/*.json", "msccl/testdata/*.xml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all[filepath.Base(filepath.Dir(name))+"/"+filepath.Base(name)] = text
		}
	}
	for _, racy := range []string{"plans/reduce_tbg.json", "old/allreduce_nvls.json",
		"old/sendrecv.json"} {
		delete(all, racy)
	}
	return all
}

// Plans of other libraries give what their collective promises, for all sizes, in place and not.
// As files of our own they do the same.
func TestForeignPlans(t *testing.T) {
	for name, text := range foreign(t) {
		t.Run(name, func(t *testing.T) {
			c, err := formats.Read(text)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.ProveAt(rand.New(rand.NewPCG(1, 2)), 4); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.Prove(1 << 20); err != nil {
				t.Fatal(err)
			}
			again, err := formats.Read(c.Text())
			if err != nil {
				t.Fatal(err)
			}
			if again.Digest() != c.Digest() || again.Facts != c.Facts {
				t.Errorf("as a file of our own it is %+v, not %+v", again.Facts, c.Facts)
			}
		})
	}
}

// What the readers find of some plans.
func TestForeignFacts(t *testing.T) {
	all := foreign(t)
	for name, want := range map[string]string{
		// It is a two_shot: each rank reduces a chunk, and puts it to all.
		"plans/allreduce_8.json": "allreduce 8 ranks 8:8:0 8 moves",
		// Instances are one message again.
		"plans/alltoall_ring_oop_2.json":   "alltoall 2 ranks 2:2:1 6 moves",
		"plans/mn_sendrecv_2x2.json":       "custom 4 ranks 1:1:0 4 moves",
		"plans/allreduce_pipeline.json":    "allreduce 4 ranks 4:4:4 12 moves",
		"plans/default_allreduce_2x2.json": "allreduce 4 ranks 2:2:6 20 moves",
		// The offsets of the two ends of a get are each end's own.
		"made/get_test.json": "custom 3 ranks 2:1:0 2 moves: [{[output chunk 0 of rank 0] " +
			"[input chunk 1 of rank 1] } {[output chunk 0 of rank 1] [input chunk 1 of rank 0] }]",
		"testdata/ar_tree_12_LL.xml": "allreduce 4 ranks 24:24:36 192 moves, not canonical",
	} {
		c, err := formats.Read(all[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := fmt.Sprintf("%v %d ranks %d:%d:%d %d moves", c.Collective, c.Ranks, c.In, c.Out,
			c.Scratch, len(c.Moves))
		if !c.Canonical {
			got += ", not canonical"
		}
		if len(c.Moves) <= 2 {
			for i := range c.Moves {
				c.Moves[i].Line = ""
			}
			got += fmt.Sprintf(": %v", c.Moves)
		}
		if got != want {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
	// Each rank adds its own contribution last.
	other, err := formats.Read(all["made/other_bits.json"])
	if err != nil || other.SameBits || other.Canonical {
		t.Errorf("%+v, %v; ranks do not have the same bits", other.Facts, err)
	}
	// A channel that the other end does not list is there, too.
	hidden := strings.Replace(string(all["plans/allgather_2.json"]), `"connected_to":[1]`,
		`"connected_to":[1,1]`, 1)
	_, err = formats.Read([]byte(hidden))
	if err != nil || hidden == string(all["plans/allgather_2.json"]) {
		t.Error(err)
	}
	// Plans that say different ops of their sums could not be one collective.
	mixed := strings.Replace(string(all["made/other_bits.json"]), `"max"`, `"min"`, 1)
	if _, err := formats.Read([]byte(mixed)); err == nil || !strings.Contains(err.Error(),
		`op 9 (re): reduce_op is "max", and that of an op before is "min"`) {
		t.Error(err)
	}
	c, err := formats.Read(all["plans/default_allreduce_2x2.json"])
	if err != nil || c.MinBytes != 1024 || c.MaxBytes != 2097152 || c.AnyOrder {
		t.Errorf("%d to %d bytes, any order %v, %v", c.MinBytes, c.MaxBytes, c.AnyOrder, err)
	}
	if c, err = formats.Read(all["plans/allreduce_8.json"]); err != nil || c.MaxBytes != 0 {
		t.Errorf("up to %d bytes, %v", c.MaxBytes, err)
	}
}

// Packets need two halves of scratch memory where the next run may overwrite them before they are
// read. Where a rank begins it only when its packets have been read, they do not.
func TestForeignHalves(t *testing.T) {
	needs := map[string]bool{"allgather_pkt_4": true, "allgather_pkt_rppkt_4": true,
		"transfer_pack": true, "mn_reducescatter_pkt_2x4": true, "default_allreduce_2x2": true,
		"default_reducescatter_2x4": true, "allreduce_packet": false, "allreduce_pkt_4": false,
		"allreduce_pkt_8": false, "reduce_pack": false}
	all := foreign(t)
	for name, need := range needs {
		text := string(all["plans/"+name+".json"])
		single := strings.Replace(text, `"use_double_scratch_buffer":true`,
			`"use_double_scratch_buffer":false`, 1)
		if single == text {
			t.Fatalf("%s has one half", name)
		}
		_, err := formats.Read([]byte(single))
		if (err != nil) != need || err != nil && !strings.Contains(err.Error(), "writes packets") {
			t.Errorf("%s with one half of scratch memory: %v", name, err)
		}
	}
}

func BenchmarkForeignPlans(b *testing.B) {
	all := foreign(b)
	for name := range all {
		if !strings.HasPrefix(name, "plans/") {
			delete(all, name)
		}
	}
	for b.Loop() {
		for name, text := range all {
			c, err := formats.Read(text)
			if err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			c.Text()
		}
	}
}
