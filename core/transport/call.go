package transport

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/errtext"
)

// Processes that are in no group together yet talk by calls: a connection, the handshake of a link,
// a request and a reply. Both are sealed: whoever stands between the two, as by an address of its
// own in a handle, reads nothing and changes nothing unless it holds the service's secret.

// The longest request and reply of a call, in bytes. A reply may tell of all members of a group.
const (
	maxRequest = 1 << 20
	maxReply   = 16 << 20
)

// Service is what answers calls that come to an endpoint.
type Service struct {
	ID     uint64
	Secret []byte // that both sides must hold
	// Answer returns the reply to a request about a topic. It may wait: the context ends when the
	// caller has gone, or when the service or the endpoint ends.
	Answer func(ctx context.Context, topic uint64, request []byte) []byte
}

// service is a Service that is open.
type service struct {
	Service
	ctx context.Context
}

// Serve opens a service until stop is called. Calls that come later are told that it has left.
func (e *Endpoint) Serve(s Service) (stop func()) {
	ctx, cancel := context.WithCancel(e.ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.services[s.ID] = &service{s, ctx}
	return func() {
		e.mu.Lock()
		delete(e.services, s.ID)
		e.mu.Unlock()
		cancel()
	}
}

// serviceOf looks for the service that a hello means.
func (e *Endpoint) serviceOf(h *hello) *service {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.services[h.job]
}

// answer serves a caller that has proved itself, and closes its connection. A caller that goes
// meanwhile has other means to find out how it stands.
func (e *Endpoint) answer(s *conn, to *service, h *hello, nonces *[2][nonceSize]byte) {
	defer s.Close()
	ctx, cancel := context.WithCancel(to.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { s.SetReadDeadline(time.Unix(1, 0)) })()
	s.SetDeadline(time.Now().Add(handshakeTimeout))
	request, err := readSealed(s, callRequest.seal(to.Secret, h, nonces), maxRequest)
	if err != nil {
		return
	}
	s.SetReadDeadline(time.Time{})
	e.spawn("call", func() { // nothing more comes of a caller but its end
		_, _ = s.Read(make([]byte, 1))
		cancel()
	})
	reply := to.Answer(ctx, h.group, request)
	if ctx.Err() != nil { // where the service has ended the caller finds that when it calls again
		return
	}
	s.SetWriteDeadline(time.Now().Add(handshakeTimeout))
	_ = writeSealed(s, callReply.seal(to.Secret, h, nonces), reply)
}

// Call asks a service of a peer for a reply, until the context ends: the peer may be late. The
// error tells by ErrPeerDown that its process has ended, by ErrPeerLeft that the service has, by
// ErrRefused that the secrets differ, and by ErrProtocol that the reply is not what the peer sent.
func (e *Endpoint) Call(ctx context.Context, to *address.Address, service, topic uint64, secret,
	request []byte) ([]byte, error) {
	if len(request) > maxRequest {
		return nil, fmt.Errorf("a request of %d bytes: at most %d are allowed", len(request),
			maxRequest)
	}
	kind, network, targets := address.TCP, "tcp", to.Reachable(&e.address)
	if to.Host == e.address.Host && to.Unix != "" && e.address.Unix != "" {
		kind, network, targets = address.Shm, "unix", []string{to.Unix}
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("%s listens on no address that can be reached from here", to.Who())
	}
	h := hello{purpose: purposeCall, job: service, group: topic, from: e.id, to: to.Process}
	d := doubt{grace: e.grace, since: time.Now(), apart: to.Host != e.address.Host}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		errs := make([]error, 0, len(targets))
		for _, t := range targets {
			dialer := net.Dialer{Timeout: max(e.grace/4, time.Second), KeepAliveConfig: e.keepAlive()}
			dialer.SetMultipathTCP(false) // liveness reads plain TCP's state
			c, err := dialer.DialContext(ctx, network, t)
			if err != nil {
				err = errtext.Error(err)
			} else {
				var reply []byte
				reply, err = e.ask(ctx, e.newConn(c), kind, to, h, secret, request)
				if err == nil {
					return reply, nil
				}
				d.since = time.Now()
			}
			if ctx.Err() != nil {
				return nil, d.interrupted(ctx)
			}
			if errors.Is(err, ErrPeerDown) || errors.Is(err, ErrProtocol) {
				return nil, err
			}
			errs = append(errs, err)
		}
		if err := d.judge(errs, time.Now()); err != nil {
			return nil, err
		}
		if sleep(ctx, pause) != nil {
			return nil, d.interrupted(ctx)
		}
	}
}

// ask is a call over a connection, which it closes.
func (e *Endpoint) ask(ctx context.Context, s *conn, kind string, to *address.Address, h hello,
	secret, request []byte) ([]byte, error) {
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if kind == address.Shm {
		if err := e.peerOf(s, to); err != nil {
			return nil, fmt.Errorf("%w: %w", errStranger, err)
		}
	}
	dead := make(chan error, 1)
	pulse := e.watch(s, kind, to, func(err error) { dead <- err; s.Close() })
	nonces, err := introduce(s, "the call", secret, &h)
	var reply []byte
	if err == nil {
		if err = writeSealed(s, callRequest.seal(secret, &h, &nonces), request); err == nil {
			reply, err = readSealed(s, callReply.seal(secret, &h, &nonces), maxReply)
		}
	}
	e.unwatch(pulse)
	select {
	case err = <-dead:
	default:
	}
	return reply, err
}

// callPart is one of the two messages of a call.
type callPart string

const (
	callRequest callPart = "goccl call request 1\x00"
	callReply   callPart = "goccl call reply 1\x00"
)

// seal is what seals a part of a call. The key is made of what both sides have made up for this
// call, and seals nothing else: the nonce may be zero.
func (p callPart) seal(secret []byte, h *hello, nonces *[2][nonceSize]byte) cipher.AEAD {
	hb := h.bytes()
	key := mac(secret, string(p), hb[:], nonces[1][:])
	block, _ := aes.NewCipher(key[:]) // the key's length is one of AES
	seal, _ := cipher.NewGCM(block)   // and the block's is that of GCM
	return seal
}

var onceOnly [12]byte // a nonce of GCM: see seal

func writeSealed(w io.Writer, seal cipher.AEAD, m []byte) error {
	n := len(m) + seal.Overhead()
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+n), uint32(n))
	if _, err := w.Write(seal.Seal(b, onceOnly[:], m, nil)); err != nil {
		return errtext.Error(err)
	}
	return nil
}

// readSealed reads a message of at most so many bytes.
func readSealed(r io.Reader, seal cipher.AEAD, most int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, errtext.Error(err)
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n > int64(most+seal.Overhead()) {
		return nil, fmt.Errorf("%w: a message of %d bytes", ErrProtocol, n)
	}
	// What comes decides how much is taken, not what is announced.
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r, n); err != nil {
		return nil, errtext.Error(err)
	}
	m, err := seal.Open(b.Bytes()[:0], onceOnly[:], b.Bytes(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: a message that was changed on its way", ErrProtocol)
	}
	return m, nil
}
