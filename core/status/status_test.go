package status

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/judge"
)

// told is what a process of a group of three tells.
func told(rank int, call Call) Process {
	return Process{PID: 100 + rank, Host: "here", Program: "train",
		Groups: []Group{{ID: 7, Name: "default", Rank: rank, Hosts: []string{"here", "here", "there"},
			PIDs: []int{100, 101, 102}, Near: []bool{true, true, false},
			Report: Report{Call: call, Messages: []Message{}}, Others: []Other{}}}}
}

func TestGroups(t *testing.T) {
	waits := Call{Sequence: 4, What: "barrier", State: "begun", ForUS: 5e6, Peer: 1}
	ended := Call{Sequence: 4, What: "barrier", State: "ended", Peer: -1}
	alive := func(int) string { return "" }
	for _, c := range []struct {
		name   string
		told   []Process
		life   Life
		states []string
		kind   judge.Kind
	}{
		{"well", []Process{told(0, ended), told(1, ended), told(2, ended)}, alive,
			[]string{"answers", "answers", "answers"}, judge.Well},
		{"stopped", []Process{told(0, waits), told(2, waits)},
			func(pid int) string { return map[int]string{101: "stopped"}[pid] },
			[]string{"answers", "stopped", "answers"}, judge.Held},
		{"gone", []Process{told(0, waits)},
			func(pid int) string { return map[int]string{101: "gone"}[pid] },
			[]string{"answers", "gone", "unreachable"}, judge.Ended},
		{"silent", []Process{told(0, waits)}, alive, []string{"answers", "silent", "unreachable"},
			judge.Held},
		{"elsewhere", []Process{told(0, waits), told(1, waits)}, alive,
			[]string{"answers", "answers", "unreachable"}, judge.Slow},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := Groups(c.told, c.life)
			if len(all) != 1 {
				t.Fatalf("%d groups", len(all))
			}
			var states []string
			for _, m := range all[0].Members {
				states = append(states, m.State)
			}
			if !slices.Equal(states, c.states) || all[0].Verdict.Kind != c.kind {
				t.Errorf("%v, %+v", states, all[0].Verdict)
			}
		})
	}
}

// What peers on other hosts are told over links stands beside what processes of this host tell.
func TestGroupsOfOthers(t *testing.T) {
	waits := Report{Call: Call{Sequence: 4, What: "barrier", State: "begun", ForUS: 5e6, Peer: -1}}
	alive := func(int) string { return "" }
	for _, c := range []struct {
		name   string
		others [2][]Other // what ranks 0 and 1 know
		state  string
		kind   judge.Kind
	}{
		{"told", [2][]Other{{{2, true, waits}}}, "answers", judge.Behind},
		{"told to one", [2][]Other{{{2, false, Report{}}}, {{2, true, waits}}}, "answers", judge.Behind},
		{"silent", [2][]Other{nil, {{2, false, Report{}}}}, "silent", judge.Held},
		{"no link", [2][]Other{}, "unreachable", judge.Well},
		{"of a rank of this host", [2][]Other{{{1, true, waits}}}, "unreachable", judge.Well},
	} {
		t.Run(c.name, func(t *testing.T) {
			told := []Process{told(0, Call{}), told(1, Call{})}
			for rank := range told {
				told[rank].Groups[0].Others = c.others[rank]
			}
			j := Groups(told, alive)[0]
			if j.Members[2].State != c.state || j.Verdict.Kind != c.kind {
				t.Errorf("%+v", j)
			}
		})
	}
}

// Of each group one process connects to the ranks that none is connected with.
func TestDialers(t *testing.T) {
	answers, silent := []Other{{2, true, Report{}}}, []Other{{2, false, Report{}}}
	for _, c := range []struct {
		name   string
		others []Other
		want   int
	}{{"linked", answers, 0}, {"silent", silent, 0}, {"apart", nil, 1}} {
		processes := []Process{told(0, Call{}), told(1, Call{})}
		processes[0].socket, processes[1].socket = "a", "b"
		processes[1].Groups[0].Others = c.others
		if all := dialers(processes); len(all) != c.want || c.want > 0 && !all["a"] {
			t.Errorf("%s: %v", c.name, all)
		}
	}
}

