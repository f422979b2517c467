package meeting

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
)

// longest is an address of which nothing is short.
func longest() address.Address {
	long := strings.Repeat("x", 2000)
	return address.Address{PID: 7, Name: long, Host: strings.Repeat("h", 60), Unix: "@x",
		PIDSpace: "pid:[4026531836]", UserSpace: "user:[4026531837]", ShmProblem: long,
		VerbsProblem: long, Verbs: "ethernet", Forced: "verbs", Net: "verbs",
		TCP: []string{"127.0.0.1:1", "[fe80::1234:5678:9abc:def0]:65535", "10.1.2.3:70"}}
}

func newHandle(t testing.TB) Handle {
	t.Helper()
	h, err := New(longest(), "key")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHandle(t *testing.T) {
	a, b := newHandle(t), newHandle(t)
	if a.text == b.text || a.id == b.id {
		t.Error("two ends of a process have one handle")
	}
	again, err := Parse(a.String())
	if err != nil || !reflect.DeepEqual(a, again) {
		t.Errorf("%+v, was %+v: %v", again, a, err)
	}
	if !again.MadeWith("key") || again.MadeWith("other") {
		t.Error("the handle is not known by its job's key")
	}
	if a.Address.ShmProblem == "" || a.Address.TCP[1] != longest().TCP[1] {
		t.Errorf("%+v", a.Address)
	}
}

// testList is a list that the reader of a foreign message has.
func testList(t testing.TB) *List {
	self := newHandle(t)
	l, err := NewMeetings(self, "key", nil).NewList("g", []string{self.text, newHandle(t).text}, true)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestMessages(t *testing.T) {
	l := testList(t)
	m := NewMeetings(l.Handles[0], "", nil)
	n, err := m.Begin("a")
	if err != nil {
		t.Fatal(err)
	}
	n.list = l
	n.own = Part{Epoch: 3, Answers: 5, Settings: []bootstrap.Setting{{Name: "a", Value: "b"}}}
	q, err := readRequest(n.request(joins, time.Minute))
	if err != nil || q.purpose != joins || q.from.text != l.Handles[0].text || q.handles != 2 ||
		q.digest != l.digest || q.left != time.Minute || !reflect.DeepEqual(q.part, n.own) {
		t.Errorf("%+v: %v", q, err)
	}
	v, err := l.readOutcome(outcome{epoch: 4, answers: 3}.bytes())
	if err != nil || v != (outcome{epoch: 4, answers: 3}) {
		t.Errorf("%+v: %v", v, err)
	}
	failure := errorf(fault.ErrTimeout, "late").Blaming(1)
	v, err = l.readOutcome(outcome{failure: failure, foreign: true}.bytes())
	if err != nil || !v.foreign || v.failure.Error() != "reconfigure: late" ||
		v.failure.Kind != fault.ErrTimeout || v.failure.Ranks[0] != 1 {
		t.Errorf("%+v: %v", v, err)
	}
}

// FuzzForeign reads what anybody may send.
func FuzzForeign(f *testing.F) {
	l := testList(f)
	n := &Meeting{list: l, of: NewMeetings(l.Handles[0], "", nil)}
	f.Add([]byte(l.Handles[0].text))
	f.Add(n.request(visits, 0))
	f.Add(outcome{failure: errorf(fault.ErrMismatch, "x")}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := Parse(string(b)); err == nil && (h.text != string(b) ||
			h.MadeWith("key") && h.text != l.Handles[0].text) {
			t.Error("a handle of another text")
		}
		_, _ = readRequest(b)
		if v, err := l.readOutcome(b); err == nil && v.failure != nil {
			for _, rank := range v.failure.Ranks {
				_ = l.name(rank)
			}
		}
	})
}

// A handle of which any byte was changed on its way is not taken, and neither is one that was made
// with another key.
func TestChangedHandles(t *testing.T) {
	self, other := newHandle(t), newHandle(t)
	m := NewMeetings(self, "key", nil)
	b, err := base64.RawURLEncoding.DecodeString(other.text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		changed := slices.Clone(b)
		changed[i] ^= 1
		text := base64.RawURLEncoding.EncodeToString(changed)
		if _, err := m.NewList("g", []string{self.text, text}, true); err == nil {
			t.Errorf("byte %d of %d may be changed", i, len(b))
		}
	}
	foreign, err := New(longest(), "another")
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.NewList("g", []string{self.text, foreign.text}, true)
	if !errors.Is(err, fault.ErrMismatch) || !strings.Contains(err.Error(), "different secrets") {
		t.Error(err)
	}
}

// A rank that has come is told what was agreed, though the next meeting begins before. One that
// comes then is told that the uuid was used.
func TestOutcomeAfterTheNextHasBegun(t *testing.T) {
	handles := []Handle{newHandle(t), newHandle(t)}
	slices.SortFunc(handles, func(a, b Handle) int { return strings.Compare(a.text, b.text) })
	texts := []string{handles[0].text, handles[1].text}
	begin := func(self Handle) (*Meetings, *Meeting) {
		m := NewMeetings(self, "key", nil)
		n, err := m.Begin("a")
		if err != nil {
			t.Fatal(err)
		}
		if n.list, err = m.NewList("g", texts, true); err != nil {
			t.Fatal(err)
		}
		return m, n
	}
	m, n := begin(handles[0])
	_, joiner := begin(handles[1])
	request := joiner.request(joins, 0)
	reply := make(chan []byte)
	go func() { reply <- m.Answer(context.Background(), n.topic, request) }()
	begun := time.Now()
	for came := false; !came; time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("the joiner does not come")
		}
		m.mu.Lock()
		if came = n.parts[1] != nil; came {
			n.conclude(outcome{epoch: 4})
			n.forget() // as the next one does
		}
		m.mu.Unlock()
	}
	if v, err := joiner.list.readOutcome(<-reply); err != nil || v != (outcome{epoch: 4}) {
		t.Errorf("who has come is told %+v: %v", v, err)
	}
	v, err := joiner.list.readOutcome(m.Answer(context.Background(), n.topic, request))
	if err != nil || v.failure == nil || !strings.Contains(v.failure.Error(), "was already used") {
		t.Errorf("who comes too late is told %+v: %v", v, err)
	}
}

// What has come of old meetings is forgotten.
func TestMeetingsAreForgotten(t *testing.T) {
	m := NewMeetings(newHandle(t), "", nil)
	for i := range 2 * mostKept {
		n, err := m.Begin(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		_ = n.Fail(errorf(fault.ErrTimeout, "it is tried")) // returns it
	}
	if len(m.all) != mostKept || len(m.begun) != mostKept {
		t.Errorf("%d and %d are kept, and not %d", len(m.all), len(m.begun), mostKept)
	}
	for uuid, used := range map[int]bool{mostKept - 1: false, 2*mostKept - 1: true} {
		if _, err := m.Begin(fmt.Sprint(uuid)); (err != nil) != used {
			t.Errorf("uuid %d: %v", uuid, err)
		}
	}
}
