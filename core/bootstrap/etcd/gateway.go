package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/goccl/goccl/core/internal/errtext"
	"github.com/goccl/goccl/core/internal/printable"
)

// The messages of etcd's API, as far as they are used. Bytes are base64 in JSON, and numbers of 64
// bits are texts.
type (
	header struct {
		Revision int64 `json:"revision,string"`
	}
	putRequest struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
		Lease int64  `json:"lease,string"`
	}
	putResponse struct {
		Header header `json:"header"`
	}
	rangeRequest struct {
		Key      []byte `json:"key"`
		RangeEnd []byte `json:"range_end,omitempty"` // none: the one key
	}
	keyValue struct {
		Key         []byte `json:"key"`
		Value       []byte `json:"value"`
		ModRevision int64  `json:"mod_revision,string"`
		Lease       int64  `json:"lease,string"`
	}
	watchRequest struct {
		Create watchCreate `json:"create_request"`
	}
	watchCreate struct {
		Key           []byte `json:"key"`
		RangeEnd      []byte `json:"range_end,omitempty"`
		StartRevision int64  `json:"start_revision,string"`
	}
	event struct {
		Type string   `json:"type"` // "" for a put
		KV   keyValue `json:"kv"`
	}
	grant struct {
		TTL int64 `json:"TTL,string"` // seconds
	}
	leaseID struct {
		ID int64 `json:"ID,string"`
	}
	lease struct {
		ID  int64 `json:"ID,string"`
		TTL int64 `json:"TTL,string"` // seconds; of a lease that has ended there are none
	}
	credentials struct {
		Name     string `json:"name"`
		Password string `json:"password"`
	}
	authenticated struct {
		Token string `json:"token"`
	}
	// kept is a message of the answer to a keep-alive.
	kept struct {
		Result lease   `json:"result"`
		Error  *status `json:"error"`
	}
	status struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
)

const eventDelete = "DELETE"

// The codes of gRPC that are told apart.
const (
	codeCanceled           = 1 // of etcd's own gateway, when etcd ends
	codeDeadlineExceeded   = 4
	codeNotFound           = 5
	codeFailedPrecondition = 9
	codeUnavailable        = 14
	codeUnauthenticated    = 16
)

const (
	dialTime    = 3 * time.Second
	attemptTime = 5 * time.Second // for a request and its answer; then another host is asked
	retryFirst  = 20 * time.Millisecond
	retryLast   = time.Second
	maxMessage  = 2 << 10 // bytes of an error's text
	// maxSmall is for an answer that has no value that ranks hand to each other, and its head.
	maxSmall = 64 << 10
	// maxValue is for a value of which nobody says how long it is: a rank that tells all its settings
	// has the longest one, of 130 KiB.
	maxValue = 256 << 10
)

// inJSON is how long an answer with so many bytes may be, which are base64 there.
func inJSON(bytes int) int { return maxSmall + bytes/3*4 }

// refusal is an answer that says no.
type refusal struct {
	status
	http int
}

func (r *refusal) Error() string {
	if r.Message == "" {
		return fmt.Sprintf("it answers HTTP status %d: it is no etcd of version 3.4 or newer, "+
			"or runs with --enable-grpc-gateway=false", r.http)
	}
	return "it says: " + printable.Text(r.Message, maxMessage)
}

// passing tells whether the same request may succeed a little later, or at another host.
func passing(err error) bool {
	var r *refusal
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &r):
		return r.http >= http.StatusInternalServerError && r.Message == "" ||
			r.Code == codeUnavailable || r.Code == codeDeadlineExceeded || r.Code == codeCanceled
	case errors.As(err, &certificate), errors.As(err, &record), errors.Is(err, errTooLong):
		return false
	}
	return true
}

// refused tells whether etcd has answered with a code.
func refused(err error, code int) bool {
	var r *refusal
	return errors.As(err, &r) && r.Code == code
}

// gateway is the API of etcd.
type gateway struct {
	address *Address
	http    *http.Client

	mu    sync.Mutex
	host  int    // the one that is asked; guarded by mu
	token string // of the user; guarded by mu
}

