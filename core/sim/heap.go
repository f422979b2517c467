package sim

// event lets a rank go on at a time, or one of its messages come to a link.
type event struct {
	at     int64
	rank   int32
	ring   int32 // of the message; nobody: the rank goes on
	number int32 // of the message
}

func (e event) less(o event) bool {
	switch {
	case e.at != o.at:
		return e.at < o.at
	case e.rank != o.rank:
		return e.rank < o.rank
	case e.ring != o.ring:
		return e.ring < o.ring
	}
	return e.number < o.number
}

// goesOn lets a rank go on.
func goesOn(at int64, rank int32) event { return event{at: at, rank: rank, ring: nobody} }

// heap is events, with the earliest first; at one time that of the lowest rank. It has four
// children a node, which is faster than two.
type heap []event

// before reports whether some event comes before another.
func (h heap) before(e event) bool { return len(h) > 0 && h[0].less(e) }

func (h *heap) push(e event) {
	a := append(*h, e)
	i := len(a) - 1
	for i > 0 && e.less(a[(i-1)/4]) {
		a[i] = a[(i-1)/4]
		i = (i - 1) / 4
	}
	a[i] = e
	*h = a
}

func (h *heap) pop() event {
	a := *h
	first, n := a[0], len(a)-1
	e := a[n]
	a = a[:n]
	*h = a
	for i := 0; n > 0; {
		c := 4*i + 1
		if c >= n {
			a[i] = e
			break
		}
		least := c
		for k := c + 1; k < min(c+4, n); k++ {
			if a[k].less(a[least]) {
				least = k
			}
		}
		if !a[least].less(e) {
			a[i] = e
			break
		}
		a[i] = a[least]
		i = least
	}
	return first
}
