package cpus

import "testing"

func TestOwn(t *testing.T) {
	allowed := Allowed()
	if n := Usable(); len(allowed) == 0 || n < 1 || n > len(allowed) {
		t.Errorf("of the CPUs %v %d can be used", allowed, n)
	}
}
