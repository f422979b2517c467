package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/internal/polltest"
)

// server is a real etcd.
type server struct {
	t       *testing.T
	args    []string
	host    string
	process *exec.Cmd
}

// serve starts an etcd. The test is skipped where there is none.
func serve(t *testing.T, scheme string, args ...string) *server {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		t.Skip("no etcd is on PATH (on Debian: apt-get install etcd-server)")
	}
	s := &server{t: t, host: freeHost(t)}
	clients, peers := scheme+"://"+s.host, "http://"+freeHost(t)
	s.args = append(args, "--data-dir", t.TempDir(), "--listen-client-urls", clients,
		"--advertise-client-urls", clients, "--listen-peer-urls", peers,
		"--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	t.Cleanup(s.stop)
	s.start()
	return s
}

func freeHost(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *server) start() {
	s.process = exec.Command("etcd", s.args...)
	s.process.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH="+runtime.GOARCH)
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) stop() {
	if s.process != nil {
		_ = s.process.Process.Kill()
		_ = s.process.Wait()
		s.process = nil
	}
}

// ask sends a request of etcd's API, and waits until etcd is there.
func (s *server) ask(method, body string) map[string]any {
	s.t.Helper()
	client := http.Client{Timeout: polltest.Patience}
	for deadline := time.Now().Add(polltest.Patience); ; time.Sleep(10 * time.Millisecond) {
		answer, err := client.Post("http://"+s.host+"/v3/"+method, "", strings.NewReader(body))
		if err != nil {
			if time.Now().After(deadline) {
				s.t.Fatal(err)
			}
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		var made map[string]any
		if err != nil || json.Unmarshal(text, &made) != nil || answer.StatusCode != http.StatusOK {
			s.t.Fatalf("%s answers %d %q, %v", method, answer.StatusCode, text, err)
		}
		return made
	}
}

// keys counts what etcd holds.
func (s *server) keys() any {
	return s.ask("kv/range", `{"key":"AA==","range_end":"AA==","count_only":true}`)["count"]
}

// awaitNone waits until etcd holds nothing.
func (s *server) awaitNone() {
	s.t.Helper()
	polltest.Until(s.t, "etcd holds no keys", func() bool { return s.keys() == nil })
}

// awaitKey waits until etcd holds a key.
func (s *server) awaitKey(key string) {
	s.t.Helper()
	one := fmt.Sprintf(`{"key":%q,"count_only":true}`,
		base64.StdEncoding.EncodeToString([]byte(key)))
	polltest.Until(s.t, "etcd holds "+key, func() bool {
		return s.ask("kv/range", one)["count"] != nil
	})
}

func nothing(string) string { return "" }

// variables is an environment.
func variables(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func open(t *testing.T, ctx context.Context, url string, getenv func(string) string) *etcd.Store {
	t.Helper()
	a, err := etcd.Parse(url, getenv)
	if err != nil {
		t.Fatal(err)
	}
	s := etcd.Open(ctx, a, "")
	t.Cleanup(func() { s.Close(false) })
	return s
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestParse(t *testing.T) {
	for url, want := range map[string]string{
		"etcd://a/job":                      "a:2379",
		"etcd://a:1,10.0.0.2:2,[::1]:3/j/k": "a:1, 10.0.0.2:2, [::1]:3",
		"etcds://u:p%40@a,b/job/":           "a:2379, b:2379",
	} {
		a, err := etcd.Parse(url, nothing)
		if err != nil || a.String() != want {
			t.Errorf("%s is %v, %v", url, a, err)
		}
	}
	for url, want := range map[string]string{
		"redis://a:1/job":       "it does not begin with etcd:// or etcds://",
		"a:2379/job":            "it does not begin with etcd:// or etcds://",
		"etcd://a:2379":         "it has no prefix",
		"etcd://a:2379/":        "it has no prefix",
		"etcd://a:2379/job?x=1": `it has a "?"`,
		"etcd:///job":           `"" is no host`,
		"etcd://a,,b/job":       `"" is no host`,
		"etcd://a:http/job":     `"a:http" is no host`,
		"etcd://a b/job":        `"a b" is no host`,
		"etcd://:secret@a/job":  "its user and password cannot be read",
		"etcd://u:%zz@a/job":    "its user and password cannot be read",
	} {
		_, err := etcd.Parse(url, nothing)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(),
			"allowed is etcd://") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"ETCDCTL_CACERT": missing, "ETCDCTL_CERT": missing,
		"ETCDCTL_KEY": empty} {
		_, err := etcd.Parse("etcds://a/job", variables(name, file))
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s=%s: %v", name, file, err)
		}
	}
	_, err := etcd.Parse("etcds://a/job", variables("ETCDCTL_CACERT", empty))
	if err == nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Errorf("an empty file: %v", err)
	}
}

