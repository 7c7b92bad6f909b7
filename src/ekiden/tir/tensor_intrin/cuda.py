"""Tensor intrinsics of NVIDIA's tensor cores (WMMA); importing this module registers them, by TVM's
names.

    from ekiden.tir.tensor_intrin.cuda import WMMA_SYNC_16x16x16_f16f16f32_INTRIN
    schedule.tensorize(loop, WMMA_SYNC_16x16x16_f16f16f32_INTRIN)

Each works on 16 x 16 fragments in buffers of the scopes wmma.*, which the threads of a warp hold
jointly.
"""

from __future__ import annotations

from ekiden.ir.prim import const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.script import T
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.tensor_intrin import TensorIntrin

# mypy: ignore-errors
# ruff: noqa: N803, N806, RUF100 - the decorator reads the source: buffers are named as in papers


@dataclass(frozen=True, slots=True)
class _WmmaVariant:
    """The types of a WMMA product: TVM's abbreviation and dtype, of the factors and of the
    accumulator.
    """

    tvm_abbreviation: str
    dtype: str
    accumulator_abbreviation: str
    accumulator_dtype: str


_WMMA_VARIANTS = (
    _WmmaVariant("f16", "float16", "f32", "float32"),
    _WmmaVariant("bf16", "bfloat16", "f32", "float32"),
    _WmmaVariant("s8", "int8", "s32", "int32"),
    _WmmaVariant("u8", "uint8", "s32", "int32"),
)


def _load_matrix_intrin(
    dtype: str, which: str, memory: str, is_transposed: bool
) -> tuple[PrimFunc, PrimFunc]:
    """Return description and implementation of wmma.load_matrix_sync: a 16 x 16 tile from memory to
    a fragment. is_transposed: memory holds the transposed factor, and so does the fragment.
    """
    scope = f"wmma.matrix_{which}"
    # tvm_load_matrix_sync takes the layout as text, after CUDA's nvcuda::wmma::row_major_strides
    # and col_major.
    layout = "col_major" if is_transposed else "row_major"

    @T.prim_func
    def desc(a: T.handle, c: T.handle) -> None:
        """Describe the load: a copy of 16 x 16 elements to a fragment."""
        A = T.match_buffer(a, (16, 16), dtype, scope=memory)
        C = T.match_buffer(c, (16, 16), dtype, scope=scope)
        for i, j in T.grid(16, 16):
            with T.block("load"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj]

    @T.prim_func
    def impl(a: T.handle, c: T.handle) -> None:
        """Implement the load; memory's rows are s1 elements apart. `at` is the offset of the first
        element in the fragments' buffer, from which the fragment's number follows: rows of d1 /
        16 fragments.
        """
        s0, s1, d0, d1, position = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
        A = T.match_buffer(a, (16, 16), dtype, scope=memory, strides=[s1, s0])
        C = T.match_buffer(c, (16, 16), dtype, scope=scope, strides=[d1, d0], elem_offset=position)
        T.evaluate(
            T.tvm_load_matrix_sync(
                C.access_ptr("w"),
                16,
                16,
                16,
                position // d1 // 16 * (d1 // 16) + position % d1 // 16,
                A.access_ptr("r"),
                s1,
                layout,
            )
        )

    return desc, impl


