package core

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What fits in a reader's head. Tests may be longer, but for their columns.
const (
	maxFile     = 600 // lines
	maxFunction = 80  // lines
	maxStruct   = 20  // fields; more where the comment gives a reason, which begins with hasMore
	maxColumns  = 100 // a tab is one

	hasMore = "It has more fields than others"
)

// TestLimits holds all Go of the project to limits of size.
func TestLimits(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != ".." && strings.HasPrefix(name, ".") || name == "build" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		lines, err := checkColumns(t, path)
		if err != nil || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, "../tests/") {
			return err
		}
		if lines > maxFile {
			t.Errorf("%s has %d lines, allowed are %d", path, lines, maxFile)
		}
		return checkSizes(t, path)
	})
	if err != nil {
		t.Error(err)
	}
}

func checkColumns(t *testing.T, path string) (lines int, err error) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		lines++
		if n := len([]rune(s.Text())); n > maxColumns {
			t.Errorf("%s:%d has %d columns, allowed are %d", path, lines, n, maxColumns)
		}
	}
	return lines, s.Err()
}

func checkSizes(t *testing.T, path string) error {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	lines := func(n ast.Node) int {
		return files.Position(n.End()).Line - files.Position(n.Pos()).Line + 1
	}
	for _, decl := range parsed.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if n := lines(d); n > maxFunction {
				t.Errorf("%s: %s has %d lines, allowed are %d", path, d.Name, n, maxFunction)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				checkStruct(t, path, d.Doc.Text(), spec)
			}
		}
	}
	return nil
}

func checkStruct(t *testing.T, path, doc string, spec ast.Spec) {
	t.Helper()
	named, ok := spec.(*ast.TypeSpec)
	if !ok {
		return
	}
	s, ok := named.Type.(*ast.StructType)
	if !ok {
		return
	}
	n := s.Fields.NumFields()
	text := strings.Join(strings.Fields(doc+named.Doc.Text()), " ")
	if n > maxStruct && !strings.Contains(text, hasMore) {
		t.Errorf("%s: %s has %d fields, allowed are %d", path, named.Name, n, maxStruct)
	}
}
