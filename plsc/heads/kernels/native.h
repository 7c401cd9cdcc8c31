// What the C++ files of this folder share: threads of the OpenMP runtime that Paddle has loaded, the loops of the
// processor's instruction set, and the matrix products of Paddle's libraries. All of them are handed over at run time
// by __init__.py, so the extension is linked against nothing and never brings a second OpenMP runtime.
#pragma once

#include <stdint.h>

#define PLSC_API extern "C" __attribute__((visibility("default")))

const int64_t MOST_THREADS = 1024;

// The numbers of an update by AdamW, as AdamNumbers in rows.py.
struct Adam {
  float beta1, rest1, beta2, rest2, rate, root, epsilon, shrink;
};

struct Loops {
  float (*dot)(const float*, const float*, int64_t);
  void (*inverse_norms)(const float*, int64_t, int64_t, float*);
  void (*scale_and_max)(float*, int64_t, float, float, float*);
  void (*exp_and_sum)(float*, int64_t, int64_t, const float*, float*);
  void (*exp_of_difference)(float*, int64_t, float, float, const float*);
  void (*multiply)(float*, const float*, float, int64_t);
  float (*sum_of)(const float*, int64_t);
  void (*add)(float*, const float*, int64_t);
  void (*turn)(const float*, const float*, const float*, int64_t, int64_t, float*);
  void (*momentum_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*nesterov_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*lars_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*adamw_row)(float*, float*, float*, const float*, int64_t, Adam);
  void (*to_bfloat16)(const float*, uint16_t*, int64_t);
  void (*unit_rows)(const float*, int64_t, int64_t, float*, float*);
  void (*turn_units)(const float*, const float*, const float*, int64_t, int64_t, float*);
};

extern const Loops* loops;

// C = op(A) op(B) + beta C, all row-major without gaps: op(A) [m, k], op(B) [k, n].
void product(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, const float* a, const float* b,
             float beta, float* c);
void product(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, const uint16_t* a,
             const uint16_t* b, float beta, float* c);

typedef void (*Body)(void* data, int64_t thread, int64_t threads);
void run_threads(Body body, void* data);

// body(thread, threads) on every thread of the team; which thread does what is fixed, so results are repeatable.
template <typename F>
void on_threads(const F& body) {
  run_threads([](void* data, int64_t thread, int64_t threads) { (*static_cast<const F*>(data))(thread, threads); },
              const_cast<F*>(&body));
}

// body(start, stop) on every thread, each with its share of [0, count).
template <typename F>
void share(int64_t count, const F& body) {
  on_threads([&](int64_t thread, int64_t threads) {
    const int64_t start = count * thread / threads, stop = count * (thread + 1) / threads;
    if (start < stop) body(start, stop);
  });
}
