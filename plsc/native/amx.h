// What products of bfloat16 by AMX share: its tiles of 16 rows of 64 bytes, and 16 x 16 numbers that change places. To be included by
// C++ files whose functions between PLSC_AMX_BEGIN and PLSC_AMX_END run where the processor has AVX512-BF16, and use tiles where it
// has AMX and the system lets this program use it: oneDNN asks for that.
#pragma once

#include "plsc/native/native.h"

#if defined(PLSC_X86) && __GNUC__ >= 11
#define PLSC_AMX 1
#include <immintrin.h>

#define PLSC_AMX_BEGIN                                                                                                \
  _Pragma("GCC push_options")                                                                                         \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,avx2,fma,prefer-vector-width=512\")")
#define PLSC_AMX_END _Pragma("GCC pop_options")

PLSC_AMX_BEGIN
namespace {

// Rows and columns change places.
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

// As the processor reads it. A constant, since the compiler does not know that it is read.
struct alignas(64) Sizes {
  uint8_t palette, start_row, none[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
const Sizes SIXTEEN_ROWS_OF_64_BYTES = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Sets the thread's tiles up; what they were before, which may be oneDNN's, comes back with the end of the object.
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

}  // namespace
PLSC_AMX_END
#endif
