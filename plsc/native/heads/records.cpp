// Reads, writes, packs and unpacks a bank's stored rows (records) in a file or as bfloat16
// (plsc/heads/banks/offloaded.py). They use one thread, because the backbone's matrix products use the
// others.
#include "plsc/native/native.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

const int64_t ahead = 512;  // records or runs that are announced to the system before they are read

// The low and the high half of random[c] decide about x[c] and x[c + half]. rounding_keys in records.py makes
// these numbers.
FOR_EACH_PROCESSOR void round_row(const float* x, int64_t width, uint32_t key, uint16_t* out) {
  const int64_t half = (width + 1) / 2;
  for (int64_t c = 0; c < half; ++c) {
    uint32_t r = key + (uint32_t)c * 0x9E3779B9u;
    r = (r ^ (r >> 16)) * 0x7FEB352Du;
    r = (r ^ (r >> 15)) * 0x846CA68Bu;
    r ^= r >> 16;
    const uint32_t low = bits_of(x[c]), high = c + half < width ? bits_of(x[c + half]) : 0;
    const bool low_nan = (low & 0x7FFFFFFFu) > 0x7F800000u, high_nan = (high & 0x7FFFFFFFu) > 0x7F800000u;
    out[c] = low_nan ? 0x7FC0 : (uint16_t)((low + (r & 0xFFFFu)) >> 16);
    const uint16_t second = high_nan ? 0x7FC0 : (uint16_t)((high + (r >> 16)) >> 16);
    if (c + half < width) out[c + half] = second;
  }
}

FOR_EACH_PROCESSOR void widen(const uint16_t* x, int64_t width, float* out) {
  for (int64_t c = 0; c < width; ++c) {
    const uint32_t bits = (uint32_t)x[c] << 16;
    memcpy(out + c, &bits, sizeof bits);
  }
}

// Counts how many numbers from rows[0] on are consecutive.
inline int64_t run_of(const int64_t* rows, int64_t count) {
  int64_t run = 1;
  while (run < count && rows[run] == rows[0] + run) ++run;
  return run;
}

}  // namespace

// Reads the file's records `rows`, each `bytes` long -> `out`. Returns 0, an errno, or -1 if the file ends
// too early.
PLSC_API int plsc_read_records(int file, const int64_t* rows, int64_t count, int64_t bytes, char* out) {
  int64_t announced = 0;
  for (int64_t i = 0, run; i < count; i += run) {
    run = run_of(rows + i, count - i);
    for (int64_t length; announced < count && announced < i + ahead; announced += length) {
      length = run_of(rows + announced, count - announced);
      posix_fadvise(file, rows[announced] * bytes, length * bytes, POSIX_FADV_WILLNEED);
    }
    for (int64_t done = 0; done < run * bytes;) {
      const ssize_t got = pread(file, out + i * bytes + done, run * bytes - done, rows[i] * bytes + done);
      if (got == 0) return -1;
      if (got < 0 && errno != EINTR) return errno;
      if (got > 0) done += got;
    }
  }
  return 0;
}

// Writes records. Returns 0 or an errno.
PLSC_API int plsc_write_records(int file, const int64_t* rows, int64_t count, int64_t bytes, const char* from) {
  for (int64_t i = 0, run; i < count; i += run) {
    run = run_of(rows + i, count - i);
    for (int64_t done = 0; done < run * bytes;) {
      const ssize_t put = pwrite(file, from + i * bytes + done, run * bytes - done, rows[i] * bytes + done);
      if (put < 0 && errno != EINTR) return errno;
      if (put > 0) done += put;
    }
  }
  return 0;
}

// Packs rows `slots` of `arrays` side by side -> records, in float32. With keys, one per record, they are
// bfloat16.
PLSC_API void plsc_pack(const float* const* arrays, const int64_t* widths, int64_t number, const int64_t* slots,
                        int64_t count, const uint32_t* keys, void* records) {
  int64_t width = 0;
  for (int64_t a = 0; a < number; ++a) width += widths[a];
  std::vector<float> row(width);
  for (int64_t i = 0; i < count; ++i) {
    float* whole = keys ? row.data() : static_cast<float*>(records) + i * width;
    float* part = whole;
    for (int64_t a = 0; a < number; part += widths[a++])
      memcpy(part, arrays[a] + slots[i] * widths[a], widths[a] * sizeof(float));
    if (keys) round_row(whole, width, keys[i], static_cast<uint16_t*>(records) + i * width);
  }
}

// Unpacks records into `arrays`. half: the records are bfloat16.
PLSC_API void plsc_unpack(const void* records, int half, int64_t count, float* const* arrays, const int64_t* widths,
                          int64_t number, const int64_t* slots) {
  int64_t width = 0;
  for (int64_t a = 0; a < number; ++a) width += widths[a];
  for (int64_t i = 0; i < count; ++i) {
    int64_t column = i * width;
    for (int64_t a = 0; a < number; column += widths[a++]) {
      float* out = arrays[a] + slots[i] * widths[a];
      if (half)
        widen(static_cast<const uint16_t*>(records) + column, widths[a], out);
      else
        memcpy(out, static_cast<const float*>(records) + column, widths[a] * sizeof(float));
    }
  }
}
