// Products of rows of 8-bit codes with 8-bit queries, compared with each query's limit while they are in registers: only those
// that reach it are written. What is computed and why: apps/serving/gallery/search.py. Runs on the caller's thread, and needs
// nothing of Paddle.
#include "plsc/native/amx.h"

#ifdef PLSC_X86
#include <immintrin.h>
#endif
#ifdef PLSC_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

// The rows and a batch of queries, as in search.py.
struct Scan {
  const uint8_t* codes;   // [N, width], 128 stands for 0
  const float* scales;    // [N], of the codes
  const float* errors;    // [N], lengths of what rounding to codes has taken away
  int64_t width;          // of rows and queries, a multiple of 64
  const int8_t* queries;  // [width / 4, count, 4]
  const int32_t* start;   // [count], -128 times the sum of a query's numbers
  const float* ratios;    // [count], what `errors` are multiplied by
  const float* limits;    // [count]
  int64_t count;          // of queries: 1, or a multiple of 16
};

// What is found, side by side, at most `most`.
struct Found {
  int32_t* query;
  int32_t* row;
  float* value;
  int64_t most;
  int64_t count;
};

#ifdef PLSC_X86
namespace {

struct Loops {
  double (*quantise)(const float*, int64_t, int64_t, int64_t, uint8_t*, float*, float*);
  int64_t (*scan)(const Scan&, int64_t, int64_t, Found&);
};

// 256 bits: of AVX2 and AVX-VNNI.
#define PLSC_EIGHT_LANES                                                                                       \
  typedef __m256i Ints;                                                                                        \
  const int LANES = 8;                                                                                         \
  static inline Ints load(const void* from) { return _mm256_loadu_si256((const Ints*)from); }                  \
  static inline void store(int32_t* to, Ints x) { _mm256_storeu_si256((Ints*)to, x); }                         \
  static inline Ints everywhere(int32_t four) { return _mm256_set1_epi32(four); }                              \
  static inline int32_t total(Ints x) {                                                                        \
    int32_t numbers[LANES], sum = 0;                                                                           \
    store(numbers, x);                                                                                         \
    for (int i = 0; i < LANES; ++i) sum += numbers[i];                                                         \
    return sum;                                                                                                \
  }                                                                                                            \
  static inline uint32_t reach(Ints sum, float scale, float error, const float* ratios, const float* limits) { \
    const __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(scale));                        \
    const __m256 upper = _mm256_fmadd_ps(_mm256_set1_ps(error), _mm256_loadu_ps(ratios), value);               \
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(upper, _mm256_loadu_ps(limits), _CMP_GE_OQ));            \
  }

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
PLSC_EIGHT_LANES
// Two products of up to 255 x 63 fit 16 bits: queries have 63 levels here.
static inline Ints add_products(Ints sum, Ints codes, Ints queries) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, queries), _mm256_set1_epi16(1)));
}
#include "plsc/native/scan_loops.h"
static int64_t rows_of_scan(const Scan& scan, int64_t row, int64_t stop, Found& found) {
  return scan.count == 1 ? rows_of_one(scan, row, stop, found) : rows<4, 2>(scan, row, stop, found);
}
const Loops table = {quantise, rows_of_scan};
}  // namespace avx2
#pragma GCC pop_options

