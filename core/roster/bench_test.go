package roster

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/tune"
)

// BenchmarkJoin is what each rank decides once it knows the addresses of all.
func BenchmarkJoin(b *testing.B) {
	for _, size := range []int{128, 1024, 16384} {
		for _, c := range []struct {
			name    string
			hosts   int
			problem string
			forced  string
		}{
			{"one host", 1, "", ""},
			{"one host without shared memory", 1, "there is no /dev/shm", ""},
			{"one host, forced ports", 1, "", "tcp"},
			{"a host each, forced ports", size, "", "tcp"},
			{"a host each", size, "", ""},
			{"eight a host", size / 8, "", ""},
			{"eight a host without shared memory", size / 8, "there is no /dev/shm", ""},
		} {
			addresses, hosts := make([]address.Address, size), make([]int, size)
			for rank := range addresses {
				var process address.ProcessID
				binary.BigEndian.PutUint64(process[:], uint64(rank))
				host := rank * c.hosts / size
				hosts[rank] = host
				addresses[rank] = address.Address{Process: process, PID: rank + 1,
					Host: fmt.Sprint("host", host), Name: fmt.Sprint("node", host),
					Unix: "u", TCP: []string{fmt.Sprintf("10.0.%d.%d:4000", host/250, host%250+1)},
					ShmProblem: c.problem, CPUs: 8}
			}
			b.Run(fmt.Sprintf("%s/%d", c.name, size), func(b *testing.B) {
				var t tune.Topology
				for b.Loop() {
					peers, err := Join(addresses, hosts, size-1, c.forced)
					if err != nil {
						b.Fatal(err)
					}
					t = tune.Survey(peers.Places(c.forced))
				}
				if t.Size != size {
					b.Fatal(t)
				}
			})
		}
	}
}
