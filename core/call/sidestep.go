package call

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/plan"
)

// sideStepped is the dtype in the message of a collective that another library does.
const sideStepped = math.MaxUint8

// sideStepBytes is as much of that library's name as a message has.
const sideStepBytes = 16

// SideStep is the message of a collective that another library does. Ranks that side-step it to the
// same library have equal messages: its arguments are that library's affair.
func SideStep(c plan.Collective, to string) plan.Message {
	var name [sideStepBytes]byte
	copy(name[:], to)
	return plan.Message{Collective: uint8(c), DType: sideStepped, Root: -1,
		Count:  binary.LittleEndian.Uint64(name[:]),
		Digest: binary.LittleEndian.Uint64(name[8:])}
}

// IsSideStep reports whether a message is of a collective that another library does.
func IsSideStep(m *plan.Message) bool { return m.DType == sideStepped }

// sideStep is to which library the collective of a message is side-stepped; ok is false where it is
// not.
func sideStep(m plan.Message) (to string, ok bool) {
	if !IsSideStep(&m) {
		return "", false
	}
	var name [sideStepBytes]byte
	binary.LittleEndian.PutUint64(name[:], m.Count)
	binary.LittleEndian.PutUint64(name[8:], m.Digest)
	return printable.Text(strings.TrimRight(string(name[:]), "\x00"), 4*sideStepBytes), true
}

// CheckSideSteps refuses a text that is not such as "alltoall:gloo;allreduce:nccl": collectives
// with the backends that do them, separated by semicolons. A backend without a collective is one
// that single calls may be side-stepped to. It returns the text that all write who mean the same.
func CheckSideSteps(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	items := strings.Split(text, ";")
	seen := map[string]bool{}
	for i, item := range items {
		items[i] = strings.TrimSpace(item)
		collective, to, found := strings.Cut(items[i], ":")
		if !found {
			collective, to = "", items[i]
		} else if _, ok := plan.ParseCollective(collective); !ok {
			return "", fmt.Errorf("%q, in which no collective is %q, allowed are %s", text, collective,
				plan.CollectiveNames())
		}
		switch {
		case to == "", strings.ContainsAny(to, ":, \t"):
			return "", fmt.Errorf("%q, in which %q names no backend; allowed are collectives with their "+
				"backends, as in alltoall:gloo;allreduce:nccl", text, to)
		case to == "goccl":
			return "", fmt.Errorf("%q, but goccl does what it does not side-step", text)
		case found && seen[collective]:
			return "", fmt.Errorf("%q, in which %s comes twice", text, collective)
		}
		seen[collective] = true
	}
	slices.Sort(items)
	return strings.Join(slices.Compact(items), ";"), nil
}
