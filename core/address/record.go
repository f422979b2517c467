package address

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/internal/untrusted"
)

// An address is published in two binary records, little endian: what only this process says, some
// 40 bytes, and what all processes of its host say alike, a few hundred. A text has its length
// before it. It need not be believed: see Address.

const flagUnix = 1 // in the shared record: each process has a Unix socket, see Socket

// Socket is the name of the abstract socket of a process.
func (p ProcessID) Socket() string { return "@goccl-" + p.String() }

// Encode returns the records of an address.
func (a *Address) Encode() (own, shared []byte, err error) {
	own = append(own, a.Process[:]...)
	own = binary.LittleEndian.AppendUint32(own, uint32(a.PID))
	own = binary.LittleEndian.AppendUint64(own, a.Mark.At)
	own = binary.LittleEndian.AppendUint64(own, a.Mark.Value)
	own = binary.LittleEndian.AppendUint16(own, uint16(a.Domain))
	own = binary.LittleEndian.AppendUint32(own, uint32(a.Life))
	own = binary.LittleEndian.AppendUint32(own, uint32(a.CPUSet))
	var flags byte
	if a.Unix != "" {
		flags |= flagUnix
	}
	shared = append(shared, flags)
	shared = binary.LittleEndian.AppendUint32(shared, uint32(a.UID))
	shared = binary.LittleEndian.AppendUint32(shared, uint32(a.CPUs))
	for _, t := range a.sharedTexts() {
		shared = appendText(shared, *t.text)
	}
	shared = append(shared, byte(len(a.TCP)))
	for _, t := range a.TCP {
		to, err := netip.ParseAddrPort(t)
		if err != nil {
			return nil, nil, fmt.Errorf("a TCP address: %w", err)
		}
		own = binary.LittleEndian.AppendUint16(own, to.Port())
		shared = appendText(shared, to.Addr().String())
	}
	return own, shared, nil
}

// EncodeAll returns the records of many addresses, as Decode reads them: what each says of itself,
// and what hosts share, each once. HostOf tells by rank which of these it is.
func EncodeAll(addresses []Address) (own, hosts [][]byte, hostOf []int, err error) {
	known := map[string]int{}
	for rank := range addresses {
		mine, shared, err := addresses[rank].Encode()
		if err != nil {
			return nil, nil, nil, fmt.Errorf("the address of rank %d: %w", rank, err)
		}
		host, ok := known[string(shared)]
		if !ok {
			host = len(hosts)
			known[string(shared)] = host
			hosts = append(hosts, shared)
		}
		own, hostOf = append(own, mine), append(hostOf, host)
	}
	return own, hosts, hostOf, nil
}

// AsRead returns the address as those have it who read its records: texts may be cut there.
func (a *Address) AsRead() Address {
	own, shared, err := a.Encode()
	if err != nil {
		return *a
	}
	read, _, err := Decode([][]byte{own}, [][]byte{shared})
	if err != nil {
		return *a
	}
	return read[0]
}

// sharedText is a field of the shared record, and how many bytes of it a reader takes.
type sharedText struct {
	text *string
	most int
}

func (a *Address) sharedTexts() []sharedText {
	return []sharedText{{&a.PIDSpace, MaxHostName}, {&a.UserSpace, MaxHostName},
		{&a.Name, MaxHostName}, {&a.Host, MaxHostName}, {&a.ShmProblem, maxText}, {&a.Verbs, maxText},
		{&a.VerbsProblem, maxText}, {&a.Forced, MaxHostName}, {&a.Net, MaxHostName}}
}

// Decode reads the records of many addresses, each of the shared ones once: hosts tells which have
// the same. The slices are of one length. What only stands in texts is made printable.
func Decode(own, shared [][]byte) (addresses []Address, hosts []int, err error) {
	addresses, hosts = make([]Address, len(own)), make([]int, len(own))
	var all []Address // by host, with the IP addresses in place of TCP addresses
	known := map[string]int{}
	for i := range own {
		host, ok := known[string(shared[i])]
		if !ok {
			a, err := decodeShared(shared[i])
			if err != nil {
				return nil, nil, fmt.Errorf("rank %d published no valid record: %w", i, err)
			}
			host = len(all)
			all, known[string(shared[i])] = append(all, a), host
		}
		addresses[i], hosts[i] = all[host], host
		if err := addresses[i].decodeOwn(own[i]); err != nil {
			return nil, nil, fmt.Errorf("rank %d published no valid record: %w", i, err)
		}
	}
	return addresses, hosts, nil
}

func decodeShared(b []byte) (a Address, err error) {
	r := untrusted.NewReader(b)
	flags := r.Byte()
	if flags&flagUnix != 0 {
		a.Unix = "@" // until the own record tells the name
	}
	a.UID = int(r.Uint32())
	a.CPUs = int(r.Uint32())
	for _, t := range a.sharedTexts() {
		*t.text = printable.Text(readText(&r), t.most)
	}
	for n := int(r.Byte()); n > 0; n-- {
		ip, err := netip.ParseAddr(readText(&r))
		if err != nil {
			r.Fail()
			break
		}
		a.TCP = append(a.TCP, ip.String())
	}
	if flags&^flagUnix != 0 {
		r.Fail()
	}
	return a, r.End()
}

// decodeOwn completes what decodeShared has made.
func (a *Address) decodeOwn(b []byte) error {
	r := untrusted.NewReader(b)
	r.Fixed(a.Process[:])
	a.PID = int(r.Uint32())
	a.Mark.At = r.Uint64()
	a.Mark.Value = r.Uint64()
	a.Domain = int(r.Uint16())
	a.Life = int(r.Uint32())
	a.CPUSet = int(r.Uint32())
	if a.Unix != "" {
		a.Unix = a.Process.Socket()
	}
	addresses := a.TCP
	a.TCP = nil
	for _, ip := range addresses {
		to := netip.AddrPortFrom(netip.MustParseAddr(ip), r.Uint16())
		a.TCP = append(a.TCP, to.String())
	}
	return r.End()
}

func appendText(b []byte, text string) []byte {
	text = text[:min(len(text), maxText)]
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(text))), text...)
}

func readText(r *untrusted.Reader) string {
	n := int(r.Uint16())
	if n > maxText {
		r.Fail()
	}
	return string(r.Take(n))
}
