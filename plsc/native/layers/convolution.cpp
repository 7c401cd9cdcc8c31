// Gradient of a convolution by its weights, of pictures [N, H, W, C] in bfloat16, on processors with AVX512-BF16. Its instruction
// adds two products to each of 16 sums: here those of one pixel in two pictures, so that steps over a picture cut no pair. Pictures
// are paired into panels of few channels, a part of them at a time that stays in the processor's cache; oneDNN, which pairs pixels
// of one picture, takes a quarter longer. See backbones/layers/convolution.py.
#include "plsc/native/native.h"

// convolution.py has the same structure.
struct Convolution {
  int64_t samples, height, width, inputs, out_height, out_width, outputs;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
};

#if defined(PLSC_X86) && __GNUC__ >= 10
#include <immintrin.h>

namespace {

const int64_t INPUTS = 8, OUTPUTS = 32;  // channels of a tile, whose sums are half of the registers
const int64_t PACKED = 1 << 20;          // bytes of paired pictures that are worked on at a time, about

// Pixels that follow each other, which one weight multiplies: the numbers of the first ones in a panel of x and of dy.
struct Run {
  int64_t x, dy, count;
};

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a < b ? b : a; }
int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,prefer-vector-width=512")

// Pixels [count, channels] of two pictures, the second null where there is none -> panels [channels / WIDTH] of pairs [count, WIDTH].
template <int WIDTH>
static void pair_up(const uint16_t* one, const uint16_t* other, int64_t count, int64_t channels, int64_t panel,
                    uint32_t* to) {
  const uint32_t both = other ? 0xFFFFFFFFu : 0xFFFFu;
  if (!other) other = one;
  for (int64_t pixel = 0; pixel < count; ++pixel, one += channels, other += channels)
    for (int64_t start = 0; start < channels; start += WIDTH) {
      uint32_t* pairs = to + start / WIDTH * panel + pixel * WIDTH;
#pragma omp simd
      for (int c = 0; c < WIDTH; ++c) pairs[c] = (one[start + c] | (uint32_t)other[start + c] << 16) & both;
    }
}