def _fill_fragment_intrin(dtype: str) -> tuple[PrimFunc, PrimFunc]:
    """Return description and implementation of wmma.fill_fragment with zeros."""
    zero = const(0, dtype)

    @T.prim_func
    def desc(c: T.handle) -> None:
        """Describe the fill: zeros in a fragment."""
        C = T.match_buffer(c, (16, 16), dtype, scope="wmma.accumulator")
        for i, j in T.grid(16, 16):
            with T.block("init"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = zero

    @T.prim_func
    def impl(c: T.handle) -> None:
        """Implement the fill on the fragment that contains the buffer's first element."""
        d0, d1, position = T.int64(), T.int64(), T.int64()
        C = T.match_buffer(
            c, (16, 16), dtype, scope="wmma.accumulator", strides=[d1, d0], elem_offset=position
        )
        T.evaluate(
            T.tvm_fill_fragment(
                C.access_ptr("w"),
                16,
                16,
                16,
                position // d1 // 16 * (d1 // 16) + position % d1 // 16,
                zero,
            )
        )

    return desc, impl


def _mma_sync_intrin(dtype: str, total: str, is_transposed: bool) -> tuple[PrimFunc, PrimFunc]:
    @T.prim_func
    def desc(a: T.handle, b: T.handle, c: T.handle) -> None:
        """Describe the product with B untransposed."""
        A = T.match_buffer(a, (16, 16), dtype, scope="wmma.matrix_a")
        B = T.match_buffer(b, (16, 16), dtype, scope="wmma.matrix_b")
        C = T.match_buffer(c, (16, 16), total, scope="wmma.accumulator")
        for i, j, k in T.grid(16, 16, 16):
            with T.block("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + T.Cast(total, A[vi, vk]) * T.Cast(total, B[vk, vj])

    @T.prim_func
    def transposed_desc(a: T.handle, b: T.handle, c: T.handle) -> None:
        """Describe the product with B transposed."""
        A = T.match_buffer(a, (16, 16), dtype, scope="wmma.matrix_a")
        B = T.match_buffer(b, (16, 16), dtype, scope="wmma.matrix_b")
        C = T.match_buffer(c, (16, 16), total, scope="wmma.accumulator")
        for i, j, k in T.grid(16, 16, 16):
            with T.block("update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + T.Cast(total, A[vi, vk]) * T.Cast(total, B[vj, vk])

    @T.prim_func
    def impl(a: T.handle, b: T.handle, c: T.handle) -> None:
        """Implement the product on the fragments that contain the buffers' first elements."""
        a0, a1, b0, b1, c0, c1 = (
            T.int64(),
            T.int64(),
            T.int64(),
            T.int64(),
            T.int64(),
            T.int64(),
        )
        p, q, r = T.int64(), T.int64(), T.int64()
        A = T.match_buffer(
            a, (16, 16), dtype, scope="wmma.matrix_a", strides=[a1, a0], elem_offset=p
        )
        B = T.match_buffer(
            b, (16, 16), dtype, scope="wmma.matrix_b", strides=[b1, b0], elem_offset=q
        )
        C = T.match_buffer(
            c, (16, 16), total, scope="wmma.accumulator", strides=[c1, c0], elem_offset=r
        )
        T.evaluate(
            T.tvm_mma_sync(
                C.access_ptr("rw"),
                r // c1 // 16 * (c1 // 16) + r % c1 // 16,
                A.access_ptr("r"),
                p // a1 // 16 * (a1 // 16) + p % a1 // 16,
                B.access_ptr("r"),
                q // b1 // 16 * (b1 // 16) + q % b1 // 16,
                C.access_ptr("rw"),
                r // c1 // 16 * (c1 // 16) + r % c1 // 16,
            )
        )

    return transposed_desc if is_transposed else desc, impl


def _store_matrix_intrin(dtype: str, memory: str) -> tuple[PrimFunc, PrimFunc]:
    @T.prim_func
    def desc(a: T.handle, c: T.handle) -> None:
        """Describe the store: a copy of a fragment to memory."""
        A = T.match_buffer(a, (16, 16), dtype, scope="wmma.accumulator")
        C = T.match_buffer(c, (16, 16), dtype, scope=memory)
        for i, j in T.grid(16, 16):
            with T.block("store"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj]

    @T.prim_func
    def impl(a: T.handle, c: T.handle) -> None:
        """Implement the store; memory's rows are s1 elements apart."""
        s0, s1, d0, d1, position = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
        A = T.match_buffer(
            a, (16, 16), dtype, scope="wmma.accumulator", strides=[d1, d0], elem_offset=position
        )
        C = T.match_buffer(c, (16, 16), dtype, scope=memory, strides=[s1, s0])
        T.evaluate(
            T.tvm_store_matrix_sync(
                A.access_ptr("r"),
                16,
                16,
                16,
                position // d1 // 16 * (d1 // 16) + position % d1 // 16,
                C.access_ptr("w"),
                s1,
                "row_major",
            )
        )

    return desc, impl


for _row in _WMMA_VARIANTS:
    for _turned, _end in ((False, ""), (True, "_trans")):
        for _which in "ab":
            for _memory in ("shared", "global"):
                TensorIntrin.register(
                    f"wmma_load_16x16x16_{_row.tvm_abbreviation}_{_which}{_end}_{_memory}",
                    *_load_matrix_intrin(_row.dtype, _which, _memory, _turned),
                )
        TensorIntrin.register(
            f"wmma_sync_16x16x16_{_row.tvm_abbreviation}{_row.tvm_abbreviation}{_row.accumulator_abbreviation}{_end}",
            *_mma_sync_intrin(_row.dtype, _row.accumulator_dtype, _turned),
        )
for _word, _dtype in (("f32", "float32"), ("s32", "int32")):
    TensorIntrin.register(f"wmma_fill_16x16x16_{_word}", *_fill_fragment_intrin(_dtype))
    for _memory in ("shared", "global"):
        TensorIntrin.register(
            f"wmma_store_16x16x16_{_word}_{_memory}", *_store_matrix_intrin(_dtype, _memory)
        )

WMMA_SYNC_16x16x16_f16f16f32_INTRIN = "wmma_sync_16x16x16_f16f16f32"
WMMA_SYNC_16x16x16_f16f16f32_TRANS_INTRIN = "wmma_sync_16x16x16_f16f16f32_trans"
WMMA_SYNC_16x16x16_s8s8s32_INTRIN = "wmma_sync_16x16x16_s8s8s32"
WMMA_SYNC_16x16x16_s8s8s32_TRANS_INTRIN = "wmma_sync_16x16x16_s8s8s32_trans"
WMMA_LOAD_16x16x16_F16_A_INTRIN = "wmma_load_16x16x16_f16_a_shared"
WMMA_LOAD_16x16x16_F16_B_INTRIN = "wmma_load_16x16x16_f16_b_shared"
WMMA_LOAD_16x16x16_F16_A_TRANS_INTRIN = "wmma_load_16x16x16_f16_a_trans_shared"
WMMA_LOAD_16x16x16_F16_B_TRANS_INTRIN = "wmma_load_16x16x16_f16_b_trans_shared"
WMMA_LOAD_16x16x16_S8_A_INTRIN = "wmma_load_16x16x16_s8_a_shared"
WMMA_LOAD_16x16x16_S8_B_INTRIN = "wmma_load_16x16x16_s8_b_shared"
WMMA_LOAD_16x16x16_S8_A_TRANS_INTRIN = "wmma_load_16x16x16_s8_a_trans_shared"
WMMA_LOAD_16x16x16_S8_B_TRANS_INTRIN = "wmma_load_16x16x16_s8_b_trans_shared"
WMMA_FILL_16x16x16_F32_INTRIN = "wmma_fill_16x16x16_f32"
WMMA_FILL_16x16x16_S32_INTRIN = "wmma_fill_16x16x16_s32"
WMMA_STORE_16x16x16_F32_SHARED_INTRIN = "wmma_store_16x16x16_f32_shared"
WMMA_STORE_16x16x16_F32_GLOBAL_INTRIN = "wmma_store_16x16x16_f32_global"
WMMA_STORE_16x16x16_S32_SHARED_INTRIN = "wmma_store_16x16x16_s32_shared"
WMMA_STORE_16x16x16_S32_GLOBAL_INTRIN = "wmma_store_16x16x16_s32_global"

__all__ = [
    "WMMA_FILL_16x16x16_F32_INTRIN",
    "WMMA_FILL_16x16x16_S32_INTRIN",
    "WMMA_LOAD_16x16x16_F16_A_INTRIN",
    "WMMA_LOAD_16x16x16_F16_A_TRANS_INTRIN",
    "WMMA_LOAD_16x16x16_F16_B_INTRIN",
    "WMMA_LOAD_16x16x16_F16_B_TRANS_INTRIN",
    "WMMA_LOAD_16x16x16_S8_A_INTRIN",
    "WMMA_LOAD_16x16x16_S8_A_TRANS_INTRIN",
    "WMMA_LOAD_16x16x16_S8_B_INTRIN",
    "WMMA_LOAD_16x16x16_S8_B_TRANS_INTRIN",
    "WMMA_STORE_16x16x16_F32_GLOBAL_INTRIN",
    "WMMA_STORE_16x16x16_F32_SHARED_INTRIN",
    "WMMA_STORE_16x16x16_S32_GLOBAL_INTRIN",
    "WMMA_STORE_16x16x16_S32_SHARED_INTRIN",
    "WMMA_SYNC_16x16x16_f16f16f32_INTRIN",
    "WMMA_SYNC_16x16x16_f16f16f32_TRANS_INTRIN",
    "WMMA_SYNC_16x16x16_s8s8s32_INTRIN",
    "WMMA_SYNC_16x16x16_s8s8s32_TRANS_INTRIN",
]
