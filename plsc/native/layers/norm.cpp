// Batch normalisation of channels-last rows together with what follows: adding a residual's input, and an
// activation. It takes two passes over the input forward and two backward. See
// backbones/layers/normalisation.py.
#include "plsc/native/native.h"

#include <math.h>
#include <string.h>

enum Kind { NONE, RELU, PRELU };  // activations, as normalisation.py numbers them

// For each channel: y = active((x - mean) * scale + bias); dx = (dz - constant - (x - mean) * along) * scale
// + more.
struct Channels {
  float *mean, *scale, *bias, *slope, *constant, *along;
};

struct Sums {
  float *dz, *product, *slope;
};

template <typename T>
struct NormLoopsOf {
  void (*sums)(const T*, const float*, int64_t, int64_t, float*, float*);
  void (*forward)(int, const T*, const T*, Channels, int64_t, int64_t, T*);
  void (*gradient_sums)(int, const T*, const T*, const T*, Channels, int64_t, int64_t, Sums, T*);
  void (*backward)(int, const T*, const T*, const T*, Channels, int64_t, int64_t, T*);
};

struct NormLoops {
  NormLoopsOf<float> wide;
  NormLoopsOf<uint16_t> half;  // bfloat16
};

#define PLSC_LOOPS "plsc/native/layers/loops.h"
#include "plsc/native/instruction_sets.h"

namespace {

const NormLoopsOf<float>& loops_of(const float*) { return loops_in_use()->wide; }
const NormLoopsOf<uint16_t>& loops_of(const uint16_t*) { return loops_in_use()->half; }

const int64_t WIDE = 256;        // numbers in a row that make a loop worthwhile
const int64_t BLOCK = 1 << 15;   // numbers that are summed in float32
const int64_t MOST_PARTS = 64;

// Joins several rows into one if there are few channels.
struct Rows {
  int64_t rows, width, times;

  Rows(int64_t narrow_rows, int64_t channels) : rows(narrow_rows), width(channels), times(1) {
    for (; width < WIDE && rows % 2 == 0; rows /= 2, width *= 2) times *= 2;
  }
};

// Arrays with one number per channel, as long as a joined row. They are freed with the object.
class PerChannel {
 public:
  PerChannel(Rows rows, int64_t channels, int64_t count)
      : rows_(rows), channels_(channels), memory_(memory<float>(count * rows.width)) {}
  ~PerChannel() { free(memory_); }
  // Fills array `number` from from(channel).
  template <typename F>
  float* fill(int64_t number, const F& from) const {
    float* to = memory_ + number * rows_.width;
    for (int64_t c = 0; c < channels_; ++c) to[c] = from(c);
    for (int64_t t = 1; t < rows_.times; ++t) memcpy(to + t * channels_, to, channels_ * sizeof(float));
    return to;
  }

 private:
  PerChannel(const PerChannel&);
  Rows rows_;
  int64_t channels_;
  float* memory_;
};

// Sums over all rows for each channel -> double `total` [count, channels]. The bits do not depend on the
// thread count. of_block(row, rows, sums) adds some rows' sums to float `sums` [count, joined width].
template <typename F>
void sum_rows(Rows rows, int64_t channels, int64_t count, double* total, const F& of_block) {
  const int64_t many = count * rows.width;
  const int64_t block = BLOCK / rows.width > 4 ? BLOCK / rows.width / 4 * 4 : 4;
  const int64_t blocks = (rows.rows + block - 1) / block;
  const int64_t parts = blocks < MOST_PARTS ? blocks : MOST_PARTS;
  double* sums = memory<double>(parts * many);
  share(parts, [&](int64_t first, int64_t last) {
    float* few = memory<float>(many);
    memset(sums + first * many, 0, (last - first) * many * sizeof(double));
    for (int64_t part = first; part < last; ++part) {
      for (int64_t b = blocks * part / parts; b < blocks * (part + 1) / parts; ++b) {
        const int64_t left = rows.rows - b * block;
        memset(few, 0, many * sizeof(float));
        of_block(b * block, left < block ? left : block, few);
        for (int64_t i = 0; i < many; ++i) sums[part * many + i] += few[i];
      }
    }
    free(few);
  });
  for (int64_t i = 0; i < count * channels; ++i) total[i] = 0.0;
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t k = 0; k < count; ++k)
      for (int64_t t = 0; t < rows.times; ++t) {
        const double* from = sums + part * many + k * rows.width + t * channels;
        for (int64_t c = 0; c < channels; ++c) total[k * channels + c] += from[c];
      }
  free(sums);
}

Channels channels_of(const PerChannel& values, const float* kept, int64_t channels, const float* weight,
                     const float* bias, const float* slope, int64_t slope_step) {
  const float* root = kept + channels;
  Channels by = {};
  by.mean = values.fill(0, [&](int64_t c) { return kept[c]; });
  by.scale = values.fill(1, [&](int64_t c) { return weight ? root[c] * weight[c] : root[c]; });
  by.bias = values.fill(2, [&](int64_t c) { return bias ? bias[c] : 0.0f; });
  by.slope = values.fill(3, [&](int64_t c) { return slope ? slope[c * slope_step] : 0.0f; });
  return by;
}

