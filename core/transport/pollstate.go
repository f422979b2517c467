package transport

import "sync/atomic"

// pollState is what one word says of a Poller, besides its token: whether the progress goroutine is
// to read, and whether the token's holder sleeps. Each method is one transition, which is atomic.
//
// What the progress goroutine does:
//
//	token held by  onDuty  yields  waiting  state
//	none           0       0       0        it rests, and soon takes the token
//	none           0       0       > 0      it has been called, and is about to take the token
//	a waiter       0       0       any      it rests; Leave calls it if waiting > 0
//	itself         1       0       any      it reads
//	itself         1       1       > 0      it is about to go on: goOn clears yields
//	itself         1       1       0        it is about to give the token back
//
// How the token's holder sleeps in Wait, and is woken:
//
//	asleep  kicked  state
//	0       0       it runs
//	0       1       its next Wait only looks
//	1       0       it sleeps in the kernel, or is about to
//	1       1       it sleeps, and the kick that set kicked rings the bell
//
// Waiting counts the callers that need progress. Used says that a waiter has read since looked was
// called last. Oversubscribed, where ranks outnumber the CPUs, does not change once set.
type pollState struct{ word atomic.Uint64 }

const (
	pollAsleep uint64 = 1 << iota
	pollKicked
	pollOnDuty
	pollYields
	pollUsed
	pollOversubscribed

	pollWaiter = 1 << 32 // one of waiting
)

// change applies a function to the word, and returns the word as it was before.
func (s *pollState) change(f func(uint64) uint64) uint64 {
	for {
		w := s.word.Load()
		if s.word.CompareAndSwap(w, f(w)) {
			return w
		}
	}
}

func (s *pollState) has(bits uint64) bool { return s.word.Load()&bits == bits }

func (s *pollState) waiting() int { return int(s.word.Load() / pollWaiter) }

// sleep tells the token's holder whether it may sleep in the kernel: not if it has been kicked.
func (s *pollState) sleep() bool {
	return s.change(func(w uint64) uint64 {
		if w&pollKicked != 0 {
			return w &^ pollKicked
		}
		return w | pollAsleep
	})&pollKicked == 0
}

// woke ends the sleep. A kick that came meanwhile has had its effect.
func (s *pollState) woke() { s.word.And(^(pollAsleep | pollKicked)) }

// rings tells whether a kick at a word must ring the bell.
func rings(w uint64) bool { return w&(pollAsleep|pollKicked) == pollAsleep }

// kick has the token's holder return from Wait. It tells whether the caller must ring the bell.
func (s *pollState) kick() (ring bool) { return rings(s.word.Or(pollKicked)) }

// start counts a caller that needs the progress goroutine to read.
func (s *pollState) start() { s.word.Add(pollWaiter) }

// stop undoes start. With the last one the progress goroutine yields, as by yield.
func (s *pollState) stop() (ring bool) {
	var doomed bool
	w := s.change(func(w uint64) uint64 {
		w -= pollWaiter
		if doomed = w < pollWaiter && yieldable(w); doomed {
			w |= pollYields | pollKicked
		}
		return w
	})
	return doomed && rings(w)
}

// yield has the progress goroutine leave the links to waiters, if it reads. It tells whether the
// caller must ring the bell.
func (s *pollState) yield() (ring bool) {
	if !yieldable(s.word.Load()) {
		return false
	}
	w := s.change(func(w uint64) uint64 {
		if yieldable(w) {
			w |= pollYields | pollKicked
		}
		return w
	})
	return yieldable(w) && rings(w)
}

func yieldable(w uint64) bool { return w&(pollOnDuty|pollYields) == pollOnDuty }

// yielding tells whether the progress goroutine reads, and is about to give the token back.
func (s *pollState) yielding() bool {
	w := s.word.Load()
	return w&(pollOnDuty|pollYields) == pollOnDuty|pollYields && w < pollWaiter
}

// begin says that the progress goroutine has taken the token to read.
func (s *pollState) begin() { s.word.Or(pollOnDuty) }

// goOn tells whether the progress goroutine goes on reading: not if it is to yield, unless there
// are callers that need it; the last of these has it yield again.
func (s *pollState) goOn() bool {
	if !s.has(pollYields) {
		return true
	}
	return s.change(func(w uint64) uint64 {
		if w >= pollWaiter {
			w &^= pollYields
		}
		return w
	}) >= pollWaiter
}

// end says that the progress goroutine has given the token back.
func (s *pollState) end() { s.word.And(^(pollOnDuty | pollYields)) }

// read says that a waiter has read.
func (s *pollState) read() {
	if !s.has(pollUsed) {
		s.word.Or(pollUsed)
	}
}

// looked forgets that a waiter has read.
func (s *pollState) looked() { s.word.And(^pollUsed) }
