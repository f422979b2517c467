// Package status has the processes of a host tell what they do, to whom may know it.
//
// # Model
//
// A process with communicators has a [Server]: it listens on an abstract Unix socket, of which
// nothing is left when the process ends, and tells a [Process] to the same user and to root. It
// takes no lock of the library: it answers while a thread stands in a collective.
//
// Asked, it asks the ranks of its groups that are on other hosts, over the links that are there:
// see [Peers]. A rank answers its peers with a [Report] of the one group, and takes no lock that a
// collective holds.
//
// [Find] asks all such processes of the host. [Groups] puts together what they tell, and has
// package judge say who holds up each group. What other processes tell is not trusted: it is
// bounded, and fit for a terminal.
package status

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/goccl/goccl/core/judge"
)

// Process is what a process tells.
type Process struct {
	PID     int     `json:"pid"`
	Host    string  `json:"host"`
	Program string  `json:"program"`
	Groups  []Group `json:"groups"`

	socket string // by which it was asked
}

// Group is one communicator of a process. Its lists have one entry a rank, but for Others.
type Group struct {
	ID    uint64   `json:"id"` // the same on all members
	Epoch uint32   `json:"epoch"`
	Name  string   `json:"name"`
	Rank  int      `json:"rank"`
	Hosts []string `json:"hosts"`
	PIDs  []int    `json:"pids"`
	Near  []bool   `json:"near"` // which are processes of this host
	Report
	Others []Other `json:"others"` // ranks on other hosts that it has a link to
}

// Member is a rank of a group, with what is known of it.
type Member struct {
	Rank   int    `json:"rank"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	State  string `json:"state"` // "answers", "stopped", "silent", "gone" or "unreachable"
	Report        // of one that answers
}

// Judged is a group, put together of what its members tell.
type Judged struct {
	Name    string        `json:"name"`
	Epoch   uint32        `json:"epoch"`
	Members []Member      `json:"members"`
	Verdict judge.Verdict `json:"verdict"`
}

// Life is how a process of this host is: "" where it runs, else "stopped" or "gone".
type Life func(pid int) string

// Found is what the processes of a host do.
type Found struct {
	Groups []Judged `json:"groups"`
	Silent []int    `json:"silent"` // processes that are there and have not answered
}

// Host asks all processes of this host that have communicators, and over their links those of other
// hosts: the processes of this user, for root those of all. All tells that links are to be made to
// ranks that none of them has one to.
func Host(all bool) (Found, error) {
	processes, silent, err := Find()
	if err == nil && all {
		err = findMore(processes, dialers(processes))
	}
	if err != nil {
		return Found{}, err
	}
	return Found{append([]Judged{}, Groups(processes, LifeOf)...), append([]int{}, silent...)}, nil
}

// Judge puts together what processes tell, each in the JSON of its Process, wherever they are. Of
// ranks that are not among them nothing is known.
func Judge(told []byte) (Found, error) {
	var processes []Process
	if err := json.Unmarshal(told, &processes); err != nil {
		return Found{}, err
	}
	for i := range processes {
		if err := processes[i].clean(); err != nil {
			return Found{}, err
		}
	}
	alive := func(int) string { return "" }
	return Found{append([]Judged{}, Groups(processes, alive)...), []int{}}, nil
}

// The words of Member.State.
var states = map[judge.State]string{judge.Answers: "answers", judge.Stopped: "stopped",
	judge.Silent: "silent", judge.Gone: "gone", judge.Unreachable: "unreachable"}

// dialers are the processes, by their sockets, that are to make links to ranks that none has one
// to: the first of each group.
func dialers(processes []Process) map[string]bool {
	sockets := map[string]bool{}
	groups := together(processes)
	for i := range processes {
		for k := range processes[i].Groups {
			g := &processes[i].Groups[k]
			told := groups[key{id: g.ID, epoch: g.Epoch}]
			if len(told) > 0 && told[0] == g && apart(told) {
				sockets[processes[i].socket] = true
			}
		}
	}
	return sockets
}

// apart reports whether there are ranks that none of those who tell of a group has a link to.
func apart(told []*Group) bool {
	for rank, near := range told[0].Near {
		if report, state := reportFrom(told, rank); report == nil && !near &&
			state == judge.Unreachable {
			return true
		}
	}
	return false
}

// key is the same in all processes that tell of a group.
type key struct {
	id    uint64
	epoch uint32
	alone int // numbers groups of one rank, which all have one ID; 0: it has more
}

// together is what processes tell, group by group.
func together(processes []Process) map[key][]*Group {
	byKey := map[key][]*Group{}
	for i := range processes {
		for k := range processes[i].Groups {
			g := &processes[i].Groups[k]
			of := key{id: g.ID, epoch: g.Epoch}
			if len(g.PIDs) == 1 {
				of.alone = len(byKey) + 1
			}
			byKey[of] = append(byKey[of], g)
		}
	}
	return byKey
}

// Groups puts together what the processes of a host tell, group by group.
func Groups(processes []Process, life Life) []Judged {
	var all []Judged
	for k, told := range together(processes) {
		all = append(all, judged(k.epoch, told, life))
	}
	slices.SortFunc(all, func(a, b Judged) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Members[0].PID, b.Members[0].PID),
			cmp.Compare(a.Epoch, b.Epoch))
	})
	return all
}

func judged(epoch uint32, told []*Group, life Life) Judged {
	j := Judged{Name: told[0].Name, Epoch: epoch}
	var ranks []judge.Rank
	for rank, pid := range told[0].PIDs {
		m := Member{Rank: rank, Host: told[0].Hosts[rank], PID: pid,
			Report: Report{Messages: []Message{}}}
		r := judge.Rank{Rank: rank}
		if report, state := reportFrom(told, rank); report != nil {
			m.Report, r = *report, report.judged(rank)
		} else if r.State = state; told[0].Near[rank] {
			r.State = lives[life(pid)]
		}
		m.State = states[r.State]
		j.Members, ranks = append(j.Members, m), append(ranks, r)
	}
	j.Verdict = judge.Group(ranks)
	return j
}

// lives are the states of ranks of this host that do not answer.
var lives = map[string]judge.State{"gone": judge.Gone, "stopped": judge.Stopped, "": judge.Silent}

// reportFrom finds what a rank tells, by itself or over a link; nil: nothing, and the state tells
// why.
func reportFrom(told []*Group, rank int) (*Report, judge.State) {
	state := judge.Unreachable
	for _, g := range told {
		if g.Rank == rank {
			return &g.Report, judge.Answers
		}
	}
	for _, g := range told {
		for i := range g.Others {
			switch o := &g.Others[i]; {
			case o.Rank == rank && o.Answers:
				return &o.Report, judge.Answers
			case o.Rank == rank:
				state = judge.Silent
			}
		}
	}
	return nil, state
}

// LifeOf is the Life of the processes of this host, as /proc tells.
func LifeOf(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "gone"
	}
	_, after, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	switch after[:min(1, len(after))] {
	case "T", "t":
		return "stopped"
	case "Z", "X":
		return "gone"
	}
	return ""
}
