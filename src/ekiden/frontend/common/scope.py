"""Import scope shared by the nodes of one import: dimension symbols, expression types, spans and
blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import numpy as np

from ekiden.arith import Analyzer
from ekiden.frontend.common.dim_arithmetic import lower_dim
from ekiden.frontend.common.dim_facts import DimFacts, RestartImport
from ekiden.frontend.common.import_block import ImportBlock
from ekiden.frontend.common.loop_invariant_motion import bind_captured_exprs
from ekiden.frontend.common.sequence_value import SequenceValue
from ekiden.frontend.common.spans import attach_span
from ekiden.frontend.common.sum_value import sum_type_definition, value_of_type_call
from ekiden.frontend.common.value import Value, sanitize_name
from ekiden.ir import prim
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar, fold_binary, is_const
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.prim_visitor import ExprInterner, free_vars, has_more_nodes, substitute
from ekiden.ir.span import Span
from ekiden.ir.type import TensorType, TupleType, Type, TypeCall
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, Function, Let, TupleGetItem, Var
from ekiden.relay.expr import const as relay_const
from ekiden.relay.op import sequence
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.visitor import free_vars as relay_free_vars
from ekiden.relay.visitor import map_type
from ekiden.runtime.errors import ImportModelError
from ekiden.topi.dimensions import are_equal_dims, known_int

MAX_EXTENT_NODES = 100
"""Nodes of an expression that is an extent. Those of networks with named sizes are shorter; where
an extent is made of itself again and again its text would double with each layer."""


class Scope:
    """Import scope: symbols, constraints and nested blocks of one import attempt."""

    def __init__(self, facts: DimFacts, used: set[str]) -> None:
        self.used = used
        self.span = Span("model")
        self.params: list[Var] = []
        self.param_names: dict[Var, str] = {}
        self.constraints: dict[str, tuple[PrimExpr, str]] = {}
        self._facts = facts
        self._resized: set[str] = set()
        self._sources: dict[SizeVar, tuple[Var, int]] = {}
        self._made: dict[SizeVar, tuple[Var, int, int, int]] = {}
        """Symbols that a dimension is made of: tensor, axis, factor and rest of the dimension."""
        self._scalars: dict[SizeVar, Expr] = {}
        self._blocks = [ImportBlock()]
        self._origins: dict[Var, Expr] = {}
        self._interned = ExprInterner()
        self._births: dict[Expr, int] = {}
        """Expression of a value -> how many there were before it."""
        self._symbols: dict[str, SizeVar] = {}
        self._stated: set[SizeVar] = set()
        """Symbols that are names of the model, which may be found to be numbers."""
        self._places: dict[tuple[str, str, int], int] = {}
        self.module = IRModule(None, {sequence.LIST.header: sequence.LIST})
        self._tentative = 0
        """Of how many alternatives inside each other the current node is: facts that it implies
        need not hold of the others."""

    # Dimensions.

    def dim_symbol(self, name: str) -> PrimExpr:
        """Return the dimension of that name: a symbol, or a number where the model admits no other
        extent.
        """
        dim = self._dim_symbol(name)
        if isinstance(dim, SizeVar):
            self._stated.add(dim)
        if isinstance(dim, SizeVar) and dim.upper is not None:
            limit = f"dimension '{dim.name}'"
            self.constraints[limit] = (dim <= dim.upper, limit)
        return dim

    def _dim_symbol(self, name: str) -> PrimExpr:
        """Return the symbol of a dimension, or of its representative among equal ones."""
        name = self._facts.representative(name)
        if name in self._facts.known:
            return prim.const(self._facts.known[name])
        if name not in self._symbols:
            self._symbols[name] = SizeVar(name, upper=self._facts.upper.get(name))
        return self._symbols[name]

    def symbols(self) -> set[SizeVar]:
        """Return the symbols of this attempt: names of dimensions of the model and of data."""
        return {*self._symbols.values(), *self._sources}

    def add_param(self, var: Var, type_: TensorType, name: str) -> None:
        """Add a parameter of `main`.

        Symbols are read from its shape at run time, and those that dimensions like `2 * h + 1` are
        made of are solved for.
        """
        self.params.append(var)
        self.param_names[var] = name
        self._register_symbols(var, type_)

    def _register_symbols(self, var: Var, type_: TensorType) -> None:
        """Record which parameter and axis carries each symbol of a type, directly or as a linear
        expression.
        """
        for axis, dim in enumerate(type_.shape):
            if isinstance(dim, SizeVar):
                self._sources.setdefault(dim, (var, axis))
            elif len(symbols := free_vars(dim)) == 1 and isinstance(symbols[0], SizeVar):
                terms = _linear_coefficients(dim, symbols[0])
                if terms is not None:
                    self._made.setdefault(symbols[0], (var, axis, *terms))

    def require_condition(self, condition: PrimExpr, why: str = "") -> None:
        """Require a condition on dimensions for the current node; nothing is emitted if it always
        holds.

        `why` stands behind the node's name in the error. In `main` it is checked once when a run
        begins, as far as it follows from the inputs; else where the node stands.
        """
        if Analyzer().can_prove(condition):
            return
        block = self._blocks[-1]
        # A condition on inputs of main is checked once on entry, before memory is allocated.
        if len(self._blocks) == 1 and not block.symbols.intersection(free_vars(condition)):
            self.constraints.setdefault(repr(condition), (condition, f"{self.span}{why}"))
        elif block.mark_required(repr(condition)):
            scalar = self.attach_span(self.emit_dim(condition))
            block.add_runtime_check(
                scalar, f"{self.span}{why} needs {format_prim_expr(condition)}", self.span
            )

    def require_at_run_time(self, condition: Expr, why: str) -> None:
        """Require that a data-dependent bool scalar holds, checked at run time in the current
        block.
        """
        self._blocks[-1].add_runtime_check(
            self.attach_span(condition), f"{self.span}{why}", self.span
        )

    # Blocks: main, branches, functions.

    @contextmanager
    def enter_block(self, block: ImportBlock) -> Iterator[ImportBlock]:
        """Return a context in which a branch or a function body is imported."""
        self._blocks.append(block)
        try:
            yield block
        finally:
            self._blocks.pop()

    def close_block(self, result: Expr) -> Expr:
        """Return the innermost block as one expression: its bindings and checks around the
        result.
        """
        closed = self._blocks[-1].wrap_result(result)
        self.type_of(closed)
        return closed

    def new_parameter(self, name: str, kind: Type) -> Var:
        """Return a new parameter of the function whose body is the innermost block."""
        if not isinstance(kind, TensorType):
            var = Var(sanitize_name(name) or "value", kind, span=self.span)
            var.set_checked_type(kind)
            return var
        dims = (self._name_unknown_dim(name, axis, dim) for axis, dim in enumerate(kind.shape))
        named = TensorType(tuple(dims), kind.dtype)
        var = Var(sanitize_name(name) or "value", named, span=self.span)
        var.set_checked_type(named)
        user_dims = {d for d in kind.shape if isinstance(d, SizeVar)}
        new = {d for d in named.shape if isinstance(d, SizeVar)} - user_dims
        self._blocks[-1].symbols |= new
        self._register_symbols(var, named)
        return var

    def _name_unknown_dim(self, name: str, axis: int, dim: PrimExpr) -> PrimExpr:
        """Return a symbol for an unknown dimension of a value; known ones are returned unchanged.

        Attempts give it the same name, by its location in the model, so that facts hold of it.
        """
        if not isinstance(dim, AnyDim):
            return dim
        where = (str(self.span), name, axis)
        count = self._places[where] = self._places.get(where, -1) + 1
        called = self._facts.data_dim_name((*where, count))
        return self._dim_symbol(called) if len(self._blocks) == 1 else SizeVar(called)

    def bind_named(
        self, expr: Expr, name: str = "value", shape: Sequence[PrimExpr] | None = None
    ) -> Value:
        """Bind an expression to a variable if it has unknown dimensions, which get names from here
        on.

        Where `shape` knows such a dimension, it is required to be that.
        """
        kind = self.type_of(expr)
        if isinstance(kind, TypeCall):
            return value_of_type_call(self.attach_span(expr), kind)
        assert isinstance(kind, TensorType), f"a tensor or a sequence expected, got {kind!r}"
        # An extent built from itself layer after layer would double its text: bind a symbol to it.
        if any(has_more_nodes(d, MAX_EXTENT_NODES) for d in kind.shape):
            return self._bind_long_extents(expr, name, kind)
        if not any(isinstance(d, AnyDim) for d in kind.shape):
            return Value(kind, expr=self.attach_span(expr))
        if shape is not None:
            pairs = zip(kind.shape, shape, strict=True)
            dims = (extent if isinstance(d, AnyDim) else d for d, extent in pairs)
            kind = TensorType(tuple(dims), kind.dtype)
        var = self.new_parameter(name, kind)
        self.bind_var(var, expr)
        return Value(self.tensor_type_of(var), expr=var)

    def _bind_long_extents(self, expr: Expr, name: str, kind: TensorType) -> Value:
        """Bind an expression whose extents have a long text, and replace these extents by
        symbols.
        """
        symbols = {n: s for block in self._blocks for n, s in block.extents.items()}
        dims = list(kind.shape)
        for axis, dim in enumerate(dims):
            if has_more_nodes(dim, MAX_EXTENT_NODES):
                dims[axis] = symbols.get(id(self._interned(dim)), AnyDim())
        open_dims = (AnyDim() if d is not k else d for d, k in zip(dims, kind.shape, strict=True))
        relaxed = self.relax_type(self.attach_span(expr), TensorType(tuple(open_dims), kind.dtype))
        var = self.new_parameter(name, TensorType(tuple(dims), kind.dtype))
        self.bind_var(var, relaxed)
        for dim, symbol in zip(kind.shape, self.tensor_type_of(var).shape, strict=True):
            if has_more_nodes(dim, MAX_EXTENT_NODES) and isinstance(symbol, SizeVar):
                self._blocks[-1].extents.setdefault(id(self._interned(dim)), symbol)
        return Value(self.tensor_type_of(var), expr=var)

    def materialize_long_elements(self, value: Value) -> Value:
        """Return a value whose elements are computed at run time, if their shape expressions have
        become too long.
        """
        if value.symbols is None:
            return value
        elements = [e for e in value.symbols.ravel() if isinstance(e, PrimExpr)]
        if not any(has_more_nodes(e, MAX_EXTENT_NODES) for e in elements):
            return value
        return Value(value.type, expr=self.expr(value))

    def bind_var(self, var: Var, expr: Expr) -> None:
        """Bind a variable to an expression in the innermost block."""
        spanned = self.attach_span(expr)
        self._blocks[-1].bind(var, spanned)
        self._origins[var] = spanned

    def name_element_dim(self, number: PrimVar, dim: SizeVar) -> None:
        """Record, in the innermost block, that an element of a tensor is a named dimension."""
        self._blocks[-1].sizes[number] = dim

    def substitute_sizes(self, elements: Array) -> Array:
        """Substitute the dimensions named so far for tensor elements."""
        named: dict[PrimVar, PrimExpr] = {}
        for block in self._blocks:
            named.update(block.sizes)
        substituted = np.empty(elements.shape, object)
        for position, element in np.ndenumerate(elements):
            substituted[position] = substitute(element, named)
        return substituted

    def params_of(self, expr: Expr) -> list[str]:
        """Return the names of the parameters of `main` that an expression depends on."""
        return [self.param_names[v] for v in self.source_params(expr)]

    def source_params(self, expr: Expr) -> list[Var]:
        """Return the parameters of `main` that an expression depends on."""
        visited: dict[Var, None] = {}
        waiting = [expr]
        while waiting:
            for var in relay_free_vars(waiting.pop()):
                if var not in visited:
                    visited[var] = None
                    waiting += [self._origins[var]] if var in self._origins else []
        return [v for v in visited if v in self.param_names]

    def as_block_result(self, value: Value) -> Expr:
        """Return a value as a result of the innermost block; dimensions bound inside become
        unknown.
        """
        expr = self.expr(value)
        return self.relax_type(expr, self.erase_block_dims(self.type_of(expr)))

    def erase_block_dims(self, kind: Type, block: ImportBlock | None = None) -> Type:
        """Return a type with the dimensions that are bound inside a block, the innermost by
        default, replaced by unknown ones.
        """
        inner = (self._blocks[-1] if block is None else block).symbols

        def erase_inner_dims(inner_type: Type) -> Type:
            """Replace dimensions that name something bound inside by unknown ones."""
            if not isinstance(inner_type, TensorType):
                return inner_type
            dims = (AnyDim() if inner.intersection(free_vars(d)) else d for d in inner_type.shape)
            return TensorType(tuple(dims), inner_type.dtype)

        return map_type(kind, erase_inner_dims)

    def depends_on_main_only(self, *values: Value) -> bool:
        """Return whether known values depend only on dimensions named in `main`."""
        inner = {s for block in self._blocks[1:] for s in block.symbols}
        symbols = [e for v in values if v.symbols is not None for e in v.symbols.ravel()]
        return not inner.intersection(free_vars(*symbols))

    def relax_type(self, expr: Expr, kind: Type) -> Expr:
        """Return an expression under a less specific type."""
        if is_as_specific(self.type_of(expr), kind):
            return expr
        # A Let whose variable has the wider type forgets dimensions without computing anything.
        var = Var("result", kind, span=self.span)
        # Inference would give the variable the narrower type of its value again.
        var.set_checked_type(kind)
        relaxed_let = Let(var, expr, var, span=self.span)
        relaxed_let.set_checked_type(kind)
        return relaxed_let

    def relax_to_type(self, value: Value, kind: Type) -> Expr:
        """Return a value as an expression of a supertype of its type."""
        if isinstance(value, SequenceValue):
            assert isinstance(kind, TypeCall)
            (element,) = kind.args
            assert isinstance(element, TensorType)
            return self.sequence(value, element)
        return self.relax_type(self.expr(value), kind)

    def bind_tuple_fields(self, expr: Expr, names: Sequence[str]) -> list[Value]:
        """Return the fields of a tuple of tensors, each bound."""
        tuple_expr = self.attach_span(expr)
        return [self.bind_named(TupleGetItem(tuple_expr, i), name) for i, name in enumerate(names)]

    # Alternatives of values of several ranks.

    @contextmanager
    def enter_alternative(self, blocks: Sequence[ImportBlock]) -> Iterator[None]:
        """Enter a `with` block in which nodes are imported for one alternative, in the innermost of
        these blocks.
        """
        count = len(self._blocks)
        self._blocks.extend(blocks)
        self._tentative += 1
        try:
            yield
        finally:
            del self._blocks[count:]
            self._tentative -= 1

    def declare_sum_type(self, count: int) -> None:
        """Declare the sum type of `count` alternatives in the module."""
        data = sum_type_definition(count)
        self.module.type_definitions[data.header] = data

    def failing_branches(self) -> Mapping[int, str]:
        """Return the branches of the current node after which a later node always fails, each with
        its error.
        """
        return self._facts.failing_branches.get(str(self.span), {})

    def mark_branch_failing(self, name: str, branch: int, reason: str) -> None:
        """Record that a node fails after one branch of the conditional `name`.

        Raises Learned, unless it fails only within an alternative of another choice.
        """
        if not self._tentative:
            self._facts.mark_branch_failing(name, branch, reason)

    def require_equal_dims(self, first: Sequence[PrimExpr], second: Sequence[PrimExpr]) -> None:
        """Require dimensions to be pairwise equal; a node states all its equalities at once.

        Raises Learned when that says more of symbols than was known.
        """
        pairs = list(_possibly_unequal_pairs(first, second))
        inner = {s for block in self._blocks for s in block.symbols}
        named = [
            (a.name, b.name)
            for a, b in pairs
            if isinstance(a, SizeVar) and isinstance(b, SizeVar) and not inner & {a, b}
        ]
        if named and not self._tentative:
            self._facts.union_dims(named)
        # A branch that is not taken must not constrain the inputs.
        if len(self._blocks) == 1:  # of main, which every run computes
            self._learn_extent(pairs)
        if not self._tentative:
            self._learn_resized(pairs)
        for a, b in pairs:
            self.require_condition(fold_binary(prim.EQ, a, b))

    def require_broadcastable(self, first: Sequence[PrimExpr], second: Sequence[PrimExpr]) -> None:
        """Require two shapes to broadcast; s against min(s, c) with c > 1 implies s <= c."""
        aligned = zip(reversed(first), reversed(second), strict=False)
        pairs = [(a, b) for a, b in aligned if not is_const(a, 1) and not is_const(b, 1)]
        pairs = list(_possibly_unequal_pairs([a for a, _ in pairs], [b for _, b in pairs]))
        if not self._tentative:
            for a, b in pairs:
                self._learn_bound(a, b)
                self._learn_bound(b, a)
            self._learn_resized(pairs)
        for a, b in pairs:
            condition = fold_binary(prim.EQ, a, b)
            for dim in (d for d in (a, b) if not is_const(d)):
                condition = fold_binary(prim.Or, condition, fold_binary(prim.EQ, dim, 1))
            self.require_condition(condition)

    def _learn_extent(self, pairs: Sequence[tuple[PrimExpr, PrimExpr]]) -> None:
        """Record that a named dimension equals a number, and restart the import."""
        for symbol, number in ((x, y) for a, b in pairs for x, y in ((a, b), (b, a))):
            if self._is_model_symbol(symbol) and isinstance(number, IntImm):
                if number.value < 0:
                    raise ImportModelError(f"dimension {symbol.name!r} would be {number.value}")
                self._facts.fix_extent(symbol.name, number.value)

    def _is_model_symbol(self, dim: PrimExpr) -> TypeGuard[SizeVar]:
        """Return whether a dimension is a symbol declared by the model, about which facts may be
        inferred.
        """
        return isinstance(dim, SizeVar) and dim in self._stated

    def _learn_bound(self, symbol: PrimExpr, bound: PrimExpr) -> None:
        """Record an upper bound of a named dimension, and restart the import."""
        if not self._is_model_symbol(symbol) or not isinstance(bound, prim.Min):
            return
        for x, limit in ((bound.a, bound.b), (bound.b, bound.a)):
            if x is symbol and isinstance(limit, IntImm) and limit.value > 1:
                self._facts.upper[symbol.name] = limit.value
                raise RestartImport

    def _learn_resized(self, pairs: Sequence[tuple[PrimExpr, PrimExpr]]) -> None:
        """Record the extents of resized images by the tensors that they must match, and restart the
        import.
        """
        required_extents: dict[str, PrimExpr] = {}
        for a, b in pairs:
            for resized, matching in ((b, a), (a, b)):
                if repr(resized) in self._resized and not is_const(matching):
                    required_extents.setdefault(repr(resized), matching)
                    break
        self._facts.record_resized_extents(required_extents)

    def resolve_resized(self, extent: PrimExpr) -> PrimExpr:
        """Return the extent that an image is resized to, or the one that later nodes
        require of it.
        """
        key = repr(extent)
        if is_const(extent) or isinstance(extent, SizeVar):
            return extent
        if key not in self._facts.equal:
            self._resized.add(key)
            return extent
        required = self._resolve_named_dims(self._facts.equal[key])
        if required is None:
            return extent
        self.require_condition(fold_binary(prim.EQ, extent, required))
        return required

    def _resolve_named_dims(self, expr: PrimExpr) -> PrimExpr | None:
        """Return an expression over names as one over this attempt's symbols; None while one has no
        value.
        """
        symbols = {v: self._dim_symbol(v.name) for v in free_vars(expr)}
        dims = [s for s in symbols.values() if isinstance(s, SizeVar)]
        return substitute(expr, symbols) if all(s in self._sources for s in dims) else None

    # Expressions.

    def tensor_type_of(self, expr: Expr) -> TensorType:
        """Return the type of a tensor expression. Raises ImportModelError if it is no tensor."""
        kind = self.type_of(expr)
        if not isinstance(kind, TensorType):
            raise ImportModelError(f"expected a tensor, got {kind!r}")
        return kind

    def type_of(self, expr: Expr) -> Type:
        """Return the type of an expression, inferring it where it is new."""
        return expr.checked_type_or_none() or infer_expr_type(expr, self.module)

    def expr(self, value: Value) -> Expr:
        """Return a value as an expression; an array of shape expressions is computed from the
        parameters' shapes.
        """
        if isinstance(value, SequenceValue):
            return self.sequence(value, value.common_element_type())
        if value.expr is None:
            assert value.symbols is not None
            scalars = [self.emit_dim(e) for e in value.symbols.ravel()]
            vector = op.stack(scalars, axis=0) if scalars else relay_const(np.zeros(0, np.int64))
            shaped = op.reshape(vector, value.symbols.shape) if value.symbols.ndim != 1 else vector
            dtype = self.tensor_type_of(shaped).dtype
            value.expr = self.attach_span(
                shaped if dtype == value.type.dtype else op.cast(shaped, value.type.dtype)
            )
        return value.expr

    def sequence(self, value: SequenceValue, element: TensorType) -> Expr:
        """Return a sequence as a list expression whose elements have one type."""
        if value.items is None:
            assert value.expr is not None
            return self.relax_type(value.expr, sequence.list_type(element))
        list_expr: Expr = sequence.empty(element)
        for item in value.items:
            list_expr = sequence.append(list_expr, self.relax_type(self.expr(item), element))
        return self.relax_type(self.attach_span(list_expr), sequence.list_type(element))

    def attach_span(self, expr: Expr) -> Expr:
        """Return an expression, typed, with the current node as the span of its new parts."""
        self.type_of(expr)
        return self.attach_spans([expr])[0]

    def attach_spans(self, exprs: Sequence[Expr]) -> list[Expr]:
        """Attach the current node as span to the new subexpressions of typed expressions, and
        record their creation order.
        """
        spanned = attach_span(exprs, self.span)
        for expr in spanned:
            self._births.setdefault(expr, len(self._births))
        return spanned

    # Loops.

    def num_created_exprs(self) -> int:
        """Return the number of expressions created so far; it orders expressions by age."""
        return len(self._births)

    def hoist_loop_invariants(
        self, function: Function, begun: int, fixed: Mapping[Var, Value]
    ) -> Function:
        """Hoist what existed before a loop began out of its body, together with loop-invariant
        variables. They are bound in the innermost block, before the loop.
        """
        values = {var: self.expr(value) for var, value in fixed.items()}
        return bind_captured_exprs(
            function, values, lambda e: self._births.get(e, begun) < begun, self._captured_var
        )

    def _captured_var(self, expr: Expr) -> Expr:
        """Return the variable of a captured expression, bound in the innermost block unless one is
        visible.
        """
        if isinstance(expr, (Constant, Var)):
            return expr
        for block in self._blocks:
            if expr in block.captured:
                return block.captured[expr]
        kind = self.type_of(expr)
        var = Var("captured", kind, span=expr.span)
        var.set_checked_type(kind)
        self._blocks[-1].captured[expr] = var
        self.bind_var(var, expr)
        return var

    def shape_vector(self, value: Value, rank: int) -> Expr:
        """Return the shape of a value as an int64 vector, with leading ones up to a rank."""
        ones = relay_const(np.ones(rank - len(value.type.shape), np.int64))
        runtime_shape = op.shape_of(self.expr(value), dtype="int64")
        return (
            op.concatenate([ones, runtime_shape], axis=0)
            if len(value.type.shape) < rank
            else runtime_shape
        )

    def emit_dim(self, dim: PrimExpr) -> Expr:
        """Emit a shape expression as a scalar tensor."""
        return lower_dim(dim, self._emit_dim_symbol)

    def _emit_dim_symbol(self, symbol: SizeVar) -> Expr:
        # One expression a symbol: shape_of and take of it are shared by all nodes.
        """Emit the run-time extent of a symbol: an element of the shape of a parameter, solved for
        the symbol if linear.
        """
        if symbol not in self._scalars:
            is_plain = symbol in self._sources
            var, axis = self._sources[symbol] if is_plain else self._made[symbol][:2]
            shape = op.shape_of(var, dtype="int64")
            size: Expr = op.take(shape, relay_const(axis, "int64"), axis=0)
            if not is_plain:
                factor, offset = (relay_const(n, "int64") for n in self._made[symbol][2:])
                size = op.floor_divide(op.subtract(size, offset), factor)
            self._scalars[symbol] = self.attach_span(size)
        return self._scalars[symbol]


def _linear_coefficients(dim: PrimExpr, symbol: SizeVar) -> tuple[int, int] | None:
    """Return (factor, offset) of `factor * symbol + offset`, by evaluation at three points; None
    for other forms.
    """
    probe = 1_000_003
    # Two points determine the line; the far one rejects non-linear dimensions.
    values = [known_int(substitute(dim, {symbol: prim.const(n, "int64")})) for n in (0, 1, probe)]
    if any(value is None for value in values):
        return None
    offset, first, last = (value or 0 for value in values)
    factor = first - offset
    return (factor, offset) if factor and last == factor * probe + offset else None


def is_as_specific(actual: Type, expected: Type) -> bool:
    """Return whether a type is at least as specific as another of its kind: dimensions are equal or
    both unknown.
    """
    match actual, expected:
        case TensorType(shape=a), TensorType(shape=b):
            return all(
                x is y or (isinstance(x, AnyDim) and isinstance(y, AnyDim)) or are_equal_dims(x, y)
                for x, y in zip(a, b, strict=True)
            )
        case (TypeCall(args=a), TypeCall(args=b)) | (TupleType(fields=a), TupleType(fields=b)):
            return len(a) == len(b) and all(is_as_specific(x, y) for x, y in zip(a, b, strict=True))
    return False


def _possibly_unequal_pairs(
    first: Sequence[PrimExpr], second: Sequence[PrimExpr]
) -> Iterator[tuple[PrimExpr, PrimExpr]]:
    """Yield the pairs of dimensions that are not provably equal, skipping unknown ones."""
    for a, b in zip(first, second, strict=True):
        if not isinstance(a, AnyDim) and not isinstance(b, AnyDim) and not are_equal_dims(a, b):
            yield a, b


def field_types(kind: Type) -> tuple[Type, ...]:
    """Return the field types of a tuple type."""
    assert isinstance(kind, TupleType), f"expected a tuple, got {kind!r}"
    return kind.fields
