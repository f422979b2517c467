// Package status has the processes of a host tell what they do, to whom may know it.
//
// # Model
//
// A process with communicators has a [Server]: it listens on an abstract Unix socket, of which
// nothing is left when the process ends, and tells a [Process] to the same user and to root. It
// takes no lock of the library: it answers while a thread stands in a collective.
//
// [Find] asks all such processes of the host. [Groups] puts together what they tell, and has
// package judge say who holds up each group. What other processes tell is not trusted: it is
// bounded, and fit for a terminal.
package status

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccl/goccl/core/judge"
)

// Process is what a process tells.
type Process struct {
	PID     int     `json:"pid"`
	Host    string  `json:"host"`
	Program string  `json:"program"`
	Groups  []Group `json:"groups"`
}

// Group is one communicator of a process. Its lists have one entry a rank.
type Group struct {
	ID     uint64   `json:"id"` // the same on all members
	Epoch  uint32   `json:"epoch"`
	Name   string   `json:"name"`
	Rank   int      `json:"rank"`
	Hosts  []string `json:"hosts"`
	PIDs   []int    `json:"pids"`
	Near   []bool   `json:"near"`   // which are processes of this host
	Failed string   `json:"failed"` // why it has failed; "": it has not
	Call   Call     `json:"call"`
}

// Call is the collective that a rank is in, or has called last.
type Call struct {
	Sequence uint64 `json:"sequence"` // 0: it has called none
	What     string `json:"what"`     // as in "allreduce(float32, 8 elements, SUM)"
	State    string `json:"state"`    // as package trace names it
	ForUS    int64  `json:"for_us"`   // how long it is in the collective, or in none
	Peer     int    `json:"peer"`     // for whom it waits; -1: for nobody, or not for long
	Input    bool   `json:"input"`    // it waits for its own input
}

// Member is a rank of a group, with what is known of it.
type Member struct {
	Rank  int    `json:"rank"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	State string `json:"state"` // "answers", "stopped", "silent", "gone" or "unreachable"
	Call  Call   `json:"call"`  // of one that answers
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

// Host asks all processes of this host that have communicators: those of this user, for root those
// of all.
func Host() (Found, error) {
	processes, silent, err := Find()
	if err != nil {
		return Found{}, err
	}
	return Found{append([]Judged{}, Groups(processes, LifeOf)...), append([]int{}, silent...)}, nil
}

// The words of Member.State.
var states = map[judge.State]string{judge.Answers: "answers", judge.Stopped: "stopped",
	judge.Silent: "silent", judge.Gone: "gone", judge.Unreachable: "unreachable"}

// Groups puts together what the processes of a host tell, group by group.
func Groups(processes []Process, life Life) []Judged {
	type key struct {
		id    uint64
		epoch uint32
	}
	byKey := map[key][]*Group{}
	for i := range processes {
		for k := range processes[i].Groups {
			g := &processes[i].Groups[k]
			byKey[key{g.ID, g.Epoch}] = append(byKey[key{g.ID, g.Epoch}], g)
		}
	}
	var all []Judged
	for k, told := range byKey {
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
		m := Member{Rank: rank, Host: told[0].Hosts[rank], PID: pid}
		r := judge.Rank{Rank: rank, State: judge.Unreachable}
		if i := slices.IndexFunc(told, func(g *Group) bool { return g.Rank == rank }); i >= 0 {
			g := told[i]
			m.Call = g.Call
			r = judge.Rank{Rank: rank, Failed: g.Failed, Call: judge.Call{Sequence: g.Call.Sequence,
				What: g.Call.What, Ended: g.Call.State != "queued" && g.Call.State != "begun",
				For: time.Duration(g.Call.ForUS) * time.Microsecond, Peer: g.Call.Peer,
				Input: g.Call.Input}}
		} else if told[0].Near[rank] {
			switch life(pid) {
			case "gone":
				r.State = judge.Gone
			case "stopped":
				r.State = judge.Stopped
			default:
				r.State = judge.Silent
			}
		}
		m.State = states[r.State]
		j.Members, ranks = append(j.Members, m), append(ranks, r)
	}
	j.Verdict = judge.Group(ranks)
	return j
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
