// The head's inner loops, plain enough for the compiler to vectorise. rows.cpp includes them once per
// instruction set. Nothing from the standard library is used here, because an inlined copy for one
// instruction set must not be shared with another. Rows are `width` consecutive floats. N is the sample
// count.

#include "plsc/native/bfloat16.h"
#include "plsc/native/prefetch.h"

// exp(x) for x <= 0: 2^n times a polynomial, with a relative error below 2e-7. It is 0 below -87. A NaN stays
// a NaN.
static inline float exp_of(float x) {
  const float bounded = x < -87.0f ? -87.0f : x;
  const float shifted = bounded * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int bits;
  __builtin_memcpy(&bits, &shifted, 4);
  bits = (bits - 0x4B400000 + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, 4);
  const float y = p * power;
  return x < -87.0f ? 0.0f : y;
}

static inline float dot(const float* a, const float* b, int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

static void inverse_norms(const float* rows, int64_t count, int64_t width, float* inverse) {
  for (int64_t i = 0; i < count; ++i) {
    prefetch(rows + i * width, width);
    const float square = dot(rows + i * width, rows + i * width, width);
    inverse[i] = inverse_length(square);
  }
}

// logit * inverse + bias for one class, and each sample's maximum over the classes.
static void scale_and_max(float* logit, int64_t samples, float scale, float bias, float* max) {
#pragma omp simd
  for (int64_t n = 0; n < samples; ++n) {
    logit[n] = logit[n] * scale + bias;
    max[n] = logit[n] > max[n] ? logit[n] : max[n];
  }
}

// `to` may be `logit`.
template <typename T>
static void exp_and_sum(const float* logit, int64_t classes, int64_t samples, const float* max, float* sum, T* to) {
  for (int64_t c = 0; c < classes; ++c, logit += samples, to += samples) {
    prefetch<1>(to, samples);
#pragma omp simd
    for (int64_t n = 0; n < samples; ++n) {
      const float e = exp_of(logit[n] - max[n]);
      store(e, to + n);
      sum[n] += e;
    }
  }
}

// Recomputed logits to probabilities. Only rounding can make the exponent positive.
static void exp_of_difference(float* logit, int64_t samples, float scale, float bias, const float* lse) {
#pragma omp simd
  for (int64_t n = 0; n < samples; ++n) logit[n] = exp_of(logit[n] * scale + bias - lse[n]);
}

// `to` may be `x`.
template <typename T>
static void multiply(const T* x, const float* factor, float by, int64_t count, T* to) {
  prefetch(x, count);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(load(x[i]) * (factor[i] * by), to + i);
}

template <typename T>
static float sum_of(const T* x, int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += load(x[i]);
  return sum;
}

static void add(float* to, const float* x, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] += x[i];
}

// Rows scaled to length 1, and 1 / length.
static void unit_rows(const float* rows, int64_t count, int64_t width, float* unit, float* inverse) {
  inverse_norms(rows, count, width, inverse);
  for (int64_t i = 0; i < count; ++i) {
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) unit[i * width + d] = rows[i * width + d] * inverse[i];
  }
}

// (grad - (grad . unit) unit) * the row's factor.
static void turn_units(const float* grad, const float* unit, const float* factor, int64_t count, int64_t width,
                       float* out) {
  for (int64_t i = 0; i < count; ++i, grad += width, unit += width, out += width) {
    const float along = dot(grad, unit, width);
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) out[d] = (grad[d] - along * unit[d]) * factor[i];
  }
}

// Gradient with respect to unit rows -> gradient with respect to the rows. `grad` already has the factor 1 /
// length.
static void turn(const float* grad, const float* rows, const float* inverse, int64_t count, int64_t width, float* out) {
  for (int64_t i = 0; i < count; ++i, grad += width, rows += width, out += width) {
    const float along = dot(grad, rows, width) * inverse[i] * inverse[i];
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) out[d] = grad[d] - along * rows[d];
  }
}

// v <- mu v + g + decay w;  w <- w - lr v
static void momentum_row(float* value, float* momentum, const float* grad, int64_t width, float lr, float mu,
                         float decay) {
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) {
    const float v = mu * momentum[d] + (grad[d] + decay * value[d]);
    momentum[d] = v;
    value[d] -= lr * v;
  }
}

// v <- mu v + g + decay w;  w <- w - lr (g + decay w + mu v)
static void nesterov_row(float* value, float* momentum, const float* grad, int64_t width, float lr, float mu,
                         float decay) {
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) {
    const float decayed = grad[d] + decay * value[d];
    const float v = mu * momentum[d] + decayed;
    momentum[d] = v;
    value[d] -= lr * (decayed + mu * v);
  }
}

// v <- mu v + rate (g + decay w);  w <- w - v
static void lars_row(float* value, float* velocity, const float* grad, int64_t width, float rate, float mu,
                     float decay) {
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) {
    const float v = mu * velocity[d] + rate * (grad[d] + decay * value[d]);
    velocity[d] = v;
    value[d] -= v;
  }
}

// m <- beta1 m + rest1 g;  v <- beta2 v + rest2 g^2;  w <- w - shrink w - rate m / (root sqrt(v) + epsilon)
static void adamw_row(float* value, float* moment1, float* moment2, const float* grad, int64_t width, Adam by) {
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) {
    const float m = by.beta1 * moment1[d] + by.rest1 * grad[d];
    const float v = by.beta2 * moment2[d] + by.rest2 * (grad[d] * grad[d]);
    moment1[d] = m;
    moment2[d] = v;
    value[d] -= by.shrink * value[d] + by.rate * m / (by.root * __builtin_sqrtf(v) + by.epsilon);
  }
}

static void to_bfloat16(const float* x, uint16_t* y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(x[i], y + i);
}

static const Loops table = {dot, inverse_norms, scale_and_max, exp_of_difference, add, turn, momentum_row, nesterov_row, lars_row,
                            adamw_row, to_bfloat16, unit_rows, turn_units, {exp_and_sum, multiply, sum_of},
                            {exp_and_sum, multiply, sum_of}};