func newGateway(a *Address) *gateway {
	dialer := &net.Dialer{Timeout: dialTime}
	return &gateway{address: a, http: &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: a.tls, TLSHandshakeTimeout: dialTime,
		DisableCompression: true, MaxResponseHeaderBytes: maxSmall},
		// An etcd sends nobody elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// close ends connections that nobody uses.
func (g *gateway) close() { g.http.CloseIdleConnections() }

// call asks until there is an answer other than that etcd is not there, or the context has ended.
// An attempt that has begun may take until late has ended.
func (g *gateway) call(ctx, late context.Context, method string, in any, out answer) error {
	var told error // what the last attempt said that was not cut short
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		err := g.attempt(late, method, in, out)
		if err == nil || !passing(err) {
			return g.named(err)
		}
		if told == nil || late.Err() == nil {
			told = err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return g.named(told)
		}
	}
}

// named says whose error it is.
func (g *gateway) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("etcd at %s (GOCCL_STORE): %w", g.address, err)
}

// attempt asks once.
func (g *gateway) attempt(ctx context.Context, method string, in any, out answer) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	body, err := g.post(ctx, method, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := out.read(newMessages(body, out.most())); err != nil {
		return unanswered(err)
	}
	// A connection is used again where the answer has been read to its end.
	_, _ = io.Copy(io.Discard, io.LimitReader(body, maxMessage))
	return nil
}

// watch hands on what happens to keys, until the context or the answer ends, or each fails. A
// message has at most so many bytes.
func (g *gateway) watch(
	ctx context.Context, in watchCreate, most int, each func(event) error,
) error {
	body, err := g.post(ctx, "watch", watchRequest{in})
	if err != nil {
		return err
	}
	defer body.Close()
	for m := newMessages(body, most); ; m.left = most {
		if err := m.events(each); err != nil {
			return unanswered(err)
		}
	}
}

// post sends a request to the present host, as the user, and returns the answer's body. After a
// failure that is passing the next one asks another host.
func (g *gateway) post(ctx context.Context, method string, in any) (io.ReadCloser, error) {
	token, err := g.login(ctx)
	if err != nil {
		return nil, err
	}
	body, err := g.send(ctx, method, token, in)
	if !refused(err, codeUnauthenticated) || token == "" {
		return body, err
	}
	g.forget(token) // it was too old
	if token, err = g.login(ctx); err != nil {
		return nil, err
	}
	return g.send(ctx, method, token, in)
}

// login returns what proves the user; "" where there is none.
func (g *gateway) login(ctx context.Context) (string, error) {
	g.mu.Lock()
	token := g.token
	g.mu.Unlock()
	if g.address.user == "" || token != "" {
		return token, nil
	}
	body, err := g.send(ctx, "auth/authenticate", "",
		credentials{g.address.user, g.address.password})
	if refused(err, codeFailedPrecondition) {
		return "", nil // this etcd knows no users
	}
	if err != nil {
		return "", err
	}
	defer body.Close()
	var made authenticated
	if err := newMessages(body, maxSmall).Decode(&made); err != nil {
		return "", unanswered(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.token = made.Token
	return made.Token, nil
}

func (g *gateway) forget(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token == token {
		g.token = ""
	}
}

func (g *gateway) send(ctx context.Context, method, token string, in any) (io.ReadCloser, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	host := g.host
	g.mu.Unlock()
	target := url.URL{Scheme: "http", Host: g.address.hosts[host], Path: "/v3/" + method}
	if g.address.tls != nil {
		target.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(),
		bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", token)
	}
	answer, err := g.http.Do(request)
	if err == nil && answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	if err != nil {
		err = unanswered(err)
	} else {
		err = readRefusal(answer)
	}
	if passing(err) {
		g.mu.Lock()
		if g.host == host {
			g.host = (host + 1) % len(g.address.hosts)
		}
		g.mu.Unlock()
	}
	return nil, err
}

func readRefusal(answer *http.Response) error {
	defer answer.Body.Close()
	r := &refusal{http: answer.StatusCode}
	// What is no JSON is not of etcd, and stays without a message.
	_ = json.NewDecoder(io.LimitReader(answer.Body, maxSmall)).Decode(&r.status)
	return r
}

// unanswered puts the failure of a request into plain words.
func unanswered(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("it has not answered within %v", attemptTime)
	}
	return errtext.Error(err)
}
