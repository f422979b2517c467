package channel

import (
	"slices"

	"github.com/goccl/goccl/core/fault"
)

// losses are what flushes have to tell of memory that was no more. They are guarded by
// Engine.mu.
type losses []loss

// loss is something that was lost before one of the flushes after+1 to by, of which the answer to
// by has told; 0 and 0: before any flush. Flushes up to the number told had begun when one was
// told.
type loss struct {
	after, by uint64
	told      uint64 // 0: none was
	err       *fault.Error
}

// mostLosses is how many are kept of which flushes were told that were answered: these may not have
// looked yet.
const mostLosses = 1024

// add notes a loss; ended is the number of the last flush that was answered.
func (s *losses) add(l loss, ended uint64) {
	if len(*s) >= mostLosses {
		*s = slices.DeleteFunc(*s, func(l loss) bool { return l.told > 0 && l.told <= ended })
	}
	known := func(other loss) bool { return other.told == 0 && other.by == 0 }
	if l.by > 0 || !slices.ContainsFunc(*s, known) { // any flush tells of one before any
		*s = append(*s, l)
	}
}

// tell returns the error of a flush that was answered; begun is the number of the last one.
func (s *losses) tell(f flushing, begun uint64) error {
	var err error
	for i := range *s {
		l := &(*s)[i]
		covers := l.told == 0 || f.number <= l.told
		if f.puts != nil {
			covers = l.after < f.number && f.number <= l.by || *f.puts < l.by && l.by <= f.number
		}
		if covers {
			err = l.err
			if l.told == 0 {
				l.told = begun
			}
		}
	}
	return err
}
