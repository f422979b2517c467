package config

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
)

// JoinConfig is how a rank meets the others, but for what it publishes.
func (c *Completed) JoinConfig() bootstrap.JoinConfig {
	return bootstrap.JoinConfig{Rank: c.Rank, Size: c.Size, GroupName: c.GroupName,
		Incarnation: c.Incarnation, Attempt: c.Attempt, Secret: cmp.Or(c.Secret, c.StoreSecret),
		Settings: slices.Concat(c.Same,
			[]bootstrap.Setting{{Name: "the list of the group's ranks", Value: c.rankList()}})}
}

const maxRankList = 256 // bytes of a text that lists ranks

// rankList is a text of the numbers in the job of a group's ranks. It is the same on all ranks that
// were given the same numbers, and on no others.
func (c *Config) rankList() string {
	if fault.NewGroup("", c.GlobalRanks, nil).GlobalRanks == nil {
		return fmt.Sprintf("0-%d", c.Size-1)
	}
	list := printable.Ranges(c.GlobalRanks)
	if len(list) > maxRankList {
		list = fmt.Sprintf("%s... (SHA-256 %x)", list[:maxRankList], sha256.Sum256([]byte(list)))
	}
	return list
}

// StoreWarning tells of a store that other hosts can reach, and that has the group's secret; ""
// where there is none. Rank 0 writes the secret.
func (c *Completed) StoreWarning() string {
	host := c.storeHost()
	if c.Rank != 0 || host == "" || loopback(host) || cmp.Or(c.Secret, c.StoreSecret) != "" {
		return ""
	}
	return fmt.Sprintf("the secret of group %q lies in the store on host %s, so whoever can reach "+
		"the store can join, and read and change all data: set %s, or keep others off that host's port",
		c.GroupName, host, EnvSecret)
}

// storeHost is where others can reach what the ranks write; "" where that is not known.
func (c *Completed) storeHost() string {
	if c.Etcd == nil {
		return c.StoreHost
	}
	hosts := c.Etcd.Hosts()
	return hosts[max(0, slices.IndexFunc(hosts, func(h string) bool { return !loopback(h) }))]
}

// loopback reports whether other hosts cannot reach a host by its name.
func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
