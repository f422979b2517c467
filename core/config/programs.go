package config

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/formats"
)

// Of the programs that the settings name.
const (
	mostPrograms = 1024
	mostListed   = 256 // bytes of the text by which ranks compare them
)

// readPrograms is the check of Config.Plans. It reads the programs, and returns their names and
// digests, by which ranks compare them.
func readPrograms(c *Completed, given string) (string, error) {
	c.Programs = nil
	if given == "" {
		return "", nil
	}
	var list []string
	for _, path := range filepath.SplitList(given) {
		files, err := programFiles(path)
		if err != nil {
			return "", fmt.Errorf("plans (from the option or %s) are %q: %w", EnvPlans, given, err)
		}
		for _, file := range files {
			p, err := readProgram(file)
			if err != nil {
				return "", fmt.Errorf("plans (from the option or %s): %s: %w", EnvPlans, file, err)
			}
			c.Programs = append(c.Programs, p)
			if len(c.Programs) > mostPrograms {
				return "", fmt.Errorf("plans (from the option or %s) are %q, which has more than %d programs",
					EnvPlans, given, mostPrograms)
			}
			digest := p.Digest()
			list = append(list, fmt.Sprintf("%s %x", p.Name, digest[:4]))
		}
	}
	text := strings.Join(list, ", ")
	if len(text) > mostListed {
		text = fmt.Sprintf("%s... (%d programs, SHA-256 %x)", text[:mostListed], len(list),
			sha256.Sum256([]byte(text)))
	}
	return text, nil
}

// programFiles is a file, or those of a folder whose names end as programs' do, in their order.
func programFiles(path string) ([]string, error) {
	about, err := os.Stat(path)
	if err != nil || !about.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if slices.Contains([]string{".json", ".xml"}, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}

func readProgram(file string) (*program.Checked, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if about, err := f.Stat(); err != nil {
		return nil, err
	} else if !about.Mode().IsRegular() {
		return nil, fmt.Errorf("it must be a regular file; its mode is %v", about.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, program.MostText+1))
	if err != nil {
		return nil, err
	}
	return formats.Read(text)
}
