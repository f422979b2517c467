package main

/*
#include "api.h"
*/
import "C"

import (
	"encoding/hex"
	"math"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/formats"
	"github.com/goccl/goccl/core/tune"
)

// programHandle is a program that is right. It never changes.
type programHandle struct {
	issued
	*program.Checked
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
		checked, err := formats.Read(C.GoBytes(unsafe.Pointer(from), C.int(size)))
		if err != nil {
			return errorf(codeInvalidArgument, "program_load: %v", err)
		}
		*to = C.goccl_program(save(&programHandle{Checked: checked}))
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

//export apiProgramExport
func apiProgramExport(
	handle C.goccl_program, format, to *C.char, size C.size_t, needed *C.size_t,
) C.goccl_result {
	return export("program_export", func() error {
		p, err := restore[*programHandle](uint64(handle), "program")
		if err != nil {
			return err
		}
		if err := needs(format, "program_export: format"); err != nil {
			return err
		}
		var made []byte
		switch f := text(format); f {
		case "goccl":
			made = p.Text()
		case "mscclpp":
			c, err := program.Check(p.Program)
			if err == nil {
				made, err = program.MSCCLPP(c)
			}
			if err != nil {
				return errorf(codeInvalidArgument, "program_export: %v", err)
			}
		default:
			return errorf(codeInvalidArgument,
				"program_export: format is %q; it must be \"goccl\" or \"mscclpp\"", f)
		}
		return giveText("program_export: text", made, to, size, needed)
	})
}

// builtin is the request of goccl_program_builtin().
type builtin struct {
	Collective string `json:"collective"`
	Bytes      uint64 `json:"bytes"`
	Ranks      int    `json:"ranks"`
	PerHost    int    `json:"ranks_per_host"`
	Transport  string `json:"transport"`
	Algorithm  string `json:"algorithm"`
	Root       int    `json:"root"`
}

//export apiProgramBuiltin
func apiProgramBuiltin(request, to *C.char, size C.size_t, needed *C.size_t) C.goccl_result {
	return export("program_builtin", func() error {
		if err := needs(request, "program_builtin: request"); err != nil {
			return err
		}
		b := builtin{Transport: "shm"}
		if err := parseRequest(text(request), &b); err != nil {
			return errorf(codeInvalidArgument, "program_builtin: request: %v", err)
		}
		if b.PerHost == 0 {
			b.PerHost = b.Ranks
		}
		c, err := process.Builtin(tune.Question{Collective: b.Collective, Ranks: b.Ranks,
			PerHost: b.PerHost, CPUs: b.PerHost, Bytes: b.Bytes}, b.Transport, b.Algorithm, b.Root)
		if err != nil {
			return err
		}
		return giveText("program_builtin: text", c.Text(), to, size, needed)
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
		c := p.Checked
		plans, bytes, err := c.Prove(int64(bytes))
		if err != nil {
			return errorf(codeInvalidArgument, "program_verify: %v", err)
		}
		digest := c.Digest()
		v := verified{Name: c.Name, Collective: c.Collective.String(), Ranks: c.Ranks,
			Digest: hex.EncodeToString(digest[:]), InPlace: c.InPlace, OutOfPlace: c.OutOfPlace,
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

// ofProgram finds the communicator and the program of a collective call. A rank that names no
// program tells the others.
func ofProgram(
	name string, handle C.goccl_comm, users C.goccl_program, work *C.goccl_work,
	f func(c *commHandle, p *program.Checked) (longCall, error),
) C.goccl_result {
	return onLong(name, handle, work, func(c *commHandle) (longCall, error) {
		p, err := restore[*programHandle](uint64(users), "program")
		var call longCall
		if err == nil {
			call, err = f(c, p.Checked)
		}
		if err != nil {
			c.comm.Refuse(err.Error())
		}
		return call, err
	})
}

//export apiProgramRegister
func apiProgramRegister(
	handle C.goccl_comm, users C.goccl_program, use *C.goccl_program_use, work *C.goccl_work,
) C.goccl_result {
	return ofProgram("program_register", handle, users, work,
		func(c *commHandle, p *program.Checked) (longCall, error) {
			var u C.goccl_program_use
			if use != nil {
				var err error
				if u, err = takeStruct(use, unsafe.Sizeof(u), "use"); err != nil {
					return nil, err
				}
			}
			for name, n := range map[string]C.uint64_t{"min_bytes": u.min_bytes, "max_bytes": u.max_bytes} {
				if n > math.MaxInt64 {
					return nil, invalid("program_register: use."+name, n, "allowed are 0 to %d",
						int64(math.MaxInt64))
				}
			}
			return func(t *task) error {
				return c.comm.RegisterProgram(t.ctx, p, int64(u.min_bytes), int64(u.max_bytes))
			}, nil
		})
}

//export apiProgramUnregister
func apiProgramUnregister(
	handle C.goccl_comm, users C.goccl_program, work *C.goccl_work,
) C.goccl_result {
	return ofProgram("program_unregister", handle, users, work,
		func(c *commHandle, p *program.Checked) (longCall, error) {
			return func(t *task) error { return c.comm.UnregisterProgram(t.ctx, p) }, nil
		})
}

// programOperation makes the arguments of goccl_program_run() core's.
func programOperation(a *C.api_operation, o *core.Operation, rank, size int) error {
	p, err := restore[*programHandle](uint64(a.program), "program")
	if err != nil {
		return err
	}
	o.Program, o.Collective, o.Root = p.Checked, p.Collective, p.Root
	if err := p.Does(p.Collective, size, p.Root); err != nil {
		return errorf(codeInvalidArgument, "program_run: program %q %v", p.Name, err)
	}
	if err := scalars(a, o); err != nil {
		return err
	}
	usesIn, usesOut := o.Uses(rank)
	in, out := uint64(a.count), uint64(a.out_count)
	ins, outs := p.Blocks(program.Input), p.Blocks(program.Output)
	switch o.Collective { // what only the root has, all know
	case plan.Broadcast:
		if in > out {
			return invalid("program_run: out_count", out, "in_count is %d, and of a broadcast out is the "+
				"buffer", in)
		}
		a.in.block, in = a.out.block, out
	case plan.Reduce, plan.Gather:
		if !usesOut {
			out = in * uint64(outs)
		}
	case plan.Scatter:
		if !usesIn {
			in = out * uint64(ins)
		}
	}
	if o.In, o.InCounts, err = parts(o, "in", a.in.block, in, ins, usesIn); err != nil {
		return err
	}
	o.Out, o.OutCounts, err = parts(o, "out", a.out.block, out, outs, usesOut)
	return err
}

// parts cuts a buffer into equally long blocks.
func parts(
	o *core.Operation, name string, at unsafe.Pointer, count uint64, n int, used bool,
) (blocks []unsafe.Pointer, counts []uint64, err error) {
	if count%uint64(n) != 0 || count > math.MaxInt64/uint64(o.DType.Size()) {
		return nil, nil, invalid("program_run: "+name+"_count", count,
			"it must be a multiple of %d, the number of blocks, and fit memory", n)
	}
	each := count / uint64(n)
	for i := range n {
		counts = append(counts, each)
		block := at
		if at != nil {
			block = unsafe.Add(at, uintptr(i)*uintptr(each)*uintptr(o.DType.Size()))
		}
		if used {
			blocks = append(blocks, block)
		}
	}
	return blocks, counts, nil
}
