// Kernels for any CPU of the architecture.
#define VB 16
#define TABLE goccl_reduce_base

#ifdef __aarch64__
#include <arm_neon.h>
#include <stdint.h>
#define HARD_F16
static inline __attribute__((always_inline)) float32x4_t hard_f16_load(const uint8_t *p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
static inline __attribute__((always_inline)) void hard_f16_store(uint8_t *p, float32x4_t v) {
  vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(v)));
}
static inline __attribute__((always_inline)) int hard_nans(float32x4_t a, float32x4_t b) {
  return vminvq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b))) == 0;
}
#define HARD_LOOKUP
static inline
    __attribute__((always_inline)) uint8x16_t hard_lookup(const uint8_t *table, uint8x16_t index) {
  index = vandq_u8(index, vdupq_n_u8(0x7f));
  const uint8x16_t low = vqtbl4q_u8(vld1q_u8_x4(table), index);
  return vqtbx4q_u8(low, vld1q_u8_x4(table + 64), vsubq_u8(index, vdupq_n_u8(64)));
}
#endif

#include "lanes.h"
