"""Kernels that compute the size vectors of a function's stages (see dim_plan), and their arguments.

At entry symbols are read from the shapes of parameters. One that stands alone is that dimension;
one inside of a linear expression is solved for: `n = dim // 2` where a dimension is `n * 2`.
Several symbols in one dimension are solved as others become known, in rounds, as long as one round
solves something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ekiden.arith import Analyzer, prove_equal, simplify, substitute
from ekiden.backend.kernels.lower import RunCheck, shape_function
from ekiden.backend.kernels.overflow_checks import MAX_EXTENT, size_conditions
from ekiden.backend.vm.dim_plan import DimPlan, DimStage, DimVector
from ekiden.ir.expr import RelayExpr
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.op import OPS
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar, Var, cast, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.prim_visitor import substitute as replace
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Function
from ekiden.relay.op.vm import BindDimsAttrs, MatchShapeAttrs
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc


@dataclass(frozen=True, slots=True)
class ShapeSource:
    """Tensor whose shape determines symbols: a parameter's number, then tuple field indices."""

    path: tuple[int, ...]
    tensor_type: TensorType
    """Tensor type with a symbol in place of each compound dimension."""


@dataclass(frozen=True, slots=True)
class ShapeSources:
    """Tensors that determine the symbols of a function's dimensions and their constraints."""

    tensors: tuple[ShapeSource, ...]
    exprs: tuple[PrimExpr, ...]
    """Expressions of the size vector, in the sources' symbols."""
    checks: tuple[RunCheck, ...]


def shape_sources(function: Function, dims: DimVector) -> ShapeSources:
    """Return the parameters whose shapes determine the symbols of dimensions and their constraints.
    A symbol that occurs only in a dimension like `n * 2 + 1` is solved for. Raises CompileError
    naming a symbol that no parameter binds.
    """
    tensors = [
        t for n, p in enumerate(function.params) for t in _param_tensors((n,), p.checked_type)
    ]
    shown: dict[Var, PrimExpr] = {}
    all_sources = [ShapeSource(path, _name_compound_dims(kind, shown)) for path, kind in tensors]
    plain = {
        d for t in all_sources for d in t.tensor_type.shape if isinstance(d, Var) and d not in shown
    }
    solved = _solve_compound_dims(shown, plain)
    simplest = Analyzer().simplify  # one for all, which have much in common
    moved = [replace(e, solved) for e in dims.exprs]  # what is not, is as simple as it was made
    exprs = tuple(e if e is old else simplest(e) for e, old in zip(moved, dims.exprs, strict=True))
    checks = tuple(
        RunCheck.from_constraint(constraint).with_mapped_exprs(
            lambda e: simplest(replace(e, solved))
        )
        for constraint in dims.constraints
    )
    checks = (*_divisibility_checks(function, all_sources, shown, solved), *checks)
    needed = set(free_vars(*exprs, *(c.condition for c in checks)))  # parts that they share once
    used: list[ShapeSource] = []
    for source in all_sources:
        bound_here = needed & {d for d in source.tensor_type.shape if isinstance(d, Var)}
        if bound_here:
            used.append(source)
            needed -= bound_here
    if needed:
        names = ", ".join(sorted(v.name for v in needed))
        raise CompileError(
            f"allocating memory: no parameter of the function has the dimension {names}"
        )
    return ShapeSources(tuple(used), exprs, checks)


def _divisibility_checks(
    function: Function,
    all_sources: Sequence[ShapeSource],
    shown: Mapping[Var, PrimExpr],
    solved: Mapping[Var, PrimExpr],
) -> list[RunCheck]:
    """Return the checks that compound dimensions are divisible: 5 elements along n * 2
    have no n.
    """
    consistency_checks: list[RunCheck] = []
    for source in all_sources:
        for axis, name in enumerate(source.tensor_type.shape):
            dim = shown.get(name) if isinstance(name, Var) else None
            if dim is None or solved.keys().isdisjoint(free_vars(dim)):
                continue
            value = simplify(substitute(dim, solved))
            if not prove_equal(value, name):
                where = f"dimension {axis} of '{function.params[source.path[0]].name_hint}'"
                text = f"run: expected {where} to be {format_prim_expr(dim)}"
                consistency_checks.append(RunCheck(name.equal(value), text, {"it": name}))
    return consistency_checks


def _param_tensors(path: tuple[int, ...], kind: Type) -> list[tuple[tuple[int, ...], TensorType]]:
    """Return the tensors in a parameter, through tuples, with their paths."""
    if isinstance(kind, TensorType):
        return [(path, kind)]
    if isinstance(kind, TupleType):
        return [t for n, field in enumerate(kind.fields) for t in _param_tensors((*path, n), field)]
    return []


