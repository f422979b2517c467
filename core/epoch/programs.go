package epoch

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// programs are the names of the registered programs, by number.
type programs struct {
	names [tune.MostPrograms + 1]atomic.Pointer[string]
}

// algorithm names an algorithm.
func (p *programs) algorithm(a plan.Algorithm) string {
	if a < plan.Registered {
		return a.String()
	}
	if name := p.names[min(int(a-plan.Registered), tune.MostPrograms)].Load(); name != nil {
		return plan.Registered.String() + ":" + *name
	}
	return plan.Registered.String()
}

// useProgram has a program run a collective, if one fits. It is called with mu held.
func (e *Epoch) useProgram(p *work.Part) {
	if p.Program = e.shape.ProgramFor(p.Operation); p.Program != nil {
		call.UseProgram(&p.Message, p.Program.Checked)
	}
}

// register has a program run the collectives that it fits, from the next one on. It is called with
// mu held.
func (e *Epoch) register(r *tune.Registered) {
	overlaps := slices.ContainsFunc(e.shape.Programs(), r.Overlaps)
	e.programs.names[r.Number].Store(&r.Name)
	e.shape.Register(r)
	text := fmt.Sprintf("program %q runs %v from now on", r.Name, r.Collective)
	if overlaps {
		text += ", also where others would that were registered before"
	}
	e.Log(logs.Coll).Info(text, "number", r.Number, "min_bytes", r.MinBytes, "max_bytes", r.MaxBytes)
}

// registerSettings registers the programs of the settings that fit the group.
func (e *Epoch) registerSettings() error {
	for _, p := range e.config.Settings.Programs {
		r := &tune.Registered{Checked: p, MinBytes: p.MinBytes, MaxBytes: p.MaxBytes}
		if e.shape.CanRun(p) != nil || slices.ContainsFunc(e.shape.Programs(), r.SameDigest) {
			continue // it is for others, or lies in two files
		}
		if err := p.CheckScratch(); err != nil {
			return err
		}
		if r.Number = e.freeNumber(); r.Number == 0 {
			return fmt.Errorf("%d programs fit a group of %d ranks; it may have %d",
				len(e.shape.Programs())+1, e.Size(), tune.MostPrograms)
		}
		e.register(r)
	}
	return nil
}

// freeNumber is the lowest that no program has; 0: there is none. It is called with mu held.
func (e *Epoch) freeNumber() int {
	for n := 1; n <= tune.MostPrograms; n++ {
		if !slices.ContainsFunc(e.shape.Programs(), func(r *tune.Registered) bool {
			return r.Number == n
		}) {
			return n
		}
	}
	return 0
}

// RegisterProgram has a program run the collectives that it fits, from the next one on, until the
// epoch ends. A collective call: all ranks register the same program, for the same lengths, or none
// does, and the group goes on.
func (e *Epoch) RegisterProgram(ctx context.Context, r tune.Registered) error {
	return e.changePrograms(ctx, plan.RegisterProgram, &r, func() error {
		if r.MinBytes < 0 || r.MaxBytes < 0 || r.MaxBytes > 0 && r.MinBytes > r.MaxBytes {
			return fmt.Errorf("bytes are %d to %d; the least must be 0 or more, and the most no less",
				r.MinBytes, r.MaxBytes)
		}
		if err := e.shape.CanRun(r.Checked); err != nil {
			return fmt.Errorf("program %q %w", r.Name, err)
		}
		if err := r.CheckScratch(); err != nil {
			return err
		}
		if slices.ContainsFunc(e.shape.Programs(), r.SameDigest) {
			return fmt.Errorf("program %q is registered already", r.Name)
		}
		if r.Number = e.freeNumber(); r.Number == 0 {
			return fmt.Errorf("%d programs are registered, which is the most that a group may have",
				tune.MostPrograms)
		}
		return nil
	}, func() { e.register(&r) })
}

