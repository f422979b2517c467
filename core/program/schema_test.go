package program

import (
	"strings"
	"testing"

	"github.com/goccl/goccl/core/internal/schematest"
)

const schemaFile = "../../docs/reference/goccl.plan-1.schema.json"

// TestSchema compares what the published schema takes with what Parse takes.
func TestSchema(t *testing.T) {
	ask := schematest.Read(t, schemaFile)
	for name, make := range written {
		p := make(4, 1)
		if err := ask(string(p.Text())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range [][2]string{
		{`"name": "x"`, `"nome": "x"`}, {`"name": "x", `, ""},
		{`"x"`, `"` + strings.Repeat("x", 65) + `"`},
		{"plan/1", "plan/2"}, {"allreduce", "allsum"}, {`"ranks": 2`, `"ranks": 0`},
		{`"ranks": 2`, `"ranks": 4097`}, {`"ranks": 2`, `"ranks": 1.5`}, {`"ranks": 2`, `"ranks": "2"`},
		{`"ranks": 2`, `"ranks": 2, "order": "mine"`}, {`"ranks": 2`, `"ranks": 2, "symmetric": 1`},
		{`"in": 1`, `"in": 65537`}, {`, "out": 1`, ""}, {`[0, "o", 0, 1]`, `[0, "o", 0]`},
		{`[0, "o", 0, 1]`, `[0, "x", 0, 1]`}, {`[0, "o", 0, 1]`, `[0, "o", -1, 1]`},
		{`[0, "o", 0, 1]`, `[0, "o", 0, 0]`}, {`[0, "o", 0, 1]`, `[0, "o", ["q", 0], 1]`},
		{`[0, "o", 0, 1]`, `[0, "o", 0, 1, 1]`}, {`, "line": "x:1"`, `, "line": 1`},
	} {
		text := strings.Replace(someText, c[0], c[1], 1)
		p, err := Parse([]byte(text))
		if err == nil {
			_, err = Check(p)
		}
		if err == nil || ask(text) == nil {
			t.Errorf("%q for %q: read: %v, schema: %v", c[1], c[0], err, ask(text))
		}
	}
}
