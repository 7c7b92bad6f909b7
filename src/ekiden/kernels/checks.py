"""Range checks of indices that a kernel makes before anything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from ekiden import te
from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import rewrite
from ekiden.kernels.cpu.default import schedule_default
from ekiden.kernels.gpu.launch import THREADS, launch
from ekiden.kernels.gpu.vector_access import coordinates
from ekiden.kernels.prim_builder import product
from ekiden.target import Target
from ekiden.te.inline import Inliner
from ekiden.te.prim_func import allocated
from ekiden.te.range_checks import RangeCheck, checks_of, out_of_range_flag, search_violation
from ekiden.te.statements import replace_buffers
from ekiden.te.tensor import ProducerLoad, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import IfThenElse, PrimFunc, Stmt, seq

MAX_SCALAR_CHECKS = 16
"""So many numbers are looked at one by one; of more, vectors say whether any is wrong."""


def with_checks(
    function: PrimFunc, inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target
) -> PrimFunc:
    """Return a function with the checks of all its computations before its body, producers' first,
    so that a check reads only at indices that have passed theirs.
    """
    ops = dict.fromkeys(t.op for t in te.post_order_tensors(outputs))
    checks = list(dict.fromkeys(c for op in ops for c in checks_of(op)))
    if not checks:
        return function
    attrs = function.attrs or {}
    is_plain = attrs.get("tir.has_blocks") or not attrs.get("tir.tiled")
    assert is_plain, "tiles have no vectors to be made"
    buffers = dict(zip(inputs, function.buffers, strict=False))
    check_stmts = [_checked(c, inputs, buffers, target) for c in checks]
    return function.with_fields(body=seq(*(s for s in check_stmts if s is not None), function.body))


def _checked(
    check: RangeCheck, inputs: Sequence[Tensor], buffers: Mapping[Tensor, Buffer], target: Target
) -> Stmt | None:
    """Return the statements of one check; None if it cannot fail."""
    between = [t for t in te.post_order_tensors([check.values]) if t not in buffers]
    non_injective = [t for t in between if not te.is_injective(t)]
    assert not non_injective, (
        f"{check.subject}: made by {non_injective[0].name!r} in the same kernel"
    )
    inliner = Inliner(set(between))

    def real(value: PrimExpr) -> PrimExpr:
        return rewrite(inliner.expr(value), load)

    def element(at: Sequence[PrimExpr]) -> PrimExpr:
        return real(check.values[tuple(at)])

    def load(e: PrimExpr) -> PrimExpr:
        """Return a tensor read as a load from its buffer."""
        if isinstance(e, ProducerLoad):
            return BufferLoad(buffers[e.producer], e.indices, e.dtype)
        return e

    if not check.values.shape and is_const(Analyzer().simplify(check.holds(element(()))), 1):
        return None
    if target.kind.has_threads:
        return _by_threads(check.over(real), element)
    failure_search = search_violation(check.over(real), element)
    sizes = [
        d.value if isinstance(d, IntImm) else MAX_SCALAR_CHECKS + 1 for d in check.values.shape
    ]
    return (
        failure_search
        if prod(sizes) <= MAX_SCALAR_CHECKS
        else _behind_flag(check, failure_search, inputs, buffers, target)
    )


def _by_threads(check: RangeCheck, element: Callable[[Sequence[PrimExpr]], PrimExpr]) -> Stmt:
    """Return a launch with a thread per index, before the launches that use them."""
    index, shape = Var("index"), check.values.shape
    at = coordinates(index, shape)
    extent = product(shape) if shape else const(1)
    threads = THREADS if shape else 1
    return launch(index, extent, threads, check.assertion(element(at), at))


def _behind_flag(
    check: RangeCheck,
    failure_search: Stmt,
    inputs: Sequence[Tensor],
    buffers: Mapping[Tensor, Buffer],
    target: Target,
) -> Stmt:
    """Return the search for the wrong index, guarded by a vectorised pass that tells whether there
    is one.
    """
    wrong = out_of_range_flag(check)
    counted = schedule_default(list(inputs), [wrong], target, "check")
    flag_buffer = Buffer(wrong.name, (const(1),), wrong.dtype, "local")
    real = {own: buffers[t] for own, t in zip(counted.buffers, inputs, strict=False)}
    body = replace_buffers(counted.body, {**real, counted.buffers[-1]: flag_buffer})
    test = IfThenElse(BufferLoad(flag_buffer, (const(0),), flag_buffer.dtype) > 0, failure_search)
    return allocated(seq(body, test), [flag_buffer])


__all__ = ["with_checks"]