def _name_compound_dims(kind: TensorType, shown: dict[Var, PrimExpr]) -> TensorType:
    """Return a type whose compound dimensions are new symbols, recorded in `shown`."""
    shape: list[PrimExpr] = []
    for dim in kind.shape:
        if not isinstance(dim, (IntImm, Var)):
            name = SizeVar(f"dim{len(shown)}")
            shown[name] = dim
            dim = name
        shape.append(dim)
    return TensorType(tuple(shape), kind.dtype)


def _solve_compound_dims(shown: dict[Var, PrimExpr], bound: set[Var]) -> dict[Var, PrimExpr]:
    """Solve compound dimensions for their symbols: n = dim0 // 2 where dim0 is n * 2."""
    solved: dict[Var, PrimExpr] = {}
    waiting = [(name, dim) for name, dim in shown.items() if not isinstance(dim, AnyDim)]
    while waiting:
        later = []
        for name, dim in waiting:
            open_ = [v for v in free_vars(dim) if v not in bound and v not in solved]
            value = _solve_linear(name, dim, open_[0]) if len(open_) == 1 else None
            if value is not None:
                solved[open_[0]] = simplify(substitute(value, solved))
            elif open_:
                later.append((name, dim))
        if len(later) == len(waiting):
            break
        waiting = later
    return solved


def _solve_linear(name: Var, dim: PrimExpr, symbol: Var) -> PrimExpr | None:
    """Return the symbol's value where `dim`, linear in it, equals `name`; None if it is
    not linear.
    """
    base = simplify(substitute(dim, {symbol: const(0)}))
    slope = simplify(substitute(dim, {symbol: const(1)}) - base)
    if not isinstance(slope, IntImm) or slope.value == 0:
        return None
    return (name - base) // slope if prove_equal(dim, symbol * slope + base) else None


@dataclass(frozen=True, slots=True)
class StageArgument:
    """Tensor that a stage reads: an expression of the chain, then tuple field indices."""

    value: RelayExpr
    path: tuple[int, ...]


def stage_arguments(stage: DimStage) -> list[StageArgument]:
    """Return the tensors whose shapes or elements a stage after the entry reads."""
    return [StageArgument(value, path) for value, path, _ in _read_tensors(stage)]


def _read_tensors(stage: DimStage) -> Iterator[tuple[RelayExpr, tuple[int, ...], TensorType]]:
    for call in stage.calls:
        value = call.args[0 if isinstance(call.attrs, MatchShapeAttrs) else 1]
        for path, kind in _param_tensors((), value.checked_type):
            yield value, path, kind


def entry_sources(plan: DimPlan) -> ShapeSources:
    """Return the sources of a function's entry stage, computed once: a plan's dimensions do not
    change.
    """
    if plan.sources is None:
        plan.sources = shape_sources(plan.function, plan.entry.dims)
    return plan.sources


def stage_kernel(plan: DimPlan, stage: DimStage) -> PrimFunc:
    """Return the kernel of a stage. Its arguments are the parameters of `sources` at entry, or
    `stage_arguments` and then the vectors of `stage.earlier`; the last one is its output.
    """
    name = f"shape_func_{stage.name}"
    if stage is plan.entry:
        entry_inputs = entry_sources(plan)
        params = [
            Buffer(f"p{i}", t.tensor_type.shape, t.tensor_type.dtype)
            for i, t in enumerate(entry_inputs.tensors)
        ]
        conditions = [check.condition for check in entry_inputs.checks]
        checks = (*_overflow_checks((*entry_inputs.exprs, *conditions)), *entry_inputs.checks)
        return shape_function(params, entry_inputs.exprs, checks, name)
    return _StageKernelBuilder(stage).build(name)


