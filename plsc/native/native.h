// What all kernels share: the threads of Paddle's OpenMP runtime, the processor's instruction set, and the
// matrix products of Paddle's libraries. __init__.py passes them in at run time. The extension is therefore
// linked against nothing and never loads a second OpenMP runtime.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PLSC_X86 1
#endif
#define PLSC_API extern "C" __attribute__((visibility("default")))

// Before a function: compile it for three instruction sets. The system takes the one that this processor has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

const int64_t MOST_THREADS = 1024;

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a < b ? b : a; }

// Allocates memory for `count` numbers. The caller frees it with free(). If there is no memory, a line
// reports this and the process ends.
template <typename T>
T* memory(int64_t count) {
  const int64_t bytes = (count * sizeof(T) + 63) / 64 * 64;
  T* place = static_cast<T*>(aligned_alloc(64, bytes));
  if (!place && bytes) {
    fprintf(stderr, "ERROR plsc's kernels: no memory for %lld bytes\n", static_cast<long long>(bytes));
    abort();
  }
  return place;
}

// The instruction set in use: 0 baseline, 1 AVX2, 2 AVX-512. The loops are compiled for each, see
// instruction_sets.h.
extern int instructions;

// C = op(A) op(B) + beta C. All matrices are row-major without gaps: op(A) [m, k], op(B) [k, n].
void product(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, const float* a, const float* b,
             float beta, float* c);
void product(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, const uint16_t* a,
             const uint16_t* b, float beta, float* c);

typedef void (*Body)(void* data, int64_t thread, int64_t threads);
void run_threads(Body body, void* data);

// Calls body(thread, threads) on every thread of the team. If a sum depends on which thread does which work, this
// work must be fixed, so that results are repeatable.
template <typename F>
void on_threads(const F& body) {
  run_threads([](void* data, int64_t thread, int64_t threads) { (*static_cast<const F*>(data))(thread, threads); },
              const_cast<F*>(&body));
}

// Calls body(start, stop) on every thread, each with its part of [0, count).
template <typename F>
void share(int64_t count, const F& body) {
  on_threads([&](int64_t thread, int64_t threads) {
    const int64_t start = count * thread / threads, stop = count * (thread + 1) / threads;
    if (start < stop) body(start, stop);
  });
}
