package core

import (
	"context"
	"slices"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/fault"
)

// findEtcd reads from the environment at which etcd the ranks meet, if at one.
func (r *Runtime) findEtcd(c *Config) error {
	url := r.config.Getenv(EnvStore)
	if c.settings[EnvStore] = (Setting{"", SourceDefault}); url == "" {
		return nil
	}
	c.settings[EnvStore] = Setting{etcd.Hide(url), SourceEnvironment}
	var err error
	if c.etcd, err = etcd.Parse(url, r.config.Getenv); err != nil {
		return fault.Errorf(fault.ErrInvalidArgument, "init: %s is %v", EnvStore, err)
	}
	return nil
}

// assemble is bootstrap.Join, wherever the ranks meet.
func assemble(ctx context.Context, config Config, c bootstrap.JoinConfig) (
	*bootstrap.Roster, error,
) {
	if config.etcd == nil {
		return bootstrap.Join(ctx, config.Store, c)
	}
	store := etcd.Open(ctx, config.etcd, config.Meeting)
	roster, err := bootstrap.Join(ctx, store, c)
	store.Close(err == nil)
	return roster, err
}

// storeHost is where others can reach what the ranks write; "" where that is not known.
func (config *Config) storeHost() string {
	if config.etcd == nil {
		return config.StoreHost
	}
	hosts := config.etcd.Hosts()
	return hosts[max(0, slices.IndexFunc(hosts, func(h string) bool { return !loopback(h) }))]
}
