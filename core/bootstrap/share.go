package bootstrap

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/goccl/goccl/core/internal/seal"
	"github.com/goccl/goccl/core/internal/untrusted"
	"github.com/goccl/goccl/core/pending"
)

// A large table is read once a host. The first rank that listens on an abstract Unix socket, whose
// name is made of the roster and its secret, is the leader of its host. It gets the table for all,
// and hands it to those that prove to hold the secret; they believe it for its digest. Containers
// that have a network of their own have their own such names.
//
// Leaders are a tree. The roster names the addresses at which rank 0 is the root. A leader listens,
// too, and enters its own addresses there. The root answers with those of the leader's parent,
// which has entered before. So a leader that waits for its parent waits for none that has yet to
// start. Where there is nothing to be had in this way, be it that a stranger has taken the name,
// that a parent is silent, or that what it has is not the roster's table, a rank reads the store.

const (
	shareFrom = 8 << 10 // bytes of a table: a smaller one costs less than a connection
	sharePoll = time.Millisecond
	radix     = 16 // leaders that have the same parent
)

var (
	errNoTree = errors.New("there is no tree of leaders, or no place in it")
	errWrong  = errors.New("another rank has handed out what is not the roster's table")
)

// How long a rank tries to have the table from another one, and a leader from another host's. Tests
// may take longer. The ranks of a host wait while their leader turns to the store.
var (
	shareTime  = 10 * time.Second
	leaderTime = 3 * time.Second
)

// table reads the table of a roster. No address is dialled of a roster that somebody without the
// secret has written.
func (j *joiner) table(r *rosterRecord) ([]byte, error) {
	if r.bytes < shareFrom || j.forged(r) {
		return j.stored(r)
	}
	secret, socket := j.shareSecret(r)
	ctx, cancel := context.WithTimeout(j.ctx, shareTime)
	defer cancel()
	for ctx.Err() == nil {
		t, err := askHost(ctx, r, socket, secret)
		if err == nil {
			return t, nil
		}
		if errors.Is(err, ErrRefused) || errors.Is(err, errWrong) {
			break
		}
		l, err := net.Listen("unix", socket)
		if err == nil {
			return j.readForHost(r, l, secret)
		}
		select {
		case <-ctx.Done():
		case <-time.After(sharePoll):
		}
	}
	return j.stored(r)
}

// shareSecret is what ranks prove to each other that hand on a roster's table, and the socket's
// name.
func (j *joiner) shareSecret(r *rosterRecord) (secret [secretSize]byte, socket string) {
	group := r.groupSecret(j.key)
	name := seal.Of(string(group), "goccl table's socket", []byte(j.config.host))
	return seal.Of(string(group), "goccl table"), "@goccl-" + hex.EncodeToString(name[:16])
}

// askHost asks the rank that listens on a socket for the table.
func askHost(ctx context.Context, r *rosterRecord, socket string, secret [secretSize]byte) (
	[]byte, error,
) {
	c, err := dialOne(ctx, "unix", socket, secret)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.table(ctx, r)
}

// table waits for the table of a roster, which another rank hands out.
func (c *client) table(ctx context.Context, r *rosterRecord) ([]byte, error) {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	deadline, _ := ctx.Deadline()
	c.most = max(r.bytes, maxStoreError)
	table, ok, err := c.Watch("table", nil, time.Until(deadline))
	switch {
	case errors.Is(err, untrusted.ErrMalformed) || err == nil && ok && !r.names(table):
		return nil, errWrong
	case err == nil && !ok:
		return nil, errChanging
	}
	return table, err
}

// readForHost makes this rank the leader of its host.
func (j *joiner) readForHost(r *rosterRecord, l net.Listener, secret [secretSize]byte) (
	table []byte, err error,
) {
	leader := j.newLeader()
	leader.secret, leader.listeners = secret, append(leader.listeners, l)
	leader.start()
	if table, err = j.askLeader(r, leader); err != nil {
		if table, err = j.stored(r); err != nil || !r.names(table) {
			return table, err
		}
	}
	return table, leader.set("table", table)
}

// newLeader listens for the leaders of other hosts. It replaces what this rank has handed out
// before. It has no addresses where other hosts cannot reach it.
func (j *joiner) newLeader() *Root {
	j.close()
	j.sharing = &Root{strangers: pending.List{Most: maxStrangers}, reads: true}
	hosts := j.config.Listen
	_ = j.sharing.listen(hosts[:min(len(hosts), maxAddresses)])
	return j.sharing
}

// askLeader asks a leader's parent, which the root names, for the table.
func (j *joiner) askLeader(r *rosterRecord, leader *Root) (table []byte, err error) {
	if len(r.root) == 0 || len(leader.addresses) == 0 {
		return nil, errNoTree
	}
	ctx, cancel := context.WithTimeout(j.ctx, leaderTime)
	defer cancel()
	// A root with many connections hangs up on some, which dial again. One that has gone refuses.
	dial := func(to []netip.AddrPort) (*client, error) {
		return dialAny(ctx, to, leader.secret, ErrRefused, syscall.ECONNREFUSED)
	}
	c, err := dial(r.root)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	parent, err := c.enter(leader.addresses)
	switch {
	case err != nil:
		return nil, err
	case parent == nil:
		return c.table(ctx, r)
	}
	_ = c.Close() // the root has many connections
	p, err := dial(parent)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.table(ctx, r)
}

// share hands out the table of rank 0's own roster.
func (j *joiner) share(r *rosterRecord, root *Root) {
	secret, socket := j.shareSecret(r)
	if l, err := net.Listen("unix", socket); err == nil {
		root.listeners = append(root.listeners, l) // else the ranks of this host read the store
	}
	root.secret = secret
	root.start()
	_ = root.set("table", r.table) // the store has it, too
}

// close ends what this rank does for others: all have the table of a roster that is settled, and of
// another one each can read the store.
func (j *joiner) close() {
	if j.sharing != nil {
		j.sharing.Close()
	}
}
