package exec

/*
#include "life.h"
*/
import "C"

import (
	"sync"
	"sync/atomic"
	"time"
)

// Sightings are what processes of this host, whose life words are looked at, tell each other of
// other hosts.
type Sightings struct{}

// seeing guards what this process tells.
var seeing sync.Mutex

// Saw tells how long ago this process has heard of a host. Of very many hosts the one that has been
// silent for longest is forgotten.
func (Sightings) Saw(host uint64, ago time.Duration) {
	fd, err := OwnLife()
	if err != nil || fd < 0 || host == 0 {
		return
	}
	seeing.Lock()
	defer seeing.Unlock()
	at := uint64(Now() - ago)
	oldest := 0
	for i := range ownLife.seen {
		if uint64(ownLife.seen[i].host) == host {
			oldest = i
			break
		}
		if ownLife.seen[i].at < ownLife.seen[oldest].at {
			oldest = i
		}
	}
	s := &ownLife.seen[oldest]
	if uint64(s.host) != host { // while it changes it is nobody's
		atomic.StoreUint64((*uint64)(&s.host), 0)
	}
	atomic.StoreUint64((*uint64)(&s.at), at)
	atomic.StoreUint64((*uint64)(&s.host), host)
}

// Seen tells how long ago another process has heard of a host: the last one.
func (Sightings) Seen(host uint64) (ago time.Duration, known bool) {
	now := uint64(Now())
	var last uint64
	lives.mu.Lock()
	defer lives.mu.Unlock()
	for l := range lives.watched {
		page := lifeAt(l.page)
		for i := range page.seen {
			s := &page.seen[i]
			if atomic.LoadUint64((*uint64)(&s.host)) != host {
				continue
			}
			at := atomic.LoadUint64((*uint64)(&s.at))
			if atomic.LoadUint64((*uint64)(&s.host)) == host && at <= now {
				last, known = max(last, at), true
			}
		}
	}
	return time.Duration(now - last), known
}
