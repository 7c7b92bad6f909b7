"""Commutative reducers: what a reduction combines, of tensor expressions and of threads alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from ekiden.ir.node import Node, binding, node
from ekiden.ir.prim import ExprLike, PrimExpr, Var, convert
from ekiden.ir.prim_visitor import substitute

REDUCE_SCOPE = "reduce_scope"
"""Key of the attribute whose node is the reducer of the T.tvm_thread_allreduce in its body."""


@node("tir.CommReducer")
class CommReducer(Node):
    """Commutative, associative combiner of tuples: `result` in terms of the variables `lhs` and
    `rhs`, and the identity tuple.

    `name` is the kind for a built-in reducer, which schedule rules know; else anything.
    """

    name: str
    lhs: tuple[Var, ...] = binding()
    rhs: tuple[Var, ...] = binding()
    result: tuple[PrimExpr, ...]
    identity_element: tuple[PrimExpr, ...]

    def combine(self, a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        """Return the combination of two tuples."""
        values = dict(zip((*self.lhs, *self.rhs), (*a, *b), strict=True))
        return tuple(substitute(component, values) for component in self.result)


def reducer_from_function(
    combiner: Callable[..., ExprLike | Sequence[ExprLike]], identity: Sequence[ExprLike]
) -> CommReducer:
    """Return a reducer by its function: `T.comm_reducer(lambda x, y: x + y, [T.float32(0)])`.

    Args:
        combiner: takes the components of one tuple, then those of the other; returns the
            combination, a tuple where there are several components.
        identity: the components of the identity tuple, whose dtypes are those of the variables.

    Raises:
        TypeError: for another number of parameters or results, or results of other dtypes.
    """
    names = list(inspect.signature(combiner).parameters)
    if not identity or len(names) != 2 * len(identity):
        raise TypeError(
            f"T.comm_reducer: {len(identity)} identity values need a function of"
            f" {2 * len(identity)} parameters, got {len(names)}"
        )
    elements = tuple(map(convert, identity))
    dtypes = [element.dtype for element in elements]
    variables = [Var(name, t) for name, t in zip(names, dtypes * 2, strict=True)]
    combined = combiner(*variables)
    components = combined if isinstance(combined, (tuple, list)) else (combined,)
    if len(components) != len(dtypes):
        raise TypeError(
            f"T.comm_reducer: the function must return {len(dtypes)} values, got {len(components)}"
        )
    result = tuple(convert(c, t) for c, t in zip(components, dtypes, strict=True))
    if [component.dtype for component in result] != dtypes:
        raise TypeError(
            f"T.comm_reducer: the function must return {', '.join(dtypes)}, got"
            f" {', '.join(component.dtype for component in result)}"
        )
    count = len(dtypes)
    left, right = tuple(variables[:count]), tuple(variables[count:])
    return CommReducer("reduce", left, right, result, elements)


__all__ = ["REDUCE_SCOPE", "CommReducer", "reducer_from_function"]
