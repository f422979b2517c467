package bootstrap

import (
	"bufio"
	"context"
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goccl/goccl/core/internal/errtext"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/internal/seal"
	"github.com/goccl/goccl/core/internal/untrusted"
)

// client is a store at a root.
type client struct {
	mu       sync.Mutex
	conn     net.Conn
	in       *bufio.Reader
	deadline time.Time // of the context that it was dialled with; zero for none
	most     int       // bytes of an answer
	broken   error
}

// DialRoot connects to the root that made an id. Both sides prove to each other that they hold the
// id's secret. The context's deadline, if it has one, also bounds all use of the store. Close ends
// the connection.
func DialRoot(ctx context.Context, id [IDSize]byte) (Store, io.Closer, error) {
	var c *client
	var err error
	elsewhere(func(func(func())) { c, err = dialRoot(ctx, id) })
	if err != nil {
		return nil, nil, err
	}
	return c, c, nil
}

func dialRoot(ctx context.Context, id [IDSize]byte) (*client, error) {
	secret, addresses, err := decodeID(id)
	if err != nil {
		return nil, err
	}
	return dialAny(ctx, addresses, secret, ErrRefused)
}

// dialAny connects to the first address that answers. It tries again until the context ends, but
// not after the errors that are given as final.
func dialAny(
	ctx context.Context, addresses []netip.AddrPort, secret [secretSize]byte, final ...error,
) (*client, error) {
	wait := pollFirst
	for {
		var last error
		for _, a := range addresses {
			c, err := dialOne(ctx, "tcp", a.String(), secret)
			if err == nil {
				return c, nil
			}
			last = fmt.Errorf("the root address %s: %w", a, errtext.Error(err))
			if slices.ContainsFunc(final, func(f error) bool { return errors.Is(err, f) }) {
				return nil, last
			}
		}
		// The network may be up in a moment, or the root crowded.
		t := time.NewTimer(wait)
		wait = min(2*wait, time.Second)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w: %w", errtext.Error(context.Cause(ctx)), last)
		}
	}
}

func dialOne(
	ctx context.Context, network, address string, secret [secretSize]byte,
) (*client, error) {
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(requestTime))
	if err := meet(conn, secret); err != nil {
		_ = conn.Close()
		return nil, err
	}
	c := &client{conn: conn, in: bufio.NewReader(conn), most: maxValue}
	c.deadline, _ = ctx.Deadline()
	return c, nil
}

// meet is the client's half of greet.
func meet(conn io.ReadWriter, secret [secretSize]byte) error {
	var hello [len(greeting)]byte
	var theirs, mine, proof [secretSize]byte
	if err := readAll(conn, hello[:], theirs[:]); err != nil {
		return err
	}
	if string(hello[:]) != greeting {
		return fmt.Errorf("%w: another service, or another version of GoCCL, answers there", ErrRefused)
	}
	random(mine[:])
	answer := seal.Of(string(secret[:]), "goccl client", theirs[:], mine[:])
	if _, err := conn.Write(append(mine[:], answer[:]...)); err != nil {
		return err
	}
	if err := readAll(conn, proof[:]); err != nil {
		return err
	}
	if want := seal.Of(string(secret[:]), "goccl root", theirs[:], mine[:]); !hmac.Equal(
		want[:], proof[:]) {
		return ErrRefused
	}
	return nil
}

// Close ends the connection.
func (c *client) Close() error { return c.conn.Close() }

func (c *client) Set(key string, value []byte) error {
	_, _, err := c.call(opSet, key, value, 0)
	return err
}

func (c *client) Get(key string) ([]byte, bool, error) {
	return c.call(opGet, key, nil, 0)
}

func (c *client) Watch(key string, old []byte, most time.Duration) ([]byte, bool, error) {
	value := binary.LittleEndian.AppendUint32(nil, uint32(most.Milliseconds()))
	return c.call(opWatch, key, append(value, old...), most)
}

// enter tells the root how others reach this process. See [Root.enter].
func (c *client) enter(addresses []netip.AddrPort) (parent []netip.AddrPort, err error) {
	b, ok, err := c.call(opEnter, "leaders", appendAddresses(nil, addresses), 0)
	if err != nil || ok && len(b) == 0 {
		return nil, err
	}
	r := untrusted.NewReader(b)
	if parent = readAddresses(&r); len(parent) == 0 {
		r.Fail()
	}
	return parent, r.End()
}

// call asks the root, which may take its time for the answer.
func (c *client) call(op byte, key string, value []byte, wait time.Duration) ([]byte, bool, error) {
	if len(key) == 0 || len(key) > maxKey || len(value) > maxValue {
		return nil, false, fmt.Errorf("%w: a key of %d bytes (allowed is 1 to %d) with a value of %d "+
			"(up to %d)", ErrInvalid, len(key), maxKey, len(value), maxValue)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return nil, false, c.broken
	}
	status, answer, err := c.exchange(op, key, value, requestTime+wait)
	if err != nil {
		// What comes next on the connection is no longer known.
		c.broken = fmt.Errorf("the connection to the root at %s: %w", c.conn.RemoteAddr(),
			errtext.Error(err))
		return nil, false, c.broken
	}
	switch status {
	case statusOK:
		return answer, true, nil
	case statusAbsent:
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("the root says: %s", printable.Text(string(answer), maxStoreError))
}

func (c *client) exchange(op byte, key string, value []byte, most time.Duration) (
	status byte, answer []byte, err error,
) {
	deadline := time.Now().Add(most)
	if !c.deadline.IsZero() && c.deadline.Before(deadline) {
		deadline = c.deadline
	}
	_ = c.conn.SetDeadline(deadline)
	head := binary.LittleEndian.AppendUint16([]byte{op}, uint16(len(key)))
	head = binary.LittleEndian.AppendUint32(head, uint32(len(value)))
	b := net.Buffers{append(head, key...), value}
	if _, err := b.WriteTo(c.conn); err != nil {
		return 0, nil, err
	}
	return readAnswer(c.in, c.most)
}

func readAnswer(in io.Reader, most int) (status byte, answer []byte, err error) {
	var head [answerHead]byte
	if err := readAll(in, head[:]); err != nil {
		return 0, nil, err
	}
	status = head[0]
	n := binary.LittleEndian.Uint32(head[1:])
	if status > statusError || n > uint32(most) || status == statusAbsent && n != 0 {
		return 0, nil, untrusted.ErrMalformed
	}
	answer, err = readLong(in, int(n))
	return status, answer, err
}
