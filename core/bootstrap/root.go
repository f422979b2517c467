package bootstrap

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goccl/goccl/core/internal/errtext"
	"github.com/goccl/goccl/core/internal/interfaces"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/internal/seal"
	"github.com/goccl/goccl/core/internal/untrusted"
	"github.com/goccl/goccl/core/pending"
)

// ErrRefused is wrapped by an error that tells of a root that holds another secret.
var ErrRefused = errors.New("refused: not the root that this id was made by")

// IDSize is the length of a root's id.
const IDSize = 128

// The limits of what a root keeps for its clients, who hold its secret. Those who do not hold it
// cost a connection each, of which few are open at once and none for long.
const (
	maxKey       = 2048
	maxValue     = 64 << 20
	maxTotal     = 256 << 20
	maxEntries   = 4 * MaxSize
	maxStrangers = 256
	maxAddresses = 4
	// of some addresses, encoded: their number, and of each its length, the port and 16 bytes
	maxAddressBytes = 1 + maxAddresses*(1+2+16)
	greetingTime    = 5 * time.Second  // for a stranger to become a client
	requestTime     = 30 * time.Second // for a request and its answer to pass
	dialTime        = 3 * time.Second
	acceptRecovery  = 50 * time.Millisecond
)

// An id is: version, secret, number of addresses, the addresses (family, port, IP), zeros, and a
// checksum in the last four bytes.
const (
	idVersion = 1
	idBody    = IDSize - 4
)

// Root is a store served at an address, and the address. Rank 0 makes it.
type Root struct {
	listeners []net.Listener
	addresses []netip.AddrPort
	secret    [secretSize]byte
	reads     bool // clients only read: it hands out a table

	strangers pending.List // connections that have proved nothing yet

	mu      sync.Mutex // guards what follows, but for serving
	values  map[string][]byte
	leaders [][]byte         // addresses of those that have entered, as they have encoded them
	waits   map[string]*wait // by key, while somebody watches it
	total   int
	conns   map[net.Conn]struct{}
	closed  bool
	serving sync.WaitGroup // accepting goroutines and connections
}

// wait is for a value to change. The root's lock guards it.
type wait struct {
	changed  chan struct{} // closed when it has, or the root is closed
	watchers int
}

// NewRoot listens at a free port of listenHost: an IP address, a host name, or "" for the address
// that the default route goes out from. It serves an empty store there.
func NewRoot(listenHost string) (*Root, error) {
	hosts, err := listenAddresses(listenHost)
	if err != nil {
		return nil, printable.Error(err, maxStoreError)
	}
	return rootAt(listenHost, hosts)
}

// NewRootOn is [NewRoot] on the network interfaces that a text allows, which is as that of
// GOCCL_SOCKET_IFNAME; "" is for the address that the default route goes out from.
func NewRootOn(allowed string) (*Root, error) {
	if allowed == "" {
		return NewRoot("")
	}
	hosts, err := interfaces.Addresses(allowed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return rootAt(allowed, hosts[:min(len(hosts), maxAddresses)])
}

func rootAt(on string, hosts []netip.Addr) (*Root, error) {
	r := &Root{strangers: pending.List{Most: maxStrangers}}
	random(r.secret[:])
	if err := r.listen(hosts); len(r.listeners) == 0 {
		return nil, fmt.Errorf("a root address on %q: %w", on, err)
	}
	r.start()
	return r, nil
}

// OpenRoot serves an empty store at the address of an id, where its own root is closed to those who
// come. Only on the host where the id was made.
func OpenRoot(id [IDSize]byte) (*Root, error) {
	secret, addresses, err := decodeID(id)
	if err != nil {
		return nil, err
	}
	r := &Root{strangers: pending.List{Most: maxStrangers}, secret: secret, addresses: addresses}
	for _, a := range addresses {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
		if err != nil {
			for _, l := range r.listeners {
				_ = l.Close()
			}
			return nil, fmt.Errorf("the root address %s: %w", a, errtext.Error(err))
		}
		r.listeners = append(r.listeners, l)
	}
	r.start()
	return r, nil
}

// listen listens at a free port of each host that has one. The error is of the last that has none.
func (r *Root) listen(hosts []netip.Addr) error {
	var failed error
	for _, h := range hosts {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(h, 0)))
		if err != nil {
			failed = err
			continue
		}
		r.listeners = append(r.listeners, l)
		r.addresses = append(r.addresses, netip.AddrPortFrom(h, uint16(l.Addr().(*net.TCPAddr).Port)))
	}
	return failed
}

