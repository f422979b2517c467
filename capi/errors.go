package main

// #include "api.h"
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"unsafe"

	"github.com/goccl/goccl/capi/deep"
	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
)

// The result codes that this package gives of itself.
const (
	codeOK              = C.goccl_result(C.GOCCL_OK)
	codeInvalidArgument = C.goccl_result(C.GOCCL_INVALID_ARGUMENT)
	codeInvalidHandle   = C.goccl_result(C.GOCCL_INVALID_HANDLE)
	codeInternal        = C.goccl_result(C.GOCCL_INTERNAL)
	codeInProgress      = C.goccl_result(C.GOCCL_IN_PROGRESS)
)

// codedError is an error of the C ABI's own.
type codedError struct {
	code C.goccl_result
	text string
}

func (e *codedError) Error() string { return e.text }

func errorf(code C.goccl_result, format string, args ...any) error {
	return &codedError{code, fmt.Sprintf(format, args...)}
}

// invalid tells of a bad argument: its name, what was given, what is allowed.
func invalid(name string, given any, allowed string, args ...any) error {
	return errorf(codeInvalidArgument, "%s is %v, %s", name, given, fmt.Sprintf(allowed, args...))
}

// needs refuses a NULL pointer.
func needs[T any](p *T, name string) error {
	if p == nil {
		return invalid(name, "NULL", "it must point to a value")
	}
	return nil
}

// errInProgress is no failure: it leaves goccl_last_error() alone.
var errInProgress = errorf(codeInProgress, "in progress")

// kinds maps errors to result codes.
var kinds = []struct {
	kind error
	code C.goccl_result
}{
	{core.ErrInvalidArgument, C.GOCCL_INVALID_ARGUMENT},
	{core.ErrTimeout, C.GOCCL_TIMEOUT},
	{core.ErrAborted, C.GOCCL_ABORTED},
	{core.ErrPeerFailed, C.GOCCL_PEER_FAILED},
	{core.ErrMismatch, C.GOCCL_MISMATCH},
	{core.ErrUnsupported, C.GOCCL_UNSUPPORTED},
	{core.ErrSystem, C.GOCCL_SYSTEM},
	{core.ErrRevoked, C.GOCCL_REVOKED},
	{core.ErrNoQuorum, C.GOCCL_NO_QUORUM},
	{core.ErrExcluded, C.GOCCL_EXCLUDED},
	{core.ErrInvalidHandle, C.GOCCL_INVALID_HANDLE},
	{bootstrap.ErrInvalid, C.GOCCL_INVALID_ARGUMENT},
	{bootstrap.ErrRefused, C.GOCCL_SYSTEM},
	{context.DeadlineExceeded, C.GOCCL_TIMEOUT},
}

func codeOf(err error) C.goccl_result {
	if err == nil {
		return codeOK
	}
	var own *codedError
	if errors.As(err, &own) {
		return own.code
	}
	for _, k := range kinds {
		if errors.Is(err, k.kind) {
			return k.code
		}
	}
	return codeInternal
}

// export is the frame of every exported function, which has the name without the prefix: errors
// become result codes and are kept for goccl_last_error(), and so do panics. Signal handlers of the
// program may run on the stack of f.
func export(name string, f func() error) (code C.goccl_result) {
	deep.Call(func() { code = guarded(name, f) })
	return code
}

func guarded(name string, f func() error) (code C.goccl_result) {
	schedule()
	err := safely(f)
	code = codeOf(err)
	if code != codeOK && code != codeInProgress {
		keep(name, err)
	}
	return code
}

