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
	envBenchPrefix = envPrefix + "BENCH_"
	envTestPrefix  = envPrefix + "TEST_"
)

// elsewhere are variables that are no options of a communicator: others read them.
var elsewhere = []string{EnvJoin, envStaging, EnvDump, EnvDumpSignal, EnvTrace,
	EnvMetricsFile, EnvMetricsPort, logs.EnvDebug, logs.EnvSubsys, logs.EnvFile}

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
func checkWatched(getenv func(string) string) error {
	if _, err := logs.Expand(getenv(EnvMetricsFile), logs.NoRank); err != nil {
		return fmt.Errorf("metrics file (from %s) is %w", EnvMetricsFile, err)
	}
	if port := getenv(EnvMetricsPort); port != "" {
		if _, err := metrics.ParseListen(port); err != nil {
			return fmt.Errorf("metrics port (from %s) is %w", EnvMetricsPort, err)
		}
	}
	if _, err := logs.Expand(getenv(EnvTrace), 0); err != nil {
		return fmt.Errorf("trace (from %s) is %w", EnvTrace, err)
	}
	return nil
}

// Variable is a variable of the environment, with what may be told of its value.
type Variable struct{ Name, Value string }

// Told are the variables that are set.
func Told(getenv func(string) string) (set []Variable) {
	for _, name := range append(Variables(), EnvRestarts) {
		value := getenv(name)
		if i := slices.IndexFunc(options, func(o option) bool { return o.variable == name }); i >= 0 {
			value = options[i].shown(value)
		}
		if value != "" {
			set = append(set, Variable{name, value})
		}
	}
	return set
}

// Warnings tells of variables that have not the effect that they may be set for. Environ is all of
// the environment, each variable as "name=value".
func Warnings(getenv func(string) string, environ []string) []string {
	_, problems := logs.Read(getenv)
	return append(unknown(environ), problems...)
}

// unknown says of each variable of the environment that has this library's prefix, but is not one
// of its own, that it has no effect. One that is mistyped would do nothing, unnoticed.
func unknown(environ []string) []string {
	known := Variables()
	told := []string{}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		upper := strings.ToUpper(name)
		if !strings.HasPrefix(upper, envPrefix) || slices.Contains(known, name) ||
			name == envLib || strings.HasPrefix(name, envBenchPrefix) ||
			strings.HasPrefix(name, envTestPrefix) {
			continue
		}
		text := fmt.Sprintf("the environment variable %q is not known, and has no effect", name)
		if nearest := nearestTo(upper, known); nearest != "" {
			text += "; did you mean " + nearest + "?"
		}
		told = append(told, text)
	}
	slices.Sort(told)
	return told
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
