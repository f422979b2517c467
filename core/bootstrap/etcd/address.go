// Package etcd is a store of package bootstrap that an etcd keeps, version 3.4 or newer.
//
// It speaks with etcd's gateway of HTTP and JSON, which etcd serves on the port of its clients. The
// official client would make the library 2.6 times as large, and cost each process 2.4 MB, even one
// that does not use it.
package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

// Address says at which etcd to meet, under which prefix, and how to get in.
type Address struct {
	hosts          []string // each with its port
	prefix         string   // of all keys; with no slash at its end
	user, password string
	tls            *tls.Config // nil: without
}

// The variables of etcdctl that Parse reads.
const (
	envUser     = "ETCDCTL_USER" // name, or name:password
	envPassword = "ETCDCTL_PASSWORD"
	envCA       = "ETCDCTL_CACERT"
	envCert     = "ETCDCTL_CERT"
	envKey      = "ETCDCTL_KEY"
)

const (
	usualPort = "2379"
	allowed   = "etcd://[user:password@]host[:port][,host[:port]...]/prefix, or etcds:// for TLS"
)

// Parse reads the URL of an etcd. What the URL does not say of users and certificates stands in the
// variables of etcdctl.
func Parse(text string, getenv func(string) string) (*Address, error) {
	bad := func(why string) error {
		return fmt.Errorf("%q: %s; allowed is %s", Hide(text), why, allowed)
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "etcd" && scheme != "etcds" {
		return nil, bad("it does not begin with etcd:// or etcds://")
	}
	authority, path, _ := strings.Cut(rest, "/")
	a := &Address{prefix: strings.Trim(path, "/")}
	switch {
	case a.prefix == "":
		return nil, bad("it has no prefix, which keeps jobs apart")
	case strings.ContainsAny(rest, "?#"):
		return nil, bad(`it has a "?" or "#"`)
	}
	user, hosts := "", authority
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, hosts = authority[:i], authority[i+1:]
		u, err := url.Parse("http://" + user + "@host")
		if err != nil || u.User.Username() == "" {
			return nil, bad("its user and password cannot be read, in which other characters than " +
				"letters and digits are written as %XX")
		}
		a.user = u.User.Username()
		a.password, _ = u.User.Password()
	} else {
		a.user, a.password, _ = strings.Cut(getenv(envUser), ":")
	}
	a.password = cmp.Or(a.password, getenv(envPassword))
	for host := range strings.SplitSeq(hosts, ",") {
		u, err := url.Parse("http://" + host)
		if err != nil || u.Hostname() == "" || u.Host != host || strings.ContainsAny(host, " \t") {
			return nil, bad(fmt.Sprintf("%q is no host with a port", host))
		}
		a.hosts = append(a.hosts, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), usualPort)))
	}
	if scheme == "etcds" {
		var err error
		if a.tls, err = readTLS(getenv); err != nil {
			return nil, fmt.Errorf("%q, and %w", Hide(text), err)
		}
	}
	return a, nil
}

// readTLS takes certificates from the files that the environment names.
func readTLS(getenv func(string) string) (*tls.Config, error) {
	c := &tls.Config{}
	if file := getenv(envCA); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s cannot be read: %w", envCA, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s is %q, a file that holds no certificate", envCA, file)
		}
	}
	if cert, key := getenv(envCert), getenv(envKey); cert != "" || key != "" {
		own, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s are %q and %q: %w", envCert, envKey, cert, key, err)
		}
		c.Certificates = []tls.Certificate{own}
	}
	return c, nil
}

// Hide returns a URL without its user and password.
func Hide(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "", text
	}
	authority, path, slash := strings.Cut(rest, "/")
	i := strings.LastIndex(authority, "@")
	if i < 0 {
		return text
	}
	hidden := "(hidden)" + authority[i:]
	if ok {
		hidden = scheme + "://" + hidden
	}
	if slash {
		hidden += "/" + path
	}
	return hidden
}

// String names the hosts.
func (a *Address) String() string { return strings.Join(a.hosts, ", ") }

// Hosts are the names or addresses of the hosts, without ports.
func (a *Address) Hosts() []string {
	hosts := make([]string, len(a.hosts))
	for i, h := range a.hosts {
		hosts[i], _, _ = net.SplitHostPort(h)
	}
	return hosts
}
