package logs

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The variables of the environment that say what is logged, and where.
const (
	EnvDebug  = "GOCCL_DEBUG"
	EnvSubsys = "GOCCL_DEBUG_SUBSYS"
	EnvFile   = "GOCCL_DEBUG_FILE"
)

// None is above the level of every record.
const None = slog.Level(math.MaxInt)

// Settings is what the variables say.
type Settings struct {
	Level   slog.Level
	Version bool   // the first line tells the version
	File    string // path of the file to write; "": standard error
	// excluded are the subsystems of which only warnings are logged.
	excluded []Subsystem
}

// levels are the values of GOCCL_DEBUG, which are those of NCCL_DEBUG.
var levels = []struct {
	name  string
	level slog.Level
}{{"NONE", None}, {"VERSION", Warn}, {"WARN", Warn}, {"INFO", Info}, {"TRACE", Trace}}

// Read reads the variables. Each of the problems tells of a value that is not allowed: it is taken
// for the default. What is there for finding faults must not keep a program from running.
func Read(getenv func(string) string) (s Settings, problems []string) {
	s.Level = Warn
	if given := getenv(EnvDebug); given != "" {
		var names []string
		found := false
		for _, l := range levels {
			names = append(names, l.name)
			if strings.EqualFold(given, l.name) {
				s.Level, s.Version, found = l.level, l.name == "VERSION", true
			}
		}
		if !found {
			problems = append(problems, fmt.Sprintf("%s is %q, allowed are %s: WARN is used",
				EnvDebug, given, strings.Join(names, ", ")))
		}
	}
	excluded, problem := readSubsystems(getenv(EnvSubsys))
	if s.excluded = excluded; problem != "" {
		problems = append(problems, problem)
	}
	if given := getenv(EnvFile); given != "" {
		var err error
		if s.File, err = Expand(given, NoRank); err != nil {
			problems = append(problems, fmt.Sprintf("%s is %v: the log goes to standard error", EnvFile,
				err))
		}
	}
	return s, problems
}

// Includes tells whether records of a level and a subsystem are to be logged at all, at whichever
// level: warnings always are.
func (s *Settings) Includes(l slog.Level, of Subsystem) bool {
	return l >= Warn || !slices.Contains(s.excluded, of)
}

// readSubsystems reads a list such as "INIT,NET": only these; or "^COLL,P2P": all but these, where
// each name may have the "^".
func readSubsystems(given string) (excluded []Subsystem, problem string) {
	if given == "" {
		return nil, ""
	}
	without := strings.HasPrefix(strings.TrimSpace(given), "^")
	var named []Subsystem
	for name := range strings.SplitSeq(given, ",") {
		name = strings.ToUpper(strings.TrimSpace(name))
		if without {
			name = strings.TrimPrefix(name, "^")
		}
		switch {
		case name == "ALL":
			named = append(named, Subsystems...)
		case slices.Contains(Subsystems, Subsystem(name)):
			named = append(named, Subsystem(name))
		case name != "":
			return nil, fmt.Sprintf("%s is %q, allowed are ALL and %s, separated by commas, or with \"^\" "+
				"in front all but these: ALL is used", EnvSubsys, given, listed(Subsystems))
		}
	}
	for _, s := range Subsystems {
		if slices.Contains(named, s) == without {
			excluded = append(excluded, s)
		}
	}
	return excluded, ""
}

func listed(all []Subsystem) string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// NoRank is the rank of [Expand] for a path that knows none.
const NoRank = -1

// Expand replaces %h in the pattern of a path by the name of the host, %p by the number of the
// process, %r by a rank, and %% by %. The error tells the pattern, and what is allowed.
func Expand(pattern string, rank int) (path string, err error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			b.WriteByte(pattern[i])
			continue
		}
		i++
		switch {
		case i < len(pattern) && pattern[i] == 'h':
			b.WriteString(host)
		case i < len(pattern) && pattern[i] == 'p':
			b.WriteString(strconv.Itoa(os.Getpid()))
		case i < len(pattern) && pattern[i] == 'r' && rank != NoRank:
			b.WriteString(strconv.Itoa(rank))
		case i < len(pattern) && pattern[i] == '%':
			b.WriteByte('%')
		default:
			and := ""
			if rank != NoRank {
				and = ", r (the rank in the job)"
			}
			return "", fmt.Errorf("%q, after %% are allowed h (the host), p (the process)%s and %%",
				pattern, and)
		}
	}
	return b.String(), nil
}
