"""Index maps: transformations of the indices of a buffer's elements or of a block's iteration
domain.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from ekiden.arith import Analyzer, IterMapLevel, detect_iter_map, inverse_affine_iter_map
from ekiden.ir.node import Node, binding, node
from ekiden.ir.prim import ExprLike, PrimExpr, Var, const, convert, is_const
from ekiden.ir.prim_visitor import substitute
from ekiden.ir.range import Range
from ekiden.runtime.errors import ScheduleError


@node("tir.IndexMap")
class IndexMap(Node):
    """`final_indices` as functions of `initial_indices`: (i, j) -> (i // 16, j, i % 16)."""

    initial_indices: tuple[Var, ...] = binding()
    final_indices: tuple[PrimExpr, ...]

    @staticmethod
    def from_func(
        mapping: Callable[..., ExprLike | Sequence[ExprLike]],
        ndim: int | None = None,
        *,
        index_dtype: str = "int64",
    ) -> IndexMap:
        """Return the map that a Python function of indices defines. `ndim` is needed for `lambda
        *i: ...`, also with trailing named ones: `lambda *i, n: ...`.

        Raises ScheduleError when the number of indices is not known.
        """
        parameters = list(inspect.signature(mapping).parameters.values())
        named = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
        if len(named) < len(parameters) and ndim is None:
            raise ScheduleError("IndexMap: give ndim for a function of *indices")
        spread = max((ndim or 0) - len(named), 0) if len(named) < len(parameters) else 0
        if ndim is not None and len(named) + spread != ndim:
            raise ScheduleError(
                f"IndexMap: expected a function of {ndim} indices, got one of {len(named)}"
            )
        variables: list[Var] = []
        keywords: dict[str, Var] = {}
        for p in parameters:
            if p.kind is p.VAR_POSITIONAL:
                variables += [Var(f"i{len(variables) + n}", index_dtype) for n in range(spread)]
            else:
                variables.append(Var(p.name, index_dtype))
                if p.kind is p.KEYWORD_ONLY:
                    keywords[p.name] = variables[-1]
        result = mapping(*variables[: len(variables) - len(keywords)], **keywords)
        final_indices = (result,) if isinstance(result, (PrimExpr, int)) else tuple(result)  # type: ignore[arg-type]
        return IndexMap(tuple(variables), tuple(convert(e, index_dtype) for e in final_indices))

    def map_indices(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        """Return the final indices of an element."""
        values = dict(zip(self.initial_indices, indices, strict=True))
        analyzer = Analyzer()
        return tuple(analyzer.simplify(substitute(e, values)) for e in self.final_indices)

    def map_shape(self, shape: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        """Return the extents of the smallest box from 0 that contains the image of a box.

        Raises ScheduleError if an index may be negative or has no known upper bound.
        """
        analyzer = Analyzer()
        for var, dim in zip(self.initial_indices, shape, strict=True):
            analyzer.bind(var, 0, dim)
        last = {v: d - 1 for v, d in zip(self.initial_indices, shape, strict=True)}
        extents: list[PrimExpr] = []
        for e in self.final_indices:
            low, high = analyzer.const_int_bound(e)
            if low < 0:
                raise ScheduleError("IndexMap: an index may be negative")
            if high != float("inf"):
                extents.append(const(int(high) + 1))
            else:
                extents.append(_symbolic_extent(e, self, shape, last, analyzer))
        return tuple(extents)

    def sums(self, shape: Sequence[PrimExpr], level: IterMapLevel) -> object:
        """Return the map over a box as an IterMapResult: a sum of iterators per index."""
        iters = {v: Range(d) for v, d in zip(self.initial_indices, shape, strict=True)}
        return detect_iter_map(self.final_indices, iters, check_level=level)

    def is_equivalent_to(self, other: IndexMap) -> bool:
        """Return whether two maps send every index to the same place."""
        if len(self.initial_indices) != len(other.initial_indices) or len(
            self.final_indices
        ) != len(other.final_indices):
            return False
        mapped = other.map_indices(self.initial_indices)
        analyzer = Analyzer()
        return all(
            analyzer.can_prove_equal(a, b) for a, b in zip(self.final_indices, mapped, strict=True)
        )

    def inverse(self, shape: Sequence[ExprLike]) -> IndexMap:
        """Return the inverse map for a box that the map fills exactly.

        Raises ScheduleError if the map is no bijection.
        """
        sizes = [convert(d, "int64") for d in shape]
        iters = {v: Range(d) for v, d in zip(self.initial_indices, sizes, strict=True)}
        iter_map = detect_iter_map(self.final_indices, iters, check_level=IterMapLevel.BIJECTIVE)
        if iter_map.errors:
            raise ScheduleError(f"IndexMap: the map has no inverse: {iter_map.errors[0]}")
        variables = tuple(Var(f"axis{n}") for n in range(len(self.final_indices)))
        values = inverse_affine_iter_map(iter_map.indices, list(variables))
        # Indices of extent 1 occur in no digit of the map: they are 0.
        return IndexMap(variables, tuple(values.get(v, const(0)) for v in self.initial_indices))

    def __str__(self) -> str:
        return format_index_map(self)


def _symbolic_extent(
    e: PrimExpr,
    index_map: IndexMap,
    shape: Sequence[PrimExpr],
    last: dict[Var, PrimExpr],
    analyzer: Analyzer,
) -> PrimExpr:
    iters = {v: Range(d) for v, d in zip(index_map.initial_indices, shape, strict=True)}
    iter_map = detect_iter_map([e], iters, check_level=IterMapLevel.NO_CHECK)
    if iter_map.errors:
        raise ScheduleError(f"IndexMap: an index has no known end: {iter_map.errors[0]}")
    total: PrimExpr = convert(iter_map.indices[0].base) + 1
    for split in iter_map.indices[0].args:
        total = total + (convert(split.extent) - 1) * split.scale
    return analyzer.simplify(total)


def format_index_map(index_map: IndexMap) -> str:
    """Return the map as a Python lambda."""
    names = {v: v.name for v in index_map.initial_indices}
    params = ", ".join(names.values())
    body = ", ".join(format_index_expr(e, names) for e in index_map.final_indices)
    comma = "," if len(index_map.final_indices) == 1 else ""
    return f"lambda {params}: ({body}{comma})"


def format_index_expr(e: PrimExpr, names: dict[Var, str]) -> str:
    """Return an index expression as Python. Raises ScheduleError for a variable without a name."""
    if isinstance(e, Var):
        if e not in names:
            raise ScheduleError(f"an expression of {e.name!r} cannot be written as Python")
        return names[e]
    if is_const(e):
        return str(e.value)  # type: ignore[attr-defined]
    symbol = getattr(e, "symbol", None)
    if symbol is None:
        raise ScheduleError(f"{type(e).__name__} cannot be written as Python here")
    a, b = format_index_expr(e.a, names), format_index_expr(e.b, names)  # type: ignore[attr-defined]
    return f"{symbol}({a}, {b})" if symbol in ("min", "max") else f"({a} {symbol} {b})"
