// Package pickle writes values as Python's pickles, by protocol 2, which all of Python 3 reads.
//
// A value is nil, a bool, an int, an int64, a uint64, a string, a [List], a [Tuple] or a [Dict].
package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// List is a Python list.
type List []any

// Tuple is a Python tuple.
type Tuple []any

// Dict is a Python dict: keys and values in turn.
type Dict []any

// Opcodes of the protocol.
const (
	protocol   = 0x80
	stop       = '.'
	none       = 'N'
	newTrue    = 0x88
	newFalse   = 0x89
	binInt     = 'J'
	long1      = 0x8a
	binUnicode = 'X'
	mark       = '('
	emptyList  = ']'
	appends    = 'e'
	tuple      = 't'
	emptyDict  = '}'
	setItems   = 'u'
)

// Marshal returns the pickle of a value. It panics for a value of another type, as that is a fault
// of the program.
func Marshal(v any) []byte {
	return append(appendValue([]byte{protocol, 2}, v), stop)
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, none)
	case bool:
		if v {
			return append(b, newTrue)
		}
		return append(b, newFalse)
	case int:
		return appendInt(b, int64(v))
	case int64:
		return appendInt(b, v)
	case uint64:
		if v > math.MaxInt64 {
			return append(binary.LittleEndian.AppendUint64(append(b, long1, 9), v), 0)
		}
		return appendInt(b, int64(v))
	case string:
		b = binary.LittleEndian.AppendUint32(append(b, binUnicode), uint32(len(v)))
		return append(b, v...)
	case List:
		b = append(b, emptyList, mark)
		for _, x := range v {
			b = appendValue(b, x)
		}
		return append(b, appends)
	case Tuple:
		b = append(b, mark)
		for _, x := range v {
			b = appendValue(b, x)
		}
		return append(b, tuple)
	case Dict:
		b = append(b, emptyDict, mark)
		for _, x := range v {
			b = appendValue(b, x)
		}
		return append(b, setItems)
	}
	panic(fmt.Sprintf("pickle: a value of type %T", v))
}

// appendInt writes a number that may be negative, in as few bytes as it takes.
func appendInt(b []byte, n int64) []byte {
	if n == int64(int32(n)) {
		return binary.LittleEndian.AppendUint32(append(b, binInt), uint32(int32(n)))
	}
	size := bits.Len64(uint64(n^n>>63))/8 + 1 // with the bit of the sign
	b = append(b, long1, byte(size))
	for range size {
		b = append(b, byte(n))
		n >>= 8
	}
	return b
}
