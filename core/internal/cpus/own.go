package cpus

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Allowed are the CPUs that this process may run on, nil where that is not to be had.
func Allowed() (allowed List) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	for cpu := 0; len(allowed) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	return allowed
}

// Usable counts the CPUs that this process may use at once: by affinity and by cgroup quota.
func Usable() int {
	n := runtime.NumCPU()
	if allowed := Allowed(); allowed != nil {
		n = len(allowed)
	}
	if b, err := os.ReadFile("/sys/fs/cgroup/cpu.max"); err == nil {
		var quota, period int
		if k, _ := fmt.Sscanf(string(b), "%d %d", &quota, &period); k == 2 && period > 0 {
			n = min(n, max(quota/period, 1))
		}
	}
	return n
}
