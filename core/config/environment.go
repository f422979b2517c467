package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/metrics"
)

// The variables of the environment, beside those of packages rdma and logs.
const (
	EnvTimeout     = "GOCCL_TIMEOUT"
	EnvGrace       = "GOCCL_LIVENESS_GRACE"
	EnvMinSize     = "GOCCL_MIN_SIZE"
	EnvTransport   = "GOCCL_TRANSPORT"
	EnvNet         = "GOCCL_NET"
	EnvThresholds  = "GOCCL_THRESHOLDS"
	EnvSchedule    = "GOCCL_ALLTOALL_SCHEDULE"
	EnvAlgorithms  = "GOCCL_ALGO"
	EnvWireDType   = "GOCCL_WIRE_DTYPE"
	EnvSideStep    = "GOCCL_SIDE_STEP"
	EnvLinks       = "GOCCL_LINKS"
	EnvPlans       = "GOCCL_PLANS"
	EnvQuorum      = "GOCCL_QUORUM"
	EnvRecovery    = "GOCCL_RECOVERY"
	EnvInterface   = "GOCCL_SOCKET_IFNAME"
	EnvSecret      = "GOCCL_SECRET"
	EnvStore       = "GOCCL_STORE"
	EnvJoin        = "GOCCL_JOIN"
	EnvConfFile    = "GOCCL_CONF_FILE"
	EnvDump        = "GOCCL_DUMP"
	EnvDumpSignal  = "GOCCL_DUMP_SIGNAL"
	EnvTrace       = "GOCCL_TRACE"
	EnvMetricsFile = "GOCCL_METRICS_FILE"
	EnvMetricsPort = "GOCCL_METRICS_PORT"
	EnvRestarts    = "TORCHELASTIC_RESTART_COUNT"

	envAgentStore = "TORCHELASTIC_USE_AGENT_STORE"
	envMasterPort = "MASTER_PORT"
)

const (
	envPrefix = "GOCCL_"
	// `goccl bench`, tests and builds have variables of their own.
	envLib         = envPrefix + "LIB"
	envStaging     = envPrefix + "STAGING" // the back end of torch reads it
	envDefault     = envPrefix + "DEFAULT" // Python reads this and the next, before there is a group
	envReplaceGloo = envPrefix + "REPLACE_GLOO"
	envBenchPrefix = envPrefix + "BENCH_"
	envTestPrefix  = envPrefix + "TEST_"
)

// elsewhere are variables that are no options of a communicator: others read them.
var elsewhere = []string{EnvJoin, EnvConfFile, envStaging, envDefault, envReplaceGloo, EnvDump,
	EnvDumpSignal, EnvTrace, EnvMetricsFile, EnvMetricsPort, logs.EnvDebug, logs.EnvSubsys,
	logs.EnvFile}

// Variables are those of the environment that the library reads under its own prefix.
func Variables() []string {
	var all []string
	for i := range options {
		if name := options[i].variable; name != "" {
			all = append(all, name)
		}
	}
	return append(all, elsewhere...)
}

// checkWatched refuses values by which metrics could not be told, or a trace written.
func checkWatched(e *Environment) error {
	if _, err := logs.Expand(e.Get(EnvMetricsFile), logs.NoRank); err != nil {
		return e.blame(fmt.Errorf("metrics file (from %s) is %w", EnvMetricsFile, err), EnvMetricsFile)
	}
	if port := e.Get(EnvMetricsPort); port != "" {
		if _, err := metrics.ParseListen(port); err != nil {
			return e.blame(fmt.Errorf("metrics port (from %s) is %w", EnvMetricsPort, err), EnvMetricsPort)
		}
	}
	if _, err := logs.Expand(e.Get(EnvTrace), 0); err != nil {
		return e.blame(fmt.Errorf("trace (from %s) is %w", EnvTrace, err), EnvTrace)
	}
	return nil
}

// Variable is a variable of the environment, with what may be told of its value.
type Variable struct {
	Name string `json:"name"`
	Setting
}

// Told are the variables that are set, by the environment or by a file.
func (e *Environment) Told() []Variable {
	set := []Variable{}
	for _, name := range append(Variables(), EnvRestarts) {
		if value, source, _ := e.lookup(name); value != "" {
			set = append(set, Variable{name, Setting{shown(name, value), source}})
		}
	}
	return set
}

// shown is what may be told of the value of a variable.
func shown(name, value string) string {
	i := slices.IndexFunc(options, func(o option) bool { return o.variable == name })
	if i < 0 {
		return value
	}
	return options[i].shown(value)
}

// Warnings tells of settings that have not the effect that they may be set for. Environ is all of
// the environment, each variable as "name=value".
func (e *Environment) Warnings(environ []string) []string {
	_, problems := logs.Read(e.Get)
	return append(append(unknown(environ), e.warnings...), problems...)
}

// unknown says of each variable of the environment that has this library's prefix, but is not one
// of its own, that it has no effect. One that is mistyped would do nothing, unnoticed.
func unknown(environ []string) []string {
	known := Variables()
	told := []string{}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(strings.ToUpper(name), envPrefix) || slices.Contains(known, name) ||
			name == envLib || strings.HasPrefix(name, envBenchPrefix) ||
			strings.HasPrefix(name, envTestPrefix) {
			continue
		}
		told = append(told, notKnown("environment variable", name, known))
	}
	slices.Sort(told)
	return told
}

// notKnown says of a name that it is none of the known ones, and which may be meant.
func notKnown(what, name string, known []string) string {
	text := fmt.Sprintf("the %s %q is not known, and has no effect", what, name)
	if nearest := nearestTo(strings.ToUpper(name), known); nearest != "" {
		text += "; did you mean " + nearest + "?"
	}
	return text
}

// nearestTo returns the known name from which a given one, both without the prefix, differs least;
// "" where it differs in more than half of its characters from all.
func nearestTo(name string, known []string) (nearest string) {
	given := strings.TrimPrefix(name, envPrefix)
	least := (len(given)+1)/2 + 1
	for _, v := range known {
		if d := editDistance(given, strings.TrimPrefix(v, envPrefix)); d < least {
			nearest, least = v, d
		}
	}
	return nearest
}

// editDistance is Levenshtein's: how many bytes have to be inserted, removed or replaced at least.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // of a's bytes so far to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
