package msccl

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
	sound := text(t, "steps.xml")
	for _, c := range []struct{ old, new, want string }{
		{"<algo", "<algorithm", "line 3, column"},
		{"<algo ", "<algo name=\"x\" ", `"name" comes twice`},
		{"</algo>", "", "not XML"},
		{"</algo>", "</algo><algo/>", "something follows"},
		{"</algo>", "x</algo>", "there is text"},
		{"<algo ", "<!DOCTYPE algo><algo ", "there is a directive"},
		{`coll="allreduce"`, `coll="broadcast"`, `coll is "broadcast"; it must be`},
		{`coll="allreduce"`, `coll="allgather"`, "op 0 (s): input chunks 0 to 1 of rank 0"},
		{`proto="Simple"`, `proto="Other"`, `proto is "Other"`},
		{`ngpus="3"`, `ngpus="4"`, "there are 3 gpus, and ngpus is 4"},
		{`ngpus="3"`, `ngpus="99999999999999999999"`, "ngpus is \"9"},
		{`nchunksperloop="3"`, `nchunksperloop="0"`, "they must be in 1..4096"},
		{`<gpu id="1"`, `<gpu id="2"`, "the id of the gpu is 2; it must be 1"},
		{`<tb id="1" send="1"`, `<tb id="1" send="0"`, "they must be others"},
		{`<step s="1" type="rcs"`, `<step s="2" type="rcs"`, "the step is number 2; it must be 1"},
		{`type="rcs"`, `type="rcx"`, "rank 0, block 0, op 1 (rcx): there is no such type"},
		{`type="rcs"`, `type="r"`, "op 1 (r): receives message 1 from rank 0, which sends 1"},
		{`depid="2" deps="0"`, `depid="2" deps="1"`, "waits for step 1 of block 2, which is not there"},
		// Nothing has the sum wait for the copy that it adds to.
		{`depid="2" deps="0"`, `depid="-1" deps="-1"`, "rank 1, block 1, op 2 (re): reads scratch " +
			"chunk 1 of rank 1, which "},
		{`depid="1" deps="0"`, `depid="-1" deps="-1"`, "rank 2, block 2, op 0 (s): reads output " +
			"chunk 2 of rank 2, which nothing has written"},
		{`type="s" srcbuf="i" srcoff="2"`, `type="s" srcbuf="x" srcoff="2"`, `there is no buffer "x"`},
		{`type="s" srcbuf="i" srcoff="2"`, `type="s" srcbuf="i" srcoff="3"`, "there are 3 chunks"},
		{`type="s" srcbuf="i" srcoff="2"`, `type="s" srcbuf="i" srcoff="1"`, "reduces"},
		{`<tb id="1" send="1" recv="-1" chan="1"`, `<tb id="1" send="1" recv="-1" chan="0"`,
			"block 0 sends over the same channel; one only may"},
		{`hasdep="0"/>`, `hasdep="0"><step/></step>`, `"nothing" must be here`},
	} {
		changed := strings.Replace(sound, c.old, c.new, 1)
		if changed == sound {
			t.Fatalf("there is no %s", c.old)
		}
		_, err := Read([]byte(changed))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %s", c.new, err, c.want)
		}
	}
}

// FuzzRead reads any text. What is taken is right.
func FuzzRead(f *testing.F) {
	f.Add([]byte(text(f, "steps.xml")))
	f.Add([]byte(text(f, "ag_hier_4_LL.xml")))
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
