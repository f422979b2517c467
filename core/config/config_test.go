package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/rdma"
)

// environment is a getenv.
type environment map[string]string

func (e environment) get(name string) string { return e[name] }

// read is it without files.
func (e environment) read() *Environment { return &Environment{getenv: e.get} }

// complete is Complete of what must be right.
func complete(t *testing.T, c Config, e environment) Completed {
	t.Helper()
	all, err := c.Complete(e.read())
	if err != nil {
		t.Fatalf("%+v, %v: %v", c, e, err)
	}
	return all
}

const etcdURL = "etcd://me:pssst@192.0.2.1/job"

// Each bad value is refused by name, with what is allowed.
func TestRefused(t *testing.T) {
	store := bootstrap.NewMemStore()
	for _, c := range []struct {
		config      Config
		environment environment
		want        string // begins the text
	}{
		{Config{Size: 0}, nil, "size is 0, allowed are 1 to 65536"},
		{Config{Size: 65537}, nil, "size is 65537, allowed are 1 to 65536"},
		{Config{Size: 2, Rank: 2, Store: store}, nil, "rank is 2, allowed are 0 to 1"},
		{Config{Size: 2, Rank: -1, Store: store}, nil, "rank is -1, allowed are 0 to 1"},
		{Config{Size: 1, GlobalRanks: []int{1, 2}}, nil,
			"global ranks are 2, there must be one for each of 1 ranks"},
		{Config{Size: 1, GlobalRanks: []int{}}, nil,
			"global ranks are 0, there must be one for each of 1 ranks"},
		{Config{Size: 2}, nil, "no store is given, nor GOCCL_STORE, but size is 2"},
		{Config{Size: 1, Timeout: -1}, nil, "timeout is -1ns, it must be positive"},
		{Config{Size: 1, LivenessGrace: -1}, nil, "liveness grace is -1ns, it must be positive"},
		{Config{Size: 1, MinSize: -1}, nil, "least size is -1, allowed are 0 to 65536"},
		{Config{Size: 1, MinSize: 65537}, nil, "least size is 65537, allowed are 0 to 65536"},
		{Config{Size: 1, Transport: "mem"}, nil,
			`transport is "mem" (from the option or GOCCL_TRANSPORT), allowed are "shm", "tcp", "verbs" ` +
				`and nothing`},
		{Config{Size: 1}, environment{EnvTransport: "TCP"},
			`transport is "TCP" (from the option or GOCCL_TRANSPORT), allowed are "shm", "tcp", "verbs" ` +
				`and nothing`},
		{Config{Size: 1}, environment{EnvNet: "shm"},
			`network is "shm" (from the option or GOCCL_NET), allowed are "tcp", "verbs" and nothing`},
		{Config{Size: 1, Quorum: "most"}, nil,
			`quorum is "most" (from the option or GOCCL_QUORUM), allowed are "majority", "any" and nothing`},
		{Config{Size: 1, Recovery: "none"}, nil,
			`recovery is "none" (from the option or GOCCL_RECOVERY), allowed are "step", "survivors", ` +
				`"all" and nothing`},
		{Config{Size: 1, Thresholds: "flat=1"}, nil,
			`thresholds (from the option or GOCCL_THRESHOLDS) have "flat=1", allowed are one_shot_max, `},
		{Config{Size: 1, AllToAllSchedule: "in turn"}, nil,
			`all-to-all schedule (from the option or GOCCL_ALLTOALL_SCHEDULE) is "in turn", ` +
				`allowed are "sequential"`},
		{Config{Size: 1}, environment{EnvAlgorithms: "allreduce:ring"},
			`algorithms (from the option or GOCCL_ALGO) are "allreduce:ring", in which "ring" is no ` +
				`algorithm of allreduce; ` +
				`allowed are one_shot, two_shot, recursive_multiplying, hierarchical, binomial_tree, direct`},
		{Config{Size: 1}, environment{EnvWireDType: "int8"},
			`wire dtype (from the option or GOCCL_WIRE_DTYPE) is "int8", allowed are "bfloat16" and ` +
				`"float16"`},
		{Config{Size: 1}, environment{EnvSideStep: "send:gloo"},
			`side-steps (from the option or GOCCL_SIDE_STEP) are "send:gloo", in which no collective is ` +
				`"send", allowed are allreduce, `},
		{Config{Size: 1}, environment{EnvSideStep: "allreduce:gloo;allreduce:nccl"},
			`side-steps (from the option or GOCCL_SIDE_STEP) are "allreduce:gloo;allreduce:nccl", in ` +
				`which allreduce comes twice`},
		{Config{Size: 1}, environment{EnvSideStep: "allreduce:"},
			`side-steps (from the option or GOCCL_SIDE_STEP) are "allreduce:", in which "" names no ` +
				`backend; allowed are collectives with their backends, as in alltoall:gloo;allreduce:nccl`},
		{Config{Size: 1, SideStep: "gloo,nccl"}, nil,
			`side-steps (from the option or GOCCL_SIDE_STEP) are "gloo,nccl", in which "gloo,nccl" names`},
		{Config{Size: 1, SideStep: "allreduce:goccl"}, nil,
			`side-steps (from the option or GOCCL_SIDE_STEP) are "allreduce:goccl", but goccl does what ` +
				`it does not side-step`},
		{Config{Size: 1}, environment{EnvAlgorithms: "all:ring"},
			`algorithms (from the option or GOCCL_ALGO) are "all:ring", in which "all" is no ` +
				`collective; allowed are allreduce, `},
		{Config{Size: 1}, environment{EnvLinks: "ib=1:2:3"},
			`links (from the option or GOCCL_LINKS) are "ib=1:2:3", allowed are memory, loopback, ` +
				`tcp and verbs`},
		{Config{Size: 1}, environment{rdma.EnvGIDIndex: "256"},
			`GID index (from the option or GOCCL_IB_GID_INDEX) is "256", allowed are 0 to 255`},
		{Config{Size: 1, GIDIndex: "-1"}, nil,
			`GID index (from the option or GOCCL_IB_GID_INDEX) is "-1", allowed are 0 to 255`},
		{Config{Size: 1}, environment{rdma.EnvGIDIndex: "x"}, `GID index `},
		{Config{Size: 1, HCA: "mlx5_0:x"}, nil,
			`GOCCL_IB_HCA=mlx5_0:x: "mlx5_0:x" is no device, nor device:port with ports from 1`},
		{Config{Size: 1}, environment{EnvInterface: "^"},
			`interface is "^" (from the option or GOCCL_SOCKET_IFNAME), which names none`},
		{Config{Size: 1}, environment{EnvTimeout: "60"},
			`timeout is "60" (from GOCCL_TIMEOUT), allowed are durations of at least 1 ms with their ` +
				`unit, such as "500ms", "30s" and "1h30m"`},
		{Config{Size: 1}, environment{EnvTimeout: "0s"}, `timeout is "0s" (from GOCCL_TIMEOUT)`},
		{Config{Size: 1}, environment{EnvTimeout: "-1s"}, `timeout is "-1s" (from GOCCL_TIMEOUT)`},
		{Config{Size: 1}, environment{EnvTimeout: "999us"}, `timeout is "999us" (from GOCCL_TIMEOUT)`},
		{Config{Size: 1}, environment{EnvTimeout: "1 h"}, `timeout is "1 h" (from GOCCL_TIMEOUT)`},
		{Config{Size: 1}, environment{EnvTimeout: "9999999h"}, `timeout is "9999999h" (from`},
		{Config{Size: 1}, environment{EnvGrace: "soon"},
			`liveness grace is "soon" (from GOCCL_LIVENESS_GRACE), allowed are durations`},
		{Config{Size: 1}, environment{EnvMinSize: "0"},
			`least size is "0" (from GOCCL_MIN_SIZE), allowed are 1 to 65536`},
		{Config{Size: 1}, environment{EnvMinSize: "65537"},
			`least size is "65537" (from GOCCL_MIN_SIZE), allowed are 1 to 65536`},
		{Config{Size: 1}, environment{EnvMinSize: "2.0"}, `least size is "2.0" (from GOCCL_MIN_SIZE)`},
		{Config{Size: 1}, environment{EnvMetricsFile: "/x/%r.prom"},
			`metrics file (from GOCCL_METRICS_FILE) is "/x/%r.prom", after % are allowed h (the host), p ` +
				`(the process) and %`},
		{Config{Size: 1}, environment{EnvTrace: "/x/%d.trace"},
			`trace (from GOCCL_TRACE) is "/x/%d.trace", after % are allowed h (the host), p (the ` +
				`process), r (the rank in the job) and %`},
		{Config{Size: 1}, environment{EnvMetricsPort: "0"},
			`metrics port (from GOCCL_METRICS_PORT) is "0", allowed are ports from 1 to 65535, as in ` +
				`"9400", which is that of 127.0.0.1, and addresses with one, as in "0.0.0.0:9400" and `},
		{Config{Size: 1}, environment{EnvStore: "etcd://me:pssst@192.0.2.1"},
			`GOCCL_STORE is "etcd://(hidden)@192.0.2.1": it has no prefix`},
	} {
		_, err := c.config.Complete(c.environment.read())
		if !errors.Is(err, fault.ErrInvalidArgument) ||
			!strings.HasPrefix(fmt.Sprint(err), "init: "+c.want) {
			t.Errorf("%v\nwant: %s", err, c.want)
		}
	}
}

