"""Range checks of indices, which run before a kernel's body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from ekiden import te
from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import rewrite
from ekiden.kernels.cpu.default import schedule_default
from ekiden.kernels.gpu.launch import THREADS_PER_BLOCK, emit_launch
from ekiden.kernels.gpu.vector_access import unravel_index
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.target import Target
from ekiden.te.inline import ProducerInliner
from ekiden.te.prim_func import wrap_in_allocations
from ekiden.te.range_checks import (
    RangeCheck,
    emit_violation_search,
    out_of_range_flag,
    range_checks_of,
)
from ekiden.te.stmt_renaming import replace_buffers
from ekiden.te.tensor import ProducerLoad, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import IfThenElse, PrimFunc, Stmt, seq

MAX_SCALAR_CHECK_ELEMENTS = 16
"""Indices up to which a scalar search runs directly; larger tensors get a vectorised pass first."""


def add_range_checks(
    function: PrimFunc, inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target
) -> PrimFunc:
    """Prepend the range checks of all computations to a function, producers' first, so that each
    check reads only validated indices.
    """
    ops = dict.fromkeys(t.op for t in te.post_order_tensors(outputs))
    checks = list(dict.fromkeys(c for op in ops for c in range_checks_of(op)))
    if not checks:
        return function
    attrs = function.attrs or {}
    is_plain = attrs.get("tir.has_blocks") or not attrs.get("tir.tiled")
    assert is_plain, "tiles have no vectors to be made"
    buffers = dict(zip(inputs, function.buffers, strict=False))
    check_stmts = [_emit_check(c, inputs, buffers, target) for c in checks]
    return function.with_fields(body=seq(*(s for s in check_stmts if s is not None), function.body))


def _emit_check(
    check: RangeCheck, inputs: Sequence[Tensor], buffers: Mapping[Tensor, Buffer], target: Target
) -> Stmt | None:
    """Emit the statements of one check; None if it cannot fail."""
    between = [t for t in te.post_order_tensors([check.values]) if t not in buffers]
    non_injective = [t for t in between if not te.is_injective(t)]
    assert not non_injective, (
        f"{check.subject}: made by {non_injective[0].name!r} in the same kernel"
    )
    inliner = ProducerInliner(set(between))

    def lower_value(value: PrimExpr) -> PrimExpr:
        return rewrite(inliner.rewrite_expr(value), lower_load)

    def load_checked_element(at: Sequence[PrimExpr]) -> PrimExpr:
        return lower_value(check.values[tuple(at)])

    def lower_load(e: PrimExpr) -> PrimExpr:
        """Return a tensor read as a load from its buffer."""
        if isinstance(e, ProducerLoad):
            return BufferLoad(buffers[e.producer], e.indices, e.dtype)
        return e

    if not check.values.shape and is_const(
        Analyzer().simplify(check.is_in_range(load_checked_element(()))), 1
    ):
        return None
    if target.kind.has_threads:
        return _emit_check_launch(check.map_bounds(lower_value), load_checked_element)
    failure_search = emit_violation_search(check.map_bounds(lower_value), load_checked_element)
    sizes = [
        d.value if isinstance(d, IntImm) else MAX_SCALAR_CHECK_ELEMENTS + 1
        for d in check.values.shape
    ]
    return (
        failure_search
        if prod(sizes) <= MAX_SCALAR_CHECK_ELEMENTS
        else _emit_flagged_search(check, failure_search, inputs, buffers, target)
    )


def _emit_check_launch(
    check: RangeCheck, element: Callable[[Sequence[PrimExpr]], PrimExpr]
) -> Stmt:
    """Emit a kernel launch with one thread per checked index, before the launches that use it."""
    index, shape = Var("index"), check.values.shape
    position = unravel_index(index, shape)
    extent = product_of_dims(shape) if shape else const(1)
    threads = THREADS_PER_BLOCK if shape else 1
    return emit_launch(index, extent, threads, check.create_assert(element(position), position))


def _emit_flagged_search(
    check: RangeCheck,
    failure_search: Stmt,
    inputs: Sequence[Tensor],
    buffers: Mapping[Tensor, Buffer],
    target: Target,
) -> Stmt:
    """Emit the search for the first failing index, guarded by a vectorised pass that tells whether
    there is one.
    """
    wrong = out_of_range_flag(check)
    # The common case has no wrong index: one vectorised reduction instead of a branch per element.
    counted = schedule_default(list(inputs), [wrong], target, "check")
    flag_buffer = Buffer(wrong.name, (const(1),), wrong.dtype, "local")
    real = {own: buffers[t] for own, t in zip(counted.buffers, inputs, strict=False)}
    body = replace_buffers(counted.body, {**real, counted.buffers[-1]: flag_buffer})
    test = IfThenElse(BufferLoad(flag_buffer, (const(0),), flag_buffer.dtype) > 0, failure_search)
    return wrap_in_allocations(seq(body, test), [flag_buffer])


__all__ = ["add_range_checks"]
