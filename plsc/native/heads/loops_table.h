// The table of the head's inner loops, loops.h, of which there is one for each instruction set.
#pragma once

#include "plsc/native/native.h"

// The numbers of an update by AdamW, as AdamNumbers in rows.py.
struct Adam {
  float beta1, rest1, beta2, rest2, rate, root, epsilon, shrink;
};

// 1 / length of a row with this square; 0 of a row of zeros, NaN stays NaN.
static inline float inverse_length(float square) { return square > 0.0f ? 1.0f / __builtin_sqrtf(square) : square; }

struct Loops {
  float (*dot)(const float*, const float*, int64_t);
  void (*inverse_norms)(const float*, int64_t, int64_t, float*);
  void (*scale_and_max)(float*, int64_t, float, float, float*);
  void (*exp_and_sum)(const float*, int64_t, int64_t, const float*, float*, float*);
  void (*exp_and_sum_rounded)(const float*, int64_t, int64_t, const float*, float*, uint16_t*);
  void (*exp_of_difference)(float*, int64_t, float, float, const float*);
  void (*multiply)(const float*, const float*, float, int64_t, float*);
  void (*multiply_rounded)(const uint16_t*, const float*, float, int64_t, float*);
  float (*sum_of)(const float*, int64_t);
  void (*add)(float*, const float*, int64_t);
  void (*turn)(const float*, const float*, const float*, int64_t, int64_t, float*);
  void (*momentum_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*nesterov_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*lars_row)(float*, float*, const float*, int64_t, float, float, float);
  void (*adamw_row)(float*, float*, float*, const float*, int64_t, Adam);
  void (*to_bfloat16)(const float*, uint16_t*, int64_t);
  void (*unit_rows)(const float*, int64_t, int64_t, float*, float*);
  void (*turn_units)(const float*, const float*, const float*, int64_t, int64_t, float*);
};

const Loops* loops();  // those of the instruction set in use