// What is no regular file is refused, and not waited for: a pipe has nothing until somebody writes.
func TestPlansOfPipes(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe.json")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, plans := range []string{pipe, folder} {
		_, err := (&Config{Size: 1, Plans: plans}).Complete(environment{}.read())
		if !errors.Is(err, fault.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), pipe+": it must be a regular file") {
			t.Errorf("%s: %v", plans, err)
		}
	}
}

// All that is wrong is told at once.
func TestAllProblems(t *testing.T) {
	all, err := Config{Size: 1, Transport: "mem"}.Complete(environment{EnvNet: "shm",
		EnvTimeout: "60", EnvStore: "http://x"}.read())
	if err == nil || len(all.Problems) != 4 ||
		err.Error() != "init: "+strings.Join(all.Problems, "; ") {
		t.Errorf("%q, %v", all.Problems, err)
	}
	for i, begins := range []string{EnvStore, "timeout", "transport", "network"} {
		if !strings.HasPrefix(all.Problems[i], begins) {
			t.Errorf("problem %d is %q, want %s first", i, all.Problems[i], begins)
		}
	}
}

// What is at the limits is allowed.
func TestAllowed(t *testing.T) {
	for _, c := range []Config{
		{Size: 1, MinSize: 65536, GlobalRanks: []int{7}, Timeout: 1, LivenessGrace: 1},
		{Size: 65536, Rank: 65535, Store: bootstrap.NewMemStore()},
		{Size: 1, Transport: "shm", Net: "tcp", Quorum: QuorumMajority, Recovery: RecoveryStep},
		{Size: 1, Transport: "tcp", Net: "verbs", Quorum: QuorumAny, Recovery: RecoverySurvivors},
		{Size: 1, Transport: "verbs", Recovery: RecoveryAll},
	} {
		complete(t, c, nil)
	}
	complete(t, Config{Size: 2}, environment{EnvStore: etcdURL})
}

