// Package replace writes files that readers see as a whole, or not at all.
package replace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// File writes a file, in the place of another one if there is one. What is no regular file stays.
// An error leaves things as they were.
func File(path string, content []byte) (err error) {
	defer func() {
		if err != nil {
			err = cause(path, err)
		}
	}()
	if old, err := os.Lstat(path); err == nil && !old.Mode().IsRegular() {
		return errors.New("there is something that is no regular file")
	}
	part, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = part.Write(content)
	err = errors.Join(err, part.Chmod(0o644), part.Close())
	if err == nil {
		err = os.Rename(part.Name(), path)
	}
	if err != nil {
		_ = os.Remove(part.Name())
	}
	return err
}

// cause names the file that was to be written, and no other.
func cause(path string, err error) error {
	var at *fs.PathError
	var renamed *os.LinkError
	switch {
	case errors.As(err, &at):
		err = at.Err
	case errors.As(err, &renamed):
		err = renamed.Err
	}
	return fmt.Errorf("writing %s: %w", path, err)
}
