// Reads and writes numbers that memory holds as float32 or as bfloat16, the upper half of a float32. All
// computations use float32. Files of loops include this header once per instruction set, so it has no include
// guard.

static inline float load(float x) { return x; }

static inline float load(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float wide;
  __builtin_memcpy(&wide, &bits, 4);
  return wide;
}

static inline void store(float x, float* to) { *to = x; }

// Rounds to nearest, with ties to even. A NaN stays a NaN.
static inline void store(float x, uint16_t* to) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  *to = (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 64u : rounded);
}
