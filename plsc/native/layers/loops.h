// The inner loops of batch normalisation, plain enough for the compiler to vectorise. Included once for each
// instruction set (norm.cpp), so nothing from the standard library is used here. Rows are `width` floats, one after the
// other; so is what has one number for each channel.

static inline float active(int kind, float z, float slope) {
  return kind == NONE || !(z <= 0.0f) ? z : kind == RELU ? 0.0f : z * slope;  // a NaN stays one
}

// Sums over R rows at a time of x - shift and of its squares are added to `sum` and `square`.
template <int R>
static const float* sums_of(const float* x, const float* shift, int64_t rows, int64_t width, float* sum,
                            float* square) {
  for (int64_t row = 0; row + R <= rows; row += R, x += R * width) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      float s = 0.0f, q = 0.0f;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const float d = x[r * width + c] - shift[c];
        s += d;
        q += d * d;
      }
      sum[c] += s;
      square[c] += q;
    }
  }
  return x;
}

static void sums(const float* x, const float* shift, int64_t rows, int64_t width, float* sum, float* square) {
  x = sums_of<4>(x, shift, rows, width, sum, square);
  sums_of<1>(x, shift, rows % 4, width, sum, square);
}

// y = active((x - mean) * scale + bias + skip)
template <int KIND, bool SKIP>
static void forward_of(const float* x, const float* skip, Channels by, int64_t rows, int64_t width, float* y) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width, skip += SKIP ? width : 0) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float z = (x[c] - by.mean[c]) * by.scale[c] + by.bias[c] + (SKIP ? skip[c] : 0.0f);
      y[c] = active(KIND, z, KIND == PRELU ? by.slope[c] : 0.0f);
    }
  }
}

static void forward(int kind, const float* x, const float* skip, Channels by, int64_t rows, int64_t width, float* y) {
  (kind == NONE   ? skip ? forward_of<NONE, true> : forward_of<NONE, false>
   : kind == RELU ? skip ? forward_of<RELU, true> : forward_of<RELU, false>
                  : skip ? forward_of<PRELU, true> : forward_of<PRELU, false>)(x, skip, by, rows, width, y);
}

// The gradient by what goes into the activation, z; the sign of z is that of the output y where there is one (SKIP).
template <int KIND, bool SKIP>
static inline float dz_of(float dy, float z, float y, float slope) {
  return KIND == NONE || !((SKIP ? y : z) <= 0.0f) ? dy : KIND == RELU ? 0.0f : dy * slope;
}

// Sums over R rows at a time of dz, of dz * (x - mean) and, of a PReLU, of dy * z where z <= 0 are added to those of
// `to`; SKIP: dz is written.
template <int KIND, bool SKIP, int R>
static void gradient_sums_of(const float* dy, const float* x, const float* y, Channels by, int64_t rows,
                             int64_t width, Sums to, float* dz) {
  for (int64_t row = 0; row + R <= rows; row += R) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      float s = 0.0f, p = 0.0f, q = 0.0f;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const int64_t i = r * width + c;
        const float centred = x[i] - by.mean[c];
        const float z = centred * by.scale[c] + by.bias[c];
        const float d = dz_of<KIND, SKIP>(dy[i], z, SKIP ? y[i] : 0.0f, KIND == PRELU ? by.slope[c] : 0.0f);
        s += d;
        p += d * centred;
        if (KIND == PRELU) q += z <= 0.0f ? dy[i] * z : 0.0f;
        if (SKIP) dz[i] = d;
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

template <int KIND, bool SKIP>
static void gradient_sums_by(const float* dy, const float* x, const float* y, Channels by, int64_t rows,
                             int64_t width, Sums to, float* dz) {
  const int64_t most = rows / 4 * 4, at = most * width;
  gradient_sums_of<KIND, SKIP, 4>(dy, x, y, by, rows, width, to, dz);
  gradient_sums_of<KIND, SKIP, 1>(dy + at, x + at, SKIP ? y + at : y, by, rows - most, width, to, SKIP ? dz + at : dz);
}

static void gradient_sums(int kind, const float* dy, const float* x, const float* y, Channels by, int64_t rows,
                          int64_t width, Sums to, float* dz) {
  (y              ? gradient_sums_by<RELU, true>
   : kind == NONE ? gradient_sums_by<NONE, false>
   : kind == RELU ? gradient_sums_by<RELU, false>
                  : gradient_sums_by<PRELU, false>)(dy, x, y, by, rows, width, to, dz);
}

// dx = (dz - constant - (x - mean) * along) * scale
template <int KIND>
static void backward_of(const float* dy, const float* x, Channels by, int64_t rows, int64_t width, float* dx) {
  for (int64_t row = 0; row < rows; ++row, dy += width, x += width, dx += width) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float centred = x[c] - by.mean[c];
      const float z = centred * by.scale[c] + by.bias[c];
      const float d = dz_of<KIND, false>(dy[c], z, 0.0f, KIND == PRELU ? by.slope[c] : 0.0f);
      dx[c] = (d - by.constant[c] - centred * by.along[c]) * by.scale[c];
    }
  }
}

static void backward(int kind, const float* dy, const float* x, Channels by, int64_t rows, int64_t width, float* dx) {
  (kind == NONE   ? backward_of<NONE>
   : kind == RELU ? backward_of<RELU>
                  : backward_of<PRELU>)(dy, x, by, rows, width, dx);
}

static const NormLoops table = {sums, forward, gradient_sums, backward};
