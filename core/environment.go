package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/rdma"
)

// variables are those of the environment that this library reads under its own prefix.
var variables = []string{
	EnvTransport, EnvNet, rdma.EnvHCA, rdma.EnvGIDIndex, EnvInterface, EnvSecret, EnvThresholds,
	EnvSchedule, EnvAlgorithms, EnvLinks, EnvQuorum, EnvRecovery, EnvStore, EnvJoin,
	logs.EnvDebug, logs.EnvSubsys, logs.EnvFile,
}

const (
	envPrefix = "GOCCL_"
	// `goccl bench` and tests have variables of their own.
	envBenchPrefix = envPrefix + "BENCH_"
	envTestPrefix  = envPrefix + "TEST_"
)

// tellEnvironment logs what is wrong with the environment, and what is set in it.
func (r *Runtime) tellEnvironment() {
	log := r.log(logs.Env)
	for _, text := range r.environmentWarnings() {
		log.Warn(text)
	}
	if !log.Enabled(context.Background(), logs.Info) {
		return
	}
	for _, name := range append(slices.Clone(variables), EnvRestarts) {
		value := r.config.Getenv(name)
		switch {
		case value == "":
			continue
		case name == EnvSecret:
			value = "(hidden)"
		case name == EnvStore:
			value = etcd.Hide(value)
		}
		log.Info("an environment variable is set", "name", name, "value", value)
	}
}

// environmentWarnings tells of variables that have not the effect that they may be set for.
func (r *Runtime) environmentWarnings() []string {
	_, problems := logs.Read(r.config.Getenv)
	return append(r.unknownVariables(), problems...)
}

// unknownVariables says of each variable of the environment that has this library's prefix, but is
// not one of its own, that it has no effect. One that is mistyped would do nothing, unnoticed.
func (r *Runtime) unknownVariables() []string {
	told := []string{}
	for _, setting := range r.config.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		upper := strings.ToUpper(name)
		known := slices.Contains(variables, name) ||
			strings.HasPrefix(name, envBenchPrefix) || strings.HasPrefix(name, envTestPrefix)
		if known || !strings.HasPrefix(upper, envPrefix) {
			continue
		}
		text := fmt.Sprintf("the environment variable %q is not known, and has no effect", name)
		if nearest, ok := nearestVariable(upper); ok {
			text += "; did you mean " + nearest + "?"
		}
		told = append(told, text)
	}
	slices.Sort(told)
	return told
}

// nearestVariable returns the known name from which a given one, both without the prefix, differs
// least. ok is false where it differs in more than half of its characters from all.
func nearestVariable(name string) (nearest string, ok bool) {
	given := strings.TrimPrefix(name, envPrefix)
	least := (len(given)+1)/2 + 1
	for _, v := range variables {
		if d := editDistance(given, strings.TrimPrefix(v, envPrefix)); d < least {
			nearest, least = v, d
		}
	}
	return nearest, nearest != ""
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
