package bootstrap

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/goccl/goccl/core/internal/seal"
)

const (
	// A secret of so many bytes is taken to be random. One that is shorter may be a word, which a
	// reader of the store, where proofs lie, can guess: then each guess is to cost much.
	longSecret = 32
	stretching = 600_000
)

// stretched holds the keys that have been made of short secrets: making one takes some tenths of a
// second.
var stretched = struct {
	sync.Mutex
	keys map[[2]string]string // by secret and incarnation; guarded by the mutex
}{keys: map[[2]string]string{}}

// JobKey is the key of all that the ranks of a job seal.
func JobKey(secret, incarnation string) (string, error) {
	if len(secret) >= longSecret {
		key := seal.Of(secret, "goccl secret", []byte(incarnation))
		return string(key[:]), nil
	}
	stretched.Lock()
	defer stretched.Unlock()
	which := [2]string{secret, incarnation}
	if key, ok := stretched.keys[which]; ok {
		return key, nil
	}
	key, err := pbkdf2.Key(sha256.New, secret, []byte("goccl secret\x00"+incarnation), stretching,
		secretSize)
	if err != nil {
		return "", fmt.Errorf("stretching the secret: %w", err)
	}
	stretched.keys[which] = string(key)
	return string(key), nil
}

// newNonce returns fresh random bytes, of which the first eight are not all zero: zero stands for
// "none".
func newNonce() (n nonce) {
	for binary.LittleEndian.Uint64(n[:]) == 0 {
		random(n[:])
	}
	return n
}

func random(b []byte) {
	// crypto/rand never fails on Linux: it ends the process instead.
	_, _ = rand.Read(b)
}