func TestHide(t *testing.T) {
	for url, want := range map[string]string{
		"etcd://a:1/job": "etcd://a:1/job", "etcd://u:p@ss@a:1/job": "etcd://(hidden)@a:1/job",
		"u:p@a": "(hidden)@a", "etcd://a/x@y": "etcd://a/x@y", "": "",
	} {
		if got := etcd.Hide(url); got != want {
			t.Errorf("%s is told as %s", url, got)
		}
	}
}

func TestStore(t *testing.T) {
	s := serve(t, "http")
	ctx := within(t, time.Minute)
	url := "etcd://" + s.host
	a, b := open(t, ctx, url+"/job", nothing), open(t, ctx, url+"/job", nothing)
	c := open(t, ctx, url+"/other", nothing)
	get := func(from *etcd.Store, key string, want string, there bool) {
		t.Helper()
		v, ok, err := from.Get(key)
		if string(v) != want || ok != there || err != nil {
			t.Errorf("%s is %q, %v, %v", key, v, ok, err)
		}
	}
	set := func(to *etcd.Store, key, value string) {
		t.Helper()
		if err := to.Set(key, []byte(value)); err != nil {
			t.Error(err)
		}
	}
	get(a, "g/x", "", false)
	set(a, "g/x", "\x00\xff")
	set(a, "g/empty", "")
	for range 2 { // the second time from what a mirror has
		get(a, "g/x", "\x00\xff", true)
		get(b, "g/x", "\x00\xff", true)
		get(b, "g/empty", "", true)
		get(b, "g/y", "", false)
		get(c, "g/x", "", false)
		b.Mirror("g/", 1<<20)
	}
	set(b, "g/x", "own") // and a reader sees what it has written
	get(b, "g/x", "own", true)
	set(c, "g/x", "another prefix")
	seen := make(chan string)
	go func() {
		v, _, err := b.Watch("g/x", []byte("own"), time.Minute)
		seen <- fmt.Sprint(string(v), err)
	}()
	set(a, "g/x", "new")
	if got := <-seen; got != "new<nil>" {
		t.Errorf("the watch shows %s", got)
	}
	v, ok, err := a.Watch("g/x", []byte("new"), time.Millisecond)
	if string(v) != "new" || !ok || err != nil {
		t.Errorf("a watch in vain shows %q, %v, %v", v, ok, err)
	}
}

// join has so many ranks meet, each at a store of its own, and waits for them.
func join(t *testing.T, ctx context.Context, size int, url func(rank int) string) []error {
	t.Helper()
	errs := make([]error, size)
	var ranks sync.WaitGroup
	for rank := range size {
		a, err := etcd.Parse(url(rank), nothing)
		if err != nil {
			t.Fatal(err)
		}
		ranks.Go(func() {
			s := etcd.Open(ctx, a, "")
			_, errs[rank] = bootstrap.Join(ctx, s, bootstrap.JoinConfig{Rank: rank, Size: size})
			s.Close(errs[rank] == nil)
		})
	}
	ranks.Wait()
	return errs
}

func TestNothingIsLeft(t *testing.T) {
	s := serve(t, "http")
	var jobs sync.WaitGroup
	for _, prefix := range []string{"/a", "/b/c"} { // at the same time
		jobs.Go(func() {
			for range 2 { // one after the other
				for rank, err := range join(t, within(t, time.Minute), 4,
					func(int) string { return "etcd://" + s.host + prefix }) {
					if err != nil {
						t.Errorf("rank %d of %s: %v", rank, prefix, err)
					}
				}
			}
		})
	}
	jobs.Wait()
	s.awaitNone()
}

