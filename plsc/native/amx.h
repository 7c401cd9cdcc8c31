// What the AMX products share: tiles with 16 rows of 64 bytes, and the transposition of 16 x 16 numbers. A
// C++ file includes this header if its functions between PLSC_AMX_BEGIN and PLSC_AMX_END need AVX512-BF16.
// They use tiles if the processor has AMX and the system lets this program use it. oneDNN asks the system for
// that.
#pragma once

#include "plsc/native/native.h"

#if defined(PLSC_X86) && __GNUC__ >= 11 && defined(__linux__)
#define PLSC_AMX 1
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wuninitialized"  // by GCC's own AVX-512 functions
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define PLSC_AMX_BEGIN                                                                                                \
  _Pragma("GCC push_options")                                                                                         \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,amx-tile,amx-bf16,amx-int8,avx2,fma,prefer-vector-width=512\")")
#define PLSC_AMX_END _Pragma("GCC pop_options")

PLSC_AMX_BEGIN
namespace {

const int64_t SIDE = 32;  // rows and columns per product

// Transposes 16 x 16 numbers.
static inline void turn(__m512i rows[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xDD);
    t[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xDD);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
  }
}

// The layout that the processor reads. It is a constant, since the compiler does not know that it is read.
struct alignas(64) Sizes {
  uint8_t palette, start_row, none[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
const Sizes SIXTEEN_ROWS_OF_64_BYTES = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Configures the thread's tiles. The destructor restores the previous configuration, which may be oneDNN's.
class Tiles {
 public:
  explicit Tiles(bool wanted) : wanted_(wanted) {
    if (!wanted_) return;
    _tile_storeconfig(&before_);
    _tile_loadconfig(&SIXTEEN_ROWS_OF_64_BYTES);
  }
  ~Tiles() {
    if (wanted_) _tile_loadconfig(&before_);
  }

 private:
  bool wanted_;
  Sizes before_;
};

// Loads the sums of 32 x 32 products into tiles 0 to 3: zeros, or the numbers at `from`, whose rows are
// `step` apart.
static inline void begin_sums(bool zero, const float* from, int64_t step) {
  const int64_t bytes = step * sizeof(float);
  if (zero) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, from, bytes);
    _tile_loadd(1, from + 16, bytes);
    _tile_loadd(2, from + 16 * step, bytes);
    _tile_loadd(3, from + 16 * step + 16, bytes);
  }
}

// Adds the products of two row tiles, `low` and `high`, with two adjacent column tiles, whose rows are
// `bytes` apart.
static inline void add_products(const uint32_t* low, const uint32_t* high, const uint32_t* columns, int64_t bytes) {
  _tile_loadd(4, low, 64);
  _tile_loadd(6, columns, bytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, columns + 16, bytes);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, high, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

static inline void end_sums(float* to, int64_t step) {
  const int64_t bytes = step * sizeof(float);
  _tile_stored(0, to, bytes);
  _tile_stored(1, to + 16, bytes);
  _tile_stored(2, to + 16 * step, bytes);
  _tile_stored(3, to + 16 * step + 16, bytes);
}

}  // namespace
PLSC_AMX_END
#endif
