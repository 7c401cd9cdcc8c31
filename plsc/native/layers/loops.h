// The inner loops of batch normalisation, plain enough for the compiler to vectorise. norm.cpp includes them
// once per instruction set, so nothing from the standard library is used here. Rows are `width` consecutive
// numbers of type T: float, or bfloat16 as uint16_t. Arrays with one number per channel have the same length
// and are float.

#include "plsc/native/bfloat16.h"
#include "plsc/native/prefetch.h"

static inline float active(int kind, float z, float slope) {
  return kind == NONE || !(z <= 0.0f) ? z : kind == RELU ? 0.0f : z * slope;  // a NaN stays a NaN
}

// Adds the sums of x - shift and of its square, over R rows at a time, to `sum` and `square`.
template <int R, typename T>
static const T* sums_of(const T* x, const float* shift, int64_t rows, int64_t width, float* sum,
                            float* square) {
  for (int64_t row = 0; row + R <= rows; row += R, x += R * width) {
    prefetch(x, R * width);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      float s = 0.0f, q = 0.0f;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const float d = load(x[r * width + c]) - shift[c];
        s += d;
        q += d * d;
      }
      sum[c] += s;
      square[c] += q;
    }
  }
  return x;
}

template <typename T>
static void sums(const T* x, const float* shift, int64_t rows, int64_t width, float* sum, float* square) {
  x = sums_of<4>(x, shift, rows, width, sum, square);
  sums_of<1>(x, shift, rows % 4, width, sum, square);
}

// y = active((x - mean) * scale + bias + skip)
template <int KIND, bool SKIP, typename T>
static void forward_of(const T* x, const T* skip, Channels by, int64_t rows, int64_t width, T* y) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width, skip += SKIP ? width : 0) {
    prefetch(x, width);
    if (SKIP) prefetch(skip, width);
    prefetch<1>(y, width);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float z = (load(x[c]) - by.mean[c]) * by.scale[c] + by.bias[c] + (SKIP ? load(skip[c]) : 0.0f);
      store(active(KIND, z, KIND == PRELU ? by.slope[c] : 0.0f), y + c);
    }
  }
}

template <typename T>
static void forward(int kind, const T* x, const T* skip, Channels by, int64_t rows, int64_t width, T* y) {
  (kind == NONE   ? skip ? forward_of<NONE, true, T> : forward_of<NONE, false, T>
   : kind == RELU ? skip ? forward_of<RELU, true, T> : forward_of<RELU, false, T>
                  : skip ? forward_of<PRELU, true, T> : forward_of<PRELU, false, T>)(x, skip, by, rows, width, y);
}

// The gradient with respect to the activation's input, z. The sign of z is the output y's sign if y is given
// (SKIP).
template <int KIND, bool SKIP>
static inline float dz_of(float dy, float z, float y, float slope) {
  return KIND == NONE || !((SKIP ? y : z) <= 0.0f) ? dy : KIND == RELU ? 0.0f : dy * slope;
}

// Sums dz, dz * (x - mean) and, for a PReLU, dy * z where z <= 0, over R rows at a time, and adds them to
// `to`. SKIP: dz is written.
template <int KIND, bool SKIP, int R, typename T>
static void gradient_sums_of(const T* dy, const T* x, const T* y, Channels by, int64_t rows, int64_t width, Sums to,
                             T* dz) {
  for (int64_t row = 0; row + R <= rows; row += R) {
    prefetch(x, R * width);
    prefetch(dy, R * width);
    if (SKIP) prefetch(y, R * width);
    if (SKIP) prefetch<1>(dz, R * width);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      float s = 0.0f, p = 0.0f, q = 0.0f;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const int64_t i = r * width + c;
        const float centred = load(x[i]) - by.mean[c];
        const float g = load(dy[i]);
        const float z = centred * by.scale[c] + by.bias[c];
        const float d = dz_of<KIND, SKIP>(g, z, SKIP ? load(y[i]) : 0.0f, KIND == PRELU ? by.slope[c] : 0.0f);
        s += d;
        p += d * centred;
        if (KIND == PRELU) q += z <= 0.0f ? g * z : 0.0f;
        if (SKIP) store(d, dz + i);
      }
      to.dz[c] += s;
      to.product[c] += p;
      if (KIND == PRELU) to.slope[c] += q;
    }
    dy += R * width;
    x += R * width;
    if (SKIP) y += R * width;
    if (SKIP) dz += R * width;
  }
}

template <int KIND, bool SKIP, typename T>
static void gradient_sums_by(const T* dy, const T* x, const T* y, Channels by, int64_t rows, int64_t width, Sums to,
                             T* dz) {
  const int64_t most = rows / 4 * 4, at = most * width;
  gradient_sums_of<KIND, SKIP, 4>(dy, x, y, by, rows, width, to, dz);
  gradient_sums_of<KIND, SKIP, 1>(dy + at, x + at, SKIP ? y + at : y, by, rows - most, width, to, SKIP ? dz + at : dz);
}

template <typename T>
static void gradient_sums(int kind, const T* dy, const T* x, const T* y, Channels by, int64_t rows, int64_t width,
                          Sums to, T* dz) {
  (y              ? gradient_sums_by<RELU, true, T>
   : kind == NONE ? gradient_sums_by<NONE, false, T>
   : kind == RELU ? gradient_sums_by<RELU, false, T>
                  : gradient_sums_by<PRELU, false, T>)(dy, x, y, by, rows, width, to, dz);
}

// dx = (dz - constant - (x - mean) * along) * scale + more
template <int KIND, bool MORE, typename T>
static void backward_of(const T* dy, const T* x, const T* more, Channels by, int64_t rows, int64_t width, T* dx) {
  for (int64_t row = 0; row < rows; ++row, dy += width, x += width, dx += width, more += MORE ? width : 0) {
    prefetch(x, width);
    prefetch(dy, width);
    if (MORE) prefetch(more, width);
    prefetch<1>(dx, width);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float centred = load(x[c]) - by.mean[c];
      const float z = centred * by.scale[c] + by.bias[c];
      const float d = dz_of<KIND, false>(load(dy[c]), z, 0.0f, KIND == PRELU ? by.slope[c] : 0.0f);
      store((d - by.constant[c] - centred * by.along[c]) * by.scale[c] + (MORE ? load(more[c]) : 0.0f), dx + c);
    }
  }
}

template <typename T>
static void backward(int kind, const T* dy, const T* x, const T* more, Channels by, int64_t rows, int64_t width,
                     T* dx) {
  (kind == NONE   ? more ? backward_of<NONE, true, T> : backward_of<NONE, false, T>
   : kind == RELU ? more ? backward_of<RELU, true, T> : backward_of<RELU, false, T>
                  : more ? backward_of<PRELU, true, T> : backward_of<PRELU, false, T>)(dy, x, more, by, rows, width, dx);
}

static const NormLoops table = {{sums<float>, forward<float>, gradient_sums<float>, backward<float>},
                                {sums<uint16_t>, forward<uint16_t>, gradient_sums<uint16_t>, backward<uint16_t>}};