// texts have, of each option that a variable may give, a value, and the form that takes effect.
var texts = []struct {
	variable, value, effective string
	of                         func(*Completed) string
}{
	{EnvTimeout, "90s", "1m30s", func(c *Completed) string { return c.Timeout.String() }},
	{EnvGrace, "1500ms", "1.5s", func(c *Completed) string { return c.LivenessGrace.String() }},
	{EnvMinSize, "03", "3", func(c *Completed) string { return strconv.Itoa(c.MinSize) }},
	{EnvTransport, "tcp", "tcp", func(c *Completed) string { return c.Transport }},
	{EnvNet, "verbs", "verbs", func(c *Completed) string { return c.Net }},
	{rdma.EnvHCA, "mlx5_0", "mlx5_0", func(c *Completed) string { return c.HCA }},
	{rdma.EnvGIDIndex, "3", "3", func(c *Completed) string { return c.GIDIndex }},
	{EnvInterface, "^docker,lo", "^docker,lo", func(c *Completed) string { return c.Interface }},
	{EnvSecret, "pssst", "pssst", func(c *Completed) string { return c.Secret }},
	{EnvThresholds, "flat_max=1", "flat_max=1", func(c *Completed) string { return c.Thresholds }},
	{EnvSchedule, "window=02", "window=2", func(c *Completed) string { return c.AllToAllSchedule }},
	{EnvAlgorithms, "allreduce:^one_shot,recursive_multiplying,hierarchical,binomial_tree",
		"allreduce:two_shot,direct", func(c *Completed) string { return c.Algorithms }},
	{EnvWireDType, "float16", "float16", func(c *Completed) string { return c.WireDType }},
	{EnvSideStep, "nccl; alltoall:gloo;nccl", "alltoall:gloo;nccl",
		func(c *Completed) string { return c.SideStep }},
	{EnvLinks, "tcp=1:2:3", "tcp=1:2:3", func(c *Completed) string { return c.Links }},
	{EnvPlans, "testdata/copy.json", "copy 6ecff008", func(c *Completed) string { return c.Plans }},
	{EnvQuorum, "any", "any", func(c *Completed) string { return c.Quorum }},
	{EnvRecovery, "all", "survivors", func(c *Completed) string { return c.Recovery }},
}