func TestOtherPrefix(t *testing.T) {
	s := serve(t, "http")
	s.keys() // it is there
	errs := join(t, within(t, 2*time.Second), 3, func(rank int) string {
		return fmt.Sprintf("etcd://%s/%s", s.host, []string{"job", "job", "jbo"}[rank])
	})
	for rank, want := range []string{"these have not joined group \"\": 2", "rank 0 says",
		"rank 0, which has not joined"} {
		if err := errs[rank]; err == nil || !errors.Is(err, bootstrap.ErrAbsent) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestRestart stops etcd while ranks meet, and starts it again.
func TestRestart(t *testing.T) {
	s := serve(t, "http")
	ctx := within(t, 2*polltest.Patience)
	late := make(chan bool)
	var early sync.WaitGroup
	url := "etcd://" + s.host + "/job"
	rank := func(r int) {
		store := open(t, ctx, url, nothing)
		if r == 2 {
			<-late
		}
		_, err := bootstrap.Join(ctx, store, bootstrap.JoinConfig{Rank: r, Size: 3})
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		store.Close(err == nil)
	}
	for r := range 3 {
		early.Go(func() { rank(r) })
	}
	s.awaitKey("job/goccl///news") // rank 0 has said who is missing
	s.stop()
	s.start()
	close(late)
	early.Wait()
	s.awaitNone()
}

// TestLeaseEnds has the lease of a rank end while it lives.
func TestLeaseEnds(t *testing.T) {
	s := serve(t, "http")
	a := open(t, within(t, time.Minute), "etcd://"+s.host+"/job", nothing)
	if err := a.Set("x", nil); err != nil {
		t.Fatal(err)
	}
	for _, l := range s.ask("lease/leases", "{}")["leases"].([]any) {
		s.ask("lease/revoke", fmt.Sprintf(`{"ID":%q}`, l.(map[string]any)["ID"]))
	}
	if err := a.Set("x", []byte("again")); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := a.Get("x"); string(v) != "again" || !ok || err != nil {
		t.Errorf("x is %q, %v, %v", v, ok, err)
	}
	// What is written without a group stays, and ends with the lease.
	a.Close(false)
	leases := s.ask("lease/leases", "{}")["leases"].([]any)
	if len(leases) != 1 || s.keys() != "1" {
		t.Errorf("there are %v leases and %v keys", leases, s.keys())
	}
}

func TestUnreachable(t *testing.T) {
	nobody, other := freeHost(t), freeHost(t)
	s := open(t, within(t, 300*time.Millisecond), "etcd://"+nobody+","+other+"/job", nothing)
	for _, err := range []error{s.Set("x", nil), second(s.Get("x"))} {
		if err == nil || !strings.Contains(err.Error(), "etcd at "+nobody+", "+other+" (GOCCL_STORE)") ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Errorf("it says: %v", err)
		}
	}
}

func second(_ []byte, _ bool, err error) error { return err }

// TestAnotherHost has one of two hosts not be there.
func TestAnotherHost(t *testing.T) {
	s := serve(t, "http")
	for rank, err := range join(t, within(t, time.Minute), 2, func(int) string {
		return "etcd://" + freeHost(t) + "," + s.host + "/job"
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestStranger asks what is no etcd: it is told at once, not at the end of the context.
func TestStranger(t *testing.T) {
	stranger := httptest.NewServer(http.NotFoundHandler())
	defer stranger.Close()
	host := strings.TrimPrefix(stranger.URL, "http://")
	s := open(t, context.Background(), "etcd://"+host+"/job", nothing)
	if err := s.Set("x", nil); err == nil || !strings.Contains(err.Error(), host) ||
		!strings.Contains(err.Error(), "it is no etcd of version 3.4 or newer") {
		t.Errorf("it says: %v", err)
	}
}

// TestSentElsewhere asks what sends those who ask to another host: it is no etcd.
func TestSentElsewhere(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the other host is asked")
	}))
	defer other.Close()
	liar := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer liar.Close()
	host := strings.TrimPrefix(liar.URL, "http://")
	s := open(t, context.Background(), "etcd://"+host+"/job", nothing)
	if err := s.Set("x", nil); err == nil || !strings.Contains(err.Error(), "it is no etcd") {
		t.Errorf("it says: %v", err)
	}
}

// TestTooLong reads what has more bytes than it should: it does not wait for another answer.
func TestTooLong(t *testing.T) {
	s := serve(t, "http")
	a := open(t, within(t, time.Minute), "etcd://"+s.host+"/job", nothing)
	if err := a.Set("x", make([]byte, 300<<10)); err != nil {
		t.Fatal(err)
	}
	for most, there := range map[int]bool{1: false, 300<<10 - 1: false, 300 << 10: true} {
		if v, ok, err := a.GetSized("x", most); ok != there || err != nil {
			t.Errorf("of %d bytes: %d, %v, %v", most, len(v), ok, err)
		}
	}
	if _, _, err := a.Get("x"); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("of no size: %v", err)
	}
}

