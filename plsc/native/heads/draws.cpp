// Draws any rows of a matrix of normal numbers, without the rows before them. They are the numbers that
// numpy's Generator(PCG64).standard_normal draws one after the other in float32. See draws.py.
#include "plsc/native/native.h"

#include <math.h>

#include <atomic>
#include <vector>

namespace {

#include "plsc/native/bfloat16.h"

typedef unsigned __int128 uint128;
const uint128 MULTIPLIER = ((uint128)0x2360ED051FC65DA4 << 64) + 0x4385DF649FCCF645;

// Generates the 32-bit words of a PCG64 (O'Neill, "PCG", 2014: XSL RR 128/64). Each 64-bit output gives its
// low half first.
class Words {
 public:
  // from: state and increment as numpy shows them, low half first. start: how many words to skip.
  Words(const uint64_t* from, int64_t start) {
    state_ = ((uint128)from[1] << 64) + from[0];
    increment_ = ((uint128)from[3] << 64) + from[2];
    jump(start / 2);
    first_ = start & ~(int64_t)1;
    fill();
    at_ = start & 1;
  }

  uint32_t next() {
    if (at_ == SIZE) first_ += SIZE, fill();
    return words_[at_++];
  }

  int64_t taken() const { return first_ + at_; }

 private:
  static const int64_t SIZE = 256, LANES = 4;

  // Combines so many steps into one by squaring (Brown, "Random number generation with arbitrary strides",
  // 1994).
  void jump(int64_t steps) {
    uint128 factor = 1, sum = 0, power = MULTIPLIER, part = increment_;
    for (; steps; steps >>= 1) {
      if (steps & 1) factor *= power, sum = sum * power + part;
      part *= power + 1;
      power *= power;
    }
    state_ = state_ * factor + sum;
  }

  // A step waits for the step before it. Several streams, far apart, therefore run side by side.
  void fill() {
    uint128 lane[LANES], factor = 1, sum = 0;
    for (int64_t l = 0; l < LANES; ++l) {
      lane[l] = state_ = state_ * MULTIPLIER + increment_;
      factor *= MULTIPLIER;
      sum = sum * MULTIPLIER + increment_;
    }
    for (int64_t i = 0; i < SIZE; i += 2 * LANES)
      for (int64_t l = 0; l < LANES; ++l) {
        state_ = lane[l];
        const uint64_t high = state_ >> 64, mixed = high ^ (uint64_t)state_;
        const int turn = high >> 58;
        const uint64_t both = mixed >> turn | mixed << (-turn & 63);
        words_[i + 2 * l] = both, words_[i + 2 * l + 1] = both >> 32;
        lane[l] = lane[l] * factor + sum;
      }
    at_ = 0;
  }

  uint128 state_, increment_;
  int64_t first_, at_;
  uint32_t words_[SIZE];
};

// The ziggurat (Marsaglia and Tsang 2000, "The ziggurat method for generating random variables") with 256
// layers of equal area, for 23 random bits. Layer 0 has the tail, and layer 1 is the top.
struct Ziggurat {
  const double right = 3.6541528853610087963519472518, area = 0.0049286732339721695;
  uint32_t inside[256];  // a number below this lies under the layer above, so the curve is not computed
  float width[256];      // a layer's width over 2^23
  float height[256];     // the curve's height at the layer's right end
  const float sign[2] = {1.0f, -1.0f};

  Ziggurat() {
    const double bits = 1 << 23;
    double x = right;
    inside[0] = lround(x * x_height(x) / area * bits);
    inside[1] = 0;
    width[0] = area / x_height(x) / bits;
    width[255] = x / bits;
    height[0] = 1.0f;
    height[255] = x_height(x);
    for (int i = 254; i >= 1; --i) {
      const double below = x;
      x = sqrt(-2.0 * log(area / below + x_height(below)));
      inside[i + 1] = lround(x / below * bits);
      width[i] = x / bits;
      height[i] = x_height(x);
    }
  }

  static double x_height(double x) { return exp(-0.5 * x * x); }

  static float uniform(Words& words) { return (words.next() >> 8) * (1.0f / 16777216.0f); }

  // 99 of 100 numbers take one word.
  inline float normal(Words& words) const {
    const uint32_t word = words.next();
    return (word >> 9) < inside[word & 255] ? number_of(word) : with_more_words(words, word);
  }

