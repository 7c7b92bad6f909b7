"""Dialects of C for device kernels: a table row for each, with their differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ekiden.codegen.c.helpers import HelperDialect
from ekiden.codegen.c.types import CSyntax
from ekiden.codegen.c.vectors import VectorSyntax
from ekiden.codegen.device import wgsl
from ekiden.runtime.lazy_dataclass import dataclass

GRID_AXES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class KernelDialect:
    """Dialect of C in which a device kernel is written: one table row.

    Attributes:
        name: target kind, and format of the code.
        head: prelude of every source.
        form: dialect of the helper functions.
        kernel: qualifier of a kernel function.
        memory: qualifier of pointers to global memory.
        shared: qualifier of arrays that a block shares.
        offsets: whether global memory is passed as a pointer and a byte offset.
        threads: thread axis -> expression of the thread's index, and of the axis's extent.
        barrier: statement that synchronises the threads of a block.
        least: atomic minimum of an int in memory, formatted with its address and a value.
        keywords: names that the language reserves.
        bound: whether memory is bound outside of the kernel instead of passed to it.
        vectors: vector syntax; None where vectors are loops over lanes.
        matrices: whether warps hold matrix fragments (`codegen.device.fragments`).
        number: declaration of a scalar parameter.
        word: helper that reads four unaligned bytes, where one pointer type covers all memory.
        also: parameters that follow all others.
        missing: dtypes that the dialect does not support.
        shuffles: warp-shuffle intrinsic -> expression of mask, value, lane and width.
        masked: whether the shuffle takes the mask of participating threads.
        lane: parameters that kernels with shuffles get in addition.
        wide_types: bytes -> type of a wide access (`codegen.device.wide_access`).
        wide_helpers: helper functions that make wide accesses.
    """

    name: str
    prelude: str
    helper_dialect: HelperDialect
    kernel_qualifier: str
    pointer_qualifier: str
    shared_qualifier: str
    has_byte_offsets: bool
    thread_indices: Mapping[str, str]
    barrier: str
    atomic_min: str
    keywords: frozenset[str]
    has_bound_memory: bool = False
    vectors: VectorSyntax | None = None
    has_fragments: bool = False
    scalar_parameter: str = "const int64_t {name}"
    unaligned_word_load: str = ""
    extra_parameters: str = ""
    missing_dtypes: frozenset[str] = frozenset()
    shuffles: Mapping[str, str] = field(default_factory=dict)
    has_shuffle_mask: bool = False
    lane_parameter: str = ""
    wide_types: Mapping[int, str] = field(default_factory=dict)
    wide_helpers: str = ""

    @property
    def linear_thread_index(self) -> str:
        """Return the expression for the linear index of a thread in the launch."""
        x, y, z = (self.thread_indices[f"global{a}"] for a in GRID_AXES)
        nx, ny = (self.thread_indices[f"size{a}"] for a in GRID_AXES[:2])
        return f"{x} + {nx} * ({y} + {ny} * {z})"

    @property
    def syntax(self) -> CSyntax:
        """Return the syntax in which the dialect differs from C."""
        return self.helper_dialect.syntax


OPENCL_PRELUDE = """\
#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
#define INT64_C(x) x##L
#define UINT64_C(x) x##UL
#define INT64_MIN LONG_MIN
#define floorf floor
#define ceilf ceil
#define truncf trunc
#define rintf rint
#define fabsf fabs
#define sqrtf sqrt
#define copysignf copysign
#define fmaf fma
#define ek_word_to_float as_float
#define ek_float_to_word as_uint
"""
CUDA_PRELUDE = """\
#ifndef EK_DEVICE
#define EK_DEVICE static __device__ __forceinline__
#define EK_SHARED __shared__ __align__(32)
#define EK_TABLE static __device__ const
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT64_C(x) x##LL
#define UINT64_C(x) x##ULL
#define INT64_MIN (-9223372036854775807LL - 1)
#define NAN __int_as_float(0x7fffffff)
#define INFINITY __int_as_float(0x7f800000)
#endif
template <typename T, typename S> EK_DEVICE T ek_bits(S x) {
  union { S from; T to; } both;
  both.from = x;
  return both.to;
}
EK_DEVICE float ek_word_to_float(uint32_t x) { return ek_bits<float>(x); }
EK_DEVICE uint32_t ek_float_to_word(float x) { return ek_bits<uint32_t>(x); }
"""
CUDA_WIDE_ACCESS_HELPERS = """\
#ifndef EK_NEAR
template <typename W, int N, typename T>
EK_DEVICE void ek_load_near(T (&to)[N], const T *from, bool near) {
  const int each = sizeof(W) / sizeof(T);
  union { W word; T at[each]; } both;
  if (near) {
    for (int i = 0; i < N; i += each) {
      both.word = *(const W *)(from + i);
      for (int k = 0; k < each; ++k) to[i + k] = both.at[k];
    }
  } else {
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }
}
template <typename W, int N, typename T>
EK_DEVICE void ek_store_near(T *to, const T (&from)[N], bool near) {
  const int each = sizeof(W) / sizeof(T);
  union { W word; T at[each]; } both;
  if (near) {
    for (int i = 0; i < N; i += each) {
      for (int k = 0; k < each; ++k) both.at[k] = from[i + k];
      *(W *)(to + i) = both.word;
    }
  } else {
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }
}
#endif"""
CUDA_WIDE_TYPES = {16: "uint4", 8: "uint2", 4: "uint32_t", 2: "uint16_t"}
METAL_PRELUDE = """\
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)
#define INT64_C(x) x##L
#define UINT64_C(x) x##UL
#define INT64_MIN (-9223372036854775807L - 1)
#define floorf floor
#define ceilf ceil
#define truncf trunc
#define rintf rint
#define fabsf fabs
#define sqrtf sqrt
#define fmaf fma
#define ek_word_to_float as_type<float>
#define ek_float_to_word as_type<uint>
"""
METAL_THREAD_PARAMETERS = (
    ", uint3 ek_block [[threadgroup_position_in_grid]]"
    ", uint3 ek_thread [[thread_position_in_threadgroup]]"
    ", uint3 ek_blocks [[threadgroups_per_grid]]"
    ", uint3 ek_threads [[threads_per_threadgroup]]"
)

