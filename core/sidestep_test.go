package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/plan"
)

// Collectives that all ranks side-step take places in the order among others. Where a rank calls
// one there, or is refused, all are told, also those who wait for nothing here.
func TestSideStep(t *testing.T) {
	for _, tr := range transports {
		for name, odd := range map[string]func(c *Comm) error{
			"waits":      func(c *Comm) error { return run(c, allReduce(t, 8)) },
			"is refused": func(c *Comm) error { return refuse(c, badRoot(t)) },
		} {
			t.Run(fmt.Sprintf("%s/%s", tr, name), func(t *testing.T) {
				defer atOnce(t)()
				w := newWorld(t, tr, 3, time.Minute)
				w.each(func(rank int) error {
					c := w.comms[rank]
					for range 3 {
						if err := c.SideStep(plan.AllToAll, "gloo"); err != nil {
							return err
						}
						if err := run(c, allReduce(t, 8)); err != nil {
							return err
						}
					}
					return nil
				})
				for rank, err := range w.try(func(rank int) (err error) {
					c := w.comms[rank]
					if rank == 2 {
						err = odd(c)
					} else {
						err = c.SideStep(plan.AllReduce, "gloo")
					}
					if err == nil {
						<-worksOf(c).Context.Done()
						err = c.Err()
					}
					return err
				}) {
					if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "mismatch at #7") ||
						!strings.Contains(err.Error(), "called allreduce, side-stepped to gloo") {
						t.Errorf("rank %d: %v", rank, err)
					}
					if err := w.comms[rank].SideStep(plan.Barrier, "gloo"); !errors.Is(err, ErrMismatch) {
						t.Errorf("rank %d, later: %v", rank, err)
					}
				}
			})
		}
	}
}
