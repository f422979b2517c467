package plan

import (
	"fmt"
	"strings"
)

var (
	opNames = [...]string{"put", "wait", "release", "copy", "combine", "reclaim", "expose", "access",
		"offer", "get", "multicast", "need", "final"}
	stageNames = [...]string{"", " first", " middle", " last"}
	spaceNames = [...]string{"none", "in", "out", "inbox", "scratch", "outbox", "peer in", "peer out"}
)

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// String is what a Combine is called after "combine".
func (s Stage) String() string {
	if int(s) < len(stageNames) {
		return stageNames[s]
	}
	return fmt.Sprintf(" stage(%d)", uint8(s))
}

func (s Space) String() string {
	if int(s) < len(spaceNames) {
		return spaceNames[s]
	}
	return fmt.Sprintf("space(%d)", uint8(s))
}

func (r Ref) String() string {
	switch r.Space {
	case PeerIn, PeerOut:
		return fmt.Sprintf("%v[%d]+%d", r.Space, r.Peer, r.Off)
	case Inbox, Outbox:
		return fmt.Sprintf("%v[%d #%d]+%d", r.Space, r.Peer, r.Block, r.Off)
	}
	return fmt.Sprintf("%v[%d]+%d", r.Space, r.Block, r.Off)
}

func (s *Step) String() string {
	switch s.Op {
	case Put:
		return fmt.Sprintf("put %d bytes %v to %d", s.Bytes, s.Src, s.Peer)
	case PutToAll:
		return fmt.Sprintf("multicast %d bytes %v", s.Bytes, s.Src)
	case Wait:
		if s.Multicast {
			return fmt.Sprintf("wait %d multicast bytes from %d", s.Bytes, s.Peer)
		}
		return fmt.Sprintf("wait %d bytes from %d", s.Bytes, s.Peer)
	case Release:
		return fmt.Sprintf("release %d", s.Peer)
	case Expose:
		return fmt.Sprintf("expose %d bytes of %v to %d", s.Bytes, s.Src, s.Peer)
	case Access:
		return fmt.Sprintf("access %d bytes of %v", s.Bytes, s.Src)
	case Offer:
		return fmt.Sprintf("offer %v to %d", s.Src, s.Peer)
	case Reclaim:
		return fmt.Sprintf("reclaim %v", s.Src)
	case Need:
		return fmt.Sprintf("need %d bytes %v", s.Bytes, s.Src)
	case Final:
		return fmt.Sprintf("final %d bytes %v", s.Bytes, s.Dst)
	case Combine:
		text := fmt.Sprintf("%v%v %d bytes %v to %v", s.Op, s.Stage, s.Bytes, s.Src, s.Dst)
		if len(s.Also) > 0 {
			text += fmt.Sprintf(" and %v", s.Also)
		}
		return text
	}
	return fmt.Sprintf("%v %d bytes %v to %v", s.Op, s.Bytes, s.Src, s.Dst)
}

// String lists the steps, one a line.
func (p *Plan) String() string {
	var t strings.Builder
	fmt.Fprintf(&t, "rank %d of %d\n", p.Rank, p.Size)
	for i := range p.Steps {
		fmt.Fprintf(&t, "%4d %v\n", i, &p.Steps[i])
	}
	return t.String()
}
