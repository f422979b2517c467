package core

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type packageRule struct {
	name    string
	imports string
	pure    bool
}

// packages are the public one and those of core, and of each the others that it may import: only
// such that stand below it here. A pure one takes data and returns data: it does nothing and waits
// for nothing, and nor does what it imports.
var packages = []packageRule{
	{public, "core status trace bootstrap program/formats program plan reduce fault logs", false},
	{"core", "watch status sim program channel join epoch agreement suspended checkpoint config " +
		"endpoint work memory roster membership meeting tune call fault plan exec flight metrics trace " +
		"address transport bootstrap bootstrap/etcd logs internal/cpus internal/interfaces " +
		"internal/printable", false},
	{"watch", "status exporter tracefile flight config fault metrics trace logs", false},
	{"tracefile", "trace logs internal/perfetto", false},
	{"exporter", "metrics trace plan logs internal/replace", false},
	{"flight", "trace call plan reduce internal/pickle internal/replace", false},
	{"join", "config endpoint roster membership meeting fault address transport bootstrap " +
		"bootstrap/etcd logs internal/printable", false},
	{"epoch", "status agreement suspended config endpoint collective p2p channel wire work memory " +
		"roster order membership tune call program fault plan reduce exec trace address transport " +
		"bootstrap logs internal/errtext", false},
	{"status", "judge order call trace plan internal/printable", false},
	{"judge", "internal/printable", true},
	{"agreement", "completion roster membership meeting fault address transport internal/printable",
		false},
	{"suspended", "completion work memory call exec fault plan", false},
	{"config", "metrics tune call program/formats program fault plan address transport bootstrap " +
		"bootstrap/etcd logs internal/interfaces internal/printable", false},
	{"endpoint", "roster exec address transport logs", false},
	{"collective", "work call tune program fault plan reduce reduce/kernel exec trace", false},
	{"wire", "tune call fault plan reduce reduce/kernel", false},
	{"p2p", "work membership tune call fault plan reduce exec trace transport " +
		"internal/serial", false},
	{"channel", "work memory fault exec transport internal/seal internal/serial", false},
	{"work", "tune call exec fault plan", false},
	{"completion", "", true},
	{"checkpoint", "fault", false},
	{"memory", "exec fault", false},
	{"roster", "membership tune fault address internal/seal", true},
	{"metrics", "internal/printable", true},
	{"order", "call fault plan internal/printable", true},
	{"membership", "call fault plan internal/untrusted", true},
	{"meeting", "address bootstrap fault internal/untrusted internal/printable internal/seal " +
		"transport", false},
	{"sim", "tune plan", true},
	{"tune", "call program fault plan reduce", true},
	{"call", "program fault plan reduce internal/printable", true},
	{"program/formats", "program program/internal/scan program/msccl program/mscclpp", true},
	{"program/msccl", "plan program program/blocks program/internal/scan", true},
	{"program/mscclpp", "plan program program/blocks program/internal/scan", true},
	{"program/blocks", "plan program", true},
	{"program", "plan program/internal/scan", true},
	{"program/internal/scan", "", true},
	{"fault", "internal/printable", true},
	{"transport", "trace address pending logs internal/errtext internal/interfaces " +
		"internal/printable", false},
	{"exec", "trace plan", false},
	{"trace", "plan", false},
	{"plan", "", true},
	{"reduce/kernel", "reduce", false},
	{"reduce/kernel/internal/floatmode", "", false},
	{"reduce", "", true},
	{"bootstrap", "pending internal/untrusted internal/errtext internal/interfaces " +
		"internal/printable internal/seal", false},
	{"bootstrap/etcd", "internal/errtext internal/printable", false},
	{"address", "internal/untrusted internal/printable", true},
	{"pending", "", false},
	{"internal/logtest", "logs", false},
	{"internal/polltest", "", false},
	{"internal/scripts", "", false},
	{"internal/schematest", "", false},
	{"logs", "internal/printable", false},
	{"internal/errtext", "", false},
	{"internal/serial", "", false},
	{"internal/replace", "", false},
	{"internal/interfaces", "", false},
	{"internal/untrusted", "", true},
	{"internal/pickle", "", true},
	{"internal/perfetto", "", true},
	{"internal/seal", "", true},
	{"internal/cpus", "internal/printable", false},
	{"internal/printable", "", true},
}

// impure are packages that a pure one has no use for.
var impure = []string{"C", "context", "net", "os", "runtime", "sync", "sync/atomic", "syscall",
	"golang.org/x/sys/unix", "github.com/goccl/goccl/rdma"}

// isPure reports whether a pure package may import another.
func isPure(path string) bool {
	if name, ok := strings.CutPrefix(path, module); ok {
		return slices.ContainsFunc(packages, func(p packageRule) bool { return p.name == name && p.pure })
	}
	return !slices.Contains(impure, path)
}

const module = "github.com/goccl/goccl/core/"

// public is the package for programs in Go, which stands above all.
const public = "goccl"

// TestWalls compares what each package imports with the table.
func TestWalls(t *testing.T) {
	seen := map[string]bool{}
	for i, p := range packages {
		seen[p.name] = true
		var imports []string
		for _, path := range importsOf(t, folderOf(p.name)) {
			if p.pure && !isPure(path) {
				t.Errorf("%s is to be pure, and imports %s", p.name, path)
			}
			if path+"/" == module {
				imports = append(imports, "core")
			} else if name, ok := strings.CutPrefix(path, module); ok {
				imports = append(imports, name)
			}
		}
		allowed := strings.Fields(p.imports)
		slices.Sort(allowed)
		slices.Sort(imports)
		if !slices.Equal(imports, allowed) {
			t.Errorf("%s imports %v, the table says %v", p.name, imports, allowed)
		}
		for _, name := range allowed {
			at := slices.IndexFunc(packages, func(q packageRule) bool { return q.name == name })
			if at <= i {
				t.Errorf("%s does not stand below %s, which imports it", name, p.name)
			}
		}
	}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() == "testdata" || len(importsOf(t, path)) == 0 {
			return err
		}
		if path != "." && !seen[filepath.ToSlash(path)] {
			t.Errorf("the table does not have %s", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The face is what users call, and little else: decisions and what carries them out have packages
// of their own.
func TestFaceIsSmall(t *testing.T) {
	const mostLines, mostFields = 2500, 10
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, file := range files {
		if text, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		} else if !strings.HasSuffix(file, "_test.go") {
			lines += strings.Count(string(text), "\n")
		}
	}
	if lines > mostLines {
		t.Errorf("package core has %d lines, of %d at most", lines, mostLines)
	}
	if n := reflect.TypeFor[Comm]().NumField(); n > mostFields {
		t.Errorf("Comm has %d fields, of %d at most", n, mostFields)
	}
}

func folderOf(name string) string {
	switch name {
	case public:
		return ".."
	case "core":
		return "."
	}
	return filepath.FromSlash(name)
}

// importsOf are the imports of the package in a folder, without those of its tests.
func importsOf(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, path)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