// A variable fills one field, where that is empty, and is noted as the source.
func TestEnvironment(t *testing.T) {
	read := map[string]bool{}
	for _, c := range texts {
		read[c.variable] = true
		all := complete(t, Config{Size: 1}, environment{c.variable: c.value})
		for _, other := range texts {
			want, source := "", SourceDefault
			switch other.variable {
			case c.variable:
				want, source = c.effective, SourceEnvironment
			case EnvTimeout:
				want = "30m0s"
			case EnvGrace:
				want = "10s"
			case EnvMinSize:
				want = "1"
			case EnvQuorum:
				want = QuorumMajority
			case EnvRecovery:
				want = RecoveryStep
			}
			if got := other.of(&all); got != want {
				t.Errorf("%s=%s: %s is %q, want %q", c.variable, c.value, other.variable, got, want)
			}
			if got := all.Settings[other.variable].Source; got != source {
				t.Errorf("%s=%s: %s is from %q, want %q", c.variable, c.value, other.variable, got, source)
			}
		}
	}
	for i := range options {
		if o := &options[i]; o.check != nil && !read[o.variable] {
			t.Errorf("%s was not read", o.variable)
		}
	}
}

// What a program gives is not overruled.
func TestProgramWins(t *testing.T) {
	given := Config{Size: 1, Timeout: time.Hour, LivenessGrace: time.Second, MinSize: 2, HCA: "rxe0",
		GIDIndex: "1", Transport: "shm", Net: "tcp", Interface: "lo", Secret: "mine",
		Thresholds: "flat_max=2", AllToAllSchedule: "parallel", Algorithms: "allreduce:one_shot",
		WireDType: "bfloat16", SideStep: "reduce:gloo",
		Links: "tcp=3:2:1", Plans: "testdata", Quorum: QuorumMajority, Recovery: RecoverySurvivors}
	set := environment{}
	for _, c := range texts {
		set[c.variable] = c.value
	}
	all := complete(t, given, set)
	for variable := range set {
		if all.Settings[variable].Source != SourceOption {
			t.Errorf("%s: %+v", variable, all.Settings[variable])
		}
	}
	given.Plans = "copy 6ecff008" // as ranks compare it
	if !reflect.DeepEqual(all.Config, given) {
		t.Errorf("%+v", all.Config)
	}
}

