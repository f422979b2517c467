package reduce

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for d := range numDTypes {
		for o := range numOps {
			err := Check(d, o)
			if (err == nil) != HasMeaning(d, o) {
				t.Errorf("%v %v: %v", d, o, err)
			}
			if err != nil && !(strings.Contains(err.Error(), d.String()) &&
				strings.Contains(err.Error(), o.String())) {
				t.Errorf("%v %v: the error names neither: %v", d, o, err)
			}
		}
	}
	for _, err := range []error{Check(numDTypes, Sum), Check(200, Sum), Check(Int8, numOps),
		Check(Int8, 77)} {
		if err == nil {
			t.Error("a value out of range has passed")
		}
	}
	got := Check(Complex64, Min).Error()
	want := "reduce op MIN has no meaning for complex64, which allows SUM, AVG, PRODUCT, PREMUL_SUM"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNames(t *testing.T) {
	for d := range numDTypes {
		if !d.Valid() || d.Size() == 0 || d.String() == "" {
			t.Errorf("dtype %d has no name or size", d)
		}
	}
	for o := range numOps {
		if !o.Valid() || o.String() == "" {
			t.Errorf("op %d has no name", o)
		}
	}
	if numDTypes.Valid() || numDTypes.Size() != 0 || numDTypes.String() != "dtype(21)" ||
		numOps.Valid() || numOps.String() != "op(9)" {
		t.Error("a value out of range is taken for a good one")
	}
}

// The numbers are those of the C ABI.
func TestHeader(t *testing.T) {
	text, err := os.ReadFile("../../capi/goccl.h")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]int{}
	for _, m := range regexp.MustCompile(`GOCCL_(\w+) = (\d+)`).FindAllStringSubmatch(string(text),
		-1) {
		values[m[1]], _ = strconv.Atoi(m[2])
	}
	for d := range numDTypes {
		if v, ok := values[strings.ToUpper(d.String())]; !ok || v != int(d) {
			t.Errorf("goccl.h has %v as %d (%v)", d, v, ok)
		}
	}
	for o := range numOps {
		if v, ok := values[o.String()]; !ok || v != int(o) {
			t.Errorf("goccl.h has %v as %d (%v)", o, v, ok)
		}
	}
	if values["DTYPE_COUNT"] != int(numDTypes) || values["REDUCE_OP_COUNT"] != int(numOps) {
		t.Error("goccl.h has other counts")
	}
}
