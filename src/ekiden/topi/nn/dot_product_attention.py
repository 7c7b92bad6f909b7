"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.prim import PrimExpr
from ekiden.kernels.attention.attention_config import AttentionConfig
from ekiden.kernels.attention.scaled_dot_product import AttentionKernel
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Stmt


def attention_shape(
    heads: AttentionConfig, query: Sequence[PrimExpr], value: Sequence[PrimExpr]
) -> tuple[PrimExpr, ...]:
    """Return the shape of the result: the query's, with the width of a value."""
    q_layout, _, v_layout, out_layout = heads.layouts
    dims = dict(zip(q_layout, query, strict=True)) | {"d": value[v_layout.index("d")]}
    return tuple(dims[axis] for axis in out_layout)


def attention(heads: AttentionConfig, inputs: Sequence[Tensor]) -> Tensor:
    """Return softmax(query * key^T * scale + bias) * value for each head; `inputs` are query, key,
    value in their layouts, and the bias if there is one.
    """
    shape = attention_shape(heads, inputs[0].shape, inputs[2].shape)

    def emit_attention(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the kernel over its buffers."""
        return AttentionKernel(heads, ins, outs[0]).emit_kernel()

    (result,) = te.extern_op(
        [shape], inputs, emit_attention, ["float32"], "attention", "attention", {"heads": heads}
    )
    return result


__all__ = ["attention"]
