package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sysfsText reads a file about a device, "" where there is none.
func (l *Library) sysfsText(path ...string) string {
	b, err := os.ReadFile(filepath.Join(append([]string{l.sysfs}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// sysfsGID tells the type and the network interface of a GID.
func (l *Library) sysfsGID(p *Port, index int) (t GIDType, netdev string) {
	attrs := filepath.Join(p.Device, "ports", strconv.Itoa(p.Number), "gid_attrs")
	kind := l.sysfsText(attrs, "types", strconv.Itoa(index))
	switch {
	case strings.HasSuffix(kind, "RoCE v2"):
		t = GIDRoCEv2
	case p.LinkLayer == Ethernet: // where it says "IB/RoCE v1"
		t = GIDRoCEv1
	default:
		t = GIDInfiniBand
	}
	return t, l.sysfsText(attrs, "ndevs", strconv.Itoa(index))
}

// sysfsRate is a port's speed in Gbit/s, out of a text such as "100 Gb/sec (4X EDR)".
func (l *Library) sysfsRate(device string, port int) float64 {
	var rate float64
	if _, err := fmt.Sscanf(l.sysfsText(device, "ports", strconv.Itoa(port), "rate"), "%g Gb/sec",
		&rate); err != nil {
		return 0
	}
	return rate
}

// sysfsNetDev is the network interface of an InfiniBand port, whose GIDs name none.
func (l *Library) sysfsNetDev(device string, port int) string {
	entries, err := os.ReadDir(filepath.Join(l.sysfs, device, "device", "net"))
	if err != nil {
		return ""
	}
	for _, e := range entries {
		n, err := strconv.Atoi(l.sysfsText(device, "device", "net", e.Name(), "dev_port"))
		if err == nil && n == port-1 {
			return e.Name()
		}
	}
	return ""
}
