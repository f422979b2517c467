// Package cpus tells which CPUs of a host are near each other, as the kernel does in sysfs.
//
// A domain is the CPUs that share a NUMA node and the last-level cache: on an EPYC a core complex,
// on a Xeon a socket, or a part of one that is a node of its own. What the kernel does not tell is
// taken to divide no CPUs.
package cpus

import (
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccl/goccl/core/internal/printable"
)

// Sysfs is where the kernel tells of CPUs and nodes.
const Sysfs = "/sys/devices/system"

// mostCPU is the highest number of a CPU that is believed.
const mostCPU = 1<<16 - 2

// leastCache is the level of a cache that cores share wherever the kernel tells of it. A CPU whose
// last cache is a lower one has another that the kernel does not know.
const leastCache = 3

// List is CPUs, in order, each once.
type List []int

// String is the list as the kernel writes it.
func (l List) String() string { return printable.Ranges(l) }

// Hash tells lists apart: it is 0 of none, and never else.
func (l List) Hash() int {
	if len(l) == 0 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(l.String())) // it never fails
	return int(h.Sum32() | 1)
}

// parse reads a list such as "0-7,64-71". nil: it cannot be read, or is empty.
func parse(text string) (l List) {
	for item := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 32)
		last, err2 := strconv.ParseUint(high, 10, 32)
		if err != nil || err2 != nil || last < first || last > mostCPU {
			return nil
		}
		for cpu := first; cpu <= last; cpu++ {
			l = append(l, int(cpu))
		}
	}
	slices.Sort(l)
	return slices.Compact(l)
}

// Domain is the domain in which all of some CPUs are; nil: they are in several, or it is not told.
// root stands for Sysfs.
func Domain(root string, of List) List {
	if len(of) == 0 {
		return nil
	}
	domain := near(root, of[0])
	for _, cpu := range of {
		if _, found := slices.BinarySearch(domain, cpu); !found {
			return nil
		}
	}
	return domain
}

// Domains are all domains of the host, as far as they are told.
func Domains(root string) (all []List) {
	found, _ := filepath.Glob(filepath.Join(root, "cpu", "cpu[0-9]*")) // the pattern is right
	var known List
	for _, path := range found {
		known = append(known, parse(strings.TrimPrefix(filepath.Base(path), "cpu"))...)
	}
	slices.Sort(known)
	seen := map[int]bool{}
	for _, cpu := range known {
		if seen[cpu] {
			continue
		}
		if domain := near(root, cpu); domain != nil {
			all = append(all, domain)
			for _, same := range domain {
				seen[same] = true
			}
		}
	}
	return all
}

// near is the domain of a CPU; nil: it is not told.
func near(root string, cpu int) List {
	cache, node := sharingCache(root, cpu), sharingNode(root, cpu)
	if cache == nil || node == nil {
		return slices.Concat(cache, node)
	}
	return slices.DeleteFunc(cache, func(other int) bool {
		_, found := slices.BinarySearch(node, other)
		return !found
	})
}

// sharingCache is the CPUs that share the last-level cache of one.
func sharingCache(root string, cpu int) (l List) {
	all := filepath.Join(root, "cpu", "cpu"+strconv.Itoa(cpu), "cache", "index*")
	indices, _ := filepath.Glob(all) // the pattern is right
	last := leastCache
	for _, index := range indices {
		level, err := strconv.Atoi(read(index, "level"))
		if err != nil || level < last || read(index, "type") == "Instruction" {
			continue
		}
		if shared := parse(read(index, "shared_cpu_list")); slices.Contains(shared, cpu) {
			l, last = shared, level
		}
	}
	return l
}

// sharingNode is the CPUs of the NUMA node of one.
func sharingNode(root string, cpu int) List {
	nodes, _ := filepath.Glob(filepath.Join(root, "node", "node[0-9]*")) // the pattern is right
	for _, node := range nodes {
		if l := parse(read(node, "cpulist")); slices.Contains(l, cpu) {
			return l
		}
	}
	return nil
}

// read is what stands in a file; "": it cannot be read.
func read(folder, name string) string {
	b, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
