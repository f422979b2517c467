// Package floatmode serves the tests of package kernel: it runs a kernel on a thread that rounds
// upwards and flushes subnormals.
package floatmode

/*
#cgo CFLAGS: -std=c11
#include <stddef.h>
#include <stdint.h>

typedef void (*kernel)(void *const *, int, const void *const *, int, size_t, const double *);

// The bits: flush to zero, subnormals are zero (x86), round towards plus infinity.
#if defined(__x86_64__)
#include <immintrin.h>
static uint64_t get(void) { return _mm_getcsr(); }
static void set(uint64_t v) { _mm_setcsr((unsigned)v); }
enum { ODD = 0x8000 | 0x0040 | 0x4000 };
#elif defined(__aarch64__)
static uint64_t get(void) {
  uint64_t v;
  __asm__ volatile("mrs %0, fpcr" : "=r"(v));
  return v;
}
static void set(uint64_t v) { __asm__ volatile("msr fpcr, %0" ::"r"(v) : "memory"); }
enum { ODD = 1 << 24 | 1 << 22 };
#else
static uint64_t get(void) { return 0; }
static void set(uint64_t v) { (void)v; }
enum { ODD = 0 };
#endif

// Returns 1 where the kernel left the mode as it found it.
static int run(void *f, void *dst, void *const *src, int n, size_t bytes, double re, double im) {
  const double factor[2] = {re, im};
  const uint64_t was = get();
  set(was | ODD);
  ((kernel)f)(&dst, 1, (const void *const *)src, n, bytes, factor);
  const int kept = (get() & ODD) == ODD;
  set(was);
  return kept;
}
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// Run calls the kernel in the odd mode and tells whether it left the mode as it was.
func Run(kernel, dst unsafe.Pointer, src []unsafe.Pointer, bytes int, factor [2]float64) bool {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	for _, p := range src {
		pinned.Pin(p)
	}
	return C.run(kernel, dst, (*unsafe.Pointer)(unsafe.Pointer(&src[0])), C.int(len(src)),
		C.size_t(bytes),
		C.double(factor[0]), C.double(factor[1])) == 1
}
