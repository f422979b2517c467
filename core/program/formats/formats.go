// Package formats reads programs from files of any format that GoCCL knows, and tells them apart.
package formats

import (
	"bytes"
	"errors"

	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/internal/scan"
	"github.com/goccl/goccl/core/program/msccl"
	"github.com/goccl/goccl/core/program/mscclpp"
)

// Read reads a program from the text of a file, and checks it: JSON of [program.Format], a plan of
// MSCCL++ as JSON, or of MSCCL as XML.
func Read(text []byte) (*program.Checked, error) {
	p, err := parse(text)
	if err != nil {
		return nil, err
	}
	return program.Check(p)
}

func parse(text []byte) (program.Program, error) {
	if bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("<")) {
		return msccl.Read(text)
	}
	if scan.Check(text) == nil && isPlan(text) {
		return mscclpp.Read(text)
	}
	return program.Parse(text)
}

// isPlan reports whether a text is a plan of MSCCL++: one that has gpus before it has a format.
func isPlan(text []byte) bool {
	s := scan.New(text)
	is, found := false, errors.New("found")
	err := s.Object(nil, func(name string) (bool, error) {
		if name == "format" || name == "gpus" {
			is = name == "gpus"
			return true, found
		}
		return true, s.Skip()
	})
	return is && errors.Is(err, found)
}
