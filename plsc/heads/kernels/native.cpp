// Set-up of the kernels, and those that work on rows. See native.h; the head's step is in softmax.cpp.
#include "native.h"

#include <stdlib.h>
#include <string.h>

namespace baseline {
#include "loops.h"
}
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PLSC_X86 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "loops.h"
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
namespace avx512 {
#include "loops.h"
}
#pragma GCC pop_options
#endif

const Loops* loops = &baseline::table;

namespace {

typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel
typedef int (*Count)();                                                // omp_get_thread_num, omp_get_num_threads
typedef void (*Sgemm)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*,
                      int);  // cblas_sgemm
typedef int (*Bgemm)(char, char, int64_t, int64_t, int64_t, float, const uint16_t*, int64_t, const uint16_t*,
                     int64_t, float, float*, int64_t);  // dnnl_gemm_bf16bf16f32

Parallel parallel = nullptr;
Count thread_number = nullptr, thread_count = nullptr;
Sgemm sgemm = nullptr;
Bgemm bgemm = nullptr;

struct Job {
  Body body;
  void* data;
};

void run_job(void* data) {
  const Job* job = static_cast<const Job*>(data);
  if (thread_count() > MOST_THREADS) abort();
  job->body(job->data, thread_number(), thread_count());
}

}  // namespace

void run_threads(Body body, void* data) {
  Job job = {body, data};
  if (parallel)
    parallel(run_job, &job, 0, 0);
  else
    body(data, 0, 1);
}

void product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, const float* b, float beta, float* c) {
  const int row_major = 101, plain = 111, transposed = 112;
  sgemm(row_major, ta ? transposed : plain, tb ? transposed : plain, m, n, k, 1.0f, a, ta ? m : k, b, tb ? k : n,
        beta, c, n);
}

void product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const uint16_t* a, const uint16_t* b, float beta,
             float* c) {
  bgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, ta ? m : k, b, tb ? k : n, beta, c, n);
}

// To be raised with every change of a function's arguments, here and in __init__.py.
PLSC_API int plsc_version() { return 4; }

// Addresses of the functions named above, null where there is none; without the first three there is one thread.
PLSC_API void plsc_setup(void* gomp_parallel, void* get_thread_num, void* get_num_threads, void* cblas_sgemm,
                         void* dnnl_gemm) {
  parallel = get_thread_num && get_num_threads ? (Parallel)gomp_parallel : nullptr;
  thread_number = (Count)get_thread_num;
  thread_count = (Count)get_num_threads;
  sgemm = (Sgemm)cblas_sgemm;
  bgemm = (Bgemm)dnnl_gemm;
}

// Choose the loops for the best instruction set that the processor has, at most `level`: 0 baseline, 1 AVX2, 2 AVX-512.
// Returns the level chosen.
PLSC_API int plsc_instructions(int level) {
  loops = &baseline::table;
#ifdef PLSC_X86
  __builtin_cpu_init();
  if (level >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    loops = &avx512::table;
    return 2;
  }
  if (level >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    loops = &avx2::table;
    return 1;
  }
#endif
  return 0;
}

PLSC_API int plsc_multiplies() { return sgemm != nullptr; }

PLSC_API int plsc_multiplies_bfloat16() {
#ifdef PLSC_X86
  return bgemm && __builtin_cpu_supports("avx512bf16");
#else
  return 0;
#endif
}

// How many threads a kernel runs on when this thread calls it.
PLSC_API int plsc_threads() {
  int count = 1;
  on_threads([&](int64_t thread, int64_t threads) {
    if (thread == 0) count = (int)threads;
  });
  return count;
}

// Rows at length 1 -> `unit` [count, width], and 1 / length (0 of a zero row) -> `inverse` [count].
PLSC_API void plsc_unit_rows(const float* rows, int64_t count, int64_t width, float* unit, float* inverse) {
  share(count, [&](int64_t start, int64_t stop) {
    const int64_t at = start * width;
    loops->unit_rows(rows + at, stop - start, width, unit + at, inverse + start);
  });
}

