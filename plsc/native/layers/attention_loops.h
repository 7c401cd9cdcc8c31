// Attention's inner loops, plain enough for the compiler to vectorise. attention.cpp includes them once per
// instruction set, so nothing from the standard library is used here.

// Gradient with respect to each row's softmax -> gradient with respect to its input, in place: p (g - sum(p
// g)).
static void softmax_backward(const float* p, int64_t rows, int64_t width, float* g) {
  for (int64_t row = 0; row < rows; ++row, p += width, g += width) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += p[i] * g[i];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) g[i] = p[i] * (g[i] - sum);
  }
}

static const AttentionLoops table = {softmax_backward};
