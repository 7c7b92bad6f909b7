"""Helpers of handwritten kernels: parameters, row indices, function construction, shape
products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.kernels.decision import Decision
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import LetStmt, PrimFunc, Stmt

LetBindings: TypeAlias = list[tuple[Var, PrimExpr]]
"""Let-bindings: variables with their values."""


def wrap_in_lets(lets: Sequence[tuple[Var, PrimExpr]], body: Stmt) -> Stmt:
    """Wrap a statement in let-bindings."""
    for name, value in reversed(lets):
        body = LetStmt(name, value, body)
    return body


def declare_parameters(
    inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor]
) -> dict[te.Tensor, Buffer]:
    """Return the parameter buffers of a kernel: inputs, then outputs."""
    named = [(t, f"p{i}") for i, t in enumerate(inputs)] + [
        (t, f"out{i}") for i, t in enumerate(outputs)
    ]
    # A slice of a larger tensor is addressed within the whole.
    return {t: Buffer(name, t.whole_shape, t.dtype) for t, name in named}


def declare_extern_parameters(
    inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor]
) -> tuple[dict[te.Tensor, Buffer], list[Buffer], list[Buffer]]:
    """Return a kernel's parameters, followed by the operation's inputs and outputs in its own
    order.
    """
    op = outputs[0].op
    assert isinstance(op, te.ExternOp)
    buffers = declare_parameters(inputs, outputs)
    results = [buffers[t] for t in sorted(outputs, key=lambda t: t.value_index)]
    return buffers, [buffers[t] for t in op.inputs], results


def product_of_dims(dims: Sequence[PrimExpr]) -> PrimExpr:
    """Return the product of a shape's dimensions."""
    total: PrimExpr = const(1)
    for dim in dims:
        total = total * dim
    return simplify(total)


def unflatten_row(row: PrimExpr, leading: Sequence[PrimExpr], column: PrimExpr) -> list[PrimExpr]:
    """Return an element's indices from its flat row index and its column."""
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
    """Create the PrimFunc of a register-tile kernel, whose loops need no further scheduling.

    Args:
        name: The symbol.
        buffers: The parameters in their order, outputs last.
        body: The statement.
        outputs: The number of outputs.
    """
    attrs = {"global_symbol": name, "num_outputs": outputs, "tir.tiled": 1}
    return PrimFunc((*buffers.values(),), body, attrs)


class TiledKernelBuilder(Protocol):
    """Protocol of a builder of a register-tile kernel."""

    @property
    def buffers(self) -> Mapping[te.Tensor, Buffer]:
        """Return the parameter buffers in order."""

    def body(self) -> Stmt:
        """Return the kernel's loops."""


def kernel_builder(
    kernel: Callable[[list[te.Tensor], list[te.Tensor], Target, Decision], TiledKernelBuilder],
) -> Callable[[Sequence[te.Tensor], Sequence[te.Tensor], Target, str, Decision], PrimFunc]:
    """Return the `build` function of a family from its kernel class."""

    def build_kernel(
        inputs: Sequence[te.Tensor],
        outputs: Sequence[te.Tensor],
        target: Target,
        name: str,
        decision: Decision,
    ) -> PrimFunc:
        """Build the PrimFunc of one kernel."""
        tiled = kernel(list(inputs), list(outputs), target, decision)
        return create_tiled_function(name, tiled.buffers, tiled.body(), len(outputs))

    return build_kernel


__all__ = [
    "LetBindings",
    "create_tiled_function",
    "declare_extern_parameters",
    "declare_parameters",
    "kernel_builder",
    "product_of_dims",
    "unflatten_row",
    "wrap_in_lets",
]  # fmt: skip