// Sums over the runs of x times dy -> `to`, a row of OUTPUTS numbers for each input, or added to it unless it is the `first`.
static void multiply(const Run* runs, int64_t count, const uint32_t* x, const uint32_t* dy, int64_t x_step, bool first,
                     float* to, int64_t to_step) {
  __m512 sums[INPUTS][2];
#pragma GCC unroll 8
  for (int i = 0; i < INPUTS; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
  for (int64_t run = 0; run < count; ++run) {
    const uint32_t* from = x + runs[run].x;
    const uint32_t* by = dy + runs[run].dy;
    for (int64_t left = runs[run].count; left > 0; --left, from += x_step, by += OUTPUTS) {
      const __m512bh low = (__m512bh)_mm512_loadu_si512(by);
      const __m512bh high = (__m512bh)_mm512_loadu_si512(by + 16);
#pragma GCC unroll 8
      for (int i = 0; i < INPUTS; ++i) {
        const __m512bh one = (__m512bh)_mm512_set1_epi32((int)from[i]);
        sums[i][0] = _mm512_dpbf16_ps(sums[i][0], low, one);
        sums[i][1] = _mm512_dpbf16_ps(sums[i][1], high, one);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < INPUTS; ++i, to += to_step)
    for (int half = 0; half < 2; ++half) {
      float* at = to + 16 * half;
      _mm512_storeu_ps(at, first ? sums[i][half] : _mm512_add_ps(_mm512_loadu_ps(at), sums[i][half]));
    }
}

// [rows, OUTPUTS] -> [OUTPUTS, rows], rows of which begin `step` numbers apart; `rows` is a multiple of 8.
static void turn(const float* from, int64_t rows, float* to, int64_t step) {
  const __m256i column = _mm256_mullo_epi32(_mm256_set1_epi32(OUTPUTS), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (int64_t row = 0; row < rows; row += 8)
    for (int64_t o = 0; o < OUTPUTS; ++o)
      _mm256_storeu_ps(to + o * step + row, _mm256_i32gather_ps(from + row * OUTPUTS + o, column, 4));
}
#pragma GCC pop_options

void weight_gradient(const Convolution& c, const uint16_t* x, const uint16_t* dy, float* dw) {
  const int64_t taps = c.kernel[0] * c.kernel[1], of_tile = taps * INPUTS * OUTPUTS;
  const int64_t across = c.inputs / INPUTS, tiles = across * (c.outputs / OUTPUTS);
  // A part: `rows` rows of the result in each of `many` pairs of pictures.
  const int64_t pairs = parts_of(c.samples, 2);
  const int64_t fit = most(1, PACKED / (4 * (c.stride[0] * c.width * c.inputs + c.out_width * c.outputs)));
  const int64_t many = least(pairs, most(1, fit / c.out_height));
  const int64_t rows = parts_of(c.out_height, parts_of(c.out_height, least(fit, c.out_height)));
  const bool one_part = many == pairs && rows == c.out_height;
  const int64_t most_x_rows = least(c.height, (rows - 1) * c.stride[0] + (c.kernel[0] - 1) * c.dilation[0] + 1);
  uint32_t* x_pairs = memory<uint32_t>(many * most_x_rows * c.width * c.inputs);
  uint32_t* dy_pairs = memory<uint32_t>(many * rows * c.out_width * c.outputs);
  float* sums = one_part ? nullptr : memory<float>(tiles * of_tile);
  Run* runs = memory<Run>(taps * many * rows);
  int64_t* counts = memory<int64_t>(taps);
  for (int64_t pair = 0; pair < pairs; pair += many)
    for (int64_t row = 0; row < c.out_height; row += rows) {
      const int64_t pairs_here = least(many, pairs - pair), rows_here = least(rows, c.out_height - row);
      const int64_t top = row * c.stride[0] - c.padding[0];
      const int64_t x_first = least(c.height, most(0, top));
      const int64_t x_end = most(x_first, least(c.height, top + (rows_here - 1) * c.stride[0] + (c.kernel[0] - 1) * c.dilation[0] + 1));
      const int64_t x_rows = x_end - x_first, x_panel = pairs_here * x_rows * c.width * INPUTS;
      const int64_t dy_panel = pairs_here * rows_here * c.out_width * OUTPUTS;
      share(pairs_here * (x_rows + rows_here), [&](int64_t start, int64_t stop) {
        for (int64_t job = start; job < stop; ++job) {
          const int64_t p = job / (x_rows + rows_here), r = job % (x_rows + rows_here), sample = 2 * (pair + p);
          const bool of_x = r < x_rows;
          const int64_t height = of_x ? c.height : c.out_height, width = of_x ? c.width : c.out_width;
          const int64_t channels = of_x ? c.inputs : c.outputs, at = of_x ? x_first + r : row + r - x_rows;
          const uint16_t* one = (of_x ? x : dy) + (sample * height + at) * width * channels;
          const uint16_t* other = sample + 1 < c.samples ? one + height * width * channels : nullptr;
          if (of_x)
            pair_up<INPUTS>(one, other, width, channels, x_panel, x_pairs + (p * x_rows + r) * width * INPUTS);
          else
            pair_up<OUTPUTS>(one, other, width, channels, dy_panel,
                             dy_pairs + (p * rows_here + r - x_rows) * width * OUTPUTS);
        }
      });
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t down = tap / c.kernel[1] * c.dilation[0] - c.padding[0];
        const int64_t right = tap % c.kernel[1] * c.dilation[1] - c.padding[1];
        const int64_t first = right < 0 ? parts_of(-right, c.stride[1]) : 0;
        const int64_t end = right < c.width ? least(c.out_width, (c.width - 1 - right) / c.stride[1] + 1) : 0;
        counts[tap] = 0;
        for (int64_t p = 0; p < pairs_here; ++p)
          for (int64_t r = 0; r < rows_here; ++r) {
            const int64_t y = (row + r) * c.stride[0] + down;
            if (y < 0 || y >= c.height || first >= end) continue;
            runs[tap * many * rows + counts[tap]++] = {
                ((p * x_rows + y - x_first) * c.width + first * c.stride[1] + right) * INPUTS,
                ((p * rows_here + r) * c.out_width + first) * OUTPUTS, end - first};
          }
      }
      const bool is_first = pair == 0 && row == 0, is_last = pair + many >= pairs && row + rows >= c.out_height;
      share(tiles, [&](int64_t start, int64_t stop) {
        float* own = one_part ? memory<float>(of_tile) : nullptr;
        for (int64_t tile = start; tile < stop; ++tile) {
          const int64_t o = tile / across, i = tile % across;
          float* to = one_part ? own : sums + tile * of_tile;
          for (int64_t tap = 0; tap < taps; ++tap)
            multiply(runs + tap * many * rows, counts[tap], x_pairs + i * x_panel, dy_pairs + o * dy_panel,
                     c.stride[1] * INPUTS, is_first, to + tap * OUTPUTS, taps * OUTPUTS);
          if (is_last) turn(to, INPUTS * taps, dw + (o * OUTPUTS * c.inputs + i * INPUTS) * taps, c.inputs * taps);
        }
        free(own);
      });
    }
  free(counts);
  free(runs);
  free(sums);
  free(dy_pairs);
  free(x_pairs);
}

}  // namespace
#endif

// x [samples, height, width, inputs] and the result's gradient dy [samples, out_height, out_width, outputs], bfloat16 -> dw
// [outputs, inputs, kernel]. Returns 0, and does nothing, where the processor or the sizes are not for it.
PLSC_API int plsc_weight_gradient(const Convolution* shape, const uint16_t* x, const uint16_t* dy, float* dw) {
#if defined(PLSC_X86) && __GNUC__ >= 10
  const Convolution& c = *shape;
  const bool skips = c.kernel[0] < c.stride[0] || c.kernel[1] < c.stride[1];  // most of what is paired would be of no use
  if (instructions < 2 || !__builtin_cpu_supports("avx512bf16") || c.inputs % INPUTS || c.outputs % OUTPUTS || skips)
    return 0;
  weight_gradient(c, x, dy, dw);
  return 1;
#else
  return 0;
#endif
}
