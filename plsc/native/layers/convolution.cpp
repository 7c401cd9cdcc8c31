// A convolution's gradient with respect to its weights, for pictures [N, H, W, C] in bfloat16, on processors
// with AMX or AVX512-BF16. Their instructions add two products to each sum. Here the two products belong to
// one pixel in two pictures, so that no pair is cut when a stride skips pixels. Pictures are paired with a
// rim of zeros, and dy is transposed. Both are done for so many pictures at a time as fit the processor's
// cache. oneDNN pairs the pixels within a picture and takes longer. See backbones/layers/convolution.py.
#include "plsc/native/amx.h"

#include <string.h>

// convolution.py has the same structure.
struct Convolution {
  int64_t samples, height, width, inputs, out_height, out_width, outputs;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
};

#ifdef PLSC_AMX
namespace {

const int64_t BLOCK = 16;        // pixels, and channels of dy, that are transposed at once
const int64_t AT_ONCE = 8;       // blocks that are multiplied by all taps before the next
const int64_t PACKED = 1 << 20;  // approximate bytes of paired pictures that are worked on at a time

int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Places of the pixels that a tap multiplies, in picture pairs: `lines` lines of `used` pixels, which fill
// `blocks` blocks of dy.
struct Lines {
  int64_t pairs, lines, used, blocks;
  int64_t x_pair, x_line, x_step;  // distances from one to the next, in pixels within a panel of x

  int64_t pixel_of(int64_t block) const {
    const int64_t line = block / blocks;
    return line / lines * x_pair + line % lines * x_line + block % blocks * BLOCK * x_step;
  }
};

PLSC_AMX_BEGIN

// Pairs sixteen numbers at the same place in two pictures. The second is null if only one picture is left.
static inline __m512i pair_of(const uint16_t* one, const uint16_t* other) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)one));
  if (!other) return low;
  return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)other)), 16));
}

// Pairs a row of pixels [width, channels] in two pictures -> panels [channels / SIDE] of pairs, `panel`
// numbers apart.
static void pair_x(const uint16_t* one, const uint16_t* other, int64_t width, int64_t channels, int64_t panel,
                   uint32_t* to) {
  for (int64_t pixel = 0; pixel < width; ++pixel, one += channels, other += other ? channels : 0)
    for (int64_t c = 0; c < channels; c += 16)
      _mm512_store_si512(to + c / SIDE * panel + pixel * SIDE + c % SIDE, pair_of(one + c, other ? other + c : other));
}

// Sixteen channels of two pictures' pixels at these places (-1: zeros) -> [channels, pixels].
static void pair_dy(const uint16_t* one, const uint16_t* other, const int64_t at[16], uint32_t* to) {
  __m512i rows[16];
  for (int64_t i = 0; i < 16; ++i)
    rows[i] = at[i] < 0 ? _mm512_setzero_si512() : pair_of(one + at[i], other ? other + at[i] : other);
  turn(rows);
  for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(to + i * 16, rows[i]);
}

