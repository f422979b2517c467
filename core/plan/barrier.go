package plan

// barrier disseminates: after the round with distance d each rank has heard, at first or second
// hand, from the 2*d-1 ranks before it.
func (b *builder) barrier() {
	for d := 1; d < b.Size; d *= 2 {
		b.put(b.to(d), Ref{}, 0, 0)
		b.take(b.from(d), Ref{}, 0, 0)
	}
}