CUDA_SHUFFLES = {
    "tvm_warp_shuffle": "__shfl_sync({mask}, {value}, {lane}, {width})",
    "tvm_warp_shuffle_up": "__shfl_up_sync({mask}, {value}, {lane}, {width})",
    "tvm_warp_shuffle_down": "__shfl_down_sync({mask}, {value}, {lane}, {width})",
    "tvm_warp_activemask": "__activemask()",
}
METAL_SHUFFLES = {
    "tvm_warp_shuffle":
        "simd_shuffle({value}, (ushort)(ek_lane / {width} * {width} + {lane} % {width}))",
    "tvm_warp_shuffle_up":
        "simd_shuffle({value}, (ushort)(ek_lane - ({lane} <= ek_lane % {width} ? {lane} : 0)))",
    "tvm_warp_shuffle_down":
        "simd_shuffle({value}, (ushort)(ek_lane + "
        "(ek_lane % {width} + {lane} < {width} ? {lane} : 0)))",
    "tvm_warp_activemask": "(uint32_t)(ulong)simd_active_threads_mask()",
}  # fmt: skip


CUDA_UNALIGNED_WORD_HELPER = """\
EK_DEVICE int32_t ek_word(const void *from) {
  if (((uint64_t)from & 3) == 0) return *(const int32_t *)from;
  const uint8_t *at = (const uint8_t *)from;
  return (int32_t)(at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}"""
