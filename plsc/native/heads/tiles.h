// Products by AMX of numbers that are bfloat16, or float32 rounded to it. C [m, n] = A [m, k] B [k, n], where
// m, n and k are multiples of SIDE. Operands are rounded and packed once into tiles:
//   left, A: [m / 16, k / 32] tiles with 16 rows of 32 numbers
//   right, B: [n / 32] panels of [k / 2, 32] pairs. A pair contains two numbers that are adjacent along k.
#pragma once

#include "plsc/native/amx.h"

#ifdef PLSC_AMX
namespace {

#include "plsc/native/prefetch.h"

PLSC_AMX_BEGIN
static inline __m512i rounded(const float* x) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
}

static inline __m512i rounded(const uint16_t* x) { return _mm512_loadu_si512(x); }

static inline __m256i rounded_half(const float* x) { return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x)); }

static inline __m256i rounded_half(const uint16_t* x) { return _mm256_loadu_si256((const __m256i*)x); }

template <typename T>
static inline __m512i rounded_pairs(const T* one, const T* other) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(rounded_half(one)),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded_half(other)), 16));
}

// [m, k] -> left.
template <typename T>
static void pack_left(const T* from, int64_t m, int64_t k, uint32_t* left) {
  for (int64_t row = 0; row < m; ++row, from += k)
    for (int64_t i = 0; i < k; i += 32)
      _mm512_store_si512(left + (row / 16 * (k / 32) + i / 32) * 256 + row % 16 * 16, rounded(from + i));
}

// The same, and 1 / length of each row -> inverse [m].
static void pack_left(const float* from, int64_t m, int64_t k, uint32_t* left, float* inverse) {
  for (int64_t row = 0; row < m; ++row) {
    const float* x = from + row * k;
    prefetch(x, k);
    __m512 low = _mm512_setzero_ps(), high = low;
    for (int64_t i = 0; i < k; i += 32) {
      low = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i), low);
      high = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i + 16), high);
      _mm512_store_si512(left + (row / 16 * (k / 32) + i / 32) * 256 + row % 16 * 16, rounded(x + i));
    }
    inverse[row] = inverse_length(_mm512_reduce_add_ps(_mm512_add_ps(low, high)));
  }
}

// The same for a transposed matrix: [k, m] -> left.
template <typename T>
static void pack_turned_left(const T* from, int64_t m, int64_t k, uint32_t* left) {
  for (int64_t i = 0; i < k; i += 32, from += 32 * m)
    for (int64_t row = 0; row < m; row += 16) {
      __m512i pairs[16];
      for (int64_t p = 0; p < 16; ++p) pairs[p] = rounded_pairs(from + 2 * p * m + row, from + (2 * p + 1) * m + row);
      turn(pairs);
      for (int64_t r = 0; r < 16; ++r) _mm512_store_si512(left + (row / 16 * (k / 32) + i / 32) * 256 + r * 16, pairs[r]);
    }
}

// [k, n] -> right.
static void pack_right(const float* from, int64_t k, int64_t n, uint32_t* right) {
  for (int64_t i = 0; i < k; i += 2, from += 2 * n) {
    for (int64_t column = 0; column < n; column += 16) {
      prefetch(from + column, 16);
      prefetch(from + n + column, 16);
      _mm512_store_si512(right + (column / 32 * (k / 2) + i / 2) * 32 + column % 32,
                         rounded_pairs(from + column, from + n + column));
    }
  }
}

// The same for a transposed matrix: [n, k] -> right.
static void pack_turned_right(const float* from, int64_t k, int64_t n, uint32_t* right) {
  for (int64_t column = 0; column < n; column += 16)
    for (int64_t i = 0; i < k; i += 32) {
      __m512i pairs[16];
      for (int64_t c = 0; c < 16; ++c) pairs[c] = rounded(from + (column + c) * k + i);
      turn(pairs);
      for (int64_t p = 0; p < 16; ++p)
        _mm512_store_si512(right + (column / 32 * (k / 2) + i / 2 + p) * 32 + column % 32, pairs[p]);
    }
}

// turn() of loops.h, which bypasses the caches, because `out` is not read before it is complete. `out` is
// aligned to 64 bytes.
static void turn_past_the_caches(const float* grad, const float* rows, const float* inverse, int64_t count, int64_t width, float* out) {
  for (int64_t i = 0; i < count; ++i, grad += width, rows += width, out += width) {
    const __m512 along = _mm512_set1_ps(loops()->dot(grad, rows, width) * inverse[i] * inverse[i]);
    for (int64_t d = 0; d < width; d += 16)
      _mm512_stream_ps(out + d, _mm512_fnmadd_ps(along, _mm512_loadu_ps(rows + d), _mm512_loadu_ps(grad + d)));
  }
  _mm_sfence();  // orders these writes before what follows
}

// A B -> C, or added to C. The thread's tiles must be configured.
static void multiply_tiles(int64_t m, int64_t n, int64_t k, const uint32_t* left, const uint32_t* right, bool added, float* c) {
  const int64_t below = k / 32 * 256;
  for (int64_t column = 0; column < n; column += SIDE)
    for (int64_t row = 0; row < m; row += SIDE) {
      const uint32_t* a = left + row / 16 * below;
      const uint32_t* b = right + column / 32 * k / 2 * 32;
      float* to = c + row * n + column;
      begin_sums(!added, to, n);
      for (int64_t i = 0; i < k; i += 32, a += 256, b += 16 * 32) add_products(a, a + below, b, 128);
      end_sums(to, n);
    }
}
PLSC_AMX_END

}  // namespace
#endif