// Sums of dy [channels, pixels] times x [pixels, channels] -> `to`, [SIDE, SIDE] with rows `step` apart. They
// are added to `to` unless `first`.
static void multiply(const Lines& all, int64_t start, int64_t stop, const uint32_t* dy, int64_t dy_next, const uint32_t* x,
                     bool first, float* to, int64_t step) {
  for (int64_t rows = 0; rows < SIDE; rows += 8) {
    const uint32_t* by = dy + rows / BLOCK * dy_next + rows % BLOCK * BLOCK;
    float* place = to + rows * step;
    __m512 sums[8][2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      sums[i][0] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(place + i * step);
      sums[i][1] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(place + i * step + 16);
    }
    for (int64_t block = start; block < stop; ++block) {
      const uint32_t* from = x + all.pixel_of(block) * SIDE;
      const int64_t left = all.used - block % all.blocks * BLOCK;
      for (int64_t k = 0; k < least(BLOCK, left); ++k, from += all.x_step * SIDE) {
        const __m512bh low = (__m512bh)_mm512_loadu_si512(from);
        const __m512bh high = (__m512bh)_mm512_loadu_si512(from + 16);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          const __m512bh one = (__m512bh)_mm512_set1_epi32((int)by[block * BLOCK * BLOCK + i * BLOCK + k]);
          sums[i][0] = _mm512_dpbf16_ps(sums[i][0], low, one);
          sums[i][1] = _mm512_dpbf16_ps(sums[i][1], high, one);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      _mm512_storeu_ps(place + i * step, sums[i][0]);
      _mm512_storeu_ps(place + i * step + 16, sums[i][1]);
    }
  }
}

// The same by AMX, with the tiles that `Tiles` has configured.
static void multiply_tiles(const Lines& all, int64_t start, int64_t stop, const uint32_t* dy, int64_t dy_next,
                           const uint32_t* x, bool first, float* to, int64_t step) {
  begin_sums(first, to, step);
  for (int64_t block = start; block < stop; ++block) {
    const uint32_t* by = dy + block * BLOCK * BLOCK;
    add_products(by, by + dy_next, x + all.pixel_of(block) * SIDE, all.x_step * SIDE * sizeof(uint32_t));
  }
  end_sums(to, step);
}

// A tile's sums [outputs, taps, inputs] -> [outputs, inputs, taps], whose rows are `step` apart.
static void put(const float* sums, int64_t taps, float* dw, int64_t step) {
  for (int64_t o = 0; o < SIDE; ++o, dw += step)
    for (int64_t tap = 0; tap < taps; tap += 16)
      for (int64_t i = 0; i < SIDE; i += 16) {
        const float* from = sums + (o * taps + tap) * SIDE + i;
        if (taps == 1) {
          _mm512_storeu_ps(dw + i, _mm512_loadu_ps(from));
          continue;
        }
        const int64_t count = least(16, taps - tap);
        __m512i rows[16];
        for (int64_t r = 0; r < 16; ++r) rows[r] = r < count ? _mm512_loadu_si512(from + r * SIDE) : _mm512_setzero_si512();
        turn(rows);
        for (int64_t r = 0; r < 16; ++r) _mm512_mask_storeu_epi32(dw + (i + r) * taps + tap, (1u << count) - 1, rows[r]);
      }
}
PLSC_AMX_END

void weight_gradient(const Convolution& c, bool amx, const uint16_t* x, const uint16_t* dy, float* dw) {
  const int64_t taps = c.kernel[0] * c.kernel[1], of_tile = taps * SIDE * SIDE;
  const int64_t across = c.inputs / SIDE, tiles = across * (c.outputs / SIDE);
  const int64_t pitch = c.width + 2 * c.padding[1];  // a row of x with its rim
  // With AMX, blocks of 16 pixels extend beyond a row's end into the rim, where dy is zero.
  const bool through = amx && c.stride[0] == 1 && c.stride[1] == 1;
  // A part: `rows` rows of the result for each of `many` picture pairs.
  const int64_t pairs = parts_of(c.samples, 2);
  const int64_t fit = most(1, PACKED / (4 * (c.stride[0] * pitch * c.inputs + c.out_width * c.outputs)));
  const int64_t many = least(pairs, most(1, fit / c.out_height));
  const int64_t rows = parts_of(c.out_height, parts_of(c.out_height, least(fit, c.out_height)));
  const bool one_part = many == pairs && rows == c.out_height;
  const int64_t down = (c.kernel[0] - 1) * c.dilation[0], right = (c.kernel[1] - 1) * c.dilation[1];
  Lines part = {many, through ? 1 : rows, through ? (rows - 1) * pitch + c.out_width : c.out_width};
  part.blocks = parts_of(part.used, BLOCK);
  part.x_line = c.stride[0] * pitch;
  part.x_step = c.stride[1];
  const int64_t x_rows = (rows - 1) * c.stride[0] + down + 1;
  const int64_t past = (part.lines - 1) * part.x_line + down * pitch + right + (part.blocks * BLOCK - 1) * part.x_step + 1;
  part.x_pair = most(x_rows * pitch, past);
  const int64_t x_panel = many * part.x_pair * SIDE, dy_panel = many * part.lines * part.blocks * BLOCK * BLOCK;
  uint32_t* x_pairs = memory<uint32_t>(across * x_panel);
  uint32_t* dy_pairs = memory<uint32_t>(c.outputs / BLOCK * dy_panel);
  float* sums = one_part ? nullptr : memory<float>(tiles * of_tile);
  for (int64_t pair = 0; pair < pairs; pair += many)
    for (int64_t row = 0; row < c.out_height; row += rows) {
      const int64_t pairs_here = least(many, pairs - pair), rows_here = least(rows, c.out_height - row);
      Lines here = part;
      here.pairs = pairs_here;
      // Makes the pairs of x. A job is one row of a picture and its part of the rim.
      share(pairs_here * x_rows, [&](int64_t start, int64_t stop) {
        for (int64_t job = start; job < stop; ++job) {
          const int64_t p = job / x_rows, r = job % x_rows, sample = 2 * (pair + p);
          const int64_t at = row * c.stride[0] - c.padding[0] + r;
          const bool inside = at >= 0 && at < c.height;
          uint32_t* to = x_pairs + (p * part.x_pair + r * pitch) * SIDE;
          const int64_t end = r + 1 < x_rows ? pitch : part.x_pair - r * pitch;
          for (int64_t i = 0; i < across; ++i) {
            uint32_t* panel = to + i * x_panel;
            const int64_t left = inside ? c.padding[1] : 0, after = inside ? left + c.width : 0;
            memset(panel, 0, left * SIDE * 4);
            memset(panel + after * SIDE, 0, (end - after) * SIDE * 4);
          }
          if (!inside) continue;
          const uint16_t* one = x + (sample * c.height + at) * c.width * c.inputs;
          const uint16_t* other = sample + 1 < c.samples ? one + c.height * c.width * c.inputs : nullptr;
          pair_x(one, other, c.width, c.inputs, x_panel, to + c.padding[1] * SIDE);
        }
      });
      // Transposes dy's pairs. A job is a line of sixteen channels.
      const int64_t groups = c.outputs / BLOCK, lines = pairs_here * part.lines;
      share(groups * lines, [&](int64_t start, int64_t stop) {
        for (int64_t job = start; job < stop; ++job) {
          const int64_t line = job / groups, group = job % groups, sample = 2 * (pair + line / part.lines);
          const uint16_t* one = dy + sample * c.out_height * c.out_width * c.outputs + group * BLOCK;
          const uint16_t* other = sample + 1 < c.samples ? one + c.out_height * c.out_width * c.outputs : nullptr;
          uint32_t* to = dy_pairs + group * dy_panel + line * part.blocks * BLOCK * BLOCK;
          int64_t at[16], r = through ? 0 : line % part.lines, column = 0;
          for (int64_t block = 0; block < part.blocks; ++block, to += BLOCK * BLOCK) {
            for (int64_t k = 0; k < BLOCK; ++k, ++column) {
              if (through && column == pitch) ++r, column = 0;
              at[k] = r < rows_here && column < c.out_width ? ((row + r) * c.out_width + column) * c.outputs : -1;
            }
            pair_dy(one, other, at, to);
          }
        }
      });
      const bool is_first = pair == 0 && row == 0, is_last = pair + many >= pairs && row + rows >= c.out_height;
      // A job is a tile's products with a row of taps. If there is only one part, it is all products of a
      // tile, whose sums stay in the cache.
      const int64_t jobs = one_part ? 1 : c.kernel[0], taps_of_job = taps / jobs, blocks = pairs_here * part.lines * part.blocks;
      share(tiles * jobs, [&](int64_t start, int64_t stop) {
        const Tiles set_up(amx);
        float* own = one_part ? memory<float>(of_tile) : nullptr;
        for (int64_t job = start; job < stop; ++job) {
          const int64_t tile = job / jobs, o = tile / across, i = tile % across, first_tap = job % jobs * taps_of_job;
          const uint32_t* by = dy_pairs + o * (SIDE / BLOCK) * dy_panel;
          float* to = one_part ? own : sums + tile * of_tile;
          for (int64_t block = 0; block < blocks; block += AT_ONCE)
            for (int64_t tap = first_tap; tap < first_tap + taps_of_job; ++tap) {
              const int64_t shift = tap / c.kernel[1] * c.dilation[0] * pitch + tap % c.kernel[1] * c.dilation[1];
              (amx ? multiply_tiles : multiply)(here, block, least(blocks, block + AT_ONCE), by, dy_panel,
                                                x_pairs + i * x_panel + shift * SIDE, is_first && block == 0,
                                                to + tap * SIDE, taps * SIDE);
            }
          if (one_part) put(own, taps, dw + (o * SIDE * c.inputs + i * SIDE) * taps, c.inputs * taps);
        }
        free(own);
      });
      if (is_last && !one_part)
        share(tiles, [&](int64_t start, int64_t stop) {
          for (int64_t tile = start; tile < stop; ++tile)
            put(sums + tile * of_tile, taps, dw + (tile / across * SIDE * c.inputs + tile % across * SIDE) * taps, c.inputs * taps);
        });
    }
  free(sums);
  free(dy_pairs);
  free(x_pairs);
}

}  // namespace
#endif

// x [samples, height, width, inputs] and the result's gradient dy [samples, out_height, out_width, outputs],
// bfloat16 -> dw [outputs, inputs, kernel]. amx: the processor has AMX, and the system lets this program use
// it. Returns 0 and does nothing if the processor or the sizes do not fit.
PLSC_API int plsc_weight_gradient(const Convolution* shape, int amx, const uint16_t* x, const uint16_t* dy, float* dw) {
#ifdef PLSC_AMX
  const Convolution& c = *shape;
  const bool skips = c.kernel[0] < c.stride[0] || c.kernel[1] < c.stride[1];  // most pairs would be unused
  if (instructions < 2 || !__builtin_cpu_supports("avx512bf16") || c.inputs % SIDE || c.outputs % SIDE || skips) return 0;
  weight_gradient(c, amx, x, dy, dw);
  return 1;
#else
  return 0;
#endif
}