func TestDurations(t *testing.T) {
	all := complete(t, Config{Size: 1}, nil)
	if all.Timeout != 30*time.Minute || all.LivenessGrace != 10*time.Second {
		t.Errorf("by default %v and %v", all.Timeout, all.LivenessGrace)
	}
	all = complete(t, Config{Size: 1, Timeout: time.Second, LivenessGrace: time.Minute}, nil)
	if all.Timeout != time.Second || all.LivenessGrace != time.Minute {
		t.Errorf("given, but %v and %v", all.Timeout, all.LivenessGrace)
	}
}

// Settings are told as they were given, but for what is secret.
func TestSettings(t *testing.T) {
	all := complete(t, Config{Size: 1, AllToAllSchedule: "window=02", Secret: "pssst"},
		environment{EnvNet: "tcp", EnvStore: etcdURL, EnvThresholds: "flat_max=4096"})
	want := map[string]Setting{}
	for _, name := range Variables() {
		want[name] = Setting{"", SourceDefault}
	}
	for _, name := range elsewhere {
		delete(want, name)
	}
	want[EnvSchedule] = Setting{"window=02", SourceOption}
	want[EnvSecret] = Setting{"(hidden)", SourceOption}
	want[EnvNet] = Setting{"tcp", SourceEnvironment}
	want[EnvStore] = Setting{"etcd://(hidden)@192.0.2.1/job", SourceEnvironment}
	want[EnvThresholds] = Setting{"flat_max=4096", SourceEnvironment}
	if !reflect.DeepEqual(all.Settings, want) {
		t.Errorf("%+v\nwant: %+v", all.Settings, want)
	}
}

// Ranks compare what decides about plans and about who goes on, in the form that takes effect, and
// nothing else.
func TestSame(t *testing.T) {
	set := environment{EnvStore: etcdURL}
	for _, c := range texts {
		set[c.variable] = c.value
	}
	const algorithms = "allreduce:two_shot,direct"
	for _, c := range []struct {
		environment environment
		minSize     int
		values      []string
	}{
		{nil, 0, []string{Version, "", "", "", "", "", "", "", "", "", "1", "majority", "step"}},
		{set, 3, []string{Version, "tcp", "verbs", "flat_max=1", "window=2", algorithms, "float16",
			"alltoall:gloo;nccl", "tcp=1:2:3", "copy 6ecff008", "3", "any", "survivors"}},
	} {
		var want []bootstrap.Setting
		for i, name := range []string{"the version of GoCCL", "the transport (GOCCL_TRANSPORT)",
			"the network (GOCCL_NET)", "GOCCL_THRESHOLDS",
			"the all-to-all schedule (GOCCL_ALLTOALL_SCHEDULE)", "the choice of algorithms (GOCCL_ALGO)",
			"the wire dtype (GOCCL_WIRE_DTYPE)", "the side-steps (GOCCL_SIDE_STEP)",
			"what links cost (GOCCL_LINKS)",
			"the programs (GOCCL_PLANS)", "the least size (GOCCL_MIN_SIZE)", "the quorum (GOCCL_QUORUM)",
			"the recovery (GOCCL_RECOVERY)"} {
			want = append(want, bootstrap.Setting{Name: name, Value: c.values[i]})
		}
		all := complete(t, Config{Size: 1, MinSize: c.minSize, Interface: "lo", GroupName: "g"},
			c.environment)
		if !slices.Equal(all.Same, want) {
			t.Errorf("%q\nwant: %q", all.Same, want)
		}
	}
}

// What is refused is kept as it was given: `goccl info` tells what it does to RDMA.
func TestRefusedIsKept(t *testing.T) {
	all, err := Config{Size: 1}.Complete(environment{EnvTransport: "x"}.read())
	if v := all.Verbs(); err == nil || v.Off != `transport "x" is forced` {
		t.Errorf("%+v, %v", v, err)
	}
}

// A rank that is refused can still tell the others, wherever they meet.
func TestRefusedKnowsHowToMeet(t *testing.T) {
	for _, bad := range []environment{{EnvTransport: "x"}, {EnvRecovery: "x"}, {EnvThresholds: "x"}} {
		set := environment{EnvStore: etcdURL, EnvSecret: "pssst", envAgentStore: "False",
			envMasterPort: "1234"}
		for name, value := range bad {
			set[name] = value
		}
		all, err := Config{Size: 2, GroupName: "g"}.Complete(set.read())
		if err == nil || all.Etcd == nil || all.Secret != "pssst" || all.Incarnation != "1234" {
			t.Errorf("%v: %+v, %v", bad, all, err)
		}
	}
}