CUDA_DOT4_TEMPLATE = """\
#ifndef EK_MATRICES
EK_DEVICE int32_t {name}(int32_t sum, int32_t x, int32_t y) {{
  int32_t found;
  asm("dp4a.{x}32.{y}32 %0, %1, %2, %3;" : "=r"(found) : "r"(x), "r"(y), "r"(sum));
  return found;
}}
#endif"""
"""CUDA helper of a four-byte dot product with accumulator, for signed (s) and unsigned (u)
operands.
"""


def _cuda_dot_helpers() -> dict[str, str]:
    names = {(x, y): f"ek_dot4_{x}8{y}8_int32" for x, y in ("ss", "uu", "us")}
    return {name: CUDA_DOT4_TEMPLATE.format(name=name, x=x, y=y) for (x, y), name in names.items()}


def _opencl_bit_cast(target: str, x: str) -> str:
    """Return a reinterpretation such as `as_float(x)`; OpenCL's type names are single words."""
    short = {"bool": "uchar", "float": "float", "double": "double"}
    name = short.get(target) or target.removesuffix("_t").replace("uint", "u").replace("int", "")
    words = {"u8": "uchar", "8": "char", "u16": "ushort", "16": "short"}
    words |= {"u32": "uint", "32": "int", "u64": "ulong", "64": "long"}
    return f"as_{words.get(name, name)}({x})"


_OPENCL_KEYWORDS = frozenset(
    "kernel global local constant private half generic read_only write_only read_write image "
    "event_t size_t ptrdiff_t uchar ushort uint ulong char short barrier max min clamp mix step "
    "sign dot cross length distance normalize select any all rotate degrees radians smoothstep "
    "mad fmax fmin fract fdim hypot ldexp remainder round convert vload vstore wait prefetch "
    "printf uniform pipe bitselect isnan isinf isequal exp2 exp10 log2 log10 rsqrt tanh sinh cosh "
    "asin acos atan erf erfc sampler_t vec_step popcount clz".split()
) | {f"{name}{lanes}" for name in VectorSyntax.names.values() for lanes in (2, 3, 4, 8, 16)}
_CUDA_KEYWORDS = frozenset(
    "threadIdx blockIdx blockDim gridDim warpSize min max class new delete this template typename "
    "namespace private public protected operator try catch throw friend virtual using explicit "
    "export mutable and or not xor half bfloat16 asm clock nullptr constexpr alignas alignof "
    "decltype noexcept isnan isinf round printf assert erf tanh exp2 log2 log10 hypot".split()
)

