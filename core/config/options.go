package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/rdma"
)

// option is what a user can set by a field of Config, by a variable of the environment, or by
// either. The field wins.
type option struct {
	variable string // "" where there is none
	// text is where the value stands, if it is a text that the variable may give.
	text  func(*Completed) *string
	same  string                    // names it where ranks have different values; "" where they may
	check check                     // nil: all is allowed
	hide  func(given string) string // leaves what may be told of it; nil: all
}

// check refuses what cannot be, and returns what is in effect. The given text is "" for what is no
// text.
type check func(c *Completed, given string) (effective string, err error)

// options are all of them. Ranks compare them, and the environment is told, in this order.
var options = []option{
	{check: checkTimeout},
	{check: checkGrace},
	{variable: EnvTransport, text: func(c *Completed) *string { return &c.Transport },
		same: "the transport (" + EnvTransport + ")",
		check: oneOf("transport", "the option or "+EnvTransport, "",
			address.Shm, address.TCP, address.Verbs)},
	{variable: EnvNet, text: func(c *Completed) *string { return &c.Net },
		same:  "the network (" + EnvNet + ")",
		check: oneOf("network", EnvNet, "", address.TCP, address.Verbs)},
	{variable: rdma.EnvHCA, text: func(c *Completed) *string { return &c.HCA }},
	{variable: rdma.EnvGIDIndex, text: func(c *Completed) *string { return &c.GIDIndex }},
	{variable: EnvInterface, text: func(c *Completed) *string { return &c.Interface }},
	{variable: EnvSecret, text: func(c *Completed) *string { return &c.Secret },
		hide: func(string) string { return "(hidden)" }},
	{variable: EnvThresholds, text: func(c *Completed) *string { return &c.Thresholds },
		same: EnvThresholds,
		check: parsed("thresholds (from "+EnvThresholds+") have", func(s string) (string, error) {
			return s, new(tune.Thresholds).Set(s)
		})},
	{variable: EnvSchedule, text: func(c *Completed) *string { return &c.AllToAllSchedule },
		same: "the all-to-all schedule (" + EnvSchedule + ")",
		check: parsed("all-to-all schedule (from the option or "+EnvSchedule+") is",
			func(s string) (string, error) {
				schedule, err := plan.ParseSchedule(s)
				return schedule.String(), err
			})},
	{variable: EnvAlgorithms, text: func(c *Completed) *string { return &c.Algorithms },
		same: "the choice of algorithms (" + EnvAlgorithms + ")",
		check: parsed(EnvAlgorithms+" is", func(s string) (string, error) {
			algorithms, err := tune.ParseAlgorithms(s)
			return algorithms.String(), err
		})},
	{variable: EnvLinks, text: func(c *Completed) *string { return &c.Links },
		same: "what links cost (" + EnvLinks + ")",
		check: parsed(EnvLinks+" is", func(s string) (string, error) {
			return s, new(tune.Links).Set(s)
		})},
	{same: "the least size", check: checkLeastSize},
	{variable: EnvQuorum, text: func(c *Completed) *string { return &c.Quorum },
		same: "the quorum (" + EnvQuorum + ")",
		check: oneOf("quorum", "the option or "+EnvQuorum, QuorumMajority,
			QuorumMajority, QuorumAny)},
	{variable: EnvRecovery, text: func(c *Completed) *string { return &c.Recovery },
		same:  "the recovery (" + EnvRecovery + ")",
		check: checkRecovery},
	{variable: EnvStore, hide: etcd.Hide}, // see findEtcd
}

// complete reads and checks an option, and notes what was given.
func (o *option) complete(c *Completed, getenv func(string) string) error {
	value := new(string) // of what is no text
	if o.text != nil {
		value = o.text(c)
	}
	source := SourceOption
	if *value == "" && o.variable != "" {
		*value, source = getenv(o.variable), SourceEnvironment
	}
	if *value == "" {
		source = SourceDefault
	}
	if o.variable != "" {
		c.Settings[o.variable] = Setting{o.shown(*value), source}
	}
	if o.check != nil {
		effective, err := o.check(c, *value)
		if err != nil {
			return err
		}
		*value = effective
	}
	if o.same != "" {
		c.Same = append(c.Same, bootstrap.Setting{Name: o.same, Value: *value})
	}
	return nil
}

// shown is what may be told of a value.
func (o *option) shown(value string) string {
	if value == "" || o.hide == nil {
		return value
	}
	return o.hide(value)
}

func checkTimeout(c *Completed, _ string) (string, error) {
	if c.Timeout < 0 {
		return "", fmt.Errorf("timeout is %v, it must be positive", c.Timeout)
	}
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	return "", nil
}

func checkGrace(c *Completed, _ string) (string, error) {
	if c.LivenessGrace < 0 {
		return "", fmt.Errorf("liveness grace is %v, it must be positive", c.LivenessGrace)
	}
	c.LivenessGrace = cmp.Or(c.LivenessGrace, DefaultLivenessGrace)
	return "", nil
}

func checkLeastSize(c *Completed, _ string) (string, error) {
	if c.MinSize < 0 || c.MinSize > bootstrap.MaxSize {
		return "", fmt.Errorf("least size is %d, allowed are 0 to %d", c.MinSize, bootstrap.MaxSize)
	}
	return strconv.Itoa(c.MinSize), nil
}

// oneOf is the check of a word. Nothing stands for the default.
func oneOf(name, source, byDefault string, allowed ...string) check {
	var quoted []string
	for _, word := range allowed {
		quoted = append(quoted, strconv.Quote(word))
	}
	return func(_ *Completed, given string) (string, error) {
		if given != "" && !slices.Contains(allowed, given) {
			return "", fmt.Errorf("%s is %q (from %s), allowed are %s and nothing", name, given, source,
				strings.Join(quoted, ", "))
		}
		return cmp.Or(given, byDefault), nil
	}
}

var oneRecovery = oneOf("recovery", "the option or "+EnvRecovery, RecoveryStep,
	RecoveryStep, RecoverySurvivors, RecoveryAll)

// checkRecovery resolves the one word that is an alias.
func checkRecovery(c *Completed, given string) (string, error) {
	effective, err := oneRecovery(c, given)
	if effective == RecoveryAll {
		effective = RecoverySurvivors
	}
	return effective, err
}

// parsed is the check of a text that a parser brings into one form. What the parser says of a bad
// one follows the words.
func parsed(words string, parse func(string) (string, error)) check {
	return func(_ *Completed, given string) (string, error) {
		effective, err := parse(given)
		if err != nil {
			return "", fmt.Errorf("%s %w", words, err)
		}
		return effective, nil
	}
}

// Verbs says how RDMA devices are to be used. The process has the library and the memory.
func (c *Completed) Verbs() (transport.VerbsConfig, error) {
	v := transport.VerbsConfig{HCA: c.HCA, GIDIndex: -1}
	switch {
	case c.Transport != "" && c.Transport != address.Verbs:
		v.Off = fmt.Sprintf("transport %q is forced", c.Transport)
	case c.Net == address.TCP:
		v.Off = fmt.Sprintf("%s is %q", EnvNet, c.Net)
	}
	if c.GIDIndex != "" {
		n, err := strconv.Atoi(c.GIDIndex)
		if err != nil || n < 0 || n > 255 {
			return v, fault.Errorf(fault.ErrInvalidArgument, "init: %s is %q, allowed are 0 to 255",
				rdma.EnvGIDIndex, c.GIDIndex)
		}
		v.GIDIndex = n
	}
	return v, nil
}