// TestTooManyKeys has a mirror be told of more keys than it may keep: they are read one by one.
func TestTooManyKeys(t *testing.T) {
	s := serve(t, "http")
	ctx, url := within(t, time.Minute), "etcd://"+s.host+"/job"
	a, b := open(t, ctx, url, nothing), open(t, ctx, url, nothing)
	b.Mirror("g/", 4<<10)
	for i := range 32 {
		key, value := fmt.Sprint("g/", i), strings.Repeat("x", 300)
		if err := a.Set(key, []byte(value)); err != nil {
			t.Fatal(err)
		}
		polltest.Until(t, "the watch shows "+key, func() bool {
			v, ok, err := b.Get(key)
			if err != nil {
				t.Fatal(err)
			}
			return ok && string(v) == value
		})
	}
}

func TestUsers(t *testing.T) {
	s := serve(t, "http", "--auth-token", "simple")
	s.keys()
	s.ask("auth/user/add", `{"name":"root","password":"p@ss"}`)
	s.ask("auth/role/add", `{"name":"root"}`)
	s.ask("auth/user/grant", `{"user":"root","role":"root"}`)
	before := open(t, within(t, time.Minute), "etcd://root:p%40ss@"+s.host+"/job", nothing)
	if err := before.Set("x", nil); err != nil {
		t.Errorf("before etcd knows users: %v", err)
	}
	s.ask("auth/enable", "{}")
	for _, c := range []struct{ user, env, want string }{
		{"root:p%40ss@", "", ""}, {"", "root:p@ss", ""}, {"", "", "user name is empty"},
		{"root:wrong@", "", "invalid user ID or password"},
	} {
		a := open(t, within(t, time.Minute), "etcd://"+c.user+s.host+"/job",
			variables("ETCDCTL_USER", c.env))
		switch err := a.Set("x", nil); {
		case err == nil && c.want == "":
			a.Tire()
			if _, ok, err := a.Get("x"); !ok || err != nil {
				t.Errorf("with a token that is too old: %v, %v", ok, err)
			}
			a.Close(true)
		case err == nil || c.want == "" || !strings.Contains(err.Error(), c.want):
			t.Errorf("as %q (%q): %v", c.user, c.env, err)
		}
	}
}

// certify makes a certificate of this host, and returns its file and its key's.
func certify(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	made, err := x509.CreateCertificate(rand.Reader, form, form, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(kind string, b []byte) string {
		file := filepath.Join(t.TempDir(), "file.pem")
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return write("CERTIFICATE", made), write("PRIVATE KEY", encoded)
}

func TestTLS(t *testing.T) {
	cert, key := certify(t)
	s := serve(t, "https", "--cert-file", cert, "--key-file", key, "--trusted-ca-file", cert,
		"--client-cert-auth")
	a := open(t, within(t, time.Minute), "etcds://"+s.host+"/job",
		variables("ETCDCTL_CACERT", cert, "ETCDCTL_CERT", cert, "ETCDCTL_KEY", key))
	if err := a.Set("x", []byte("y")); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := a.Get("x"); string(v) != "y" || !ok || err != nil {
		t.Errorf("x is %q, %v, %v", v, ok, err)
	}
	a.Close(true)
	stranger := open(t, within(t, time.Minute), "etcds://"+s.host+"/job", nothing)
	if err := stranger.Set("x", nil); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with a certificate that nobody knows: %v", err)
	}
}
