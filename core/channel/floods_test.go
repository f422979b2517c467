package channel

import (
	"testing"
)

// A peer that asks and takes no answers is told.
func TestFloods(t *testing.T) {
	for name, next := range map[string]func(i uint64) frame{
		"get":   func(i uint64) frame { return control(frameGet, 1, 1, 0, i, 8) },
		"flush": func(i uint64) frame { return control(frameFlush, 1, i, 1) },
		"drop":  func(i uint64) frame { return control(frameDrop, i, 0, 0) },
		"open":  func(i uint64) frame { return control(frameOpen, i+9, i, 0, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			w, _, _, _ := opened01(t, true)
			w.full = true
			for i := uint64(1); w.ranks[0].broken == nil; i++ {
				if i > 2*MostChannels {
					t.Fatal("it may go on for ever")
				}
				w.ranks[0].take(1, next(i))
			}
			w.full = false
			w.run()
		})
	}
}

// A rank whose peer does not answer has so much memory deregistered at most.
func TestUnansweredDrops(t *testing.T) {
	w, _, _, _ := opened01(t, false)
	r := w.ranks[0]
	w.full = true
	var err error
	for n := 0; err == nil; n++ {
		if n > MostMemories {
			t.Fatal("it may go on for ever")
		}
		var m *Memory
		if m, err = r.Memories.Register(r.own.at, room, both); err == nil {
			m.Deregister()
		}
	}
	w.full = false
	w.settle()
	w.correct()
	if m, err := r.Memories.Register(r.own.at, room, both); err != nil {
		t.Error(err)
	} else {
		m.Deregister()
	}
}
