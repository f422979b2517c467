package tune

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
)

// Algorithms are those that a collective may be done by. One that is not named may be done by any.
type Algorithms map[plan.Collective][]Named

// Named is an algorithm that the user allows.
type Named struct {
	plan.Algorithm
	Radices []int // see plan.Params.Radices; nil: any
}

// String is as users write it.
func (n Named) String() string {
	if n.Radices == nil {
		return n.Algorithm.String()
	}
	texts := make([]string, len(n.Radices))
	for i, r := range n.Radices {
		texts[i] = strconv.Itoa(r)
	}
	return n.Algorithm.String() + "(" + strings.Join(texts, ",") + ")"
}

// ParseAlgorithms reads a text such as "allreduce:two_shot;broadcast:^multicast,direct": of each
// collective the algorithms that it may be done by, or with "^" all but these. An algorithm in
// levels may have its radices, as in "hierarchical(8,4)". Commas may stand for semicolons.
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
				"allreduce:two_shot; collectives are %s", item, plan.CollectiveNames())
		default:
			lists[len(lists)-1] += "," + part
		}
	}
	return lists, nil
}

// parseList reads the list of one collective.
func parseList(list string) (c plan.Collective, allowed []Named, err error) {
	name, names, _ := strings.Cut(list, ":")
	c, ok := plan.ParseCollective(name)
	if !ok {
		return c, nil, fmt.Errorf("%q, in which %q is no collective; allowed are %s", list, name,
			plan.CollectiveNames())
	}
	of := plan.Algorithms(c)
	names, without := strings.CutPrefix(names, "^")
	named := map[plan.Algorithm]Named{}
	for _, text := range splitNames(names) {
		name, radices, has := strings.Cut(text, "(")
		i := slices.IndexFunc(of, func(a plan.Algorithm) bool { return a.String() == name })
		if i < 0 {
			return c, nil, fmt.Errorf("%q, in which %q is no algorithm of %v; allowed are %s", list, name,
				c, join(of))
		}
		n := Named{Algorithm: of[i]}
		if has {
			n.Radices = parseRadices(radices)
		}
		if has && (n.Radices == nil || without || !of[i].InLevels()) {
			return c, nil, fmt.Errorf("%q, in which %q must be a name, or one of %v or %v with radices, as "+
				"in %v(8,4); after ^ there are none", list, text, plan.RecursiveMultiplying,
				plan.Hierarchical, plan.Hierarchical)
		}
		if _, twice := named[of[i]]; twice {
			return c, nil, fmt.Errorf("%q, in which %v comes twice", list, of[i])
		}
		named[of[i]] = n
	}
	for _, a := range of {
		if n, ok := named[a]; ok != without {
			n.Algorithm = a
			allowed = append(allowed, n)
		}
	}
	if len(allowed) == 0 {
		return c, nil, fmt.Errorf("%q, which leaves %v no algorithm; it has %s", list, c, join(of))
	}
	return c, allowed, nil
}

// splitNames parts "a(8,4),b" into "a(8,4)" and "b".
func splitNames(names string) (parts []string) {
	inside, from := false, 0
	for i, r := range names {
		switch {
		case r == '(':
			inside = true
		case r == ')':
			inside = false
		case r == ',' && !inside:
			parts = append(parts, names[from:i])
			from = i + 1
		}
	}
	return append(parts, names[from:])
}

// parseRadices reads "8,4)". nil: it cannot be read.
func parseRadices(text string) (radices []int) {
	text, closed := strings.CutSuffix(text, ")")
	for item := range strings.SplitSeq(text, ",") {
		r, err := strconv.Atoi(item)
		if err != nil || r < 2 || !closed || strconv.Itoa(r) != item {
			return nil
		}
		radices = append(radices, r)
	}
	return radices
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
	return !named || slices.ContainsFunc(allowed, func(n Named) bool { return n.Algorithm == b })
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
	if op.Collective.Reduces() && a == plan.BinomialTree && !s.mayNest(op) {
		return fmt.Errorf("%v by %v needs an op whose partial results may be reduced further",
			op.Collective, a)
	}
	p := plan.Params{Collective: op.Collective, Algorithm: a, Size: s.Size, Memory: s.AllMemory,
		Radices: s.radices(op, a), Schedule: s.ScheduleOf(op)}
	if s.SingleCopy {
		p.GetMin = 1
	}
	return p.CheckAlgorithm()
}
