package plan

import "testing"

// FuzzParseSchedule reads texts as users write them. A schedule that is let through has a text of
// its own, which names it.
func FuzzParseSchedule(f *testing.F) {
	for _, text := range []string{"", "sequential", "parallel", "window=2", "window=0", "window=256",
		"window=+2", "window"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSchedule(text)
		if err != nil {
			if s != BySize || err.Error() == "" {
				t.Fatalf("%q: %v, %v", text, s, err)
			}
			return
		}
		if again, err := ParseSchedule(s.String()); err != nil || again != s {
			t.Fatalf("%q is %v, which is %v, %v", text, s, again, err)
		}
	})
}
