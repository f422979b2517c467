package plan

// Walk runs the plans of all ranks together, so many slots a ring, one step of one rank after
// another. It calls do for each step in an order in which they can be done.
func Walk(plans []*Plan, slots int, do func(rank int, s *Step) error) error {
	m := newMachine[struct{}](plans, func(int) int { return slots - 1 })
	return m.run(do)
}
