"""Helpers of handwritten kernels: parameters, indices of rows, the function, and sizes of
shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr, const
from ekiden.kernels.decision import Decision
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc, Stmt


def declare_parameters(
    inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor]
) -> dict[te.Tensor, Buffer]:
    """Return the parameters of a kernel: inputs, then outputs."""
    named = [(t, f"p{i}") for i, t in enumerate(inputs)] + [
        (t, f"out{i}") for i, t in enumerate(outputs)
    ]
    # A slice of a larger tensor is addressed within the whole.
    return {t: Buffer(name, t.whole_shape, t.dtype) for t, name in named}


def declare_extern_parameters(
    inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor]
) -> tuple[dict[te.Tensor, Buffer], list[Buffer], list[Buffer]]:
    """Return the parameters of a kernel around statements, then those that the operation reads and
    those that it writes, each in its own order.
    """
    op = outputs[0].op
    assert isinstance(op, te.ExternOp)
    buffers = declare_parameters(inputs, outputs)
    results = [buffers[t] for t in sorted(outputs, key=lambda t: t.value_index)]
    return buffers, [buffers[t] for t in op.inputs], results


def product_of_dims(dims: Sequence[PrimExpr]) -> PrimExpr:
    """Return the number of elements of a shape."""
    total: PrimExpr = const(1)
    for dim in dims:
        total = total * dim
    return simplify(total)


def unflatten_row(row: PrimExpr, leading: Sequence[PrimExpr], column: PrimExpr) -> list[PrimExpr]:
    """Return the indices of an element from its row among all and its column."""
    indices: list[PrimExpr] = []
    for dim in reversed(leading[1:]):
        indices.append(row % dim)
        row = row // dim
    if leading:
        indices.append(row)
    return [*reversed(indices), column]


def create_tiled_function(
    name: str, buffers: Mapping[te.Tensor, Buffer], body: Stmt, outputs: int = 1
) -> PrimFunc:
    """Return a kernel of register tiles, whose loops are final.

    Args:
        name: The symbol.
        buffers: The parameters in their order, outputs last.
        body: The statement.
        outputs: The number of outputs.
    """
    attrs = {"global_symbol": name, "num_outputs": outputs, "tir.tiled": 1}
    return PrimFunc((*buffers.values(),), body, attrs)


class TiledKernelBuilder(Protocol):
    """The interface of a builder of a kernel of register tiles."""

    @property
    def buffers(self) -> Mapping[te.Tensor, Buffer]:
        """Return the buffers of its parameters, in their order."""

    def body(self) -> Stmt:
        """Return the loops."""


def build_function_of(
    kernel: Callable[[list[te.Tensor], list[te.Tensor], Target, Decision], TiledKernelBuilder],
) -> Callable[[Sequence[te.Tensor], Sequence[te.Tensor], Target, str, Decision], PrimFunc]:
    """Return what builds the function of a kernel: the `build` of its family."""

    def build_kernel(
        inputs: Sequence[te.Tensor],
        outputs: Sequence[te.Tensor],
        target: Target,
        name: str,
        decision: Decision,
    ) -> PrimFunc:
        """Return the function of one kernel."""
        tiled = kernel(list(inputs), list(outputs), target, decision)
        return create_tiled_function(name, tiled.buffers, tiled.body(), len(outputs))

    return build_kernel


__all__ = [
    "build_function_of",
    "create_tiled_function",
    "declare_extern_parameters",
    "declare_parameters",
    "product_of_dims",
    "unflatten_row",
]  # fmt: skip
