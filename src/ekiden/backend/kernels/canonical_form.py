"""Canonical form of fused functions, so that equal kernels are compiled once.

Symbols are renamed in order of appearance (n0, n1, ...), so that layers that differ in names alone
share a kernel. A dimension that is an expression on symbols the kernel cannot read off its
arguments (`4*h` where no argument has the dimension `h`) becomes a symbol of its own, unless an
operator says what it is in the others:

    %x [h + 2], %s [(h + 1) // 2]        %x [n0], %s [(n0 - 1) // 2]      a window of 3, stride 2
    subtract(nn.conv2d(%x, W), %s)       of two symbols the sum would be of a broadcast, which no
                                         kernel of the convolution can end in
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from ekiden.arith import prove_equal, simplify
from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, PrimExpr, Select, SizeVar, Var
from ekiden.ir.prim_visitor import children, post_order, rebuild, substitute
from ekiden.ir.prim_visitor import free_vars as prim_vars
from ekiden.ir.type import FuncType, TensorType, TupleType, Type
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem
from ekiden.relay.expr import Var as RelayVar
from ekiden.relay.transform.language.scope_tree import evaluation_order, infer_local_type
from ekiden.relay.transform.memory.manifest_alloc import flatten_tensor_types
from ekiden.runtime.errors import CompileError, InternalError


class _DimRenaming:
    """Renaming of one function's dimensions to canonical ones."""

    def __init__(self, function: Function) -> None:
        kinds = [t for p in function.params for t in flatten_tensor_types(p.checked_type)]
        result = function.body.checked_type
        dims = [d for t in [*kinds, *flatten_tensor_types(result)] for d in t.shape]
        self.symbols: dict[Var, PrimExpr] = {}
        self.symbol_by_compound_dim: list[tuple[PrimExpr, PrimExpr]] = []
        # Plain symbols first: a compound dimension is renamed in terms of them if possible.
        for dim in dims:
            if isinstance(dim, Var) and dim not in self.symbols:
                self.symbols[dim] = self._fresh_symbol()
        for dim in dims:
            if (
                any(v not in self.symbols for v in prim_vars(dim))
                and self._known_symbol(dim) is None
            ):
                self.symbol_by_compound_dim.append((dim, self._fresh_symbol()))

    def _fresh_symbol(self) -> SizeVar:
        return SizeVar(f"n{len(self.symbols) + len(getattr(self, 'symbol_by_compound_dim', ()))}")

    def unify_types(self, expected: Type | None, inferred: Type | None) -> bool:
        """Unify the type that an operator infers in canonical symbols with the expected one: a
        symbol may turn out to equal an expression of earlier ones. Return whether it did.
        """
        if not self.symbol_by_compound_dim:
            return False
        pairs = zip(_type_dims(expected), _type_dims(inferred), strict=False)
        return any(self._unify_dim(dim, self._known_symbol(dim), value) for dim, value in pairs)

    def _unify_dim(self, dim: PrimExpr, symbol: PrimExpr | None, value: PrimExpr) -> bool:
        if not isinstance(symbol, SizeVar) or isinstance(dim, IntImm):
            return False
        free = prim_vars(value)
        # A Select is the extent of a broadcast: which operand gives it is unknown until run time.
        is_broadcast = any(isinstance(e, Select) for e in post_order(value))
        if not free or symbol in free or is_broadcast:
            return False
        self.symbol_by_compound_dim = [
            (e, simplify(substitute(v, {symbol: value}))) for e, v in self.symbol_by_compound_dim
        ]
        return True

    def _known_symbol(self, expr: PrimExpr) -> PrimExpr | None:
        return next((v for e, v in self.symbol_by_compound_dim if prove_equal(e, expr)), None)

    def rename_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return a dimension or attribute in canonical symbols."""
        if isinstance(expr, IntImm):
            return expr
        free = prim_vars(expr)
        if all(v in self.symbols for v in free):
            return simplify(substitute(expr, {v: self.symbols[v] for v in free}))
        return simplify(self._replace_known_dims(expr))

    def _replace_known_dims(self, expr: PrimExpr) -> PrimExpr:
        """Replace each subexpression that is a known dimension by its symbol."""
        if (symbol := self._known_symbol(expr)) is not None:
            return symbol
        if isinstance(expr, Var):
            if expr not in self.symbols:
                raise InternalError(f"kernel: no argument has the dimension {expr.name}")
            return self.symbols[expr]
        return rebuild(expr, [self._replace_known_dims(e) for e in children(expr)])

    def rename_type(self, kind: Type) -> Type:
        """Return a type in canonical symbols."""
        if isinstance(kind, TensorType):
            return TensorType(tuple(map(self.rename_expr, kind.shape)), kind.dtype)
        assert isinstance(kind, TupleType)
        return TupleType(tuple(map(self.rename_type, kind.fields)))

    def rename_attrs(self, attrs: Attrs | None) -> Attrs | None:
        """Return attributes in canonical symbols; the same object if they hold none."""
        if attrs is None or not any(isinstance(v, PrimExpr) for v in _attr_leaves(attrs)):
            return attrs
        fields = {
            field.name: self._rename_value(getattr(attrs, field.name))
            for field in dataclasses.fields(attrs)  # type: ignore[arg-type]
        }
        return attrs.with_fields(**fields)

    def _rename_value(self, value: object) -> object:
        if isinstance(value, PrimExpr):
            return self.rename_expr(value)
        return tuple(map(self._rename_value, value)) if isinstance(value, tuple) else value


def _type_dims(kind: Type | None) -> list[PrimExpr]:
    return [] if kind is None else [d for t in flatten_tensor_types(kind) for d in t.shape]


def _attr_leaves(value: object) -> Iterator[object]:
    if isinstance(value, Attrs):
        value = tuple(getattr(value, f.name) for f in dataclasses.fields(value))  # type: ignore[arg-type]
    if isinstance(value, tuple):
        for item in value:
            yield from _attr_leaves(item)
    else:
        yield value


def canonicalize(function: Function) -> Function:
    """Return the canonical form of a primitive function; its parameters keep their order. Operators
    may know less of the new symbols than of the old ones (`min(n1, n0)` for n1); where a symbol
    would then be a dimension of nothing, the result has the renamed type. Raises InternalError,
    naming the node, if an attribute needs a symbol that no argument or result has as a
    dimension.
    """
    try:
        return _canonicalize_function(function)
    except InternalError as error:
        if function.span is not None:
            error.add_note(f"while preparing a kernel of {function.span}")
        raise


def _canonicalize_function(function: Function) -> Function:
    renaming = _DimRenaming(function)
    while (renamed := _rename_function(function, renaming)) is None:
        pass  # with one symbol less
    return renamed


def _rename_function(function: Function, renaming: _DimRenaming) -> Function | None:
    """Return the function in canonical symbols, or None if the renaming has learnt an equality."""
    new: dict[RelayExpr, RelayExpr] = {}
    params = []
    for index, param in enumerate(function.params):
        kind = renaming.rename_type(param.checked_type)
        parameter = RelayVar(f"p{index}", kind)
        parameter.set_checked_type(kind)
        new[param] = parameter
        params.append(parameter)
    for expr in evaluation_order(function.body):
        inner = expr.op if isinstance(expr, Call) and not isinstance(expr.op, Op) else expr
        if not isinstance(inner, _KERNEL_NODE_TYPES):
            node_type = type(inner).__name__
            text = "expected calls of operators and tuples in a function marked Primitive"
            raise CompileError(f"{text}, got a {node_type}")
        if expr not in new:
            new[expr] = _rebuild_call(expr, new, renaming)
            # The equality changes types inferred so far, so the renaming starts over.
            if renaming.unify_types(expr.checked_type, new[expr].checked_type):
                return None
    body = new[function.body]
    kind = body.checked_type
    if not _is_closed(params, body, new.values()):
        kind = renaming.rename_type(function.body.checked_type)
    made_function = Function(tuple(params), body, kind, (), function.attrs, span=function.span)
    made_function.set_checked_type(FuncType(tuple(p.checked_type for p in params), kind))
    return made_function


_KERNEL_NODE_TYPES = (Call, Tuple, TupleGetItem, RelayVar, Constant)
"""Node types that kernels consist of."""


def _is_closed(params: Iterable[RelayVar], body: RelayExpr, exprs: Iterable[RelayExpr]) -> bool:
    """Return whether all symbols in attributes and the result are dimensions of parameters or
    results.
    """
    results = [d for t in flatten_tensor_types(body.checked_type) for d in t.shape]
    parameter_dims = [
        d for p in params for t in flatten_tensor_types(p.checked_type) for d in t.shape
    ]
    shown = {d for d in (*parameter_dims, *results) if isinstance(d, Var)}
    calls = [e for e in exprs if isinstance(e, Call) and e.attrs is not None]
    held = [v for c in calls for v in _attr_leaves(c.attrs) if isinstance(v, PrimExpr)]
    return shown.issuperset(prim_vars(*results, *held))


def _rebuild_call(
    expr: RelayExpr, new: dict[RelayExpr, RelayExpr], renaming: _DimRenaming
) -> RelayExpr:
    match expr:
        case Call(op=op, args=args, attrs=attrs, span=span):
            inside = tuple(new[a] for a in args)
            return infer_local_type(Call(op, inside, renaming.rename_attrs(attrs), span=span))
        case Tuple(fields=fields):
            return infer_local_type(Tuple(tuple(new[f] for f in fields)))
        case TupleGetItem(tuple_value=value, index=index):
            return infer_local_type(TupleGetItem(new[value], index))
        case _:
            return expr