#if __GNUC__ >= 11
#define PLSC_AVX_VNNI 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,avxvnni")
namespace avxvnni {
PLSC_EIGHT_LANES
static inline Ints add_products(Ints sum, Ints codes, Ints queries) {
  return _mm256_dpbusd_avx_epi32(sum, codes, queries);
}
#include "plsc/native/scan_loops.h"
static int64_t rows_of_scan(const Scan& scan, int64_t row, int64_t stop, Found& found) {
  return scan.count == 1 ? rows_of_one(scan, row, stop, found) : rows<6, 2>(scan, row, stop, found);
}
const Loops table = {quantise, rows_of_scan};
}  // namespace avxvnni
#pragma GCC pop_options
#endif

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,prefer-vector-width=512")
namespace avx512vnni {
typedef __m512i Ints;
const int LANES = 16;
static inline Ints load(const void* from) { return _mm512_loadu_si512(from); }
static inline void store(int32_t* to, Ints x) { _mm512_storeu_si512(to, x); }
static inline Ints everywhere(int32_t four) { return _mm512_set1_epi32(four); }
static inline int32_t total(Ints x) { return _mm512_reduce_add_epi32(x); }
static inline uint32_t reach(Ints sum, float scale, float error, const float* ratios, const float* limits) {
  const __m512 value = (__m512)__builtin_convertvector((__v16si)sum, __v16sf) * _mm512_set1_ps(scale);
  const __m512 upper = _mm512_fmadd_ps(_mm512_set1_ps(error), _mm512_loadu_ps(ratios), value);
  return _mm512_cmp_ps_mask(upper, _mm512_loadu_ps(limits), _CMP_GE_OQ);
}
static inline Ints add_products(Ints sum, Ints codes, Ints queries) { return _mm512_dpbusd_epi32(sum, codes, queries); }
#include "plsc/native/scan_loops.h"
static int64_t rows_of_scan(const Scan& scan, int64_t row, int64_t stop, Found& found) {
  if (scan.count == 1) return rows_of_one(scan, row, stop, found);
  if (scan.count == LANES) return rows<12, 1>(scan, row, stop, found);
  if (scan.count == 2 * LANES) return rows<12, 2>(scan, row, stop, found);
  return rows<6, 4>(scan, row, stop, found);
}
const Loops table = {quantise, rows_of_scan};
}  // namespace avx512vnni
#pragma GCC pop_options

#ifdef PLSC_AMX
PLSC_AMX_BEGIN
namespace amx {

const int64_t ROWS = 16, QUERIES = 64;  // of a product: one tile of codes with four of queries

// The rows from `row` on with their products, compared with the limits of all queries.
class Compared {
 public:
  Compared(const Scan& scan, Found& found) : scan_(scan), found_(found) {
    for (int v = 0; v < 4; ++v) {
      ratios_[v] = _mm512_loadu_ps(scan.ratios + 16 * v);
      limits_[v] = _mm512_loadu_ps(scan.limits + 16 * v);
    }
  }
  inline void operator()(int64_t row, const int32_t* products) const {
    const __m512 scale = _mm512_set1_ps(scan_.scales[row]), error = _mm512_set1_ps(scan_.errors[row]);
    uint32_t some = 0;
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(products + 16 * v)), scale);
      some |= _mm512_cmp_ps_mask(_mm512_fmadd_ps(error, ratios_[v], value), limits_[v], _CMP_GE_OQ);
    }
    if (some) avx512vnni::compare<4>(scan_, row, 0, products, found_);
  }

 private:
  const Scan& scan_;
  Found& found_;
  __m512 ratios_[4], limits_[4];
};

// ROWS rows at a time. While the processor multiplies and waits for memory, the rows before are compared.
static int64_t rows(const Scan& scan, int64_t row, int64_t stop, Found& found) {
  const Tiles tiles(true);
  const Compared compare(scan, found);
  alignas(64) int32_t sums[2][ROWS * QUERIES];
  const int64_t first = row, at_once = (ROWS * 64 + scan.width - 1) / scan.width;
  for (; row + ROWS <= stop && found.count + 2 * ROWS * QUERIES <= found.most; row += ROWS) {
    const int32_t* before = sums[row / ROWS % 2];
    int32_t* now = sums[1 - row / ROWS % 2];
    const uint8_t* codes = scan.codes + row * scan.width;
    const int8_t* queries = scan.queries;
    _tile_loadd(0, scan.start, 0);
    _tile_loadd(1, scan.start + 16, 0);
    _tile_loadd(2, scan.start + 32, 0);
    _tile_loadd(3, scan.start + 48, 0);
    int64_t left = row > first ? row - ROWS : row;
    for (int64_t k = 0; k < scan.width; k += 64, queries += 64 * QUERIES) {
      const uint8_t* near = codes + ROWS / 2 * scan.width + ROWS * k;  // to be in the first-level cache next
      const uint8_t* far = codes + 4 * ROWS * scan.width + ROWS * k;   // and in the second-level cache
#pragma GCC unroll 16
      for (int64_t line = 0; line < ROWS; ++line) {
        __builtin_prefetch(near + 64 * line, 0, 3);
        __builtin_prefetch(far + 64 * line, 0, 2);
      }
      _tile_loadd(4, codes + k, scan.width);
      _tile_loadd(5, queries, 4 * QUERIES);
      _tile_dpbusd(0, 4, 5);
      _tile_loadd(6, queries + 64, 4 * QUERIES);
      _tile_dpbusd(1, 4, 6);
      _tile_loadd(5, queries + 128, 4 * QUERIES);
      _tile_dpbusd(2, 4, 5);
      _tile_loadd(6, queries + 192, 4 * QUERIES);
      _tile_dpbusd(3, 4, 6);
      for (int64_t i = 0; i < at_once && left < row; ++i, ++left, before += QUERIES) compare(left, before);
    }
    _tile_stored(0, now, 4 * QUERIES);
    _tile_stored(1, now + 16, 4 * QUERIES);
    _tile_stored(2, now + 32, 4 * QUERIES);
    _tile_stored(3, now + 48, 4 * QUERIES);
  }
  for (int64_t last = row > first ? row - ROWS : row, i = 0; last + i < row; ++i)
    compare(last + i, sums[row / ROWS % 2] + i * QUERIES);
  return row;
}