class _StageKernelBuilder:
    """Builder of the kernel of one stage after the entry."""

    def __init__(self, stage: DimStage) -> None:
        self.stage = stage
        self.buffers = [
            Buffer(f"p{i}", _fresh_shape(kind, i), kind.dtype)
            for i, (_, _, kind) in enumerate(_read_tensors(stage))
        ]
        self.vectors = [
            Buffer(f"v{i}", (const(len(s.dims.exprs)),), "int64")
            for i, s in enumerate(stage.earlier_vectors)
        ]
        self.result = Buffer("dims", (const(len(stage.dims.exprs)),), "int64")
        self.defined: dict[Var, PrimExpr] = {}
        self.checks: list[RunCheck] = []

    def build(self, name: str) -> PrimFunc:
        """Build the whole kernel."""
        remaining_buffers = list(self.buffers)
        for call in self.stage.calls:
            value = call.args[0 if isinstance(call.attrs, MatchShapeAttrs) else 1]
            number = len(_param_tensors((), value.checked_type))
            self._define_symbols(call, remaining_buffers[:number])
            del remaining_buffers[:number]
        symbol_values: dict[Var, PrimExpr] = {
            s: self.result[position] for s, position in self.stage.symbols.items()
        }
        for vector, (earlier_stage, symbols) in zip(
            self.vectors, self.stage.earlier_vectors.items(), strict=True
        ):
            symbol_values |= {s: vector[earlier_stage.dims.slot_of((s,))] for s in symbols}
        dims = self.stage.dims
        exprs = tuple(
            self.defined[e]
            if isinstance(e, Var) and e in self.defined
            else substitute(e, symbol_values)
            for e in dims.exprs
        )
        all_checks = [*self.checks, *map(RunCheck.from_constraint, dims.constraints)]
        checks = [
            check.with_mapped_exprs(lambda e: substitute(e, symbol_values)) for check in all_checks
        ]
        conditions = [check.condition for check in checks[len(self.checks) :]]
        computed = [e for e, dim in zip(exprs, dims.exprs, strict=True) if dim not in self.defined]
        extents = (*self.vectors, self.result)
        checks = [*checks[: len(self.checks)], *_overflow_checks((*computed, *conditions), extents),
                  *checks[len(self.checks) :]]  # fmt: skip
        params = [*self.buffers, *self.vectors]
        first = len(self.stage.symbols)
        return shape_function(params, exprs, checks, name, self.result, first)

    def _define_symbols(self, call: Call, buffers: Sequence[Buffer]) -> None:
        """Define and check the symbols of one binding."""
        where = f" ({call.span})" if call.span else ""
        if isinstance(call.attrs, MatchShapeAttrs):
            (buffer,) = buffers
            for axis, expected in enumerate(call.attrs.shape):
                what = f"dimension {axis} of {call.attrs.place or 'a tensor'}{where}"
                text = f"run: expected {what} to be {format_prim_expr(expected)}"
                self._match_dim(expected, buffer.shape[axis], text)
            return
        attrs = call.attrs
        assert isinstance(attrs, BindDimsAttrs)
        if attrs.operator:
            rule = OPS[attrs.operator].dims
            assert rule is not None
            values: Sequence[PrimExpr]
            values, conditions = rule(attrs.attrs, buffers)
            name = f"run: {attrs.operator}{where}"
            self.checks.extend(_overflow_checks(values, name=name))
            self.checks.extend(
                RunCheck(c, f"{name}: {text}", shown) for c, text, shown in conditions
            )
        else:
            values = [cast(buffers[0][i], "int64") for i in range(len(attrs.symbols))]
        for symbol, value in zip(attrs.symbols, values, strict=True):
            if isinstance(symbol, Var) and symbol not in self.defined:
                self.defined[symbol] = value
                text = f"run: {attrs.operator}{where}: a dimension of the result is negative"
                self.checks.append(RunCheck(symbol >= 0, text, {"it": value}))
                text = f"run: {attrs.operator}{where}: a dimension of the result is too large"
                self.checks.append(RunCheck(symbol <= MAX_EXTENT, text, {"it": value}))

    def _match_dim(self, expected: PrimExpr, dim: PrimExpr, text: str) -> None:
        if (
            isinstance(expected, Var)
            and expected in self.stage.symbols
            and expected not in self.defined
        ):
            self.defined[expected] = dim
        elif not isinstance(expected, AnyDim) and expected is not dim:
            shown = {v.name: v for v in free_vars(expected)}
            self.checks.append(RunCheck(dim.equal(expected), text, {**shown, "it": dim}))


def _overflow_checks(
    exprs: Sequence[PrimExpr], extents: Sequence[Buffer] = (), name: str = "run"
) -> list[RunCheck]:
    """Return the checks that no size arithmetic overflows; see `size_conditions`. `name` begins
    their messages.
    """
    rows = size_conditions(exprs, extents)
    return [RunCheck(condition, f"{name}: {text}", shown) for condition, text, shown in rows]


def _fresh_shape(kind: TensorType, number: int) -> tuple[PrimExpr, ...]:
    """Return a shape with a new symbol for each dimension that is not constant."""
    return tuple(
        d if isinstance(d, IntImm) else SizeVar(f"p{number}_{axis}")
        for axis, d in enumerate(kind.shape)
    )