// The way back of gradients, times `factor` [count], which is 1 / length or a multiple of it -> `out`.
PLSC_API void plsc_turn_units(const float* grad, const float* unit, const float* factor, int64_t count, int64_t width,
                              float* out) {
  share(count, [&](int64_t start, int64_t stop) {
    const int64_t at = start * width;
    loops->turn_units(grad + at, unit + at, factor + start, stop - start, width, out + at);
  });
}

// Rows `index` of `rows` -> `out` [count, width].
PLSC_API void plsc_gather(const float* rows, const int64_t* index, int64_t count, int64_t width, float* out) {
  share(count, [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; ++i) memcpy(out + i * width, rows + index[i] * width, width * sizeof(float));
  });
}

// Momentum SGD on rows `index` (null: the first `count`) with their gradients [count, width].
PLSC_API void plsc_momentum(float* values, float* momenta, const int64_t* index, const float* grads, int64_t count,
                            int64_t width, float lr, float mu, float decay, int nesterov) {
  const auto row_of = nesterov ? loops->nesterov_row : loops->momentum_row;
  share(count, [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; ++i) {
      const int64_t at = (index ? index[i] : i) * width;
      row_of(values + at, momenta + at, grads + i * width, width, lr, mu, decay);
    }
  });
}

// Momentum SGD with the rate in the velocity; arrays as above.
PLSC_API void plsc_lars(float* values, float* velocities, const int64_t* index, const float* grads, int64_t count,
                        int64_t width, float rate, float mu, float decay) {
  share(count, [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; ++i) {
      const int64_t at = (index ? index[i] : i) * width;
      loops->lars_row(values + at, velocities + at, grads + i * width, width, rate, mu, decay);
    }
  });
}

// AdamW; arrays as above. The numbers are explained in rows.py.
PLSC_API void plsc_adamw(float* values, float* moments1, float* moments2, const int64_t* index, const float* grads,
                         int64_t count, int64_t width, float beta1, float rest1, float beta2, float rest2, float rate,
                         float root, float epsilon, float shrink) {
  const Adam numbers = {beta1, rest1, beta2, rest2, rate, root, epsilon, shrink};
  share(count, [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; ++i) {
      const int64_t at = (index ? index[i] : i) * width;
      loops->adamw_row(values + at, moments1 + at, moments2 + at, grads + i * width, width, numbers);
    }
  });
}

// Inner products of row `left` of `x` and row `right` of `rows`, pair by pair; with `unit` the second at length 1 (a zero
// row stays zero).
PLSC_API void plsc_pair_products(const float* x, const int64_t* left, const float* rows, const int64_t* right,
                                 int64_t count, int64_t width, int unit, float* out) {
  share(count, [&](int64_t start, int64_t stop) {
    for (int64_t i = start; i < stop; ++i) {
      const float* row = rows + right[i] * width;
      float inverse = 1.0f;
      if (unit) loops->inverse_norms(row, 1, width, &inverse);
      out[i] = loops->dot(x + left[i] * width, row, width) * inverse;
    }
  });
}

// The sum of the squares, NaN or infinite where a number is: a thread's part is a double, pieces of it are float32.
PLSC_API double plsc_sum_of_squares(const float* x, int64_t count) {
  const int64_t piece = 4096;
  double sums[MOST_THREADS] = {0.0};
  on_threads([&](int64_t thread, int64_t threads) {
    double sum = 0.0;
    for (int64_t i = count * thread / threads; i < count * (thread + 1) / threads; i += piece) {
      const int64_t left = count * (thread + 1) / threads - i;
      sum += loops->dot(x + i, x + i, left < piece ? left : piece);
    }
    sums[thread] = sum;
  });
  double total = 0.0;
  for (int64_t t = 0; t < MOST_THREADS; ++t) total += sums[t];
  return total;
}
