/* Metal's language as C++, as far as kernels of Ekiden use it: what they say is then read by a compiler
** of C++, which takes attributes that it does not know. Apple's compiler runs on its machines alone. */
#include <cmath>
#include <cstdint>
#include <cstring>

#define kernel extern "C"
#define device
#define constant const
#define threadgroup static
typedef unsigned int uint;
struct uint3 { uint x, y, z; };
namespace metal {
using namespace std;
enum mem_flags_bits { none = 0 };
struct mem_flags { enum { mem_device = 1, mem_threadgroup = 2 }; };
inline void threadgroup_barrier(int) {}
struct atomic_int { int value; };
enum memory_order { memory_order_relaxed };
inline int atomic_fetch_min_explicit(atomic_int *p, int x, memory_order) {
  int old = p->value;
  if (x < old) p->value = x;
  return old;
}
typedef unsigned short ushort;
typedef unsigned long ulong;
template <typename T> inline T simd_shuffle(T x, ushort) { return x; }
inline ulong simd_active_threads_mask() { return 0xffffffff; }
template <typename T, typename S> inline T as_type(S x) {
  static_assert(sizeof(T) == sizeof(S), "as_type is of one size");
  T made;
  memcpy(&made, &x, sizeof made);
  return made;
}
}
