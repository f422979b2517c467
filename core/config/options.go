package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/internal/interfaces"
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
	text func(*Completed) *string
	// number is the given value if it is no text, "" for 0. Its check puts what the variable gives
	// into the field.
	number func(*Completed) string
	same   string                    // names it where ranks have different values; "" where they may
	check  check                     // nil: all is allowed
	hide   func(given string) string // leaves what may be told of it; nil: all
}

// check refuses what cannot be, and returns what is in effect.
type check func(c *Completed, given string) (effective string, err error)

// options are all of them. Ranks compare them, and the environment is told, in this order.
var options = []option{
	duration("timeout", EnvTimeout, DefaultTimeout,
		func(c *Completed) *time.Duration { return &c.Timeout }),
	duration("liveness grace", EnvGrace, DefaultLivenessGrace,
		func(c *Completed) *time.Duration { return &c.LivenessGrace }),
	{variable: EnvTransport, text: func(c *Completed) *string { return &c.Transport },
		same: "the transport (" + EnvTransport + ")",
		check: oneOf("transport", "the option or "+EnvTransport, "",
			address.Shm, address.TCP, address.Verbs)},
	{variable: EnvNet, text: func(c *Completed) *string { return &c.Net },
		same:  "the network (" + EnvNet + ")",
		check: oneOf("network", "the option or "+EnvNet, "", address.TCP, address.Verbs)},
	{variable: rdma.EnvHCA, text: func(c *Completed) *string { return &c.HCA },
		check: parsed("", func(s string) (string, error) { return s, rdma.CheckHCA(s) })},
	{variable: rdma.EnvGIDIndex, text: func(c *Completed) *string { return &c.GIDIndex },
		check: parsed("GID index (from the option or "+rdma.EnvGIDIndex+") is ",
			func(s string) (string, error) {
				if n, err := strconv.Atoi(s); s != "" && (err != nil || n < 0 || n > 255) {
					return s, fmt.Errorf("%q, allowed are 0 to 255", s)
				}
				return s, nil
			})},
	{variable: EnvInterface, text: func(c *Completed) *string { return &c.Interface },
		check: parsed("", func(s string) (string, error) {
			_, err := interfaces.Parse(s)
			return s, err
		})},
	{variable: EnvSecret, text: func(c *Completed) *string { return &c.Secret },
		hide: func(string) string { return "(hidden)" }},
	{variable: EnvThresholds, text: func(c *Completed) *string { return &c.Thresholds },
		same: EnvThresholds,
		check: parsed("thresholds (from the option or "+EnvThresholds+") have ",
			func(s string) (string, error) { return s, new(tune.Thresholds).Set(s) })},
	{variable: EnvSchedule, text: func(c *Completed) *string { return &c.AllToAllSchedule },
		same: "the all-to-all schedule (" + EnvSchedule + ")",
		check: parsed("all-to-all schedule (from the option or "+EnvSchedule+") is ",
			func(s string) (string, error) {
				schedule, err := plan.ParseSchedule(s)
				return schedule.String(), err
			})},
	{variable: EnvAlgorithms, text: func(c *Completed) *string { return &c.Algorithms },
		same: "the choice of algorithms (" + EnvAlgorithms + ")",
		check: parsed("algorithms (from the option or "+EnvAlgorithms+") are ",
			func(s string) (string, error) {
				algorithms, err := tune.ParseAlgorithms(s)
				return algorithms.String(), err
			})},
	{variable: EnvWireDType, text: func(c *Completed) *string { return &c.WireDType },
		same: "the wire dtype (" + EnvWireDType + ")",
		check: parsed("wire dtype (from the option or "+EnvWireDType+") is ",
			func(s string) (string, error) {
				_, err := call.ParseWire(s)
				return s, err
			})},
	{variable: EnvSideStep, text: func(c *Completed) *string { return &c.SideStep },
		same:  "the side-steps (" + EnvSideStep + ")",
		check: parsed("side-steps (from the option or "+EnvSideStep+") are ", call.CheckSideSteps)},
	{variable: EnvLinks, text: func(c *Completed) *string { return &c.Links },
		same: "what links cost (" + EnvLinks + ")",
		check: parsed("links (from the option or "+EnvLinks+") are ", func(s string) (string, error) {
			return s, new(tune.Links).Set(s)
		})},
	{variable: EnvPlans, text: func(c *Completed) *string { return &c.Plans },
		same: "the programs (" + EnvPlans + ")", check: readPrograms},
	{variable: EnvMinSize, number: func(c *Completed) string { return numeral(c.MinSize) },
		same: "the least size (" + EnvMinSize + ")", check: checkMinSize},
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
func (o *option) complete(c *Completed, e *Environment) error {
	value := new(string)
	switch {
	case o.text != nil:
		value = o.text(c)
	case o.number != nil:
		*value = o.number(c)
	}
	source := SourceOption
	if *value == "" {
		*value, source, _ = e.lookup(o.variable)
	}
	if o.variable != "" {
		c.Settings[o.variable] = Setting{o.shown(*value), source}
	}
	if o.check != nil {
		effective, err := o.check(c, *value)
		if err != nil {
			if source != SourceOption {
				err = e.blame(err, o.variable)
			}
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

// duration is an option that is one. Its variable needs a unit, so that nobody takes seconds for
// milliseconds.
func duration(
	name, variable string, byDefault time.Duration, field func(*Completed) *time.Duration,
) option {
	return option{variable: variable,
		number: func(c *Completed) string {
			if d := *field(c); d != 0 {
				return d.String()
			}
			return ""
		},
		check: func(c *Completed, given string) (string, error) {
			value := field(c)
			if *value < 0 {
				return "", fmt.Errorf("%s is %v, it must be positive", name, *value)
			}
			if *value == 0 && given != "" {
				d, err := time.ParseDuration(given)
				if err != nil || d < time.Millisecond {
					return "", fmt.Errorf("%s is %q (from %s), allowed are durations of at least 1 ms with "+
						"their unit, such as \"500ms\", \"30s\" and \"1h30m\"", name, given, variable)
				}
				*value = d
			}
			*value = cmp.Or(*value, byDefault)
			return value.String(), nil
		}}
}

// numeral is a number as a text; "" for 0.
func numeral(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func checkMinSize(c *Completed, given string) (string, error) {
	if c.MinSize == 0 && given != "" {
		n, err := strconv.Atoi(given)
		if err != nil || n < 1 || n > bootstrap.MaxSize {
			return "", fmt.Errorf("least size is %q (from %s), allowed are 1 to %d", given, EnvMinSize,
				bootstrap.MaxSize)
		}
		c.MinSize = n
	}
	if c.MinSize < 0 || c.MinSize > bootstrap.MaxSize {
		return "", fmt.Errorf("least size is %d, allowed are 0 to %d", c.MinSize, bootstrap.MaxSize)
	}
	c.MinSize = cmp.Or(c.MinSize, 1)
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
			return "", fmt.Errorf("%s%w", words, err)
		}
		return effective, nil
	}
}

// Verbs says how RDMA devices are to be used. The process has the library and the memory.
func (c *Completed) Verbs() transport.VerbsConfig {
	v := transport.VerbsConfig{HCA: c.HCA, GIDIndex: -1}
	switch {
	case c.Transport != "" && c.Transport != address.Verbs:
		v.Off = fmt.Sprintf("transport %q is forced", c.Transport)
	case c.Net == address.TCP:
		v.Off = fmt.Sprintf("network is %q (from the option or %s)", c.Net, EnvNet)
	}
	if n, err := strconv.Atoi(c.GIDIndex); err == nil {
		v.GIDIndex = n
	}
	return v
}
