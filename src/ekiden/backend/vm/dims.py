"""The sizes, offsets and shapes of a function that depend on symbols: one int64 vector, computed
once at entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ekiden.arith import prove_equal, simplify, substitute
from ekiden.backend.kernels.lower import Constraint
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar, Var, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.structural import structural_key
from ekiden.ir.type import TensorType, TupleType, Type
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


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor from whose shape symbols are read: the number of a parameter, then of the fields of
    the tuples it is in.
    """

    path: tuple[int, ...]
    kind: TensorType
    """Its type, with a name of its own for each dimension that is neither a name nor a number."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a function reads what its dims and their constraints need."""

    tensors: tuple[Source, ...]
    exprs: tuple[PrimExpr, ...]
    """The expressions of the dims, in the symbols that the tensors have as dimensions."""
    constraints: tuple[Constraint, ...]


def sources(function: Function, dims: Dims) -> Sources:
    """The parameters whose shapes give the symbols that dims and their constraints need. A symbol
    that stands in a dimension like `n * 2 + 1` alone is computed from it.

    Raises CompileError naming a symbol that no parameter shows.
    """
    tensors = [t for n, p in enumerate(function.params) for t in _tensors((n,), p.checked_type)]
    shown: dict[Var, PrimExpr] = {}
    found = [Source(path, _with_names(kind, shown)) for path, kind in tensors]
    plain = {d for t in found for d in t.kind.shape if isinstance(d, Var) and d not in shown}
    solved = _solve(shown, plain)
    exprs = tuple(substitute(e, solved) for e in dims.exprs)
    constraints = tuple((substitute(c, solved), where) for c, where in dims.constraints)
    needed = {v for e in (*exprs, *(c for c, _ in constraints)) for v in free_vars(e)}
    used: list[Source] = []
    for each in found:
        given = needed & {d for d in each.kind.shape if isinstance(d, Var)}
        if given:
            used.append(each)
            needed -= given
    if needed:
        names = ", ".join(sorted(v.name for v in needed))
        raise CompileError(
            f"allocating memory: no parameter of the function has the dimension {names}"
        )
    return Sources(tuple(used), exprs, constraints)


def _tensors(path: tuple[int, ...], kind: Type) -> list[tuple[tuple[int, ...], TensorType]]:
    """The tensors in a parameter, through tuples."""
    if isinstance(kind, TensorType):
        return [(path, kind)]
    if isinstance(kind, TupleType):
        return [t for n, field in enumerate(kind.fields) for t in _tensors((*path, n), field)]
    return []


def _with_names(kind: TensorType, shown: dict[Var, PrimExpr]) -> TensorType:
    """A type whose compound dimensions are new symbols; `shown` says what each stands for."""
    shape: list[PrimExpr] = []
    for dim in kind.shape:
        if not isinstance(dim, (IntImm, Var)):
            name = SizeVar(f"dim{len(shown)}")
            shown[name] = dim
            dim = name
        shape.append(dim)
    return TensorType(tuple(shape), kind.dtype)


def _solve(shown: dict[Var, PrimExpr], known: set[Var]) -> dict[Var, PrimExpr]:
    """Symbols, by what compound dimensions are: n = dim0 // 2 where dim0 is n * 2."""
    solved: dict[Var, PrimExpr] = {}
    waiting = [(name, dim) for name, dim in shown.items() if not isinstance(dim, AnyDim)]
    while waiting:
        later = []
        for name, dim in waiting:
            open_ = [v for v in free_vars(dim) if v not in known and v not in solved]
            value = _inverse(name, dim, open_[0]) if len(open_) == 1 else None
            if value is not None:
                solved[open_[0]] = simplify(substitute(value, solved))
            elif open_:
                later.append((name, dim))
        if len(later) == len(waiting):
            break
        waiting = later
    return solved


def _inverse(name: Var, dim: PrimExpr, symbol: Var) -> PrimExpr | None:
    """What a symbol is where `dim`, linear in it, is `name`; None if it is not linear."""
    base = simplify(substitute(dim, {symbol: const(0)}))
    slope = simplify(substitute(dim, {symbol: const(1)}) - base)
    if not isinstance(slope, IntImm) or slope.value == 0:
        return None
    return (name - base) // slope if prove_equal(dim, symbol * slope + base) else None
