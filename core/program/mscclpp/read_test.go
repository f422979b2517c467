package mscclpp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/program"
)

func text(t testing.TB, name string) string {
	all, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

// What is wrong is refused, with the place.
func TestRefused(t *testing.T) {
	copies := `{"name":"copy","src_buff":[{"type":"i","index":0,"size":1}],` +
		`"dst_buff":[{"type":"o","index":0,"size":1}]}`
	plan := func(top, gpu, ops string) string {
		return `{"name":"x","protocol":"Simple",` + top + `"gpus":[{"id":0,"input_chunks":1,` + gpu +
			`"output_chunks":1,"scratch_chunks":1,"channels":[],"semaphores":[{"init_value":1}],` +
			`"threadblocks":[{"id":0,"channels":[],"ops":[` + ops + `]}]}]}`
	}
	sound := plan(`"collective":"allreduce","inplace":false,`, "", copies)
	if _, err := Read([]byte(sound)); err != nil {
		t.Fatal(err)
	}
	op := func(o string) string { return plan(`"collective":"allreduce","inplace":false,`, "", o) }
	for _, c := range []struct{ text, want string }{
		{"", "line 1, column 1: the text ends too early"},
		{"\xef\xbb\xbf{}", "byte order mark"},
		{"[]", "an object must be here, not ["},
		{sound[:50], "the text ends too early"},
		{sound + "{}", "something follows the end"},
		{strings.Replace(sound, `"id":0`, `"id":1`, 1), "in gpus[0]: the id is 1; it must be 0"},
		{strings.Replace(sound, `"id":0`, `"id":0,"id":0`, 1), `in gpus[0]: field "id" comes twice`},
		{strings.Replace(sound, `"index":0`, `"index":NaN`, 1), "src_buff[0].index: not JSON"},
		{strings.Replace(sound, `"index":0`, `"index":0.5`, 1), "src_buff[0].index: a whole number"},
		{strings.Replace(sound, `"index":0`, `"index":9007199254740993`, 1), "a whole number"},
		{strings.Replace(sound, `"index":0`, `"index":4294967296`, 1), "at most 2^31-1"},
		{strings.Replace(sound, `"index":0`, `"index":1`, 1), "rank 0, block 0, op 0 (copy): input " +
			"chunk 1 of rank 0: there are 1 chunks"},
		{strings.Replace(sound, `"index":0`, `"dynamic_index":"x","index":0`, 1), "no field"},
		{strings.Replace(sound, `"type":"i"`, `"type":"x"`, 1), `it is "x"; it must be one of ["i"`},
		{strings.Replace(sound, `"Simple"`, `"LL128"`, 1), `it is "LL128"`},
		{strings.Replace(sound, `"allreduce"`, `"broadcast"`, 1), `collective is "broadcast"; it must`},
		{strings.Replace(sound, `"inplace"`, `"colletive":"allreduce","inplace"`, 1),
			`there is "collective", too`},
		{strings.Replace(sound, `"output_chunks":1`, `"output_chunks":2`, 1), "which do not fit"},
		{plan(`"x":`+strings.Repeat("[", 10001)+strings.Repeat("]", 10001)+",", "", copies),
			"exceeded max depth"},
		{plan(`"collective":"allreduce","inplace":false,"max_message_size":18446744073709551616,`, "",
			copies), "in 0..2^64-1"},
		{plan(`"collective":"allreduce","inplace":false,"min_message_size":9,"max_message_size":8,`, "",
			copies), "no less than min_message_size"},
		{op(`{"name":"glre"}`), "rank 0, block 0, op 0 (glre): there is no such op"},
		{op(`{"name":"copy"}`), "(copy): has 0 sources; it must have 1 or more"},
		{op(copies + `,{"name":"nop","cnt":1}`), "op 1 (nop): has fields of another schema"},
		{op(copies + `,{"name":"wait","channel_type":"memory","channel_ids":[0]}`),
			`op 1 (wait): there is no channel 0 of kind "memory"; the block has 0`},
		{op(copies + `,{"name":"sem_acquire","semaphore_ids":[1]}`), "there is no semaphore 1"},
		{op(copies + `,{"name":"sem_acquire","semaphore_ids":[0]}`),
			"rank 0, block 0, op 1 (sem_acquire): semaphore 0 of rank 0 is signalled 0 times in a run, " +
				"and waited for 1 times"},
		{op(`{"name":"barrier","barrier_id":0,"num_threadblocks":2},` + copies),
			"op 0 (barrier): barrier 0 is for 2 blocks, but 1 come to it"},
		{op(strings.Replace(copies, `"type":"o"`, `"type":"i"`, 1)),
			"op 0 (copy): writes input chunk 0 of rank 0; an input may be written in place only"},
		{op(strings.Replace(copies, `"type":"i"`, `"type":"s"`, 1)),
			"op 0 (copy): reads scratch chunk 0 of rank 0, which nothing has written in this run"},
		{op(""), "at the end nothing has written output chunk 0 of rank 0"},
		{op(strings.Replace(copies, `"copy"`, `"cpkt"`, 1)), "packets need the protocol LL"},
		{op(strings.Replace(copies, `"copy"`, `"put"`, 1)),
			"destination 0 is of the rank itself; it must be of another rank"},
		{op(strings.Replace(copies, `"copy",`, `"copy","tbg_info":{"tb_id":2,"tbg_size":2},`, 1)),
			"block 2 of a group of 2"},
		{op(strings.Replace(copies, `"copy",`, `"copy","tbg_info":{"tb_id":0,"tbg_size":2},`, 1)),
			"at the end nothing has written output chunk 0 of rank 0"},
		{op(`{"name":"pipeline","iter_context":{"unit_size":0,"num_chunks":1},"ops":[]}`), "1 or more"},
		{op(`{"name":"pipeline","iter_context":{"unit_size":9,"num_chunks":1},"ops":[` +
			`{"name":"pipeline","ops":[]}]}`), "pipelines must not lie in each other"},
	} {
		_, err := Read([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.400s: %v, not %s", c.text, err, c.want)
		}
	}
}

// Numbers that cannot be are refused before anything is made of them.
func TestTooMuch(t *testing.T) {
	text := text(t, "plans/alltoall_pipeline_2.json")
	for _, c := range []struct{ old, new string }{
		{`"scratch_chunks":2`, `"scratch_chunks":2147483647`},
		{`"input_chunks":4`, `"input_chunks":2147483647`},
	} {
		_, err := Read([]byte(strings.ReplaceAll(text, c.old, c.new)))
		if err == nil || !strings.Contains(err.Error(), "at most 65536") {
			t.Errorf("%s: %v", c.new, err)
		}
	}
}

// What differs between the schemas.
func TestOldNames(t *testing.T) {
	old := text(t, "made/old_rpkt.json")
	for _, c := range []struct{ old, new, want string }{
		{`"rpkt"`, `"repkt"`, "(repkt): there is no such op in the schema of 0.5 to 0.7"},
		{`"name": "tpkt"`, `"channel_ids": [0], "name": "tpkt"`, "has fields of another schema"},
		{`"inputChunks"`, `"input_chunks"`, ""}, // outputChunks tells it, too
		{`"cids": [0]`, `"cids": [1]`, `there is no memory channel 1 between buffers "is" at rank 0`},
	} {
		_, err := Read([]byte(strings.ReplaceAll(old, c.old, c.new)))
		if c.want == "" && err != nil || c.want != "" && (err == nil ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.new, err)
		}
	}
}

// FuzzRead reads any text. What is taken is right.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"made/old_get.json", "made/old_glres.json", "made/gstorepkt.json",
		"made/get_test.json", "made/pipeline.json", "plans/reduce.json"} {
		f.Add([]byte(text(f, name)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Read(text)
		if err != nil {
			return
		}
		if _, err := program.Check(p); err != nil {
			t.Error(err)
		}
		again, err := program.Parse(p.Text())
		if err != nil || again.Digest() != p.Digest() {
			t.Errorf("as a file of our own: %v", err)
		}
	})
}