// UnregisterProgram undoes RegisterProgram. It is a collective call, too.
func (e *Epoch) UnregisterProgram(ctx context.Context, p *program.Checked) error {
	r := tune.Registered{Checked: p}
	return e.changePrograms(ctx, plan.UnregisterProgram, &r, func() error {
		all := e.shape.Programs()
		i := slices.IndexFunc(all, r.SameDigest)
		if i < 0 {
			return fmt.Errorf("program %q is not registered", p.Name)
		}
		r.Number = all[i].Number
		return nil
	}, func() { e.shape.Unregister(r.Number) })
}

// changePrograms changes what is registered, if all ranks may. What comes after it in the order
// waits for it, whichever thread starts it, so that all ranks run it alike.
func (e *Epoch) changePrograms(
	ctx context.Context, what plan.Collective, r *tune.Registered, may func() error, change func(),
) error {
	ended := make(chan struct{})
	e.lockOrder()
	e.awaitRegistration()
	e.registering = ended
	refused := may()
	e.mu.Unlock()
	s := Service{e: e, options: Options{FailFast: true, Registers: true}, partOf: what}
	all, err := s.Gather(ctx, proposalOf(r, refused)...)
	if err == nil {
		err = e.agreed(what, r.Name, all, refused)
	}
	e.lockOrder()
	if err == nil {
		change()
		e.fast.ForgetAll()
	}
	e.registering = nil
	e.unlockOrder()
	close(ended)
	return err
}

// awaitRegistration waits until no registration is under way. It is called after lockOrder, which
// it undoes and does again.
func (e *Epoch) awaitRegistration() {
	for e.registering != nil {
		ended := e.registering
		e.mu.Unlock()
		<-ended
		e.lockOrder()
	}
}

// A proposal is what a rank tells of a program: whether it was refused, the lengths, the digest,
// and the name.
const (
	proposalHead  = 3
	proposalWords = proposalHead + 4 + program.MostName/8
)

func proposalOf(r *tune.Registered, refused error) []int64 {
	words := make([]int64, proposalHead, proposalWords)
	if refused != nil {
		words[0] = 1
	}
	words[1], words[2] = r.MinBytes, r.MaxBytes
	var name [program.MostName]byte
	copy(name[:], r.Name)
	digest := r.Digest()
	for _, b := range [][]byte{digest[:], name[:]} {
		for ; len(b) > 0; b = b[8:] {
			words = append(words, int64(binary.LittleEndian.Uint64(b)))
		}
	}
	return words
}

// agreed tells why ranks that have proposed programs get none.
func (e *Epoch) agreed(what plan.Collective, name string, all []int64, refused error) error {
	fail := func(kind error, format string, args ...any) error {
		return fault.Errorf(kind, "%v: %s", what, fmt.Sprintf(format, args...)).In(&e.Members).
			During(what.String(), 0)
	}
	if refused != nil {
		return fail(fault.ErrInvalidArgument, "%v", refused)
	}
	mine := all[e.Rank*proposalWords:][:proposalWords]
	var refusals []int
	by := map[string][]int{} // the ranks, by what they propose
	same := true
	for rank := range e.Size() {
		its := all[rank*proposalWords:][:proposalWords]
		if its[0] != 0 {
			refusals = append(refusals, rank)
		}
		text := proposalText(its)
		by[text] = append(by[text], rank)
		same = same && slices.Equal(its[:proposalHead+4], mine[:proposalHead+4])
	}
	switch {
	case len(refusals) > 0:
		return fail(fault.ErrMismatch, "program %q was refused on %s, whose own error says why: all is "+
			"as before on all ranks", name, e.Members.Names(refusals...))
	case !same:
		var each []string
		for text, ranks := range by {
			each = append(each, e.Members.Names(ranks...)+" "+text)
		}
		slices.Sort(each)
		return fail(fault.ErrMismatch, "the ranks give different programs, and all is as before on all "+
			"ranks: %s", strings.Join(each, "; "))
	}
	return nil
}

// proposalText puts what a rank proposes into words. A peer has said it.
func proposalText(words []int64) string {
	var b []byte
	for _, w := range words[proposalHead:] {
		b = binary.LittleEndian.AppendUint64(b, uint64(w))
	}
	name := strings.TrimRight(string(b[32:]), "\x00")
	return fmt.Sprintf("%q (digest %x) of %d to %d bytes", name, b[:4], words[1], words[2])
}
