package cpus

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// host is a machine of so many cores, of two threads each, whose numbers are the cores' and those
// beyond them: so many share a cache, and so many are a NUMA node. 0: the kernel does not tell.
type host struct{ cores, cache, node int }

// threads are the numbers of the threads of some cores.
func (h host) threads(core, each int) string {
	first := core - core%each
	return fmt.Sprintf("%d-%d,%d-%d", first, first+each-1, h.cores+first, h.cores+first+each-1)
}

// make makes the tree of files that the kernel of the host shows.
func (h host) make(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for cpu := range 2 * h.cores {
		core := cpu % h.cores
		folder := fmt.Sprintf("cpu/cpu%d/", cpu)
		own := fmt.Sprintf("%d,%d", core, h.cores+core)
		for i, cache := range []string{"1 Data", "1 Instruction", "2 Unified"} {
			write(t, root, fmt.Sprintf("%scache/index%d/", folder, i), cache, own)
		}
		if h.cache > 0 {
			write(t, root, folder+"cache/index3/", "3 Unified", h.threads(core, h.cache))
		}
	}
	for node := 0; h.node > 0 && node < h.cores/h.node; node++ {
		put(t, filepath.Join(root, fmt.Sprintf("node/node%d/cpulist", node)),
			h.threads(node*h.node, h.node))
	}
	return root
}

// write writes the files of a cache.
func write(t *testing.T, root, folder, cache, shared string) {
	t.Helper()
	level, kind, _ := strings.Cut(cache, " ")
	for name, text := range map[string]string{"level": level, "type": kind,
		"shared_cpu_list": shared} {
		put(t, filepath.Join(root, folder, name), text)
	}
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Domains are core complexes of an EPYC, and sockets or nodes of a Xeon.
func TestDomains(t *testing.T) {
	for _, c := range []struct {
		name string
		host host
		all  string // joined by spaces
	}{
		{"EPYC, two sockets", host{32, 8, 16}, "0-7,32-39 8-15,40-47 16-23,48-55 24-31,56-63"},
		{"EPYC, four nodes a socket", host{32, 8, 4},
			"0-3,32-35 4-7,36-39 8-11,40-43 12-15,44-47 16-19,48-51 20-23,52-55 24-27,56-59 28-31,60-63"},
		{"Xeon, two sockets", host{16, 8, 8}, "0-7,16-23 8-15,24-31"},
		{"Xeon, two nodes a socket", host{16, 8, 4}, "0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31"},
		{"no caches told", host{16, 0, 8}, "0-7,16-23 8-15,24-31"},
		{"no nodes told", host{16, 4, 0}, "0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31"},
		{"nothing told", host{8, 0, 0}, ""},
	} {
		root := c.host.make(t)
		var all []string
		for _, domain := range Domains(root) {
			all = append(all, domain.String())
			for _, cpu := range domain {
				if got := Domain(root, List{cpu}).String(); got != domain.String() {
					t.Errorf("%s: CPU %d is in %q, not %q", c.name, cpu, got, domain)
				}
			}
			if got := Domain(root, domain).String(); got != domain.String() {
				t.Errorf("%s: all of %v are in %q", c.name, domain, got)
			}
			far := (domain[0] + c.host.cores/2) % c.host.cores
			if got := Domain(root, List{domain[0], far}); got != nil {
				t.Errorf("%s: CPUs of two sockets are in %v", c.name, got)
			}
		}
		if got := strings.Join(all, " "); got != c.all {
			t.Errorf("%s: %s, want %s", c.name, got, c.all)
		}
	}
	for name, root := range map[string]string{"no files": t.TempDir(), "no folder": "/not/there"} {
		if Domains(root) != nil || Domain(root, List{0}) != nil || Domain(root, nil) != nil {
			t.Errorf("%s: there are domains", name)
		}
	}
}

// Files that make no sense are as if they were not there.
func TestForeignFiles(t *testing.T) {
	for _, text := range []string{"", "x", "-1", "3-1", "0-", "0,,1", "1-99999999999", "0-70000",
		"1"} {
		root := host{2, 2, 2}.make(t)
		put(t, filepath.Join(root, "node/node0/cpulist"), text)
		if got := Domain(root, List{0}).String(); got != "0-3" {
			t.Errorf("a node of %q: %s", text, got)
		}
		put(t, filepath.Join(root, "cpu/cpu0/cache/index3/shared_cpu_list"), text)
		if got := Domain(root, List{0}); got != nil {
			t.Errorf("a node and a cache of %q: %s", text, got)
		}
		put(t, filepath.Join(root, "cpu/cpu0/cache/index3/level"), text)
		if got := Domain(root, List{0}); got != nil {
			t.Errorf("a cache of level %q: %s", text, got)
		}
	}
}
