"""Rewrite loops whose whole body is one vector store as loops over elements.

    for i in range(n):                            for i in range(n * 8):
        B[i * 8 : +8] = exp(A[i * 8 : +8])   ->       B[i] = exp(A[i])

A compiler that makes vectors of loops takes as many lanes as all types in it allow then: of eight
lanes of a byte and a float GCC makes none.
"""

from __future__ import annotations

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import (
    BinaryExpr,
    Cast,
    IntImm,
    Intrinsic,
    Not,
    PrimExpr,
    Select,
    Var,
    const,
    fold_binary,
    is_const,
)
from ekiden.ir.prim_visitor import children, free_vars, post_order
from ekiden.tir.expr import Broadcast, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore, For, ForKind

_CROSS_LANE_INTRINSICS = (
    "shuffle", "same_memory", "reinterpret", "call_packed", "call_function", "if_then_else",
)  # fmt: skip
"""Intrinsics whose result depends on other lanes."""


def scalarize_vector_loop(loop: For) -> For | None:
    """Rewrite a loop over vector stores to the equivalent loop over single elements, in the same
    order; return None if there is none.
    """
    store = loop.body
    if loop.kind is not ForKind.SERIAL or not isinstance(store, BufferStore):
        return None
    index = store.indices[0]
    is_near = len(store.indices) == 1 and isinstance(index, Ramp) and is_const(index.stride, 1)
    # Only stride 1 and scalar elements make the vectors of all iterations one run of elements.
    if not is_near or dt.lanes(store.buffer.dtype) > 1:
        return None
    # A masked store leaves lanes unwritten, while the scalar loop writes every element.
    if store.predicate is not None and not is_const(store.predicate, 1):
        return None
    return _LaneScalarizer(loop.loop_var, dt.lanes(index.dtype)).scalarize(loop, store)


class _LaneScalarizer:
    """Rewriter of vector expressions of `lanes` lanes to the expression of one element of a longer
    loop.
    """

    def __init__(self, var: Var, lanes: int) -> None:
        self.var, self.lanes = var, lanes
        self.element = Var(var.name, var.dtype)

    def scalarize(self, loop: For, store: BufferStore) -> For | None:
        """Return the scalar loop if every expression is the same function of its element, else
        None.
        """
        values = [self._scalar_expression(e) for e in (store.indices[0], store.value)]
        if any(v is None or dt.lanes(v.dtype) > 1 for v in values):
            return None
        index, value = values
        assert index is not None and value is not None
        body = BufferStore(store.buffer, value, (index,))
        times = const(self.lanes, self.var.dtype)
        return For(self.element, loop.min * times, loop.extent * times, loop.kind, body)

    def _scalar_expression(self, root: PrimExpr) -> PrimExpr | None:
        """Return an expression for one element, or None. A value shared by all lanes must be
        invariant in the loop too.
        """
        # The key is the identity, so that shared subexpressions are rewritten once.
        done: dict[int, PrimExpr] = {}
        order = post_order(root)
        for e in order:
            scalar = e if dt.lanes(e.dtype) == 1 else self._scalarize_node(e, done)
            if scalar is None:
                return None
            done[id(e)] = scalar
        wide = [e for e in order if dt.lanes(e.dtype) > 1 and not isinstance(e, Ramp)]
        shared = [c for e in wide for c in children(e) if dt.lanes(c.dtype) == 1]
        return None if self.var in free_vars(*shared) else done[id(root)]

    def _scalarize_node(self, e: PrimExpr, done: dict[int, PrimExpr]) -> PrimExpr | None:
        operands, kind = [done[id(c)] for c in children(e)], dt.element_dtype(e.dtype)
        match e:
            case Ramp():
                return self._scalarize_ramp(e)
            case Broadcast():
                return operands[0]
            case BinaryExpr():
                return fold_binary(type(e), operands[0], operands[1])
            case Cast():
                return Cast(operands[0], kind)
            case Not():
                return Not(operands[0], kind)
            case Select():
                return Select(operands[0], operands[1], operands[2], kind)
            case BufferLoad() if len(operands) == 1 and dt.lanes(e.buffer.dtype) == 1:
                return BufferLoad(e.buffer, (operands[0],), kind)
            case Intrinsic() if (
                e.op not in _CROSS_LANE_INTRINSICS and not find_intrinsic(e.op).has_effects
            ):
                return Intrinsic(e.op, tuple(operands), kind)
        return None

    def _scalarize_ramp(self, e: Ramp) -> PrimExpr | None:
        """Return a ramp's index of one lane; None if its base is not affine in the loop variable.

        A vector at `base + i * lanes * stride` has the lanes `base + i * stride`.
        """
        if not isinstance(e.stride, IntImm) or e.lanes != self.lanes:
            return None
        step = const(self.lanes * e.stride.value, e.base.dtype)
        loop_invariant_base = simplify(e.base - self.var * step)
        if self.var in free_vars(loop_invariant_base):
            return None
        return loop_invariant_base + self.element * const(e.stride.value, e.base.dtype)


__all__ = ["scalarize_vector_loop"]
