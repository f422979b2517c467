// Package metrics tells what a process's communicators have done, as numbers: [Stats], for
// programs, and [Stats.Text], for Prometheus.
//
// It is data in, data out. Package exporter reads the numbers, and gives the text to who asks.
package metrics

import "time"

// Buckets is by how many durations operations are counted: see Longest.
const Buckets = 15

// Longest is the longest duration in a bucket. The last one has no longest.
func Longest(bucket int) time.Duration { return time.Microsecond << (2 * bucket) }

// Stats is what the communicators of a process have done. It has those that are gone, too: but for
// Groups, Rank, Links, Records and Memory.RegisteredBytes each number only grows.
// It has more fields than others: each is a metric.
type Stats struct {
	Version    string      `json:"version"`
	Rank       int         `json:"rank"`   // in the job, of the oldest group that is there; -1: none
	Groups     int         `json:"groups"` // that there are now
	Operations []Operation `json:"operations"`
	// TransportBytes were sent to peers, or read from their memory, by transport.
	TransportBytes map[string]uint64 `json:"transport_bytes"`
	// TransportWaitSeconds were waited for peers, by what joins this rank to them.
	TransportWaitSeconds map[string]float64 `json:"transport_wait_seconds"`
	Waits                []Wait             `json:"waits"`    // by peer, the longest first
	Failures             map[string]uint64  `json:"failures"` // of groups, by kind
	FailedOperations     uint64             `json:"failed_operations"`
	Refusals             uint64             `json:"refusals"`
	Recoveries           uint64             `json:"recoveries"`
	SideSteps            map[string]uint64  `json:"side_steps"` // by backend
	// StagedBytes went through other memory of the host, piece by piece: tensors of devices, and those
	// of another dtype on the wire.
	StagedBytes uint64         `json:"staged_bytes"`
	Links       map[string]int `json:"links"`   // peers of the present groups, by transport
	Records     int            `json:"records"` // of calls, that dump would write
	Memory      Memory         `json:"memory"`
}

// Operation is what one algorithm has done of one collective, or of sends or receives.
type Operation struct {
	Collective string  `json:"collective"`
	Algorithm  string  `json:"algorithm"` // "" where there is none
	Operations uint64  `json:"operations"`
	Bytes      uint64  `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	// Took is how many operations took how long. Together they are Operations.
	Took [Buckets]uint64 `json:"took"`
}

// Wait is how long this process has waited for a rank.
type Wait struct {
	Group   string  `json:"group"`
	Rank    int     `json:"rank"` // in the job
	Seconds float64 `json:"seconds"`
}

// Memory is what RDMA adapters do with this process's shareable memory.
type Memory struct {
	RegisteredBytes    int64 `json:"registered_bytes"`
	ReadByPeersBytes   int64 `json:"read_by_peers_bytes"`
	ReadFromPeersBytes int64 `json:"read_from_peers_bytes"`
}
