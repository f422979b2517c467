// Package polltest has tests wait for what nothing tells them of.
package polltest

import (
	"testing"
	"time"
)

// Patience is how long tests wait for what must come, on however busy a machine.
const Patience = time.Minute

// Until waits until a condition holds. It ends the test where that takes longer than Patience.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
