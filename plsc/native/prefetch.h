// Fetches memory ahead of a loop over it. Included once for each instruction set, by files of loops, so it has no guard.

static const int64_t AHEAD = 4096;  // bytes; 2048 and 8192 are as good

// Fetches what lies AHEAD of `count` numbers into the cache. The processor does it, too, but not from one page of memory to the next,
// and never what will be written.
template <int WRITTEN = 0, typename T>
static inline void prefetch(const T* numbers, int64_t count) {
  const char* ahead = (const char*)numbers + AHEAD;
  for (int64_t line = 0; line < count * (int64_t)sizeof(T); line += 64) __builtin_prefetch(ahead + line, WRITTEN);
}
