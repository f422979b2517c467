package tune

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
)

// Algorithms are those that a collective may be done by. One that is not named may be done by any.
type Algorithms map[plan.Collective][]plan.Algorithm

// ParseAlgorithms reads a text such as "allreduce:two_shot;broadcast:^multicast,direct": of each
// collective the algorithms that it may be done by, or with "^" all but these. Commas may stand for
// semicolons.
func ParseAlgorithms(text string) (Algorithms, error) {
	if text == "" {
		return nil, nil
	}
	all := Algorithms{}
	for item := range strings.SplitSeq(text, ";") {
		lists, err := splitLists(item)
		if err != nil {
			return nil, err
		}
		for _, list := range lists {
			c, allowed, err := parseList(list)
			if err != nil {
				return nil, err
			}
			if all[c] != nil {
				return nil, fmt.Errorf("%q, in which %v comes twice", text, c)
			}
			all[c] = allowed
		}
	}
	return all, nil
}

// splitLists parts "a:x,y,b:z" into "a:x,y" and "b:z".
func splitLists(item string) (lists []string, err error) {
	for part := range strings.SplitSeq(item, ",") {
		switch {
		case strings.Contains(part, ":"):
			lists = append(lists, part)
		case len(lists) == 0:
			return nil, fmt.Errorf("%q, which must begin with a collective and a colon, as in "+
				"allreduce:two_shot; collectives are %s", item, join(collectives()))
		default:
			lists[len(lists)-1] += "," + part
		}
	}
	return lists, nil
}

// parseList reads the list of one collective.
func parseList(list string) (c plan.Collective, allowed []plan.Algorithm, err error) {
	name, names, _ := strings.Cut(list, ":")
	i := slices.IndexFunc(collectives(), func(c plan.Collective) bool { return c.String() == name })
	if i < 0 {
		return c, nil, fmt.Errorf("%q, in which %q is no collective; allowed are %s", list, name,
			join(collectives()))
	}
	c = collectives()[i]
	of := plan.Algorithms(c)
	names, without := strings.CutPrefix(names, "^")
	var named []plan.Algorithm
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(of, func(a plan.Algorithm) bool { return a.String() == name })
		if i < 0 {
			return c, nil, fmt.Errorf("%q, in which %q is no algorithm of %v; allowed are %s", list, name,
				c, join(of))
		}
		named = append(named, of[i])
	}
	for _, a := range of {
		if slices.Contains(named, a) != without {
			allowed = append(allowed, a)
		}
	}
	if len(allowed) == 0 {
		return c, nil, fmt.Errorf("%q, which leaves %v no algorithm; it has %s", list, c, join(of))
	}
	return c, allowed, nil
}

// collectives are those that have algorithms to choose from.
func collectives() (all []plan.Collective) {
	for c := plan.AllReduce; c < plan.Send; c++ {
		if len(plan.Algorithms(c)) > 0 {
			all = append(all, c)
		}
	}
	return all
}

func join[T fmt.Stringer](names []T) string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = n.String()
	}
	return strings.Join(texts, ", ")
}

// String is a text that ParseAlgorithms reads, the same for all that mean the same.
func (a Algorithms) String() string {
	var items []string
	for _, c := range slices.Sorted(maps.Keys(a)) {
		items = append(items, c.String()+":"+strings.ReplaceAll(join(a[c]), ", ", ","))
	}
	return strings.Join(items, ";")
}

func (a Algorithms) allow(c plan.Collective, b plan.Algorithm) bool {
	allowed, named := a[c]
	return !named || slices.Contains(allowed, b)
}

// CheckAlgorithms refuses lists of algorithms of which none can do its collective on this shape.
func (s *Shape) CheckAlgorithms() error {
	if s.Size == 1 { // nothing is sent
		return nil
	}
	for _, c := range slices.Sorted(maps.Keys(s.Algorithms)) {
		op := call.Operation{Collective: c}
		var first error
		var can []plan.Algorithm
		for _, a := range plan.Algorithms(c) {
			err := s.can(&op, a)
			if err == nil {
				can = append(can, a)
			} else if first == nil && s.Algorithms.allow(c, a) {
				first = err
			}
		}
		if !slices.ContainsFunc(can, func(a plan.Algorithm) bool { return s.Algorithms.allow(c, a) }) {
			return fmt.Errorf("%v:%s cannot run in this group: %w; allowed here are %s", c,
				strings.ReplaceAll(join(s.Algorithms[c]), ", ", ","), first, join(can))
		}
	}
	return nil
}

// can tells why an algorithm cannot do an operation, whatever its length.
func (s *Shape) can(op *call.Operation, a plan.Algorithm) error {
	p := plan.Params{Collective: op.Collective, Algorithm: a, Size: s.Size, Memory: s.AllMemory,
		Group: s.groupOf(op), Schedule: s.ScheduleOf(op)}
	if s.SingleCopy {
		p.GetMin = 1
	}
	return p.CheckAlgorithm()
}
