package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccl/goccl/core/internal/printable"
)

// ContentType is that of a Text over HTTP.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// waitsOfGroup is for how many ranks of a group a Text tells the waits: those for whom it has
// waited longest.
const waitsOfGroup = 16

// labelMost is the longest value of a label.
const labelMost = 200

// Label is one that all metrics of a text have.
type Label struct{ Name, Value string }

// Text is the stats in Prometheus's text format 0.0.4. All metrics have the labels besides their
// own.
func (s *Stats) Text(labels ...Label) []byte {
	w := writer{common: labels}
	w.family("goccl_info", "gauge", "The library's version, and the process's rank in the job.")
	rank := ""
	if s.Rank >= 0 {
		rank = strconv.Itoa(s.Rank)
	}
	w.sample("goccl_info", 1, Label{"version", s.Version}, Label{"rank", rank})
	w.one("goccl_groups", "gauge", "Groups that there are.", float64(s.Groups))
	byKey(&w, "goccl_links", "gauge", "Peers of the groups, by what joins this process to them.",
		"transport", s.Links)
	w.operations(s.Operations)
	byKey(&w, "goccl_transport_bytes_total", "counter",
		"Bytes that were sent to peers, or read from their memory.", "transport", s.TransportBytes)
	byKey(&w, "goccl_wait_seconds_total", "counter",
		"Time in collectives that was waited for peers, by what joins this process to them.",
		"transport", s.TransportWaitSeconds)
	w.family("goccl_wait_for_rank_seconds_total", "counter",
		"Time in collectives that was waited for a rank of the job: the longest of each group.")
	for _, wait := range longest(s.Waits) {
		w.sample("goccl_wait_for_rank_seconds_total", wait.Seconds, Label{"group", wait.Group},
			Label{"rank", strconv.Itoa(wait.Rank)})
	}
	byKey(&w, "goccl_failures_total", "counter", "Failures of groups.", "kind", s.Failures)
	w.one("goccl_failed_operations_total", "counter", "Collectives, sends and receives that failed.",
		float64(s.FailedOperations))
	w.one("goccl_refusals_total", "counter", "Collectives that were refused.", float64(s.Refusals))
	w.one("goccl_recoveries_total", "counter", "Groups that have gone on after a failure.",
		float64(s.Recoveries))
	byKey(&w, "goccl_side_steps_total", "counter", "Collectives that another backend did.",
		"backend", s.SideSteps)
	w.one("goccl_staged_bytes_total", "counter",
		"Bytes of collectives whose tensors went through other memory of the host.",
		float64(s.StagedBytes))
	w.one("goccl_trace_records", "gauge", "Calls of which there are records.", float64(s.Records))
	w.one("goccl_memory_registered_bytes", "gauge", "Bytes that RDMA adapters have access to.",
		float64(s.Memory.RegisteredBytes))
	w.one("goccl_memory_read_by_peers_bytes_total", "counter",
		"Bytes that peers have read of this process's tensors without a copy.",
		float64(s.Memory.ReadByPeersBytes))
	w.one("goccl_memory_read_from_peers_bytes_total", "counter",
		"Bytes that were read so of peers' tensors.", float64(s.Memory.ReadFromPeersBytes))
	w.b = append(w.b, "# EOF\n"...)
	return w.b
}

// longest are the waits of each group that are told.
func longest(waits []Wait) (told []Wait) {
	sums := map[Wait]float64{} // groups may have one name once it is fit for a label
	for _, wait := range waits {
		sums[Wait{Group: labelText(wait.Group), Rank: wait.Rank}] += wait.Seconds
	}
	var sorted []Wait
	for wait, seconds := range sums {
		sorted = append(sorted, Wait{wait.Group, wait.Rank, seconds})
	}
	slices.SortFunc(sorted, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(b.Seconds, a.Seconds),
			cmp.Compare(a.Rank, b.Rank))
	})
	n := 0
	for i, wait := range sorted {
		if i > 0 && wait.Group != sorted[i-1].Group {
			n = 0
		}
		if n++; n <= waitsOfGroup {
			told = append(told, wait)
		}
	}
	return told
}

// writer makes a text.
type writer struct {
	b      []byte
	common []Label
}

func (w *writer) family(name, kind, help string) {
	w.b = append(w.b, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
}

func (w *writer) one(name, kind, help string, value float64) {
	w.family(name, kind, help)
	w.sample(name, value)
}

// byKey writes a family whose samples differ in one label.
func byKey[N uint64 | float64 | int](
	w *writer, name, kind, help, label string, values map[string]N,
) {
	w.family(name, kind, help)
	sums := map[string]float64{}
	for key, n := range values {
		sums[labelText(key)] += float64(n)
	}
	for _, key := range slices.Sorted(maps.Keys(sums)) {
		w.sample(name, sums[key], Label{label, key})
	}
}

// operations writes the families of operations.
func (w *writer) operations(all []Operation) {
	of := func(o *Operation) []Label {
		return []Label{{"collective", o.Collective}, {"algorithm", o.Algorithm}}
	}
	w.family("goccl_operations_total", "counter", "Operations that have ended well.")
	for i := range all {
		w.sample("goccl_operations_total", float64(all[i].Operations), of(&all[i])...)
	}
	w.family("goccl_operation_bytes_total", "counter",
		"Bytes of their inputs or outputs, whichever are more.")
	for i := range all {
		w.sample("goccl_operation_bytes_total", float64(all[i].Bytes), of(&all[i])...)
	}
	w.family("goccl_operation_seconds", "histogram", "How long they took.")
	for i := range all {
		o := &all[i]
		sum := uint64(0)
		for k, n := range o.Took {
			sum += n
			le := "+Inf"
			if k < Buckets-1 {
				le = number(Longest(k).Seconds())
			}
			w.sample("goccl_operation_seconds_bucket", float64(sum), append(of(o), Label{"le", le})...)
		}
		w.sample("goccl_operation_seconds_sum", o.Seconds, of(o)...)
		w.sample("goccl_operation_seconds_count", float64(o.Operations), of(o)...)
	}
}

// sample writes a line. A label without a value is left out, which means the same.
func (w *writer) sample(name string, value float64, labels ...Label) {
	w.b = append(w.b, name...)
	separator := byte('{')
	for _, l := range append(labels, w.common...) {
		if l.Value == "" {
			continue
		}
		w.b = append(append(w.b, separator), l.Name+`="`+escape(l.Value)+`"`...)
		separator = ','
	}
	if separator == ',' {
		w.b = append(w.b, '}')
	}
	w.b = append(append(append(w.b, ' '), number(value)...), '\n')
}

func number(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) }

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// labelText makes a text fit for the value of a label, whatever is in it. To do so again changes
// nothing.
func labelText(s string) string { return printable.Text(s, labelMost) }

func escape(value string) string { return escapes.Replace(labelText(value)) }
