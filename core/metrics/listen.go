package metrics

import (
	"fmt"
	"net/netip"
	"strconv"
)

// ParseListen reads where metrics are served: a port of loopback, or an address with a port.
func ParseListen(given string) (netip.AddrPort, error) {
	if port, err := strconv.ParseUint(given, 10, 16); err == nil && port > 0 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)), nil
	}
	if at, err := netip.ParseAddrPort(given); err == nil && at.Port() > 0 {
		return at, nil
	}
	return netip.AddrPort{}, fmt.Errorf("%q, allowed are ports from 1 to 65535, as in \"9400\", "+
		"which is that of 127.0.0.1, and addresses with one, as in \"0.0.0.0:9400\" and "+
		"\"[::]:9400\"", given)
}
