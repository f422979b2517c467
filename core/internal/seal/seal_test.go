package seal

import (
	"encoding/hex"
	"testing"
)

// The sum is what ranks of all versions make.
func TestOf(t *testing.T) {
	seen := map[string]bool{}
	for _, sum := range [][32]byte{Of("key", "label", []byte("part")),
		Of("yek", "label", []byte("part")), Of("key", "labe", []byte("lpart")),
		Of("key", "label", []byte("parts")), Of("key", "label")} {
		if text := hex.EncodeToString(sum[:]); seen[text] {
			t.Errorf("%s comes of two inputs", text)
		} else {
			seen[text] = true
		}
	}
	if Of("key", "label", []byte("pa"), []byte("rt")) != Of("key", "label", []byte("part")) {
		t.Error("parts are not taken in a row")
	}
	const want = "0f2624342f36704b5f5a51c063af48ef85a5c997057e31eb4ba333c2980a1d10"
	if sum := Of("key", "label", []byte("part")); hex.EncodeToString(sum[:]) != want {
		t.Errorf("%x", sum)
	}
}
