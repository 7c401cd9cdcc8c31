// The table of the head's inner loops (loops.h). There is one table per instruction set.
#pragma once

#include "plsc/native/native.h"

// The numbers that rows.py passes to an AdamW update, by the same names.
struct Adam {
  float beta1, rest1, beta2, rest2, rate, root, epsilon, shrink;
};

// 1 / length for a row with this square, by the rule of `Vectors` (heads/blocks.py). It is 0 below the
// smallest normal number, since such a row counts as zero. It is NaN above the largest number, since the
// length is not known.
static inline float inverse_length(float square) {
  if (square < 1.17549435e-38f) return 0.0f;
  return square <= 3.40282347e38f ? 1.0f / __builtin_sqrtf(square) : __builtin_nanf("");
}

// Loops on exponentials and logit gradients, which have the products' type. T is float, or uint16_t for
// bfloat16.
template <typename T>
struct LoopsOf {
  void (*exp_and_sum)(const float*, int64_t, int64_t, const float*, float*, T*);
  void (*multiply)(const T*, const float*, float, int64_t, T*);
  float (*sum_of)(const T*, int64_t);
};

struct Loops {
  float (*dot)(const float*, const float*, int64_t);
  void (*inverse_norms)(const float*, int64_t, int64_t, float*);
  void (*scale_and_max)(float*, int64_t, float, float, float*);
  void (*exp_of_difference)(float*, int64_t, float, float, const float*);
  void (*add)(float*, const float*, int64_t);
  void (*turn)(const float*, const float*, const float*, int64_t, int64_t, float*);
  void (*momentum_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*nesterov_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*lars_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*adamw_row)(float*, float*, float*, const float*, int64_t, Adam);
  void (*to_bfloat16)(const float*, uint16_t*, int64_t);
  void (*unit_rows)(const float*, int64_t, int64_t, float*, float*);
  void (*turn_units)(const float*, const float*, const float*, int64_t, int64_t, float*);
  LoopsOf<float> of_float;
  LoopsOf<uint16_t> of_bfloat16;
};

const Loops* loops();  // the table for the instruction set in use
