// Sets up the kernels: the threads, the matrix products and the instruction set. See native.h.
#include "plsc/native/native.h"

int instructions = 0;

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

// Increase this number here and in __init__.py whenever a function's arguments change.
PLSC_API int plsc_version() { return 19; }

// Checksum of the kernels' sources, from setup.py. The ranks compare it, because one machine may have an old build.
PLSC_API uint32_t plsc_sources() { return PLSC_SOURCES; }

// Receives the addresses of the functions named above. A missing function is null. Without the first three
// there is one thread.
PLSC_API void plsc_setup(void* gomp_parallel, void* get_thread_num, void* get_num_threads, void* cblas_sgemm,
                         void* dnnl_gemm) {
  parallel = get_thread_num && get_num_threads ? (Parallel)gomp_parallel : nullptr;
  thread_number = (Count)get_thread_num;
  thread_count = (Count)get_num_threads;
  sgemm = (Sgemm)cblas_sgemm;
  bgemm = (Bgemm)dnnl_gemm;
}

// Chooses the loops for the best instruction set that the processor has, at most `level`: 0 baseline, 1 AVX2,
// 2 AVX-512. Returns the chosen level.
PLSC_API int plsc_instructions(int level) {
  instructions = 0;
#ifdef PLSC_X86
  __builtin_cpu_init();
  if (level >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    instructions = 2;
  } else if (level >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    instructions = 1;
  }
#endif
  return instructions;
}
