package plan

// Streams says which copies to outputs go past the caches while a plan is run. No result depends on
// it.
type Streams uint8

const (
	StreamNone Streams = iota
	StreamOwn          // those of the rank's own inputs
	StreamAll
)
