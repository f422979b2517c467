package transport

import (
	"crypto/hmac"
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
	// QuickBase is the first of them that whoever reads the link handles.
	QuickBase uint8 = 128

	typeAttach  uint8 = 2 // payload: proof of the group's secret
	typeRefused uint8 = 3 // answer to an attach whose proof is wrong
	typeBye     uint8 = 4 // undoes an attach
)

const (
	headerSize  = 64
	headerMagic = 0xC7C1
	wireVersion = 2
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

	lent bool // a loan comes behind it, in place of the payload's last bytes
}

// put writes the header's 64 bytes.
func (h *Header) put(b *[headerSize]byte) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], headerMagic)
	b[2], b[3], b[4] = wireVersion, h.Type, h.Flags
	b[5], b[6], b[7] = 0, 0, 0
	if h.lent {
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
		return Header{}, fmt.Errorf("not a frame: it begins with %#04x instead of %#04x", m, headerMagic)
	}
	if b[2] != wireVersion {
		return Header{}, fmt.Errorf("frame of wire version %d; this side speaks %d", b[2], wireVersion)
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
		lent: b[5] == 1,
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
	case h.Type != typeRefused && h.Type != typeBye:
		known = false
	}
	if !known {
		return Header{}, fmt.Errorf("frame of unknown type %d", h.Type)
	}
	if h.Bytes > most {
		return Header{}, fmt.Errorf("frame of type %d with %d bytes; at most %d are allowed", h.Type, h.Bytes, most)
	}
	return h, nil
}

// loan says where the last bytes of a payload lie, which the receiver is to read by itself.
type loan struct {
	at      rdma.Remote
	bytes   uint32
	stopped rdma.Remote // GroupConfig.Stopped
}

const loanSize = 28

func (l *loan) put(b *[loanSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], l.at.Addr)
	le.PutUint32(b[8:], l.bytes)
	le.PutUint32(b[12:], l.at.Key)
	le.PutUint64(b[16:], l.stopped.Addr)
	le.PutUint32(b[24:], l.stopped.Key)
}

// parseLoan reads a loan for a payload of so many bytes.
func parseLoan(b *[loanSize]byte, payload uint32) (loan, error) {
	le := binary.LittleEndian
	l := loan{at: rdma.Remote{Addr: le.Uint64(b[0:]), Key: le.Uint32(b[12:])}, bytes: le.Uint32(b[8:]),
		stopped: rdma.Remote{Addr: le.Uint64(b[16:]), Key: le.Uint32(b[24:])}}
	if l.bytes == 0 || l.bytes > payload || l.at.Addr+uint64(l.bytes) < l.at.Addr {
		return loan{}, fmt.Errorf("a loan of %d bytes at %#x for a payload of %d", l.bytes, l.at.Addr, payload)
	}
	return l, nil
}

// The handshake, dialer to acceptor and back: hello, challenge, proof, verdict. Each is of one
// fixed size, so that nobody who has proved nothing makes this side allocate or wait for more.
const (
	helloSize     = 96
	challengeSize = 8 + nonceSize
	proofSize     = macSize
	verdictSize   = 8 + macSize

	helloMagic  = "GOCCL\x00L"
	answerMagic = "GOCCL\x00"

	purposeLink  = 1
	purposeProbe = 2 // only asks whether the host answers
)

type status uint8

const (
	statusOK        status = 0
	statusStranger  status = 1 // the hello is meant for another process
	statusLater     status = 2 // no such group here yet, or too many guests: try again
	statusGone      status = 3 // that group has been left here
	statusRefused   status = 4 // not a member of the group, or the proof is wrong
	statusDuplicate status = 5 // there is a link already, or one is being made the other way
	statusUnable    status = 6 // this process can open no more files
)

// hello is what the dialer says first.
type hello struct {
	purpose    uint8
	job, group uint64
	from, to   ProcessID
	nonce      [nonceSize]byte
}

func (h *hello) bytes() (b [helloSize]byte) {
	copy(b[:], helloMagic)
	b[7] = wireVersion
	b[8] = h.purpose
	binary.LittleEndian.PutUint64(b[16:], h.job)
	binary.LittleEndian.PutUint64(b[24:], h.group)
	copy(b[32:], h.from[:])
	copy(b[48:], h.to[:])
	copy(b[64:], h.nonce[:])
	return b
}

func parseHello(b *[helloSize]byte) (hello, error) {
	if string(b[:7]) != helloMagic {
		return hello{}, errors.New("not a goccl handshake")
	}
	if b[7] != wireVersion {
		return hello{}, fmt.Errorf("handshake of wire version %d; this side speaks %d", b[7], wireVersion)
	}
	h := hello{purpose: b[8], job: binary.LittleEndian.Uint64(b[16:]), group: binary.LittleEndian.Uint64(b[24:])}
	if h.purpose != purposeLink && h.purpose != purposeProbe {
		return hello{}, fmt.Errorf("handshake of unknown purpose %d", h.purpose)
	}
	for _, c := range b[9:16] {
		if c != 0 {
			return hello{}, errors.New("handshake with reserved bytes set")
		}
	}
	copy(h.from[:], b[32:])
	copy(h.to[:], b[48:])
	copy(h.nonce[:], b[64:])
	return h, nil
}

// answerHead begins the acceptor's two messages.
func answerHead(b []byte, s status) {
	copy(b, answerMagic)
	b[6], b[7] = wireVersion, byte(s)
}

func parseAnswerHead(b []byte) (status, error) {
	if string(b[:6]) != answerMagic || b[6] != wireVersion || status(b[7]) > statusUnable {
		return 0, errors.New("the answer is not that of a goccl handshake")
	}
	return status(b[7]), nil
}

func mac(secret []byte, domain string, parts ...[]byte) (sum [macSize]byte) {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(domain))
	for _, p := range parts {
		m.Write(p)
	}
	m.Sum(sum[:0])
	return sum
}

// proofMAC is what the dialer proves itself by.
func proofMAC(secret []byte, helloBytes, nonce []byte) [macSize]byte {
	return mac(secret, "goccl dialer 1\x00", helloBytes, nonce)
}

// verdictMAC is what the acceptor proves itself by, and its verdict.
func verdictMAC(secret []byte, helloBytes, nonce []byte, s status) [macSize]byte {
	return mac(secret, "goccl acceptor 1\x00", helloBytes, nonce, []byte{byte(s)})
}

// attachMAC proves a group's secret for one direction between two ranks on one link: it covers the
// link's nonces, the process that sends it, and the whole header of the attach frame.
func attachMAC(secret []byte, nonces *[2][nonceSize]byte, from ProcessID, header *[headerSize]byte) [macSize]byte {
	return mac(secret, "goccl attach 1\x00", nonces[0][:], nonces[1][:], from[:], header[:])
}
