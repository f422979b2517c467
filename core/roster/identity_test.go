package roster

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/membership"
)

// A split's id is sent in clear: it must not be a part of its secret, which differs from all
// others.
func TestSplitsOfAnIdentity(t *testing.T) {
	parent := Identity{Job: 1, Group: 2, Secret: bytes.Repeat([]byte{3}, 32)}
	seen := map[string]bool{string(parent.Secret): true}
	for i := range uint32(9) {
		epoch, split := i%3, uint64(i/3)
		for color := range int64(3) {
			id := parent.OfSplit(epoch, split, color)
			var clear [8]byte
			binary.LittleEndian.PutUint64(clear[:], id.Group)
			if bytes.Contains(id.Secret, clear[:]) || len(id.Secret) != 32 || seen[string(id.Secret)] ||
				id.Job != parent.Job {
				t.Errorf("epoch %d, split %d, color %d: %+v", epoch, split, color, id)
			}
			seen[string(id.Secret)] = true
		}
	}
}

// Each renewal has an id and a secret of its own.
func TestRenewalsOfAnIdentity(t *testing.T) {
	id := Identity{Job: 1, Group: 2, Secret: bytes.Repeat([]byte{3}, 32), Seed: []byte("seed")}
	groups, secrets := map[uint64]bool{id.Group: true}, map[string]bool{string(id.Secret): true}
	for epoch := range uint32(3) {
		id = id.OfRenewal(epoch + 1)
		if id.Job != 1 || id.Seed != nil || len(id.Secret) != 32 || groups[id.Group] ||
			secrets[string(id.Secret)] {
			t.Errorf("epoch %d: %+v", epoch+1, id)
		}
		groups[id.Group], secrets[string(id.Secret)] = true, true
	}
}

// The secret of a group is made of what is known of its members.
func TestIdentityIsOfItsMembers(t *testing.T) {
	id := Identity{Job: 1, Group: 2, Seed: []byte("seed")}
	a := address.Address{Host: "a", TCP: []string{"10.0.0.1:1"}}
	b := address.Address{Host: "b", TCP: []string{"10.0.0.2:1"}}
	moved := b
	moved.TCP = []string{"10.0.0.3:1"}
	seen := map[string]bool{}
	for _, members := range [][]address.Address{{a}, {a, b}, {b, a}, {a, moved}} {
		of, err := id.Of(members)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := id.Of(slices.Clone(members))
		if seen[string(of.Secret)] || !slices.Equal(of.Secret, again.Secret) {
			t.Errorf("the secret of %+v", members)
		}
		seen[string(of.Secret)] = true
	}
	id.Seed = []byte("another")
	if of, err := id.Of([]address.Address{a}); err != nil || seen[string(of.Secret)] {
		t.Errorf("another seed makes the same secret: %v", err)
	}
}

// A decision's group, and what its secret is made of, differ from those of each other decision, and
// of the group before.
func TestIdentityOfADecision(t *testing.T) {
	id := Identity{Job: 1, Group: 2, Secret: bytes.Repeat([]byte{3}, 32)}
	groups, seeds := map[uint64]bool{id.Group: true}, map[string]bool{string(id.Secret): true}
	for _, from := range []Identity{id, {Job: 1, Group: 3, Secret: id.Secret},
		{Job: 1, Group: 2, Secret: bytes.Repeat([]byte{4}, 32)}} {
		for nonce := range byte(3) {
			v := membership.Value{}
			v.Nonce[0] = nonce
			next := from.OfValue(&v)
			if next.Job != id.Job || next.Secret != nil || len(next.Seed) != 32 ||
				groups[next.Group] || seeds[string(next.Seed)] {
				t.Errorf("group %d, nonce %d: %+v", from.Group, nonce, next)
			}
			groups[next.Group], seeds[string(next.Seed)] = true, true
		}
	}
}
