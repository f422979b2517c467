package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goccl/goccl/core/address"
)

// The handshake, dialer to acceptor and back: hello, challenge, proof, verdict. Each is of one
// fixed size, so that no stranger makes this side allocate or wait for more.
const (
	helloSize     = 96
	challengeSize = 8 + nonceSize
	proofSize     = macSize
	verdictSize   = 8 + macSize

	helloMagic  = "GOCCL\x00L"
	answerMagic = "GOCCL\x00"

	purposeLink  = 1
	purposeProbe = 2 // only asks whether the host answers
	purposeCall  = 3 // a call: the job is the service, and the group its topic
)

type status uint8

const (
	statusOK        status = 0
	statusStranger  status = 1 // the hello is meant for another process
	statusLater     status = 2 // no such group here yet, or too many connections: try again
	statusGone      status = 3 // that group has been left here
	statusRefused   status = 4 // not a member of the group, or the proof is wrong
	statusDuplicate status = 5 // there is a link already, or one is being made the other way
	statusUnable    status = 6 // this process can open no more files
)

// hello is what the dialer says first.
type hello struct {
	purpose    uint8
	epoch      uint32
	job, group uint64
	from, to   address.ProcessID
	nonce      [nonceSize]byte
}

func (h *hello) bytes() (b [helloSize]byte) {
	copy(b[:], helloMagic)
	b[7] = wireVersion
	b[8] = h.purpose
	binary.LittleEndian.PutUint32(b[12:], h.epoch)
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
		return hello{}, fmt.Errorf("handshake of wire version %d; this side speaks %d", b[7],
			wireVersion)
	}
	h := hello{purpose: b[8], epoch: binary.LittleEndian.Uint32(b[12:]),
		job: binary.LittleEndian.Uint64(b[16:]), group: binary.LittleEndian.Uint64(b[24:])}
	if h.purpose < purposeLink || h.purpose > purposeCall {
		return hello{}, fmt.Errorf("handshake of unknown purpose %d", h.purpose)
	}
	for _, c := range b[9:12] {
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
func attachMAC(secret []byte, nonces *[2][nonceSize]byte, from address.ProcessID,
	header *[headerSize]byte) [macSize]byte {
	return mac(secret, "goccl attach 1\x00", nonces[0][:], nonces[1][:], from[:], header[:])
}
