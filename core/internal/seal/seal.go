// Package seal authenticates what processes that share a secret tell each other.
package seal

import (
	"crypto/hmac"
	"crypto/sha256"
)

// Of is HMAC-SHA-256 over a label, which keeps the uses of one key apart, and the parts. All parts
// but the last are of fixed size.
func Of(secret, label string, parts ...[]byte) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(label))
	h.Write([]byte{0})
	for _, p := range parts {
		h.Write(p)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}
