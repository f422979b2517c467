package tune

import (
	"testing"

	"github.com/goccl/goccl/core/plan"
)

func TestSetThresholds(t *testing.T) {
	all := Thresholds{plan.Thresholds{OneShotMax: 1, PipelineMin: 3}, 2, 4, 5, 17, 6, 7}
	with := func(change func(t *Thresholds)) Thresholds {
		t := all
		change(&t)
		return t
	}
	each := Thresholds{plan.Thresholds{OneShotMax: 7, MulticastMin: 15, SwapMin: 16, PipelineMin: 8,
		WindowMin: 12}, 9, 10, 13, 18, 14, 11}
	for _, c := range []struct {
		text string
		want Thresholds
		ok   bool
	}{
		{"", all, true},
		{"flat_max=0", with(func(t *Thresholds) { t.FlatMax = 0 }), true},
		{"one_shot_max=7,pipeline_min=8,multicast_min=15,swap_min=16,window_min=12,stream_min=10," +
			"send_get_min=13,send_pipe_min=18,long_max=14,direct_min=11,flat_max=9", each, true},
		{"get_min=5", with(func(t *Thresholds) { t.GetMin = 5 }), true},
		{"one_shot_max", all, false},
		{"one_shot_max=", all, false},
		{"one_shot_max=-1", all, false},
		{"one_shot_max=99999999999999999999", all, false},
		{"chunk=4", all, false},
		{",", all, false},
	} {
		got := all
		if err := got.Set(c.text); (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%q: %+v, %v", c.text, got, err)
		}
		if c.ok {
			again := Thresholds{Thresholds: plan.Thresholds{Window: got.Window}}
			if err := again.Set(got.String()); err != nil || again != got {
				t.Errorf("%q is not read as it is written: %+v, %v", c.text, again, err)
			}
		}
	}
}

// FuzzThresholds gives texts as users do. One that is refused says why; no other one leaves a
// negative number.
func FuzzThresholds(f *testing.F) {
	f.Add("one_shot_max=4096,pipeline_min=0")
	f.Add("get_min=9223372036854775808")
	f.Add("swap_min=-1")
	f.Add("=,")
	f.Fuzz(func(t *testing.T, text string) {
		var set Thresholds
		if err := set.Set(text); err != nil {
			if err.Error() == "" {
				t.Fatalf("%q is refused, without a word", text)
			}
			return
		}
		for _, n := range set.Fields() {
			if *n < 0 {
				t.Fatalf("%q: %+v", text, set)
			}
		}
	})
}