  // Computes a word's number, without an unpredictable branch.
  inline float number_of(uint32_t word) const {
    return (int32_t)(word >> 9) * width[word & 255] * sign[word >> 8 & 1];
  }

  __attribute__((noinline)) float with_more_words(Words& words, uint32_t word) const {
    for (;;) {
      const uint32_t layer = word & 255, bits = word >> 9;
      const float x = number_of(word);
      if (bits < inside[layer]) return x;
      if (layer == 0) return tail(words, bits & 256);
      const float y = (height[layer - 1] - height[layer]) * uniform(words) + height[layer];
      if (y < x_height(x)) return x;
      word = words.next();
    }
  }

  float tail(Words& words, bool negative) const {
    for (;;) {
      const float more = -(float)(1.0 / right) * log1pf(-uniform(words)), limit = -log1pf(-uniform(words));
      if (limit + limit > more * more) return negative ? -((float)right + more) : (float)right + more;
    }
  }
};

static const Ziggurat ziggurat;

// Writes a row's numbers times `std`. Rounding a whole row at once is faster than rounding each number when it is
// drawn.
template <class Number>
FOR_EACH_PROCESSOR void store_row(const float* numbers, int64_t width, float std, Number* out) {
  for (int64_t c = 0; c < width; ++c) store(numbers[c] * std, out + c);
}

// Draws rows of one block, see plsc_draw_rows. If the block's marks are unknown, its whole stream is drawn.
template <class Number>
void draw_block(const uint64_t* state, uint32_t* marks, int64_t block, int64_t apart, int64_t width,
                const int64_t* rows, int64_t count, float std, Number* out) {
  const bool known = marks[0];
  std::vector<float> numbers(width);
  int64_t at = known ? rows[0] % block / apart * apart : 0;  // the row whose words come next
  Words words(state, at ? marks[at / apart] : 0);
  const auto skip_to = [&](int64_t row) {
    for (; at < row; ++at) {
      if (!known && at % apart == 0) marks[at / apart] = words.taken();
      for (int64_t c = 0; c < width; ++c) ziggurat.normal(words);
    }
    if (!known && at < block && at % apart == 0) marks[at / apart] = words.taken();
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i] % block, nearest = row - row % apart;
    if (known && nearest > at) words = Words(state, marks[nearest / apart]), at = nearest;
    skip_to(row);
    for (int64_t c = 0; c < width; ++c) numbers[c] = ziggurat.normal(words);
    store_row(numbers.data(), width, std, out + i * width);
    ++at;
  }
  if (!known) skip_to(block), marks[0] = 1;
}

template <class Number>
void draw_rows(const uint64_t* states, uint32_t* marks, int64_t block, int64_t apart, int64_t width, const int64_t* rows,
               int64_t count, float std, Number* out) {
  std::vector<int64_t> first;  // of each block's rows
  for (int64_t i = 0; i < count; ++i)
    if (i == 0 || rows[i] / block != rows[i - 1] / block) first.push_back(i);
  first.push_back(count);
  const int64_t groups = first.size() - 1;
  // The numbers do not depend on the thread that draws a block. A thread that is interrupted draws fewer blocks.
  std::atomic<int64_t> next{0};
  on_threads([&](int64_t, int64_t) {
    for (int64_t g = next++; g < groups; g = next++) {
      const int64_t from = first[g], number = rows[from] / block;
      draw_block(states + number * 4, marks + number * (block / apart), block, apart, width, rows + from,
                 first[g + 1] - from, std, out + from * width);
    }
  });
}

}  // namespace

// Draws `rows` of a matrix with `width` columns, times `std` -> `out` [count, width], float32, or bfloat16 if
// `half`. The rows ascend. Each `block` of rows has a stream, which starts with `states` [blocks, 4]. `marks`
// [blocks, block / apart] counts the words before a block's rows 0, apart, 2 apart ... The first mark is 0
// until the marks are known, and then 1.
PLSC_API void plsc_draw_rows(const uint64_t* states, uint32_t* marks, int64_t block, int64_t apart, int64_t width,
                             const int64_t* rows, int64_t count, float std, int half, void* out) {
  if (half)
    draw_rows(states, marks, block, apart, width, rows, count, std, (uint16_t*)out);
  else
    draw_rows(states, marks, block, apart, width, rows, count, std, (float*)out);
}
