"""Tensor intrinsics of x86-64; importing this module registers them.

    from ekiden.tir.tensor_intrin.x86 import VNNI_DOT_16x4_INTRIN
    schedule.tensorize(loop, VNNI_DOT_16x4_INTRIN)

A processor without an instruction executes the same computation in several.
"""

from __future__ import annotations

from ekiden.tir.script import T
from ekiden.tir.tensor_intrin import TensorIntrin

# mypy: ignore-errors
# ruff: noqa: N803, RUF100 - the decorator reads the source: buffers are named as in papers


@T.prim_func
def _dot_16x4_u8s8s32_desc(
    A: T.Buffer((4,), "uint8"), B: T.Buffer((16, 4), "int8"), C: T.Buffer((16,), "int32")
) -> None:
    for i in range(16):
        for k in range(4):
            with T.block("update"):
                vi = T.axis.spatial(16, i)
                vk = T.axis.reduce(4, k)
                C[vi] = C[vi] + T.Cast("int32", A[vk]) * T.Cast("int32", B[vi, vk])


@T.prim_func
def _dot_16x4_u8s8s32_vnni(
    A: T.Buffer((4,), "uint8"), B: T.Buffer((16, 4), "int8"), C: T.Buffer((16,), "int32")
) -> None:
    C[T.Ramp(0, 1, 16)] = T.dot4_u8s8(
        C[T.Ramp(0, 1, 16)],
        T.Broadcast(T.reinterpret(A[T.Ramp(0, 1, 4)], dtype="int32"), 16),
        T.reinterpret(B[0, T.Ramp(0, 1, 64)], dtype="int32x16"),
    )


VNNI_DOT_16x4_INTRIN = "dot_16x4_vnni"
"""Intrinsic of 16 int32 sums of 4 products of uint8 and int8: one VPDPBUSD."""

TensorIntrin.register(VNNI_DOT_16x4_INTRIN, _dot_16x4_u8s8s32_desc, _dot_16x4_u8s8s32_vnni)


@T.prim_func
def _fma_1x16_desc(
    A: T.Buffer((1,), "float32"), B: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")
) -> None:
    for j in range(16):
        with T.block("update"):
            v = T.axis.spatial(16, j)
            C[v] = C[v] + A[0] * B[v]


@T.prim_func
def _fma_1x16(
    A: T.Buffer((1,), "float32"), B: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")
) -> None:
    C[T.Ramp(0, 1, 16)] = T.fma(T.Broadcast(A[0], 16), B[T.Ramp(0, 1, 16)], C[T.Ramp(0, 1, 16)])


FMA_1x16_INTRIN = "fma_1x16"
"""Intrinsic of one row of 16 multiply-adds by the same number."""

TensorIntrin.register(FMA_1x16_INTRIN, _fma_1x16_desc, _fma_1x16)


@T.prim_func
def _fma_6x16_desc(
    A: T.Buffer((6, 1), "float32"), B: T.Buffer((16,), "float32"), C: T.Buffer((6, 16), "float32")
) -> None:
    for i in range(6):
        for j in range(16):
            with T.block("update"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = C[vi, vj] + A[vi, 0] * B[vj]


@T.prim_func
def _fma_6x16(
    A: T.Buffer((6, 1), "float32"), B: T.Buffer((16,), "float32"), C: T.Buffer((6, 16), "float32")
) -> None:
    for i in T.unroll(6):
        C[i, T.Ramp(0, 1, 16)] = T.fma(
            T.Broadcast(A[i, 0], 16), B[T.Ramp(0, 1, 16)], C[i, T.Ramp(0, 1, 16)]
        )


FMA_6x16_INTRIN = "fma_6x16"
"""Intrinsic of a 6 x 16 outer product: each sum takes one multiply-add."""

TensorIntrin.register(FMA_6x16_INTRIN, _fma_6x16_desc, _fma_6x16)

__all__ = ["FMA_1x16_INTRIN", "FMA_6x16_INTRIN", "VNNI_DOT_16x4_INTRIN"]
