// Package scripts runs tests that are written as text, as etcd's raft has them.
package scripts

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the answers of testdata/*.txt anew")

// Run runs the scripts testdata/*.txt. A script has paragraphs: commands, a line of dashes, and
// what they answer. A line that begins with # is a comment. Begin makes what performs the commands
// of one script, each given by its words.
func Run(t *testing.T, begin func() (perform func(words []string) (answer []string))) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatal("there are no scripts", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		perform := begin()
		var got []string
		for paragraph := range strings.SplitSeq(strings.TrimSpace(string(b)), "\n\n") {
			commands, _, _ := strings.Cut(paragraph, "\n----")
			var answer []string
			for line := range strings.SplitSeq(commands, "\n") {
				if !strings.HasPrefix(line, "#") {
					answer = append(answer, perform(strings.Fields(line))...)
				}
			}
			if len(answer) > 0 {
				commands += "\n----\n" + strings.Join(answer, "\n")
			}
			got = append(got, commands)
		}
		text := strings.Join(got, "\n\n") + "\n"
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if text != string(b) {
			t.Errorf("%s: got\n%s", file, text)
		}
	}
}
