package flight

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// ParseSignal reads the name of a signal at which a dump is written, as in "USR2".
func ParseSignal(name string) (syscall.Signal, error) {
	switch strings.TrimPrefix(strings.ToUpper(name), "SIG") {
	case "USR1":
		return syscall.SIGUSR1, nil
	case "USR2":
		return syscall.SIGUSR2, nil
	}
	return 0, fmt.Errorf("%q, allowed are USR1 and USR2", name)
}

// Signal says at which signal a dump is written, and where.
type Signal struct {
	Name   string // "": at none
	Prefix string
	// Notify makes a channel that tells of each signal; nil where the program has a handler for it.
	Notify func(syscall.Signal) <-chan os.Signal
}

// Notify is the usual one, of programs in Go: others of the program hear of the signal, too.
func Notify(number syscall.Signal) <-chan os.Signal {
	came := make(chan os.Signal, 1)
	signal.Notify(came, number)
	return came
}

// Listen has a dump written at each signal from now on, as long as the process lives. Only its
// first call does something. What is wrong is logged, and then none is.
func (r *Recorder) Listen(s Signal, log *slog.Logger) {
	r.listening.Do(func() {
		if s.Name == "" {
			return
		}
		came, problem := s.listen()
		if problem != "" {
			log.Warn("GOCCL_DUMP_SIGNAL is " + problem)
			return
		}
		go func() {
			for range came {
				if _, err := r.Dump(s.Prefix); err != nil {
					log.Warn("no dump is written at the signal", "cause", err.Error())
				}
			}
		}()
	})
}

func (s *Signal) listen() (came <-chan os.Signal, problem string) {
	number, err := ParseSignal(s.Name)
	switch {
	case err != nil:
		return nil, err.Error() + ": no signal has a dump written"
	case s.Prefix == "":
		return nil, "set without GOCCL_DUMP, which says where a dump is written"
	}
	if came = s.Notify(number); came == nil {
		return nil, s.Name + ", for which the program has a handler: no dump is written at it"
	}
	return came, ""
}
