package transport

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goccl/goccl/rdma"
)

// Frame types. Those below ControlBase belong to the transport.
const (
	// Data is a frame whose payload goes to the memory that Handler.Slot names.
	Data uint8 = 1
	// ControlBase is the first of the types that a group may use as it likes.
	ControlBase uint8 = 16
	// QuickBase is the first of them that the reader of the link handles at once.
	QuickBase uint8 = 128

	typeAttach  uint8 = 2 // payload: proof of the group's secret
	typeRefused uint8 = 3 // answer to an attach whose proof is wrong
	typeBye     uint8 = 4 // undoes an attach
	typePing    uint8 = 5 // means nothing: its system acknowledges it
)

const (
	headerSize  = 64
	headerMagic = 0xC7C1
	wireVersion = 3
	macSize     = sha256.Size
	nonceSize   = 32
)

// Header begins every frame: 64 bytes, little endian. Job, Group, Epoch, Src, Dst and Bytes are
// filled in by Send and Broadcast; the rest is the caller's.
type Header struct {
	Type, Flags     uint8
	Bytes           uint32 // of the payload
	Job, Group      uint64
	Epoch, Src, Dst uint32
	Seq             uint64
	Arg             [2]uint64

	advertised bool // an advert comes behind it, in place of the payload's last bytes
}

// put writes the header's 64 bytes.
func (h *Header) put(b *[headerSize]byte) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], headerMagic)
	b[2], b[3], b[4] = wireVersion, h.Type, h.Flags
	b[5], b[6], b[7] = 0, 0, 0
	if h.advertised {
		b[5] = 1
	}
	le.PutUint32(b[8:], h.Bytes)
	le.PutUint32(b[12:], h.Epoch)
	le.PutUint64(b[16:], h.Job)
	le.PutUint64(b[24:], h.Group)
	le.PutUint32(b[32:], h.Src)
	le.PutUint32(b[36:], h.Dst)
	le.PutUint64(b[40:], h.Seq)
	le.PutUint64(b[48:], h.Arg[0])
	le.PutUint64(b[56:], h.Arg[1])
}

// parseHeader reads a header and checks all that needs no knowledge of groups.
func parseHeader(b *[headerSize]byte) (Header, error) {
	le := binary.LittleEndian
	if m := le.Uint16(b[0:]); m != headerMagic {
		return Header{}, fmt.Errorf("not a frame: it begins with %#04x instead of %#04x", m,
			headerMagic)
	}
	if b[2] != wireVersion {
		return Header{}, fmt.Errorf("frame of wire version %d; this side speaks %d", b[2],
			wireVersion)
	}
	if b[5] > 1 || b[6]|b[7] != 0 || b[5] == 1 && b[3] != Data {
		return Header{}, errors.New("frame with reserved bytes set")
	}
	h := Header{
		Type: b[3], Flags: b[4],
		Bytes: le.Uint32(b[8:]), Epoch: le.Uint32(b[12:]),
		Job: le.Uint64(b[16:]), Group: le.Uint64(b[24:]),
		Src: le.Uint32(b[32:]), Dst: le.Uint32(b[36:]),
		Seq: le.Uint64(b[40:]), Arg: [2]uint64{le.Uint64(b[48:]), le.Uint64(b[56:])},
		advertised: b[5] == 1,
	}
	most, known := uint32(0), true
	switch {
	case h.Type == Data:
		most = MaxData
	case h.Type >= ControlBase:
		most = MaxControl
	case h.Type == typeAttach:
		most = macSize
		if h.Bytes != macSize {
			return Header{}, fmt.Errorf("attach frame of %d bytes instead of %d", h.Bytes, macSize)
		}
	case h.Type != typeRefused && h.Type != typeBye && h.Type != typePing:
		known = false
	}
	if !known {
		return Header{}, fmt.Errorf("frame of unknown type %d", h.Type)
	}
	if h.Bytes > most {
		return Header{}, fmt.Errorf("frame of type %d with %d bytes; at most %d are allowed",
			h.Type, h.Bytes, most)
	}
	return h, nil
}

// advert says where the last bytes of a payload lie, which the receiver is to read by itself.
type advert struct {
	at      rdma.Remote
	bytes   uint32
	stopped rdma.Remote // GroupConfig.Stopped
}

const advertSize = 28

func (a *advert) put(b *[advertSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], a.at.Addr)
	le.PutUint32(b[8:], a.bytes)
	le.PutUint32(b[12:], a.at.Key)
	le.PutUint64(b[16:], a.stopped.Addr)
	le.PutUint32(b[24:], a.stopped.Key)
}

// parseAdvert reads an advert for a payload of so many bytes.
func parseAdvert(b *[advertSize]byte, payload uint32) (advert, error) {
	le := binary.LittleEndian
	a := advert{
		at:      rdma.Remote{Addr: le.Uint64(b[0:]), Key: le.Uint32(b[12:])},
		bytes:   le.Uint32(b[8:]),
		stopped: rdma.Remote{Addr: le.Uint64(b[16:]), Key: le.Uint32(b[24:])},
	}
	if a.bytes == 0 || a.bytes > payload || a.at.Addr+uint64(a.bytes) < a.at.Addr {
		return advert{}, fmt.Errorf("a buffer of %d bytes at %#x is advertised for a payload of %d",
			a.bytes, a.at.Addr, payload)
	}
	return a, nil
}