func TestAttemptsOfALauncher(t *testing.T) {
	const port = envMasterPort
	for i, c := range []struct {
		set                         environment
		given, incarnation, attempt string
	}{
		{environment{port: "1"}, "", "", ""},
		{environment{EnvRestarts: "2", port: "1"}, "", "", "2"},
		{environment{EnvRestarts: "2", envAgentStore: "True", port: "1"}, "", "", "2"},
		{environment{EnvRestarts: "2", envAgentStore: "False", port: "1"}, "", "1", ""},
		{environment{EnvRestarts: "2", envAgentStore: "False", port: "1"}, "x", "x", ""},
		{environment{EnvRestarts: "2"}, "x", "x", ""},
	} {
		all := complete(t, Config{Size: 1, Incarnation: c.given}, c.set)
		if all.Incarnation != c.incarnation || all.Attempt != c.attempt {
			t.Errorf("%d: %q, %q", i, all.Incarnation, all.Attempt)
		}
	}
}

func TestVerbs(t *testing.T) {
	for _, c := range []struct {
		transport, net, hca, index string
		off                        string
		gid                        int
	}{
		{gid: -1},
		{transport: "verbs", net: "verbs", hca: "mlx5_0", index: "0"},
		{index: "255", gid: 255},
		{transport: "shm", off: `transport "shm" is forced`, gid: -1},
		{transport: "tcp", net: "tcp", off: `transport "tcp" is forced`, gid: -1},
		{net: "tcp", off: `network is "tcp" (from the option or GOCCL_NET)`, gid: -1},
		{transport: "verbs", net: "tcp", off: `network is "tcp" (from the option or GOCCL_NET)`, gid: -1},
	} {
		all := complete(t, Config{Size: 1, Transport: c.transport, Net: c.net},
			environment{rdma.EnvHCA: c.hca, rdma.EnvGIDIndex: c.index})
		if v := all.Verbs(); v.Off != c.off || v.HCA != c.hca || v.GIDIndex != c.gid {
			t.Errorf("%+v: %+v", c, v)
		}
	}
}

// An error of Init says of which group and call it is, and which ranks are to blame.
func TestInitError(t *testing.T) {
	c := Config{GroupName: "g", GlobalRanks: []int{4, 5}}
	e := c.InitError(fault.ErrTimeout, errors.New("nobody is there"), 1)
	if !errors.Is(e, fault.ErrTimeout) || e.Group != "g" || e.Operation != "init" ||
		!slices.Equal(e.Ranks, []int{1}) || !strings.Contains(e.Error(), "init: nobody is there") {
		t.Errorf("%+v", e)
	}
}

// FuzzComplete checks that a configuration that is let through, from the program or from the
// environment, is one that a communicator can have.
func FuzzComplete(f *testing.F) {
	f.Add(0, 1, int64(0), int64(0), "", "")
	f.Add(1, 2, int64(time.Second), int64(time.Second), "tcp", "shm")
	f.Fuzz(func(t *testing.T, rank, size int, timeout, grace int64, given, set string) {
		c, err := Config{Rank: rank, Size: size, Store: bootstrap.NewMemStore(),
			Timeout: time.Duration(timeout), LivenessGrace: time.Duration(grace), Transport: given,
		}.Complete(&Environment{getenv: func(string) string { return set }})
		if err != nil {
			return
		}
		if c.Rank < 0 || c.Rank >= c.Size || c.Size > bootstrap.MaxSize || c.Timeout <= 0 ||
			c.LivenessGrace <= 0 ||
			c.Transport != "" && c.Transport != "shm" && c.Transport != "tcp" || c.Secret != set {
			t.Fatalf("%+v is let through", c)
		}
		if given != "" && c.Transport != given {
			t.Fatal("the environment has overruled the program")
		}
	})
}