// Each process that is asked writes its dump, or tells why it does not.
func TestDump(t *testing.T) {
	asked := ""
	s, err := Serve(Answers{Dump: func(prefix string) ([]string, error) {
		asked = prefix
		return []string{prefix + "0\n"}, errors.New("disk\a full")
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	prefix := "/tmp/a b " + strings.Repeat("x", prefixMost-9)
	all, err := Dump(prefix, os.Getpid())
	want := Dumps{[]Dumped{{os.Getpid(), []string{prefix + `0\n`}, `disk\a full`}}, []int{}}
	if err != nil || asked != prefix || !reflect.DeepEqual(all, want) {
		t.Errorf("%+v, %v, for %q", all, err, asked)
	}
	if all, err := Dump(prefix, -1); err != nil || len(all.Processes) > 0 {
		t.Errorf("of another process: %+v, %v", all, err)
	}
	for _, bad := range []string{"", "relative", "/two\nlines", prefix + "x"} {
		if _, err := Dump(bad, 0); !errors.Is(err, ErrPrefix) ||
			!strings.Contains(err.Error(), "absolute path") {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	var d Dumped
	if err := ask(s.listener.Addr().String(), "dump relative", &d); err != nil ||
		!strings.Contains(d.Error, "absolute path") {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestLifeOf(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	for _, want := range []string{"stopped", "", "gone"} {
		switch want {
		case "stopped":
			cmd.Process.Signal(unix.SIGSTOP)
		case "":
			cmd.Process.Signal(unix.SIGCONT)
		default:
			cmd.Process.Kill()
			cmd.Wait()
		}
		polltest.Until(t, want, func() bool { return LifeOf(cmd.Process.Pid) == want })
	}
}

func mine(processes []Process) []Process {
	return slices.DeleteFunc(processes, func(p Process) bool { return p.PID != os.Getpid() })
}

func TestServe(t *testing.T) {
	want := told(1, Call{Sequence: 3, What: "all\x1b[2Jreduce", Peer: -1})
	s, err := Serve(Answers{Status: func(Asks) Process { return want }}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want.PID, want.socket = os.Getpid(), s.listener.Addr().String()
	want.Groups[0].Call.What = `all\x1b[2Jreduce`
	processes, _, err := Find()
	if got := mine(processes); err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Fatalf("%+v, %v", got, err)
	}
	name := s.listener.Addr().String()

	// Those who ask for something else, or for nothing, or too much at once, get no answer, and hold
	// nobody up for long.
	for _, bad := range []string{"", "STATUS!\n", "status now\n", strings.Repeat("x", 10<<20)} {
		c, err := net.Dial("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		go io.WriteString(c, bad)
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("%d bytes get %q", len(bad), b)
		}
		c.Close()
	}
	var many []net.Conn
	for range 1000 {
		if c, err := net.Dial("unix", name); err == nil {
			many = append(many, c)
		}
	}
	for _, c := range many {
		c.Close()
	}
	polltest.Until(t, "it answers again", func() bool {
		var p Process
		return ask(name, askStatus, &p) == nil && p.Host == "here"
	})
	s.Close()
	if processes, _, _ := Find(); len(mine(processes)) > 0 {
		t.Errorf("after its end %+v", mine(processes))
	}
}

// What another process answers is bounded, and checked.
func TestAskLiars(t *testing.T) {
	for i, answer := range []string{"", "{", "[]", "null",
		`{"groups": [{"hosts": ["a"], "pids": [1], "near": [true], "others": [{}, {}]}]}`,
		`{"groups": [{"hosts": ["a"], "pids": [1], "near": [true], "others": [{"call": {"peer": 1}}]}]}`,
		`{"groups": [{"rank": 1, "hosts": ["a"], "pids": [1], "near": [true]}]}`,
		`{"groups": [{"rank": -1, "hosts": ["a"], "pids": [1], "near": [true]}]}`,
		`{"groups": [{"hosts": ["a"], "pids": [1], "near": []}]}`,
		`{"groups": [{"hosts": [], "pids": [1], "near": [true]}]}`,
		`{"host": "` + strings.Repeat("x", answerMost)} {
		l, err := net.Listen("unix", prefix+strconv.Itoa(os.Getpid())+"-liar"+strconv.Itoa(i))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				io.WriteString(c, answer)
				c.Close()
			}
		}()
		var p Process
		err = ask(l.Addr().String(), askStatus, &p)
		if err == nil {
			err = p.clean()
		}
		if err == nil && (answer != "null" || len(p.Groups) > 0) {
			t.Errorf("%.60q gives %+v", answer, p)
		}
		l.Close()
	}
}

func TestNames(t *testing.T) {
	table := "Num RefCount Protocol Flags Type St Inode Path\n" +
		"0: 2 0 10000 1 1 5 @goccl-ps-12-ab\n0: 3 0 0 1 3 6 @goccl-ps-12-ab\n\n" +
		"0: 2 0 10000 1 1 5 /run/x\n0: 2 0 10000 1 1 5 @goccl-ps-x-ab\n0: 2 0 10000 1 1 5 @goccl-ps-7"
	if got := names(table); !slices.Equal(got, []string{"@goccl-ps-12-ab", "@goccl-ps-7"}) {
		t.Errorf("%q", got)
	}
}

// Groups of one rank, all of which have one ID, are each a group.
func TestGroupsOfOneRank(t *testing.T) {
	alone := func(pid int, name string) Group {
		return Group{Name: name, Hosts: []string{"here"}, PIDs: []int{pid}, Near: []bool{true}}
	}
	processes := []Process{{PID: 1, Groups: []Group{alone(1, "a"), alone(1, "b")}},
		{PID: 2, Groups: []Group{alone(2, "a")}}}
	var got []string
	for _, j := range Groups(processes, func(int) string { return "" }) {
		got = append(got, j.Name+" "+strconv.Itoa(j.Members[0].PID))
	}
	if want := []string{"a 1", "a 2", "b 1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if sockets := dialers(processes); len(sockets) > 0 {
		t.Errorf("%v are to make links", sockets)
	}
}
