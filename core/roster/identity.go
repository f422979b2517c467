package roster

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/seal"
	"github.com/goccl/goccl/core/membership"
)

// Identity is what makes a group's traffic its own.
type Identity struct {
	Job, Group uint64
	Secret     []byte
	// Seed is what Secret is made of, with the members: see Of. Those that join are told it. It is
	// nil of groups that were not decided on.
	Seed []byte
}

// OfSplit is the identity of a part of the group. Each of its two values has a label of its own:
// the id is sent in clear, and must tell nothing of the secret.
func (id Identity) OfSplit(epoch uint32, split uint64, color int64) Identity {
	var part []byte
	for _, v := range []uint64{id.Group, uint64(epoch), split, uint64(color)} {
		part = binary.LittleEndian.AppendUint64(part, v)
	}
	group := seal.Of(string(id.Secret), "goccl split id", part)
	secret := seal.Of(string(id.Secret), "goccl split secret", part)
	return Identity{Job: id.Job, Group: binary.LittleEndian.Uint64(group[:]), Secret: secret[:]}
}

// OfRenewal is the identity of a later epoch of the same members, who have decided on nothing. What
// they have decided before may be asked for under the identity that the group has had.
func (id Identity) OfRenewal(epoch uint32) Identity {
	part := binary.LittleEndian.AppendUint64(nil, id.Group)
	part = binary.LittleEndian.AppendUint32(part, epoch)
	group := seal.Of(string(id.Secret), "goccl renewal id", part)
	secret := seal.Of(string(id.Secret), "goccl renewal secret", part)
	return Identity{Job: id.Job, Group: binary.LittleEndian.Uint64(group[:]), Secret: secret[:]}
}

// OfValue is the identity of what a decision makes, whose members are not known yet: see Of.
func (id Identity) OfValue(v *membership.Value) Identity {
	part := append(binary.LittleEndian.AppendUint64(nil, id.Group), v.Nonce[:]...)
	group := seal.Of(string(id.Secret), "goccl epoch id", part)
	seed := seal.Of(string(id.Secret), "goccl epoch secret", part)
	return Identity{Job: id.Job, Group: binary.LittleEndian.Uint64(group[:]), Seed: seed[:]}
}

// Of makes the identity that of these members: the secret is made of what is known of them, so that
// ranks which were told other addresses can prove nothing to each other.
func (id Identity) Of(members []address.Address) (Identity, error) {
	own, hosts, hostOf, err := address.EncodeAll(members)
	if err != nil {
		return id, err
	}
	digest := sha256.New()
	for rank := range own {
		for _, record := range [][]byte{own[rank], hosts[hostOf[rank]]} {
			digest.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(record))))
			digest.Write(record)
		}
	}
	secret := seal.Of(string(id.Seed), "goccl epoch members", digest.Sum(nil))
	id.Secret = secret[:]
	return id, nil
}
