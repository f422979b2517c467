package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stayOut does what python/goccl/_stay_out.py does for a rank, until its text is believed.
func stayOut(ctx context.Context, s Store, rank, size int, attempt, why string) error {
	text := fmt.Sprintf("%s%x\n%s\n%s", outMagic, newNonce(), attempt, why)
	key := func(format string, of ...any) string { return "goccl//g/" + fmt.Sprintf(format, of...) }
	own, others := key("join/%d", rank), map[int]string{rank: key("news")}
	if rank == 0 {
		own, others = key("news"), map[int]string{}
		for r := 1; r < size; r++ {
			others[r] = key("join/%d", r)
		}
	}
	_ = s.Set(key("newest"), []byte(text))
	_ = s.Set(own, []byte(text))
	for ctx.Err() == nil && len(others) > 0 {
		for r, theirs := range others {
			if v, ok, err := s.Get(theirs); err == nil && ok {
				digest := sha256.Sum256(v)
				_ = s.Set(key("out/%d", r), []byte(hex.EncodeToString(digest[:])))
			}
			if v, _, _ := s.Get(key("heard/%d", r)); string(v) == text {
				delete(others, r)
			}
		}
		time.Sleep(time.Millisecond)
	}
	return context.Cause(ctx)
}

// TestJoinOfARankThatStaysOut has a rank stay out with a text: the others are told what they are
// told of one that joins with a problem.
func TestJoinOfARankThatStaysOut(t *testing.T) {
	const why = "it is\n\x1b[31mred"
	for _, out := range []int{0, 1} {
		for _, secret := range []string{"", "a secret"} {
			t.Run(fmt.Sprintf("rank %d, secret %q", out, secret), func(t *testing.T) {
				t.Parallel()
				configs := ranks(3)
				for r := range configs {
					configs[r].Secret = secret
				}
				configs[out].Problem = why
				want := joinAll(within(t, limit), NewMemStore(), configs)[2].err
				configs = append(configs[:out], configs[out+1:]...)
				s, ctx := NewMemStore(), within(t, limit)
				ended := make(chan error, 1)
				go func() { ended <- stayOut(ctx, s, out, 3, "", why) }()
				for _, r := range joinAll(ctx, s, configs) {
					if !errors.Is(r.err, ErrMismatch) || r.err.Error() != want.Error() {
						t.Errorf("rank %d: %v, want %v", r.rank, r.err, want)
					}
				}
				if err := comes(t, ended); err != nil {
					t.Errorf("the text is not believed: %v", err)
				}
				// What is left of it does not harm the next run.
				agree(t, ranks(3), joinAll(within(t, limit), s, ranks(3)))
			})
		}
	}
}

// TestJoinOfAStaleRankThatStaysOut has a rank of an earlier attempt stay out, and its successor
// come while it still does.
func TestJoinOfAStaleRankThatStaysOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewMemStore()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		old, end := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		defer end()
		wg.Go(func() { _ = stayOut(old, s, 1, 3, "0", "it is old") })
		configs := ranks(3)
		for r := range configs {
			configs[r].Attempt = "1"
		}
		results := make(chan result, 3)
		for _, c := range configs {
			wg.Go(func() {
				if c.Rank == 1 {
					time.Sleep(2 * time.Second)
					end()
				}
				r, err := Join(ctx, s, c)
				results <- result{c.Rank, r, err}
			})
		}
		agree(t, configs, []result{<-results, <-results, <-results})
	})
}

func TestJoinOfTextsThatAreNone(t *testing.T) {
	const long = 2 * maxProblem
	for _, text := range []string{"", outMagic, outMagic + "1\n2", outMagic + "1\n2\n", "1\n2\n3"} {
		if _, _, ok := decodeOut([]byte(text)); ok {
			t.Errorf("%q is taken for a text", text)
		}
	}
	attempt, reason, ok := decodeOut([]byte(outMagic + "1\n2\n3\n" + strings.Repeat("x", long)))
	if !ok || attempt != "2" || len(reason) != maxProblem || !strings.HasPrefix(reason, `3\nxxx`) {
		t.Errorf("a text is taken for %q, %q, %v", attempt, reason, ok)
	}
}
