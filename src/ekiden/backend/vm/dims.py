"""The sizes, offsets and shapes of a function that depend on symbols: one int64 vector, computed
once at entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ekiden.backend.kernels.lower import Constraint
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.structural import structural_key
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Function
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.op.vm import ReshapeTensorAttrs
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.runtime.errors import CompileError


def is_static(exprs: Sequence[PrimExpr]) -> bool:
    """Whether all are constants."""
    return all(isinstance(e, IntImm) for e in exprs)


def values(exprs: Sequence[PrimExpr]) -> tuple[int, ...]:
    """The numbers of constants."""
    return tuple(e.value for e in exprs if isinstance(e, IntImm))


class Dims:
    """Places of expressions in the vector: equal sequences share a place; conditions on the symbols
    are checked with them.
    """

    def __init__(self, constraints: Sequence[Constraint] = ()) -> None:
        self.constraints = list(constraints)
        self.exprs: list[PrimExpr] = [const(0)] if constraints else []
        self._places: dict[Hashable, int] = {}

    def place(self, exprs: Sequence[PrimExpr]) -> int:
        """Where the values of `exprs` stand, one after the other."""
        key = structural_key(tuple(exprs))
        if key not in self._places:
            self._places[key] = len(self.exprs)
            self.exprs.extend(exprs)
        return self._places[key]


def dims_of(body: RelayExpr, constraints: Sequence[Constraint] = ()) -> Dims:
    """All symbolic sizes, offsets and shapes below body, placed."""
    dims = Dims(constraints)
    for expr in evaluation_order(body):
        match expr.attrs if isinstance(expr, Call) else None:
            case AllocStorageAttrs(size=size) if not is_static((size,)):
                dims.place((size,))
            case AllocTensorAttrs(offset=offset, shape=shape) if not is_static((offset, *shape)):
                dims.place((offset,))
                dims.place(shape)
            case ReshapeTensorAttrs(shape=shape) if not is_static(shape):
                dims.place(shape)
    return dims


def sources(function: Function, dims: Dims) -> list[int]:
    """Positions of the parameters whose shapes give the symbols that dims and their constraints
    need.

    Raises CompileError naming a symbol that no parameter has as a dimension.
    """
    needed = {v for e in [*dims.exprs, *(c for c, _ in dims.constraints)] for v in free_vars(e)}
    found: list[int] = []
    for position, param in enumerate(function.params):
        kind = param.checked_type
        given = (
            {d for d in kind.shape if isinstance(d, Var)} if isinstance(kind, TensorType) else set()
        )
        if needed & given:
            found.append(position)
            needed -= given
    if needed:
        names = ", ".join(sorted(v.name for v in needed))
        raise CompileError(
            f"allocating memory: no parameter of the function has the dimension {names}"
        )
    return found