// start serves an empty store to those who come in.
func (r *Root) start() {
	r.values, r.waits = map[string][]byte{}, map[string]*wait{}
	r.conns = map[net.Conn]struct{}{}
	for _, l := range r.listeners {
		r.serving.Add(1)
		go r.accept(l)
	}
}

// listenAddresses finds addresses that other hosts may reach this one at, by preference.
func listenAddresses(host string) ([]netip.Addr, error) {
	var found []netip.Addr
	add := func(a netip.Addr, ok bool) {
		// A link-local address means nothing on another host.
		if a = a.Unmap(); ok && !a.IsLinkLocalUnicast() && !a.IsUnspecified() &&
			!slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	if host == "" {
		// Connecting a UDP socket sends nothing; it asks for the route. The addresses are of the
		// ranges for documentation.
		for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
			if c, err := net.Dial("udp", to); err == nil {
				add(netip.AddrFromSlice(c.LocalAddr().(*net.UDPAddr).IP))
				_ = c.Close()
			}
		}
		if len(found) == 0 {
			add(netip.AddrFrom4([4]byte{127, 0, 0, 1}), true)
		}
	} else {
		list, err := net.LookupIP(host)
		if err != nil {
			return nil, fmt.Errorf("%w: %q is no IP address or host name of this host: %w", ErrInvalid,
				host, err)
		}
		for _, ip := range list {
			add(netip.AddrFromSlice(ip))
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %q has no address that other hosts could reach", ErrInvalid, host)
	}
	slices.SortStableFunc(found, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return found[:min(len(found), maxAddresses)], nil
}

// ID is what other ranks dial the root by. It holds the secret.
func (r *Root) ID() [IDSize]byte {
	var id [IDSize]byte
	b := append(id[:0], idVersion)
	appendAddresses(append(b, r.secret[:]...), r.addresses)
	binary.LittleEndian.PutUint32(id[idBody:], crc32.ChecksumIEEE(id[:idBody]))
	return id
}

func decodeID(id [IDSize]byte) (secret [secretSize]byte, addresses []netip.AddrPort, err error) {
	bad := fmt.Errorf("%w: the unique id is damaged or was not made by this version of GoCCL",
		ErrInvalid)
	if binary.LittleEndian.Uint32(id[idBody:]) != crc32.ChecksumIEEE(id[:idBody]) ||
		id[0] != idVersion {
		return secret, nil, bad
	}
	r := untrusted.NewReader(id[1:idBody])
	r.Fixed(secret[:])
	if addresses = readAddresses(&r); len(addresses) == 0 {
		return secret, nil, bad
	}
	return secret, addresses, nil
}

func appendAddresses(b []byte, addresses []netip.AddrPort) []byte {
	b = append(b, byte(len(addresses)))
	for _, a := range addresses {
		b = append(b, byte(a.Addr().BitLen()/8))
		b = binary.LittleEndian.AppendUint16(b, a.Port())
		b = append(b, a.Addr().AsSlice()...)
	}
	return b
}

// readAddresses returns none where r fails.
func readAddresses(r *untrusted.Reader) (addresses []netip.AddrPort) {
	n := int(r.Byte())
	if n > maxAddresses {
		r.Fail()
	}
	for len(addresses) < n && !r.Failed() {
		size, port := r.Byte(), r.Uint16()
		a, ok := netip.AddrFromSlice(r.Take(int(size)))
		if !ok {
			r.Fail()
			return nil
		}
		addresses = append(addresses, netip.AddrPortFrom(a, port))
	}
	return addresses
}

// IDSecret is the secret that holders of an id share, fit for [JoinConfig.Secret]: then the group's
// own secret never passes over the root's connections.
func IDSecret(id [IDSize]byte) (string, error) {
	secret, _, err := decodeID(id)
	if err != nil {
		return "", err
	}
	key := seal.Of(string(secret[:]), "goccl root job")
	return hex.EncodeToString(key[:]), nil
}

// Close ends the root and every connection to it, and waits for its goroutines.
func (r *Root) Close() {
	r.mu.Lock()
	r.closed = true
	for _, l := range r.listeners {
		_ = l.Close()
	}
	for c := range r.conns {
		_ = c.Close()
	}
	for key := range r.waits {
		r.wake(key)
	}
	r.mu.Unlock()
	r.serving.Wait()
}

// Drain lets in nobody new, and closes the root when its clients have gone, or after a while at the
// latest. It returns at once: rank 0 calls it when it has joined, as the others may still be
// reading.
func (r *Root) Drain(longest time.Duration) {
	for _, l := range r.listeners {
		_ = l.Close()
	}
	go func() {
		t := time.AfterFunc(longest, r.Close)
		defer t.Stop()
		r.serving.Wait()
		r.Close()
	}()
}

// Store is the root's own view of its store, for rank 0.
func (r *Root) Store() Store { return (*rootStore)(r) }

type rootStore Root

func (s *rootStore) Set(key string, value []byte) error { return (*Root)(s).set(key, value) }

func (s *rootStore) Get(key string) ([]byte, bool, error) {
	v, ok := (*Root)(s).get(key)
	return slices.Clone(v), ok, nil
}

func (s *rootStore) Watch(key string, old []byte, most time.Duration) ([]byte, bool, error) {
	v, ok := (*Root)(s).watch(key, old, most)
	return slices.Clone(v), ok, nil
}

func (r *Root) set(key string, value []byte) error {
	if len(key) > maxKey || len(value) > maxValue {
		return fmt.Errorf("a key of %d bytes with a value of %d: at most %d and %d are stored",
			len(key), len(value), maxKey, maxValue)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.values[key]
	total := r.total - len(old) + len(value)
	if !ok {
		total += len(key)
	}
	if total > maxTotal || !ok && len(r.values) >= maxEntries {
		return fmt.Errorf("the root's store is full: it holds %d entries of %d bytes", len(r.values),
			r.total)
	}
	r.total = total
	r.values[key] = slices.Clone(value)
	r.wake(key)
	return nil
}

// wake needs r.mu.
func (r *Root) wake(key string) {
	if w, ok := r.waits[key]; ok {
		close(w.changed)
		delete(r.waits, key)
	}
}

// watch waits for a value that is not old.
func (r *Root) watch(key string, old []byte, most time.Duration) ([]byte, bool) {
	t := time.NewTimer(most)
	defer t.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for over := false; ; {
		v, ok := r.values[key]
		if over || r.closed || ok && !bytes.Equal(v, old) {
			return v, ok
		}
		w := r.waits[key]
		if w == nil {
			w = &wait{changed: make(chan struct{})}
			r.waits[key] = w
		}
		w.watchers++
		r.mu.Unlock()
		select {
		case <-w.changed:
		case <-t.C:
			over = true
		}
		r.mu.Lock()
		if w.watchers--; w.watchers == 0 && r.waits[key] == w {
			delete(r.waits, key)
		}
	}
}

// get returns a value that nobody writes to: set replaces, it never changes one.
func (r *Root) get(key string) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.values[key]
	return v, ok
}

// enter gives the leader of a host a place in the tree of leaders, whose root this is. It returns
// the addresses of the leader's parent, and none where that is the root.
func (r *Root) enter(addresses []byte) (parent []byte, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place := len(r.leaders)
	if place >= MaxSize {
		return nil, false
	}
	r.leaders = append(r.leaders, addresses)
	if place >= radix {
		parent = r.leaders[place/radix-1]
	}
	return parent, true
}

func (r *Root) accept(l net.Listener) {
	defer r.serving.Done()
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// No descriptor is free, or the stranger has gone already: neither lasts.
			time.Sleep(acceptRecovery)
			continue
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			_ = c.Close()
			continue
		}
		r.conns[c] = struct{}{}
		r.serving.Add(1)
		r.mu.Unlock()
		go func() {
			defer r.serving.Done()
			r.serve(c)
			_ = c.Close()
			r.mu.Lock()
			delete(r.conns, c)
			r.mu.Unlock()
		}()
	}
}

