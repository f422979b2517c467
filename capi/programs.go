package main

/*
#include "api.h"
*/
import "C"

import (
	"encoding/hex"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
)

// programHandle is a program that is right. It never changes.
type programHandle struct {
	issued
	program.Program
}

//export apiProgramLoad
func apiProgramLoad(from *C.char, size C.size_t, to *C.goccl_program) C.goccl_result {
	return export("program_load", func() error {
		if err := needs(to, "program_load: program"); err != nil {
			return err
		}
		if size > program.MostText {
			return errorf(codeInvalidArgument, "program_load: size is %d; it must be at most %d", size,
				program.MostText)
		}
		if size > 0 {
			if err := needs(from, "program_load: text"); err != nil {
				return err
			}
		}
		p, err := program.Parse(C.GoBytes(unsafe.Pointer(from), C.int(size)))
		if err == nil {
			_, err = program.Check(p)
		}
		if err != nil {
			return errorf(codeInvalidArgument, "program_load: %v", err)
		}
		*to = C.goccl_program(save(&programHandle{Program: p}))
		return nil
	})
}

//export apiProgramFree
func apiProgramFree(handle C.goccl_program) C.goccl_result {
	return export("program_free", func() error {
		if handle == 0 {
			return nil
		}
		if _, err := restore[*programHandle](uint64(handle), "program"); err != nil {
			return err
		}
		drop(uint64(handle))
		return nil
	})
}

//export apiProgramText
func apiProgramText(
	handle C.goccl_program, to *C.char, size C.size_t, needed *C.size_t,
) C.goccl_result {
	return export("program_text", func() error {
		p, err := restore[*programHandle](uint64(handle), "program")
		if err != nil {
			return err
		}
		return giveText("program_text: text", p.Text(), to, size, needed)
	})
}

// verified is what goccl_program_verify tells.
type verified struct {
	Name         string `json:"name"`
	Collective   string `json:"collective"`
	Ranks        int    `json:"ranks"`
	Digest       string `json:"digest"`
	InPlace      bool   `json:"in_place"`
	OutOfPlace   bool   `json:"out_of_place"`
	Order        string `json:"order"`
	SameBits     bool   `json:"same_bits"`
	Bytes        int64  `json:"bytes"`
	Steps        int    `json:"steps"`
	Messages     int    `json:"messages"`
	ScratchBytes int64  `json:"scratch_bytes"`
}

//export apiProgramVerify
func apiProgramVerify(
	handle C.goccl_program, bytes C.uint64_t, json *C.char, size C.size_t, needed *C.size_t,
) C.goccl_result {
	return export("program_verify", func() error {
		p, err := restore[*programHandle](uint64(handle), "program")
		if err != nil {
			return err
		}
		if bytes > mostProved {
			return errorf(codeInvalidArgument, "program_verify: bytes is %d; it must be at most %d", bytes,
				uint64(mostProved))
		}
		c, err := program.Check(p.Program)
		if err != nil {
			return errorf(codeInvalidArgument, "program_verify: %v", err)
		}
		plans, bytes, err := c.Prove(int64(bytes))
		if err != nil {
			return errorf(codeInvalidArgument, "program_verify: %v", err)
		}
		v := verified{Name: c.Name, Collective: c.Collective.String(), Ranks: c.Ranks,
			Digest: hex.EncodeToString(c.Digest[:]), InPlace: c.InPlace, OutOfPlace: c.OutOfPlace,
			Order: "canonical", SameBits: c.SameBits, Bytes: bytes}
		if !c.Canonical {
			v.Order = "plan"
		}
		for _, q := range plans {
			messages := 0
			for i := range q.Steps {
				if q.Steps[i].Op == plan.Put {
					messages++
				}
			}
			v.Steps, v.Messages = max(v.Steps, len(q.Steps)), max(v.Messages, messages)
			v.ScratchBytes = max(v.ScratchBytes, q.ScratchBytes)
		}
		return giveJSON("program_verify", v, json, size, needed)
	})
}

// mostProved is the longest buffer for which plans are proved.
const mostProved = 1 << 40
