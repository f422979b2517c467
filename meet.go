package goccl

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
)

// Store is a key-value store that all ranks share, by which they meet. Its methods are called by
// one goroutine at a time.
type Store interface {
	// Set stores a value, over an older one if there is one.
	Set(key string, value []byte) error
	// Get returns a value and whether there is one. It does not wait until there is.
	Get(key string) (value []byte, ok bool, err error)
}

// NewMemStore returns a store for ranks that are goroutines of one process.
func NewMemStore() Store { return bootstrap.NewMemStore() }

// UniqueID names a communicator to be: it holds the address at which ranks meet, and a secret. Keep
// it private. The zero one is none.
type UniqueID [bootstrap.IDSize]byte

// NewUniqueID opens a place to meet in this process, which is rank 0's, and returns its id. Rank 0
// hands the id to the others by any means. All give it to [Init] as [Config.ID]. It listens on the
// network interfaces of GOCCL_SOCKET_IFNAME, and else on that of the default route. It closes when
// all have met, or after 30 minutes.
func NewUniqueID() (UniqueID, error) {
	id, err := roots.Open(process.Getenv(core.EnvInterface), core.DefaultTimeout)
	if err != nil {
		return UniqueID{}, public(context.Background(), "new_unique_id", err)
	}
	return id, nil
}

// String returns the id as a text of base64, of 172 bytes.
func (id UniqueID) String() string { return base64.StdEncoding.EncodeToString(id[:]) }

// ParseUniqueID reads an id that [UniqueID.String] has written.
func ParseUniqueID(text string) (UniqueID, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err == nil && len(b) == bootstrap.IDSize {
		if _, err = bootstrap.IDSecret([bootstrap.IDSize]byte(b)); err == nil {
			return UniqueID(b), nil
		}
	}
	return UniqueID{}, public(context.Background(), "parse_unique_id", fault.Errorf(
		ErrInvalidArgument, "parse_unique_id: text is %d bytes that are no unique id, allowed is what "+
			"UniqueID.String has written", len(text)))
}

// roots are the places to meet that this process has opened.
var roots bootstrap.Roots

// meet fills in how to meet the other ranks by an id. The caller calls done when it has.
func meet(ctx context.Context, c *core.Config, id UniqueID) (done func(), err error) {
	none := func() {}
	if id == (UniqueID{}) {
		return none, nil
	}
	refuse := func(format string, args ...any) error {
		return c.InitError(ErrInvalidArgument, fault.Errorf(ErrInvalidArgument, format, args...))
	}
	if c.Store != nil {
		return nil, refuse("Config.ID and Config.Store are both given, one of them is allowed")
	}
	if c.StoreSecret, err = bootstrap.IDSecret(id); err != nil {
		return nil, refuse("Config.ID: %v", err)
	}
	if process.Getenv(core.EnvStore) != "" { // all meet there, and the id tells groups apart
		if c.Rank == 0 {
			roots.Close(id)
		}
		name := sha256.Sum256(id[:])
		c.Meeting = hex.EncodeToString(name[:16])
		return none, nil
	}
	if c.Rank == 0 {
		if c.Store, done = roots.Meet(id); done != nil {
			return done, nil
		}
		return nil, refuse("Config.ID is not of this process, or was used before: rank 0's process " +
			"makes it, for one Init")
	}
	s, closer, err := bootstrap.DialRoot(ctx, id)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, c.InitError(ErrTimeout, err, 0)
	case err != nil:
		return nil, c.InitError(ErrSystem, err)
	}
	c.Store = s
	return func() { _ = closer.Close() }, nil
}

// Alloc returns a slice of n elements in memory that peers of this host map, of undefined contents.
// Collectives on it are faster where all ranks share a host and all their slices of a call are from
// Alloc, and over verbs. Go's collector does not know it: it stays until [Free].
func Alloc[T Element](n int) ([]T, error) {
	size := int64(unsafe.Sizeof(*new(T)))
	if n < 0 || int64(n) > (1<<62)/size {
		return nil, public(context.Background(), "alloc", fault.Errorf(ErrInvalidArgument,
			"alloc: n is %d, allowed are 0 to %d", n, (1<<62)/size))
	}
	p, err := process.Alloc(int64(n) * size)
	if err != nil {
		return nil, public(context.Background(), "alloc", err)
	}
	return unsafe.Slice((*T)(p), n), nil
}

// Free gives a slice of [Alloc] back, the whole one. No work may be using it, nor may the program
// touch it afterwards. It may outlive every communicator.
func Free[T Element](s []T) error {
	return public(context.Background(), "free", process.Free(unsafe.Pointer(unsafe.SliceData(s))))
}

// SetLogger has a logger told of what the package logs, instead of standard error; nil: standard
// error again. It is asked once which levels it takes: warnings are what a user should know,
// slog.LevelInfo is once a communicator, and slog.LevelDebug once a call, which makes it slow.
// GOCCL_DEBUG says what goes to standard error, by default warnings.
func SetLogger(l *slog.Logger) {
	if l == nil {
		journal.Listen(nil, logs.Default)
		return
	}
	ctx := context.Background()
	level := logs.Warn
	for _, lower := range []slog.Level{logs.Info, logs.Trace} {
		if l.Enabled(ctx, lower) {
			level = lower
		}
	}
	journal.Listen(func(r *logs.Record) {
		attributes := []slog.Attr{slog.String("subsystem", string(r.Subsystem))}
		if r.InGroup {
			attributes = append(attributes, slog.String("group", r.Group), slog.Int("rank", r.Rank))
		}
		l.LogAttrs(ctx, r.Level, r.Text, attributes...)
	}, level)
}
