// Verification kernels for IJB-C's size, see verification.py. They add numbers in the order in which NumPy's
// einsum and reduceat do on x86-64: two at once and without fused multiply-adds. There are therefore no loops
// for other instruction sets.
#include "plsc/native/native.h"

#include <string.h>

namespace {

typedef double Two __attribute__((vector_size(16), aligned(8), may_alias));
const int64_t LANES = 4;  // pairs at a time, because one pair's additions wait for each other
const int64_t AHEAD = 8;  // pairs whose numbers are prefetched
const int64_t TILE_BYTES = 1 << 21;  // bytes of rows, about a core's cache. Half takes 1.1 times as long

inline Two load(const double* numbers) { return *reinterpret_cast<const Two*>(numbers); }

// Squared distances of `count` <= LANES row pairs -> `out`.
void distances(const double* const* a, const double* const* b, int64_t width, int64_t count, double* out) {
  Two sum[LANES] = {};
  int64_t d = 0;
  for (; d + 8 <= width; d += 8) {
    for (int64_t k = 6; k >= 0; k -= 2) {
      for (int64_t lane = 0; lane < LANES; ++lane) {
        const Two difference = load(a[lane] + d + k) - load(b[lane] + d + k);
        sum[lane] += difference * difference;
      }
    }
  }
  for (; d + 2 <= width; d += 2) {
    for (int64_t lane = 0; lane < LANES; ++lane) {
      const Two difference = load(a[lane] + d) - load(b[lane] + d);
      sum[lane] += difference * difference;
    }
  }
  for (int64_t lane = 0; lane < count; ++lane) {
    if (d < width) sum[lane][0] += (a[lane][d] - b[lane][d]) * (a[lane][d] - b[lane][d]);
    out[lane] = sum[lane][0] + sum[lane][1];
  }
}

// Orders the pairs by tiles: pairs whose rows are near each other, on both sides. It is null if there are too
// few pairs. The caller frees it.
uint32_t* order_of_tiles(const int64_t* pairs, int64_t count, int64_t rows, int64_t width) {
  int64_t shift = 0;
  while ((int64_t(1) << shift) < rows && (int64_t(16) << shift) * width <= TILE_BYTES) ++shift;
  const int64_t tiles = (rows >> shift) + 1;
  if (tiles * tiles > count / 8 || count > UINT32_MAX) return nullptr;
  uint32_t* place = memory<uint32_t>(tiles * tiles + 1);
  memset(place, 0, (tiles * tiles + 1) * sizeof(uint32_t));
  const auto tile = [&](int64_t i) { return (pairs[2 * i] >> shift) * tiles + (pairs[2 * i + 1] >> shift); };
  for (int64_t i = 0; i < count; ++i) ++place[tile(i) + 1];
  for (int64_t t = 0; t < tiles * tiles; ++t) place[t + 1] += place[t];
  uint32_t* order = memory<uint32_t>(count);
  for (int64_t i = 0; i < count; ++i) order[place[tile(i)]++] = uint32_t(i);
  free(place);
  return order;
}

const int64_t COLUMNS = 64;  // columns of the rows to add up, at a time

struct Rows {
  const float* numbers;
  int64_t width;
  const int64_t* order;
  const double* weight;
  int64_t columns;
  const float* row(int64_t i) const { return numbers + order[i] * width; }
};

inline void add(const Rows& rows, int64_t i, double* sum) {
  const float* row = rows.row(i);
  const double by = rows.weight[i];
#pragma omp simd
  for (int64_t d = 0; d < rows.columns; ++d) sum[d] += row[d] * by;
}

// Sums `count` rows from `start` on -> `sum` [columns], in the order of NumPy's pairwise summation.
void pairwise(const Rows& rows, int64_t start, int64_t count, double* sum) {
  if (count < 8) {
    for (int64_t d = 0; d < rows.columns; ++d) sum[d] = -0.0;
    for (int64_t i = 0; i < count; ++i) add(rows, start + i, sum);
    return;
  }
  if (count > 128) {
    const int64_t half = count / 2 / 8 * 8;
    double second[COLUMNS];
    pairwise(rows, start, half, sum);
    pairwise(rows, start + half, count - half, second);
    for (int64_t d = 0; d < rows.columns; ++d) sum[d] += second[d];
    return;
  }
  double part[8][COLUMNS];
  for (int64_t p = 0; p < 8; ++p) {
    for (int64_t d = 0; d < rows.columns; ++d) part[p][d] = -0.0;
  }
  for (int64_t i = 0; i < count / 8 * 8; ++i) add(rows, start + i, part[i % 8]);
  for (int64_t d = 0; d < rows.columns; ++d) {
    sum[d] = ((part[0][d] + part[1][d]) + (part[2][d] + part[3][d])) +
             ((part[4][d] + part[5][d]) + (part[6][d] + part[7][d]));
  }
  for (int64_t i = count / 8 * 8; i < count; ++i) add(rows, start + i, sum);
}

}  // namespace

// Squared distances of the pairs [count, 2] of rows in `unit` [rows, width] -> `out` [count].
PLSC_API void plsc_squared_distances(const double* unit, int64_t rows, int64_t width, const int64_t* pairs,
                                     int64_t count, double* out) {
  uint32_t* order = order_of_tiles(pairs, count, rows, width);
  share(count, [&](int64_t start, int64_t stop) {
    const double *a[LANES], *b[LANES];
    double found[LANES];
    for (int64_t i = start; i < stop; i += LANES) {
      const int64_t lanes = least(LANES, stop - i);
      int64_t pair[LANES];
      for (int64_t lane = 0; lane < LANES; ++lane) {
        const int64_t at = lane < lanes ? i + lane : i;
        if (order && at + AHEAD < stop) __builtin_prefetch(pairs + 2 * order[at + AHEAD]);
        pair[lane] = order ? order[at] : at;
        a[lane] = unit + pairs[2 * pair[lane]] * width;
        b[lane] = unit + pairs[2 * pair[lane] + 1] * width;
      }
      distances(a, b, width, lanes, found);
      for (int64_t lane = 0; lane < lanes; ++lane) out[pair[lane]] = found[lane];
    }
  });
  free(order);
}

// Sums the rows order[starts[s]], ..., order[starts[s + 1] - 1] of `rows` [.., width], each times its weight
// -> `sums` [count, width]. `weight` is indexed like `order`.
PLSC_API void plsc_weighted_sums(const float* rows, int64_t width, const int64_t* order, const double* weight,
                                 const int64_t* starts, int64_t count, double* sums) {
  share(count, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      for (int64_t column = 0; column < width; column += COLUMNS) {
        const Rows all = {rows + column, width, order + starts[s], weight + starts[s], least(COLUMNS, width - column)};
        double sum[COLUMNS], others[COLUMNS];
        for (int64_t d = 0; d < all.columns; ++d) sum[d] = all.row(0)[d] * all.weight[0];
        if (starts[s + 1] - starts[s] > 1) {
          pairwise(all, 1, starts[s + 1] - starts[s] - 1, others);
          for (int64_t d = 0; d < all.columns; ++d) sum[d] += others[d];
        }
        memcpy(sums + s * width + column, sum, all.columns * sizeof(double));
      }
    }
  });
}
