package bootstrap

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"time"

	"github.com/goccl/goccl/core/guests"
)

// A large table is read from the store once a host. The first rank that listens on an abstract Unix
// socket, whose name is made of the roster and its secret, reads it for all. It hands it to those
// that prove to hold the secret; they believe it for its digest. Containers that have a network of
// their own have their own such names. Where there is nothing to be had in this way, be it that a
// stranger has taken the name, a rank reads the store.

const (
	shareFrom = 8 << 10 // bytes of a table: a smaller one costs less than a connection
	sharePoll = time.Millisecond
)

// shareTime is how long a rank tries to have the table from another one. Tests may take longer.
var shareTime = 10 * time.Second

// table reads the table of a roster. It may be another one: see [rosterRecord.fill].
func (j *joiner) table(r *rosterRecord) ([]byte, error) {
	if r.bytes < shareFrom {
		return j.get("table")
	}
	secret, socket := j.shareSecret(r)
	ctx, cancel := context.WithTimeout(j.ctx, shareTime)
	defer cancel()
	for ctx.Err() == nil {
		t, err := askHost(ctx, socket, secret)
		if err == nil {
			return t, nil
		}
		if errors.Is(err, ErrRefused) {
			break
		}
		l, err := net.Listen("unix", socket)
		if err == nil {
			return j.readForHost(l, secret)
		}
		select {
		case <-ctx.Done():
		case <-time.After(sharePoll):
		}
	}
	return j.get("table")
}

// shareSecret is what ranks prove to each other that hand on a roster's table, and the socket's
// name.
func (j *joiner) shareSecret(r *rosterRecord) (secret [secretSize]byte, socket string) {
	group := r.groupSecret(j.key)
	name := Seal(string(group), "goccl table's socket", []byte(j.config.host))
	return Seal(string(group), "goccl table"), "@goccl-" + hex.EncodeToString(name[:16])
}

// askHost asks the rank that listens on a socket for the table.
func askHost(ctx context.Context, socket string, secret [secretSize]byte) ([]byte, error) {
	c, err := dialOne(ctx, "unix", socket, secret)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	table, ok, err := c.Watch("table", nil, shareTime)
	if err == nil && !ok {
		err = errChanging
	}
	return table, err
}

// readForHost makes this rank the one that reads the table for its host.
func (j *joiner) readForHost(l net.Listener, secret [secretSize]byte) ([]byte, error) {
	host := j.serve(l, secret)
	table, err := j.get("table")
	if err == nil {
		err = host.set("table", table)
	}
	return table, err
}

// share hands out the table of rank 0's own roster on its host.
func (j *joiner) share(r *rosterRecord) {
	if r.bytes < shareFrom {
		return
	}
	secret, socket := j.shareSecret(r)
	if l, err := net.Listen("unix", socket); err == nil {
		_ = j.serve(l, secret).set("table", r.table) // else others read the store
	}
}

// serve begins to hand out a table, and ends it with the one before.
func (j *joiner) serve(l net.Listener, secret [secretSize]byte) *Root {
	j.close()
	j.sharing = &Root{secret: secret, listeners: []net.Listener{l},
		strangers: guests.List{Most: maxStrangers}}
	j.sharing.start()
	return j.sharing
}

// close ends what this rank does for others of its host: all have the table of a roster that is
// settled, and of another one each can read the store.
func (j *joiner) close() {
	if j.sharing != nil {
		j.sharing.Close()
	}
}
