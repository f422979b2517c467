package sim

// event lets a rank go on at a time.
type event struct {
	at   int64
	rank int32
}

func (e event) less(o event) bool { return e.at < o.at || e.at == o.at && e.rank < o.rank }

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