# fmt: off
KERNEL_DIALECTS: dict[str, KernelDialect] = {dialect.name: dialect for dialect in (
    KernelDialect(
        "opencl", OPENCL_PRELUDE, HelperDialect("static inline ", "__constant ", _opencl_bit_cast),
        kernel_qualifier="__kernel void", pointer_qualifier="__global ",
        shared_qualifier="__local ", has_byte_offsets=True,
        thread_indices={
            **{f"blockIdx.{a}": f"(int64_t)get_group_id({n})" for n, a in enumerate(GRID_AXES)},
            **{f"threadIdx.{a}": f"(int64_t)get_local_id({n})" for n, a in enumerate(GRID_AXES)},
            **{f"global{a}": f"(int64_t)get_global_id({n})" for n, a in enumerate(GRID_AXES)},
            **{f"size{a}": f"(int64_t)get_global_size({n})" for n, a in enumerate(GRID_AXES)},
        },
        barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
        atomic_min="atomic_min((volatile __global int *){place}, {value});",
        keywords=_OPENCL_KEYWORDS,
        vectors=VectorSyntax(),
    ),
    KernelDialect(
        "cuda", CUDA_PRELUDE,
        HelperDialect("EK_DEVICE ", "EK_TABLE ", lambda target, x: f"ek_bits<{target}>({x})",
                      native_functions=_cuda_dot_helpers()),
        kernel_qualifier='extern "C" __global__ void', pointer_qualifier="",
        shared_qualifier="EK_SHARED ", has_byte_offsets=False,
        thread_indices={
            **{f"{k}.{a}": f"(int64_t){k}.{a}" for k in ("blockIdx",
                                                         "threadIdx") for a in GRID_AXES},
            **{f"global{a}": f"((int64_t)blockIdx.{a} * blockDim.{a} + threadIdx.{a})"
               for a in GRID_AXES},
            **{f"size{a}": f"((int64_t)gridDim.{a} * blockDim.{a})" for a in GRID_AXES},
        },
        barrier="__syncthreads();",
        atomic_min="atomicMin({place}, {value});",
        keywords=_CUDA_KEYWORDS, has_fragments=True, wide_types=CUDA_WIDE_TYPES,
        wide_helpers=CUDA_WIDE_ACCESS_HELPERS,
        shuffles=CUDA_SHUFFLES, has_shuffle_mask=True,
        unaligned_word_load=CUDA_UNALIGNED_WORD_HELPER,
    ),
    KernelDialect(
        "metal", METAL_PRELUDE,
        HelperDialect("static inline ", "constant ", lambda target, x: f"as_type<{target}>({x})",
                      reassociates_sums=True),
        kernel_qualifier="kernel void", pointer_qualifier="device ",
        shared_qualifier="threadgroup ", has_byte_offsets=True,
        thread_indices={
            **{f"blockIdx.{a}": f"(int64_t)ek_block.{a}" for a in GRID_AXES},
            **{f"threadIdx.{a}": f"(int64_t)ek_thread.{a}" for a in GRID_AXES},
            **{f"global{a}": f"((int64_t)ek_block.{a} * ek_threads.{a} + ek_thread.{a})"
               for a in GRID_AXES},
            **{f"size{a}": f"((int64_t)ek_blocks.{a} * ek_threads.{a})" for a in GRID_AXES},
        },
        barrier="threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
        atomic_min="atomic_fetch_min_explicit((device atomic_int *){place}, {value}, "
              "memory_order_relaxed);",
        keywords=_CUDA_KEYWORDS | _OPENCL_KEYWORDS | {"device", "thread", "threadgroup", "metal"},
        scalar_parameter="constant int64_t &{name}", extra_parameters=METAL_THREAD_PARAMETERS,
        missing_dtypes=frozenset(("float64",)),
        shuffles=METAL_SHUFFLES, lane_parameter=", uint ek_lane [[thread_index_in_simdgroup]]",
    ),
    KernelDialect(
        "webgpu", wgsl.WGSL_HEADER,
        HelperDialect("", "", lambda target, x: f"bitcast<{target}>({x})", wgsl.WgslSyntax(),
                      reassociates_sums=True),
        kernel_qualifier="@compute @workgroup_size(ek_x, ek_y, ek_z)\nfn",
        pointer_qualifier="storage, read_write",
        shared_qualifier="var<workgroup> ", has_byte_offsets=True, has_bound_memory=True,
        thread_indices={
            "blockIdx.x": "ek_block % ek_given.blocks_x",
            "blockIdx.y": "ek_block / ek_given.blocks_x % ek_given.blocks_y",
            "blockIdx.z": "ek_block / (ek_given.blocks_x * ek_given.blocks_y)",
            **{f"threadIdx.{a}": f"i32(ek_thread.{a})" for a in GRID_AXES},
            "globalx": "ek_block % ek_given.blocks_x * ek_x + i32(ek_thread.x)",
            "globaly": "(ek_block / ek_given.blocks_x % ek_given.blocks_y * ek_y + "
                       "i32(ek_thread.y))",
            "globalz": "(ek_block / (ek_given.blocks_x * ek_given.blocks_y) * ek_z + "
                       "i32(ek_thread.z))",
            "sizex": "ek_given.blocks_x * ek_x", "sizey": "(ek_given.blocks_y * ek_y)",
        },
        barrier="storageBarrier();\n  workgroupBarrier();",
        atomic_min="atomicMin(&{place}[0], {value});",
        keywords=wgsl.WGSL_KEYWORDS,
    ),
)}
# fmt: on
"""Dialects of device kernels, by name."""
