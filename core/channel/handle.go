package channel

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/internal/seal"
)

// HandleSize is the size of a handle, in bytes.
const HandleSize = 64

// handle is what a process tells of memory that it has registered. Whoever reads one knows that a
// member of the group has written it: it is sealed with the group's secret.
type handle struct {
	access uint8
	rank   uint32
	epoch  uint32
	id     uint32
	owner  uint64 // Memories.Owner
	group  uint64 // whose secret seals it
	offset uint64 // in the owner's arena
	bytes  uint64
	alive  uint64 // place of the word that tells whether it is registered, likewise
}

const (
	handleMagic   = 0x4d47
	handleVersion = 1
	sealSize      = 8
	handleLabel   = "goccl memory"
)

func (h *handle) encode(secret []byte) (b [HandleSize]byte) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], handleMagic)
	b[2], b[3] = handleVersion, h.access
	le.PutUint32(b[4:], h.rank)
	le.PutUint32(b[8:], h.epoch)
	le.PutUint32(b[12:], h.id)
	for i, v := range []uint64{h.owner, h.group, h.offset, h.bytes, h.alive} {
		le.PutUint64(b[16+8*i:], v)
	}
	sum := seal.Of(string(secret), handleLabel, b[:HandleSize-sealSize])
	copy(b[HandleSize-sealSize:], sum[:])
	return b
}

// decodeHandle reads a handle. secretOf returns the secret of a group that this rank has been in.
func decodeHandle(b []byte, secretOf func(group uint64) []byte) (h handle, err error) {
	le := binary.LittleEndian
	if len(b) != HandleSize {
		return h, fmt.Errorf("handle has %d bytes, it must have %d", len(b), HandleSize)
	}
	if le.Uint16(b) != handleMagic || b[2] != handleVersion {
		return h, fmt.Errorf("handle begins with % x, which none of this version does", b[:4])
	}
	h = handle{access: b[3], rank: le.Uint32(b[4:]), epoch: le.Uint32(b[8:]), id: le.Uint32(b[12:]),
		owner: le.Uint64(b[16:]), group: le.Uint64(b[24:]), offset: le.Uint64(b[32:]),
		bytes: le.Uint64(b[40:]), alive: le.Uint64(b[48:])}
	secret := secretOf(h.group)
	if secret == nil {
		return h, fmt.Errorf("handle was exported by another communicator, or by this one before this " +
			"rank was a member: have its owner export it now")
	}
	sum := seal.Of(string(secret), handleLabel, b[:HandleSize-sealSize])
	if !bytes.Equal(sum[:sealSize], b[HandleSize-sealSize:]) {
		return h, fmt.Errorf("handle is not what its owner has exported: its bytes were changed")
	}
	if h.access&^(exec.RemoteRead|exec.RemoteWrite) != 0 || h.alive%8 != 0 || h.id == 0 ||
		h.bytes > 1<<62 || h.offset > 1<<62 || h.alive > 1<<62 {
		return h, fmt.Errorf("handle is sealed, and makes no sense: %+v", h)
	}
	return h, nil
}
