// Kernels that work on rows, see rows.py. softmax.cpp has the head's step.
#include "plsc/native/heads/loops_table.h"

#include <string.h>

#define PLSC_LOOPS "plsc/native/heads/loops.h"
#include "plsc/native/instruction_sets.h"

const Loops* loops() { return loops_in_use(); }

// Scales rows to length 1 -> `unit` [count, width], and 1 / length (0 for a zero row) -> `inverse` [count].
PLSC_API void plsc_unit_rows(const float* rows, int64_t count, int64_t width, float* unit, float* inverse) {
  share(count, [&](int64_t start, int64_t stop) {
    const int64_t at = start * width;
    loops()->unit_rows(rows + at, stop - start, width, unit + at, inverse + start);
  });
}

// The gradients' way back, times `factor` [count], which is 1 / length or a multiple -> `out`.
PLSC_API void plsc_turn_units(const float* grad, const float* unit, const float* factor, int64_t count, int64_t width,
                              float* out) {
  share(count, [&](int64_t start, int64_t stop) {
    const int64_t at = start * width;
    loops()->turn_units(grad + at, unit + at, factor + start, stop - start, width, out + at);
  });
}

// Copies rows `index` of `rows` -> `out` [count, width].
PLSC_API void plsc_gather(const float* rows, const int64_t* index, int64_t count, int64_t width, float* out) {
  share(count, [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; ++i) memcpy(out + i * width, rows + index[i] * width, width * sizeof(float));
  });
}

// Calls of(place in the arrays, place in the gradients) for rows `index`, or for the first `count` if it is
// null.
template <typename F>
static void each_row(const int64_t* index, int64_t count, int64_t width, const F& of) {
  share(count, [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; ++i) of((index ? index[i] : i) * width, i * width);
  });
}

// Momentum SGD on rows `index` (null: the first `count`) with their gradients [count, width].
PLSC_API void plsc_momentum(float* values, float* momenta, const int64_t* index, const float* grads, int64_t count,
                            int64_t width, float lr, float mu, float decay, int nesterov) {
  const auto row_of = nesterov ? loops()->nesterov_row : loops()->momentum_row;
  each_row(index, count, width, [&](int64_t at, int64_t from) {
    row_of(values + at, momenta + at, grads + from, width, lr, mu, decay);
  });
}

// Momentum SGD with the rate in the velocity. The arrays are as above.
PLSC_API void plsc_lars(float* values, float* velocities, const int64_t* index, const float* grads, int64_t count,
                        int64_t width, float rate, float mu, float decay) {
  each_row(index, count, width, [&](int64_t at, int64_t from) {
    loops()->lars_row(values + at, velocities + at, grads + from, width, rate, mu, decay);
  });
}

// AdamW. The arrays are as above. rows.py explains the numbers.
PLSC_API void plsc_adamw(float* values, float* moments1, float* moments2, const int64_t* index, const float* grads,
                         int64_t count, int64_t width, float beta1, float rest1, float beta2, float rest2, float rate,
                         float root, float epsilon, float shrink) {
  const Adam numbers = {beta1, rest1, beta2, rest2, rate, root, epsilon, shrink};
  each_row(index, count, width, [&](int64_t at, int64_t from) {
    loops()->adamw_row(values + at, moments1 + at, moments2 + at, grads + from, width, numbers);
  });
}

// Inner products of row `left` of `x` and row `right` of `rows`, pair by pair. With `unit`, the second row
// has length 1 (a zero row stays zero).
PLSC_API void plsc_pair_products(const float* x, const int64_t* left, const float* rows, const int64_t* right,
                                 int64_t count, int64_t width, int unit, float* out) {
  share(count, [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; ++i) {
      const float* row = rows + right[i] * width;
      float inverse = 1.0f;
      if (unit) loops()->inverse_norms(row, 1, width, &inverse);
      out[i] = loops()->dot(x + left[i] * width, row, width) * inverse;
    }
  });
}

// The sum of squares. It is NaN or infinite if a number is. A thread adds up pieces in float32, and the
// pieces in double.
PLSC_API double plsc_sum_of_squares(const float* x, int64_t count) {
  const int64_t piece = 4096;
  double sums[MOST_THREADS] = {0.0};
  on_threads([&](int64_t thread, int64_t threads) {
    double sum = 0.0;
    for (int64_t i = count * thread / threads; i < count * (thread + 1) / threads; i += piece) {
      const int64_t left = count * (thread + 1) / threads - i;
      sum += loops()->dot(x + i, x + i, left < piece ? left : piece);
    }
    sums[thread] = sum;
  });
  double total = 0.0;
  for (int64_t t = 0; t < MOST_THREADS; ++t) total += sums[t];
  return total;
}