// The protocol of a connection. The root speaks first:
//
//	root:    greeting, nonce
//	client:  nonce, HMAC(secret, "client", both nonces)
//	root:    HMAC(secret, "root", both nonces), or zeros and the end
//
// A client that is hung up on without an answer has had to go for others, and dials again. After
// the proofs the root answers requests: op, key length (2 bytes), value length (4), key, value; by:
// status, value length (4), value. The value of a watch is how long it waits at most, in
// milliseconds (4 bytes), and the old value. For enter see [Root.enter].
const (
	greeting = "GoCCL root 2\n"

	opSet   = 1
	opGet   = 2
	opWatch = 3
	opEnter = 4

	watchHead = 4

	statusOK     = 0
	statusAbsent = 1
	statusError  = 2 // the value is a message
)

const (
	requestHead = 7
	answerHead  = 5
)

// serve speaks to one connection until it ends.
func (r *Root) serve(c net.Conn) {
	stranger := r.strangers.Enter(context.Background())
	defer stranger.Close()
	defer context.AfterFunc(stranger, func() { _ = c.Close() })()
	if r.greet(c, stranger) != nil {
		return
	}
	in := bufio.NewReader(c)
	for {
		_ = c.SetDeadline(time.Time{})
		if _, err := in.Peek(1); err != nil {
			return
		}
		_ = c.SetDeadline(time.Now().Add(requestTime))
		most := maxValue
		if r.reads {
			most = maxAddressBytes
		}
		op, key, value, err := readRequest(in, most)
		if err != nil || r.reads && op == opSet {
			return
		}
		status, answer := r.answer(op, key, value)
		_ = c.SetDeadline(time.Now().Add(requestTime))
		head := binary.LittleEndian.AppendUint32([]byte{status}, uint32(len(answer)))
		b := net.Buffers{head, answer}
		if _, err := b.WriteTo(c); err != nil {
			return
		}
	}
}

