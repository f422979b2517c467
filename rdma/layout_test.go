package rdma

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccl/goccl/rdma/fake"
)

// layout is what verbs.h declares.
type layout struct {
	types  []string    // "struct ibv_wc"
	fields [][2]string // type and field, "struct ibv_send_wr", "wr.rdma.rkey"
	values []string    // "IBV_WC_SUCCESS"
}

// parseHeader reads our own header, which is regular enough for it.
func parseHeader(t *testing.T) (l layout) {
	b, err := os.ReadFile("verbs.h")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(b), "")
	for _, m := range regexp.MustCompile(`(?m)^enum (?:\w+ )?\{([^}]*)\}`).FindAllStringSubmatch(text,
		-1) {
		l.values = append(l.values, regexp.MustCompile(`IBV_\w+`).FindAllString(m[1], -1)...)
	}
	types := regexp.MustCompile(`(?sm)^((?:struct|union) ibv_\w+) \{\n(.*?)^\};`)
	for _, m := range types.FindAllStringSubmatch(text, -1) {
		l.types = append(l.types, m[1])
		for _, f := range fieldsOf(m[2]) {
			l.fields = append(l.fields, [2]string{m[1], f})
		}
	}
	return l
}

// fieldsOf lists the fields of a struct's body, with those of structs and unions in it.
func fieldsOf(body string) []string {
	var fields []string
	var open []int // where those of structs that have not ended begin
	name := regexp.MustCompile(`(?:\(\*)?(\w+)(?:\)\(.*\)|\[\d+\])?;$`)
	for _, line := range strings.Split(body, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasSuffix(line, "{"):
			open = append(open, len(fields))
		case strings.HasPrefix(line, "}"):
			begin := open[len(open)-1]
			open = open[:len(open)-1]
			if outer := strings.Trim(line, "} ;"); outer != "" {
				for i := begin; i < len(fields); i++ {
					fields[i] = outer + "." + fields[i]
				}
				fields = append(fields, outer)
			}
		case line != "":
			// Names that begin with an underscore stand for what we do not use.
			if m := name.FindStringSubmatch(line); m != nil && !strings.HasPrefix(m[1], "_") {
				fields = append(fields, m[1])
			}
		}
	}
	return fields
}

// program prints all of a layout.
func (l layout) program(header string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#include <stddef.h>\n#include <stdio.h>\n#include %s\nint main(void) {\n", header)
	for _, t := range l.types {
		if t == "struct ibv_port_attr" {
			continue // which grows
		}
		fmt.Fprintf(&b, "printf(\"%s has %%zu bytes\\n\", sizeof(%s));\n", t, t)
	}
	for _, f := range l.fields {
		fmt.Fprintf(&b,
			"printf(\"%s.%s is at %%zu, of %%zu bytes\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n",
			f[0], f[1], f[0], f[1], f[0], f[1])
	}
	for _, v := range l.values {
		fmt.Fprintf(&b, "printf(\"%s is %%lld\\n\", (long long)%s);\n", v, v)
	}
	b.WriteString("return 0;\n}\n")
	return b.String()
}

// TestLayout compares our declarations with those of the installed libibverbs.
func TestLayout(t *testing.T) {
	compiler := fake.Compiler(t)
	l := parseHeader(t)
	if len(l.types) < 20 || len(l.fields) < 200 || len(l.values) < 80 {
		t.Fatalf("of verbs.h only %d types, %d fields, %d values are found", len(l.types), len(l.fields),
			len(l.values))
	}
	dir := t.TempDir()
	run := func(name, header string, args ...string) []string {
		source, binary := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
		if err := os.WriteFile(source, []byte(l.program(header)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(compiler, append(args, "-o", binary,
			source)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command(binary).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(out), "\n")
	}
	probe := exec.Command(compiler, "-E", "-x", "c", "-")
	probe.Stdin = strings.NewReader("#include <infiniband/verbs.h>\n")
	if err := probe.Run(); err != nil {
		t.Skip("infiniband/verbs.h is not installed (on Debian and Ubuntu: libibverbs-dev): nothing " +
			"to compare with")
	}
	ours, theirs := run("ours", `"verbs.h"`, "-I."), run("theirs", "<infiniband/verbs.h>")
	for i := range ours {
		if ours[i] != theirs[i] {
			t.Errorf("here %s, there %s", ours[i], theirs[i])
		}
	}
	t.Logf("%d types, %d fields and %d values are alike", len(l.types), len(l.fields), len(l.values))
}
