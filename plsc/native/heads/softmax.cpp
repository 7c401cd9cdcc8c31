// The softmax's forward and backward pass over one shard's classes, block by block. heads/softmax.py explains
// what is computed and why. Each thread takes consecutive blocks. While a block is in the thread's cache, it
// fetches the rows, and computes their lengths, the product with the samples and the exponentials. The
// backward pass computes the gradients with respect to logits, samples and rows. Logits are stored as
// [classes, samples], so that a class's logits are contiguous.
#include "plsc/native/heads/loops_table.h"
#include "plsc/native/heads/tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace {

#include "plsc/native/bfloat16.h"

const float LOWEST = -1e30f;  // as in heads/backends.py: stands for "no other logit"

// Memory that grows as needed and stays with its thread between steps, because fresh pages cost more than the
// work on them.
template <typename T>
class Buffer {
 public:
  ~Buffer() { free(data_); }
  T* at_least(int64_t count) {
    if (count > size_) {
      free(data_);
      data_ = memory<T>(count);
      size_ = count;
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

struct Buffers {
  Buffer<float> rows, logits, saved, factor, gradient, of_rows;
  Buffer<uint16_t> half_rows, half_logits, half_x;
  Buffer<uint32_t> left, right, x, scaled_x;  // operands for AMX
};
thread_local Buffers own;

}  // namespace

// The step's problem. softmax.py has the same structure. K classes in blocks, N samples, width D, P targets.
struct Shard {
  int64_t samples, width, classes, block, targets, bfloat16, amx;  // amx: the processor has it for bfloat16
  const float* x;               // [N, D], times the loss's scale
  const float* rows;            // the bank's rows
  const int64_t* index;         // [K] row numbers that take part; null: the first K
  const float* bias;            // the bank's biases; null: none
  const int64_t* target_class;  // [P], ascending: the sample's own class, 0 to K - 1
  const int64_t* target_sample; // [P]
  float* inverse;               // [K], 1 / length of each row, from forward; null: rows are not normalised
  void* exps;                   // [K, N], from forward to backward, in the products' type; null: they are computed again
  float* max;                   // [blocks, N], from forward
};

namespace {

struct Block {
  const Shard& shard;
  int64_t number, start, count, target;  // target: the block's first target

  Block(const Shard& s, int64_t n) : shard(s), number(n), start(n * s.block), target(0) {
    count = s.classes - start < s.block ? s.classes - start : s.block;
    int64_t high = s.targets;
    while (target < high) {
      const int64_t middle = (target + high) / 2;
      if (s.target_class[middle] < start)
        target = middle + 1;
      else
        high = middle;
    }
  }

  int64_t row(int64_t c) const { return shard.index ? shard.index[start + c] : start + c; }
  float inverse(int64_t c) const { return shard.inverse ? shard.inverse[start + c] : 1.0f; }
  float bias(int64_t c) const { return shard.bias ? shard.bias[row(c)] : 0.0f; }

  const float* rows() const {
    const int64_t width = shard.width;
    if (!shard.index) return shard.rows + start * width;
    float* copied = own.rows.at_least(shard.block * width);
    for (int64_t c = 0; c < count; ++c) memcpy(copied + c * width, shard.rows + row(c) * width, width * sizeof(float));
    return copied;
  }

  // The result stays in the cache, because products that write to distant memory are slow.
  float* logits() const { return own.logits.at_least(shard.block * shard.samples); }

  template <typename T>
  T* exps() const {
    return static_cast<T*>(shard.exps) + start * shard.samples;
  }

  // A product that writes to distant memory is slow. Rows that are transposed anyway are written there in
  // that pass.
  float* near(float* of_rows) const { return shard.inverse ? own.of_rows.at_least(shard.block * shard.width) : of_rows; }

  // Counts the targets from `at` on that belong to class c.
  int64_t targets(int64_t at, int64_t c) const {
    int64_t n = 0;
    while (at + n < shard.targets && shard.target_class[at + n] == start + c) ++n;
    return n;
  }
};

const uint16_t* half(Buffer<uint16_t>& buffer, const float* x, int64_t count) {
  uint16_t* rounded = buffer.at_least(count);
  loops()->to_bfloat16(x, rounded, count);
  return rounded;
}

// The samples, rounded to bfloat16 for oneDNN's products, and packed for AMX. A buffer that is not needed is
// null.
struct Samples {
  const uint16_t *half_x = nullptr, *half_scaled = nullptr;
  const uint32_t *x = nullptr, *scaled_x = nullptr;
};

#ifdef PLSC_AMX
// AMX takes blocks of whole tiles. oneDNN takes the rest.
bool by_amx(const Shard& s) { return s.amx && s.samples % SIDE == 0 && s.width % SIDE == 0; }
bool by_amx(const Block& block) { return by_amx(block.shard) && block.count % SIDE == 0; }
#endif

// scaled_x: null in the forward pass.
Samples samples_of(const Shard& s, const float* scaled_x) {
  Samples of;
  if (!s.bfloat16) return of;
  const int64_t numbers = s.samples * s.width;
#ifdef PLSC_AMX
  if (by_amx(s)) {
    uint32_t* packed = own.x.at_least(numbers / 2);
    pack_turned_right(s.x, s.width, s.samples, packed);
    of.x = packed;
    if (scaled_x) {
      uint32_t* packed_scaled = own.scaled_x.at_least(numbers / 2);
      pack_right(scaled_x, s.samples, s.width, packed_scaled);
      of.scaled_x = packed_scaled;
    }
    if (s.block % SIDE == 0 && s.classes % s.block % SIDE == 0) return of;
  }
#endif
  uint16_t* both = own.half_x.at_least(2 * numbers);
  loops()->to_bfloat16(s.x, both, numbers);
  if (scaled_x) loops()->to_bfloat16(scaled_x, both + numbers, numbers);
  of.half_x = both, of.half_scaled = both + numbers;
  return of;
}

// inverse: receives 1 / length of each row; null: it is known, or not needed.
void similarities(const Block& block, const float* rows, const Samples& of, float* logit, float* inverse) {
  const Shard& s = block.shard;
#ifdef PLSC_AMX
  if (by_amx(block)) {
    uint32_t* left = own.left.at_least(block.count * s.width / 2);
    if (inverse)
      pack_left(rows, block.count, s.width, left, inverse);
    else
      pack_left(rows, block.count, s.width, left);
    return multiply_tiles(block.count, s.samples, s.width, left, of.x, false, logit);
  }
#endif
  if (inverse) loops()->inverse_norms(rows, block.count, s.width, inverse);
  if (s.bfloat16)
    product(false, true, block.count, s.samples, s.width, half(own.half_rows, rows, block.count * s.width), of.half_x,
            0.0f, logit);
  else
    product(false, true, block.count, s.samples, s.width, rows, s.x, 0.0f, logit);
}

// Computes the gradients of the samples, added to of_x [N, D], and of the block's rows, from the gradients of
// the block's logits.
void gradients(const Block& block, const float* rows, const uint16_t* logit, const Samples& of, float* of_x, float* of_rows) {
  const Shard& s = block.shard;
#ifdef PLSC_AMX
  if (by_amx(block)) {
    uint32_t* left = own.left.at_least(block.count * most(s.samples, s.width) / 2);
    uint32_t* right = own.right.at_least(block.count * s.width / 2);
    pack_right(rows, block.count, s.width, right);
    pack_turned_left(logit, s.samples, block.count, left);
    multiply_tiles(s.samples, s.width, block.count, left, right, true, of_x);
    pack_left(logit, block.count, s.samples, left);
    const auto turn = reinterpret_cast<uintptr_t>(of_rows) % 64 ? loops()->turn : turn_past_the_caches;
    for (int64_t c = 0; c < block.count; c += SIDE, rows += SIDE * s.width, of_rows += SIDE * s.width) {
      float* near = s.inverse ? own.of_rows.at_least(SIDE * s.width) : of_rows;
      multiply_tiles(SIDE, s.width, s.samples, left + c * s.samples / 2, of.scaled_x, false, near);
      if (s.inverse) turn(near, rows, s.inverse + block.start + c, SIDE, s.width, of_rows);
    }
    return;
  }
#endif
  const uint16_t* half_rows = half(own.half_rows, rows, block.count * s.width);
  product(true, false, s.samples, s.width, block.count, logit, half_rows, 1.0f, of_x);
  float* near = block.near(of_rows);
  product(false, false, block.count, s.width, s.samples, logit, of.half_scaled, 0.0f, near);
  if (s.inverse) loops()->turn(near, rows, s.inverse + block.start, block.count, s.width, of_rows);
}

void gradients(const Block& block, const float* rows, const float* logit, const float* scaled_x, float* of_x, float* of_rows) {
  const Shard& s = block.shard;
  product(true, false, s.samples, s.width, block.count, logit, rows, 1.0f, of_x);
  float* near = block.near(of_rows);
  product(false, false, block.count, s.width, s.samples, logit, scaled_x, 0.0f, near);
  if (s.inverse) loops()->turn(near, rows, s.inverse + block.start, block.count, s.width, of_rows);
}

// Exponentials of the block's logits minus their maximum. The targets' exponentials are 0, and the maximum
// ignores them.
void forward(const Block& block, const Samples& of, float* sum) {
  const Shard& s = block.shard;
  const float* rows = block.rows();
  float* logit = block.logits();
  float* max = s.max + block.number * s.samples;
  float* saved = own.saved.at_least(s.samples);
  similarities(block, rows, of, logit, s.inverse ? s.inverse + block.start : nullptr);
  for (int64_t n = 0; n < s.samples; ++n) max[n] = LOWEST, sum[n] = 0.0f;
  int64_t at = block.target;
  for (int64_t c = 0; c < block.count; ++c) {
    float* of_class = logit + c * s.samples;
    const int64_t* sample = s.target_sample + at;
    const int64_t targets = block.targets(at, c);
    for (int64_t t = 0; t < targets; ++t) saved[t] = max[sample[t]];
    loops()->scale_and_max(of_class, s.samples, block.inverse(c), block.bias(c), max);
    for (int64_t t = 0; t < targets; ++t) max[sample[t]] = saved[t], of_class[sample[t]] = -INFINITY;
    at += targets;
  }
  if (!s.exps)
    loops()->of_float.exp_and_sum(logit, block.count, s.samples, max, sum, logit);
  else if (s.bfloat16)
    loops()->of_bfloat16.exp_and_sum(logit, block.count, s.samples, max, sum, block.exps<uint16_t>());
  else
    loops()->of_float.exp_and_sum(logit, block.count, s.samples, max, sum, block.exps<float>());
}

// Copies numbers in the products' type: unchanged, or rounded -> to.
const float* in_type(const float* x, int64_t, float*) { return x; }
const uint16_t* in_type(const float* x, int64_t count, uint16_t* to) {
  loops()->to_bfloat16(x, to, count);
  return to;
}

// The gradients of the block's logits, times 1 / length of the class's row -> gradient [classes, N].
// Exponentials that were not kept are computed again.
template <typename T>
void gradient_of_logits(const Block& block, const float* rows, const Samples& of, const float* lse, const float* of_target,
                        float* of_bias, const LoopsOf<T>& loops_of, T* gradient) {
  const Shard& s = block.shard;
  const float* max = s.max + block.number * s.samples;
  float* factor = own.factor.at_least(s.samples);
  for (int64_t n = 0; n < s.samples; ++n) factor[n] = s.exps ? expf(max[n] - lse[n]) : 1.0f;
  const T* exps;
  if (s.exps) {
    exps = block.exps<T>();
  } else {
    float* logit = block.logits();
    similarities(block, rows, of, logit, nullptr);
    for (int64_t c = 0; c < block.count; ++c)
      loops()->exp_of_difference(logit + c * s.samples, s.samples, block.inverse(c), block.bias(c), lse);
    exps = in_type(logit, block.count * s.samples, gradient);
  }
  int64_t at = block.target;
  for (int64_t c = 0; c < block.count; ++c) {
    T* of_class = gradient + c * s.samples;
    const float inverse = block.inverse(c);
    loops_of.multiply(exps + c * s.samples, factor, inverse, s.samples, of_class);
    for (const int64_t end = at + block.targets(at, c); at < end; ++at)
      store(of_target[at] * inverse, of_class + s.target_sample[at]);
    if (of_bias) of_bias[block.start + c] = loops_of.sum_of(of_class, s.samples);
  }
}

}  // namespace

// Computes shard.inverse, max, exps, and sum [blocks, N], the sums of the exponentials, on all threads.
PLSC_API void plsc_softmax_forward(const Shard* shard, float* sum) {
  const Shard& s = *shard;
  const Samples of = samples_of(s, nullptr);
  share((s.classes + s.block - 1) / s.block, [&](int64_t start, int64_t stop) {
#ifdef PLSC_AMX
    const Tiles set_up(by_amx(s));
#endif
    for (int64_t b = start; b < stop; ++b) forward(Block(s, b), of, sum + b * s.samples);
  });
}

// lse [N]: logarithm of the whole denominator. of_target [P]: gradient of the targets' logits. scaled_x [N,
// D]: x times the factors of the rows' gradients. -> of_x [N, D], of_rows [K, D], of_bias [K] (null: none).
PLSC_API void plsc_softmax_backward(const Shard* shard, const float* lse, const float* of_target, const float* scaled_x,
                                    float* of_x, float* of_rows, float* of_bias) {
  const Shard& s = *shard;
  const int64_t numbers = s.samples * s.width, blocks = (s.classes + s.block - 1) / s.block;
  float* parts[MOST_THREADS];
  int64_t team = 0;
  const Samples of = samples_of(s, scaled_x);
  on_threads([&](int64_t thread, int64_t threads) {
    if (thread == 0) team = threads;
    float* part = parts[thread] = own.gradient.at_least(numbers);
    memset(part, 0, numbers * sizeof(float));
#ifdef PLSC_AMX
    const Tiles set_up(by_amx(s));
#endif
    for (int64_t b = blocks * thread / threads; b < blocks * (thread + 1) / threads; ++b) {
      const Block block(s, b);
      const float* rows = block.rows();
      float* of_block = of_rows + block.start * s.width;
      if (s.bfloat16) {
        uint16_t* gradient = own.half_logits.at_least(s.block * s.samples);
        gradient_of_logits(block, rows, of, lse, of_target, of_bias, loops()->of_bfloat16, gradient);
        gradients(block, rows, gradient, of, part, of_block);
      } else {
        float* gradient = block.logits();
        gradient_of_logits(block, rows, of, lse, of_target, of_bias, loops()->of_float, gradient);
        gradients(block, rows, gradient, scaled_x, part, of_block);
      }
    }
  });
  share(numbers, [&](int64_t start, int64_t stop) {
    memcpy(of_x + start, parts[0] + start, (stop - start) * sizeof(float));
    for (int64_t t = 1; t < team; ++t) loops()->add(of_x + start, parts[t] + start, stop - start);
  });
}