func (r *Root) answer(op byte, key string, value []byte) (status byte, answer []byte) {
	var ok bool
	switch op {
	case opSet:
		if err := r.set(key, value); err != nil {
			return statusError, []byte(err.Error())
		}
		return statusOK, nil
	case opGet:
		answer, ok = r.get(key)
	case opWatch:
		most := time.Duration(binary.LittleEndian.Uint32(value)) * time.Millisecond
		answer, ok = r.watch(key, value[watchHead:], min(most, requestTime))
	case opEnter:
		answer, ok = r.enter(value)
	}
	if !ok {
		return statusAbsent, nil
	}
	return statusOK, answer
}

// greet makes a stranger a client.
func (r *Root) greet(c net.Conn, stranger *pending.Conn) error {
	_ = c.SetDeadline(time.Now().Add(greetingTime))
	var mine [secretSize]byte
	random(mine[:])
	if _, err := c.Write(append([]byte(greeting), mine[:]...)); err != nil {
		return err
	}
	var theirs, proof [secretSize]byte
	if err := readAll(c, theirs[:], proof[:]); err != nil {
		return err
	}
	if want := seal.Of(string(r.secret[:]), "goccl client", mine[:], theirs[:]); !hmac.Equal(
		want[:], proof[:]) {
		_, _ = c.Write(make([]byte, secretSize)) // it is refused anyway
		return ErrRefused
	}
	if !stranger.Leave() {
		return stranger.Err()
	}
	answer := seal.Of(string(r.secret[:]), "goccl root", mine[:], theirs[:])
	_, err := c.Write(answer[:])
	return err
}

func readAll(from io.Reader, to ...[]byte) error {
	for _, b := range to {
		if _, err := io.ReadFull(from, b); err != nil {
			return err
		}
	}
	return nil
}

func readRequest(in io.Reader, most int) (op byte, key string, value []byte, err error) {
	var head [requestHead]byte
	if err := readAll(in, head[:]); err != nil {
		return 0, "", nil, err
	}
	op = head[0]
	k, v := binary.LittleEndian.Uint16(head[1:]), binary.LittleEndian.Uint32(head[3:])
	if op < opSet || op > opEnter || k == 0 || k > maxKey || v > uint32(most) ||
		op == opGet && v != 0 || op == opWatch && v < watchHead || op == opEnter && v > maxAddressBytes {
		return 0, "", nil, untrusted.ErrMalformed
	}
	name, err := readLong(in, int(k))
	if err != nil {
		return 0, "", nil, err
	}
	value, err = readLong(in, int(v))
	return op, string(name), value, err
}

// readLong reads n bytes, and takes memory only as they come.
func readLong(in io.Reader, n int) ([]byte, error) {
	const piece = 64 << 10
	b := make([]byte, 0, min(n, piece))
	for len(b) < n {
		m := min(n-len(b), piece)
		b = slices.Grow(b, m)[:len(b)+m]
		if _, err := io.ReadFull(in, b[len(b)-m:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}