// y = active((x - mean) / sqrt(variance + epsilon) * weight + bias + skip). skip, weight, bias and slope may
// be null. slope_step: 0 if one slope serves all channels. training: mean and variance come from the rows,
// and `running` moves towards them by 1 - momentum. Otherwise the running ones are used. Leaves mean and 1 /
// root in `kept` [2, channels].
template <typename T>
void norm_forward(const T* x, const T* skip, const float* weight, const float* bias, const float* slope,
                  int64_t slope_step, int kind, int64_t rows, int64_t channels, int training, float epsilon,
                  float momentum, float* running_mean, float* running_variance, float* kept, T* y) {
  const auto& loops = loops_of(x);
  const Rows joined(rows, channels);
  const int64_t width = joined.width;
  PerChannel values(joined, channels, 4);
  float* mean = kept;
  float* root = kept + channels;
  if (training) {
    const float* shift = values.fill(0, [&](int64_t c) { return baseline::load(x[c]); });  // so that squares do not cancel
    double* total = memory<double>(2 * channels);
    sum_rows(joined, channels, 2, total, [&](int64_t row, int64_t count, float* sums) {
      loops.sums(x + row * width, shift, count, width, sums, sums + width);
    });
    for (int64_t c = 0; c < channels; ++c) {
      const double from_shift = total[c] / rows;
      const double variance = total[channels + c] / rows - from_shift * from_shift;
      const float bounded = variance < 0.0 ? 0.0f : (float)variance;  // a NaN stays a NaN
      mean[c] = (float)(baseline::load(x[c]) + from_shift);
      root[c] = (float)(1.0 / sqrt((double)bounded + epsilon));
      running_mean[c] = running_mean[c] * momentum + mean[c] * (1.0f - momentum);
      running_variance[c] = running_variance[c] * momentum + bounded * (1.0f - momentum);
    }
    free(total);
  } else {
    for (int64_t c = 0; c < channels; ++c) {
      mean[c] = running_mean[c];
      root[c] = (float)(1.0 / sqrt((double)running_variance[c] + epsilon));
    }
  }
  const Channels by = channels_of(values, kept, channels, weight, bias, slope, slope_step);
  share(joined.rows, [&](int64_t start, int64_t stop) {
    const int64_t at = start * width;
    loops.forward(kind, x + at, skip ? skip + at : skip, by, stop - start, width, y + at);
  });
}

// The forward pass's gradients, with its arguments and `kept`. y: its output. If an activation follows a sum
// with `skip`, y is given, and skip's gradient goes to `dz`. Otherwise both are null. more: is added to dx,
// may be null. dslope: null without slopes. It is one number if one slope serves all channels. dx may be
// null.
template <typename T>
void norm_backward(const T* dy, const T* x, const T* y, const T* more, const float* weight, const float* bias, const float* slope,
                   int64_t slope_step, int kind, int64_t rows, int64_t channels, int training, const float* kept, T* dz,
                   float* dweight, float* dbias, float* dslope, T* dx) {
  const auto& loops = loops_of(x);
  const Rows joined(rows, channels);
  const int64_t width = joined.width;
  PerChannel values(joined, channels, 6);
  const float* root = kept + channels;
  Channels by = channels_of(values, kept, channels, weight, bias, slope, slope_step);
  double* total = memory<double>(3 * channels);
  sum_rows(joined, channels, slope ? 3 : 2, total, [&](int64_t row, int64_t count, float* few) {
    const int64_t at = row * width;
    loops.gradient_sums(kind, dy + at, x + at, y ? y + at : y, by, count, width, {few, few + width, few + 2 * width},
                        dz ? dz + at : dz);
  });
  double of_slopes = 0.0;
  for (int64_t c = 0; c < channels; ++c) {
    dbias[c] = (float)total[c];
    dweight[c] = (float)(total[channels + c] * root[c]);
    if (slope) {
      of_slopes = total[2 * channels + c] + (slope_step ? 0.0 : of_slopes);
      dslope[c * slope_step] = (float)of_slopes;
    }
  }
  if (dx) {
    by.constant = values.fill(4, [&](int64_t c) { return training ? (float)(total[c] / rows) : 0.0f; });
    by.along = values.fill(5, [&](int64_t c) {
      return training ? (float)(total[channels + c] / rows * root[c] * root[c]) : 0.0f;
    });
    share(joined.rows, [&](int64_t start, int64_t stop) {
      const int64_t at = start * width;
      loops.backward(y ? NONE : kind, (y ? dz : dy) + at, x + at, more ? more + at : more, by, stop - start, width,
                     dx + at);
    });
  }
  free(total);
}

}  // namespace

// Pictures, rows [rows, channels], are float32, or bfloat16 if `half`.
PLSC_API void plsc_norm_forward(int half, const void* x, const void* skip, const float* weight, const float* bias,
                                const float* slope, int64_t slope_step, int kind, int64_t rows, int64_t channels,
                                int training, float epsilon, float momentum, float* running_mean,
                                float* running_variance, float* kept, void* y) {
  const auto forward = [&](auto type) {
    typedef decltype(type) T;
    norm_forward((const T*)x, (const T*)skip, weight, bias, slope, slope_step, kind, rows, channels, training, epsilon,
                 momentum, running_mean, running_variance, kept, (T*)y);
  };
  half ? forward(uint16_t()) : forward(float());
}

PLSC_API void plsc_norm_backward(int half, const void* dy, const void* x, const void* y, const void* more,
                                 const float* weight, const float* bias, const float* slope, int64_t slope_step, int kind, int64_t rows,
                                 int64_t channels, int training, const float* kept, void* dz, float* dweight,
                                 float* dbias, float* dslope, void* dx) {
  const auto backward = [&](auto type) {
    typedef decltype(type) T;
    norm_backward((const T*)dy, (const T*)x, (const T*)y, (const T*)more, weight, bias, slope, slope_step, kind, rows, channels,
                  training, kept, (T*)dz, dweight, dbias, dslope, (T*)dx);
  };
  half ? backward(uint16_t()) : backward(float());
}
