// The inner loops of attention, plain enough for the compiler to vectorise. Included once for each instruction set
// (attention.cpp), so nothing from the standard library is used here.

// Gradient by the softmax of each row -> gradient by what it was taken of, in place: p (g - sum of p g).
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
