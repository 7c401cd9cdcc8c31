// Loops of scan.cpp for one instruction set, included for each. Before it: LANES, the numbers of 32 bits in a vector, `Ints`, a
// vector of them, and the functions called here that this file does not define.

// Products of a row with VECTORS vectors of queries: those that reach a limit are found.
template <int VECTORS>
static inline void compare(const Scan& scan, int64_t row, int64_t query, const int32_t* products, Found& found) {
  const float scale = scan.scales[row];
#pragma GCC unroll 4
  for (int v = 0; v < VECTORS; ++v) {
    const int64_t first = query + v * LANES;
    uint32_t above =
        reach(load(products + v * LANES), scale, scan.errors[row], scan.ratios + first, scan.limits + first);
    for (; above; above &= above - 1) {
      const int lane = __builtin_ctz(above);
      found.query[found.count] = (int32_t)(first + lane);
      found.row[found.count] = (int32_t)row;
      found.value[found.count++] = (float)products[v * LANES + lane] * scale;
    }
  }
}

// ROWS rows from `row` on with VECTORS vectors of queries from `query` on.
template <int ROWS, int VECTORS>
static void tile(const Scan& scan, int64_t row, int64_t query, Found& found) {
  Ints sums[ROWS][VECTORS];
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) sums[r][v] = load(scan.start + query + v * LANES);
  }
  const uint8_t* codes = scan.codes + row * scan.width;
  const int8_t* queries = scan.queries + 4 * query;
  if (query == 0)  // the next rows: ROWS of them read side by side are more than the processor foresees
    for (int64_t ahead = 0; ahead < ROWS * scan.width; ahead += 64) __builtin_prefetch(codes + ROWS * scan.width + ahead);
  for (int64_t k = 0; k < scan.width; k += 4, queries += 4 * scan.count) {
    Ints of_queries[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) of_queries[v] = load(queries + v * 4 * LANES);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) {
      int32_t four;
      __builtin_memcpy(&four, codes + r * scan.width + k, 4);
      const Ints of_row = everywhere(four);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = add_products(sums[r][v], of_row, of_queries[v]);
    }
  }
  alignas(64) int32_t stored[ROWS][VECTORS * LANES];
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) store(stored[r] + v * LANES, sums[r][v]);
  }
  for (int r = 0; r < ROWS; ++r) compare<VECTORS>(scan, row + r, query, stored[r], found);
}

// One query with rows as they lie in memory, which takes as long as reading them.
static int64_t rows_of_one(const Scan& scan, int64_t row, int64_t stop, Found& found) {
  for (; row < stop && found.count < found.most; ++row) {
    const uint8_t* codes = scan.codes + row * scan.width;
    Ints sums = everywhere(0);
    for (int64_t k = 0; k < scan.width; k += 4 * LANES) sums = add_products(sums, load(codes + k), load(scan.queries + k));
    const float value = (float)(scan.start[0] + total(sums)) * scan.scales[row];
    if (scan.errors[row] * scan.ratios[0] + value >= scan.limits[0]) {
      found.query[found.count] = 0;
      found.row[found.count] = (int32_t)row;
      found.value[found.count++] = value;
    }
  }
  return row;
}

// All queries with ROWS rows.
template <int ROWS, int VECTORS>
static void tiles(const Scan& scan, int64_t row, Found& found) {
  int64_t query = 0;
  for (; query + VECTORS * LANES <= scan.count; query += VECTORS * LANES) tile<ROWS, VECTORS>(scan, row, query, found);
  for (; query < scan.count; query += LANES) tile<ROWS, 1>(scan, row, query, found);
}

template <int ROWS, int VECTORS>
static int64_t rows(const Scan& scan, int64_t row, int64_t stop, Found& found) {
  for (; row + ROWS <= stop && found.count + ROWS * scan.count <= found.most; row += ROWS)
    tiles<ROWS, VECTORS>(scan, row, found);
  if (row + ROWS > stop)
    for (; row < stop && found.count + scan.count <= found.most; ++row) tiles<1, VECTORS>(scan, row, found);
  return row;
}

// Rows as codes; see plsc_quantise. Sums are doubles.
static double quantise(const float* rows, int64_t count, int64_t width, int64_t padded, uint8_t* codes, float* scales,
                       float* errors) {
  double longest = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const float* x = rows + i * width;
    uint8_t* code = codes + i * padded;
    float most = 0.0f;
#pragma omp simd reduction(max : most)
    for (int64_t k = 0; k < width; ++k) most = __builtin_fabsf(x[k]) > most ? __builtin_fabsf(x[k]) : most;
    const float scale = most > 1e-30f ? most / 127.0f : 0.0f;
    const float inverse = most > 1e-30f ? 127.0f / most : 0.0f;
    double square = 0.0, rest = 0.0;
#pragma omp simd reduction(+ : square, rest)
    for (int64_t k = 0; k < width; ++k) {
      float step = __builtin_rintf(x[k] * inverse);
      step = step > 127.0f ? 127.0f : step < -127.0f ? -127.0f : step;
      code[k] = (uint8_t)((int32_t)step + 128);
      const double error = (double)x[k] - (double)scale * (double)step;
      square += (double)x[k] * (double)x[k];
      rest += error * error;
    }
    for (int64_t k = width; k < padded; ++k) code[k] = 128;
    scales[i] = scale;
    errors[i] = (float)(__builtin_sqrt(rest) * (1.0 + 0x1p-22) + 1e-30);
    if (square > longest) longest = square;
  }
  return __builtin_sqrt(longest) * (1.0 + 0x1p-22) + 1e-30;
}