static int64_t rows_of_scan(const Scan& scan, int64_t row, int64_t stop, Found& found) {
  if (scan.count == QUERIES) row = rows(scan, row, stop, found);
  return avx512vnni::rows_of_scan(scan, row, stop, found);  // the rows that are left
}
const Loops table = {avx512vnni::quantise, rows_of_scan};

// Whether the processor has it and the system lets this program use it.
static bool usable() {
  const long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
         syscall(SYS_arch_prctl, request, tile_data) == 0;
}

}  // namespace amx
PLSC_AMX_END
#endif

const Loops* loops(int kind) {
#ifdef PLSC_AVX_VNNI
  const Loops* avxvnni_table = &avxvnni::table;
#else
  const Loops* avxvnni_table = nullptr;
#endif
#ifdef PLSC_AMX
  const Loops* amx_table = &amx::table;
#else
  const Loops* amx_table = nullptr;
#endif
  const Loops* tables[] = {&avx2::table, avxvnni_table, &avx512vnni::table, amx_table};
  return tables[kind];
}

}  // namespace
#endif

// The kinds of loops that this processor runs, as bits: 1 AVX2, 2 AVX-VNNI, 4 AVX512-VNNI, 8 AMX.
PLSC_API int plsc_scan_kinds() {
  int kinds = 0;
#ifdef PLSC_X86
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  kinds |= 1;
#ifdef PLSC_AVX_VNNI
  if (__builtin_cpu_supports("avxvnni")) kinds |= 2;
#endif
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    kinds |= 4;
#ifdef PLSC_AMX
  if (kinds & 4 && amx::usable()) kinds |= 8;
#endif
#endif
  return kinds;
}

#ifdef PLSC_X86
// Rows [count, width] -> codes [count, padded], scales [count], and errors [count], which are at least the lengths of
// row - scale * (codes - 128). Returns at least the length of the longest row. kind: 0 AVX2, 1 AVX-VNNI, 2 AVX512-VNNI.
PLSC_API double plsc_quantise(int kind, const float* rows, int64_t count, int64_t width, int64_t padded, uint8_t* codes,
                              float* scales, float* errors) {
  return loops(kind)->quantise(rows, count, width, padded, codes, scales, errors);
}

// Find the pairs of a query and a row from `start` to before `stop` whose scale * product + ratio * error reaches the query's limit, and
// their scale * product. Returns the row before which it stopped: `stop`, or earlier where there is no room for more.
PLSC_API int64_t plsc_scan(int kind, const Scan* scan, int64_t start, int64_t stop, Found* found) {
  return loops(kind)->scan(*scan, start, stop, *found);
}
#else
PLSC_API double plsc_quantise(int, const float*, int64_t, int64_t, int64_t, uint8_t*, float*, float*) { return 0.0; }
PLSC_API int64_t plsc_scan(int, const Scan*, int64_t start, int64_t, Found*) { return start; }
#endif