// safely makes a panic of f an error.
func safely(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errorf(codeInternal, "a defect in GoCCL: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// onComm is export for a function of a communicator.
func onComm(name string, handle C.goccl_comm, f func(*commHandle) error) C.goccl_result {
	return export(name, func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		return f(c)
	})
}

// onWork is export for a function of a work.
func onWork(name string, handle C.goccl_work, f func(*workHandle) error) C.goccl_result {
	return export(name, func() error {
		w, err := work(handle)
		if err != nil {
			return err
		}
		return f(w)
	})
}

// put writes a value to memory of the caller, unless that is NULL.
func put[T any](to *T, name string, value T) error {
	if err := needs(to, name); err != nil {
		return err
	}
	*to = value
	return nil
}

// putList writes the first values of a list to memory of the caller that has room for size, and
// their number.
func putList[From, To any](function, name string, list []From, to *To, size C.size_t,
	count *C.size_t, value func(*From) To) error {
	room, err := roomFor(function, name, len(list), to, size, count)
	for i := range room {
		room[i] = value(&list[i])
	}
	return err
}

// roomFor is the part of the caller's memory that is to be filled, of a list of a length.
func roomFor[To any](function, name string, length int, to *To, size C.size_t,
	count *C.size_t) ([]To, error) {
	if err := needs(count, function+": count"); err != nil {
		return nil, err
	}
	if size > 0 {
		if err := needs(to, function+": "+name); err != nil {
			return nil, err
		}
	}
	*count = C.size_t(length)
	return unsafe.Slice(to, min(uint64(size), uint64(length))), nil
}

// putStructs is putList for structs that begin with struct_size, whose caller may know an older or
// a newer version.
func putStructs[From, To any](function, name string, list []From, to *To, least uintptr,
	size C.size_t, count *C.size_t, value func(*From) To) error {
	room, err := roomFor(function, name, len(list), to, size, count)
	if err != nil || size == 0 {
		return err
	}
	stride, err := strideOf(function+": "+name+"[0].struct_size", to, least)
	if err != nil {
		return err
	}
	for i := range room {
		giveStruct(unsafe.Add(unsafe.Pointer(to), i*stride), stride, value(&list[i]))
	}
	return nil
}

// The sizes of the first versions of structs that the library fills: a caller has no smaller one.
const (
	leastMember = 280
	leastOrphan = 32
	leastPeaks  = 32
	leastSpan   = 104
)

// strideOf reads the struct_size of a struct that is to be filled.
func strideOf[To any](name string, to *To, least uintptr) (int, error) {
	given, own := *(*C.size_t)(unsafe.Pointer(to)), unsafe.Sizeof(*to)
	if uintptr(given) < least || given > maxStruct || given%8 != 0 {
		return 0, invalid(name, given, "allowed is the sizeof of the struct: %d here, %d at least", own,
			least)
	}
	return int(given), nil
}

// giveStruct writes a struct to memory of the caller, whose struct may be longer.
func giveStruct[To any](at unsafe.Pointer, stride int, value To) {
	room := unsafe.Slice((*byte)(at), stride)
	clear(room)
	copy(room, unsafe.Slice((*byte)(unsafe.Pointer(&value)), unsafe.Sizeof(value)))
	*(*C.size_t)(at) = C.size_t(stride)
}

// fillText writes a text to zero memory of a struct, cut to fit with its end.
func fillText(to []C.char, text string) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&to[0])), len(to)-1), text)
}

// keep keeps the message of an error for goccl_last_error(), and its detail.
func keep(function string, err error) {
	text, detail := err.Error(), detail(function, err)
	C.api_keep_error((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)),
		(*C.char)(unsafe.Pointer(unsafe.SliceData(detail))), C.size_t(len(detail)))
}

// detail is the JSON of goccl_last_error_detail(). Where the error concerns no communicator, what
// has failed is the function. Its name is that of core's operation, which has no "comm_".
func detail(function string, err error) []byte {
	var of *taskError
	if errors.As(err, &of) {
		function = of.name
	}
	e := &core.Error{}
	errors.As(err, &e)
	operation := e.Operation
	if operation == "" && e.Group == "" {
		operation = strings.TrimPrefix(function, "comm_")
	}
	d := struct {
		Kind       string         `json:"kind"`
		Group      string         `json:"group"`
		Operation  string         `json:"operation"`
		Sequence   uint64         `json:"sequence"`
		Ranks      []int          `json:"ranks"`
		GroupRanks []int          `json:"group_ranks"`
		Calls      map[int]string `json:"calls"`
		Text       string         `json:"text"`
	}{C.GoString(C.goccl_result_string(codeOf(err))), e.Group, operation, e.Sequence, []int{}, []int{},
		map[int]string{}, err.Error()}
	for _, rank := range e.Ranks {
		d.Ranks, d.GroupRanks = append(d.Ranks, e.GlobalRank(rank)), append(d.GroupRanks, rank)
	}
	for rank, call := range e.Calls {
		d.Calls[e.GlobalRank(rank)] = call
	}
	b, _ := json.Marshal(&d) // strings and numbers never fail
	return b
}
