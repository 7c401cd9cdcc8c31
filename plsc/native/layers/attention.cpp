// The part of attention for which oneDNN has no fast operation on processors without AVX-512. See
// layers/transformer.py.
#include "plsc/native/native.h"

struct AttentionLoops {
  void (*softmax_backward)(const float*, int64_t, int64_t, float*);
};

#define PLSC_LOOPS "plsc/native/layers/attention_loops.h"
#include "plsc/native/instruction_sets.h"

// Gradient with respect to the softmax `weights` [rows, width] -> gradient with respect to its input, in
// place.
PLSC_API void plsc_attention_weights_backward(const float* weights, int64_t rows, int64_t width, float* grad) {
  share(rows, [&](int64_t start, int64_t stop) {
    const int64_t at = start * width;
    loops_in_use()->softmax_backward(weights + at, stop - start, width, grad + at);
  });
}
