package core

import (
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
)

// tuneOptions are what the settings, and what links carry, say of how data moves.
func tuneOptions(config *Config) tune.Options {
	return tune.Options{Thresholds: config.Thresholds, Schedule: config.AllToAllSchedule,
		Algorithms: config.Algorithms, Links: config.Links,
		LongMost: transport.MaxData - exec.MessageHeader}
}
