// Includes the file PLSC_LOOPS once per instruction set. That file defines `table`, and loops_in_use()
// returns the table for the instruction set in use. Exactly one C++ file includes this header for each file
// of loops.
namespace baseline {
#include PLSC_LOOPS
}
#ifdef PLSC_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include PLSC_LOOPS
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
namespace avx512 {
#include PLSC_LOOPS
}
#pragma GCC pop_options
#endif

static inline const auto* loops_in_use() {
#ifdef PLSC_X86
  static const decltype(&baseline::table) tables[] = {&baseline::table, &avx2::table, &avx512::table};
  return tables[instructions];
#else
  return &baseline::table;
#endif
}
