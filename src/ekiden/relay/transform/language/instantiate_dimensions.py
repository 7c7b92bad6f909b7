"""Instantiation of a callee's symbolic dimensions by the sizes of one call.

    def @f(%a: Tensor[(m, 3), float32]) { zeros(shape=[m, 3], dtype="float32") }
    @f(%x), where %x: Tensor[(n, 3), float32]        ->   zeros(shape=[n, 3], dtype="float32")

The names of dimensions in a function's parameters are its own: where its body is copied into a
caller, they are what the arguments have there. Names that the body binds itself are new ones in
each copy, so that none is bound twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from ekiden.arith import simplify, substitute
from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Function, Let, RefCreate, Var
from ekiden.relay.op.vm import MatchShapeAttrs
from ekiden.relay.transform.language.match_declared_shapes import infer_call_dims
from ekiden.relay.transform.language.scope_tree import evaluation_order, rewrite_graph
from ekiden.relay.unify import size_vars, substitute_dims
from ekiden.relay.visitor import ExprMutator, fresh_copy, type_post_order

DimSubstitution = Mapping[Symbol, PrimExpr]


def call_dim_substitution(
    function: Function, args: Sequence[RelayExpr], bound: Iterable[SizeVar] = ()
) -> dict[Symbol, PrimExpr]:
    """Return the substitution of a callee's symbolic dimensions for one call: argument dimensions
    for parameters' symbols, fresh symbols for those bound in the body. `bound` are names that a
    function inside of another shares with it. Arguments without types say nothing.
    """
    arg_types = [a.checked_type_or_none() for a in args]
    params = [p.checked_type_or_none() or p.type_annotation for p in function.params]
    typed_pairs = [
        (p, g) for p, g in zip(params, arg_types, strict=True) if p is not None and g is not None
    ]
    # Dimensions shared with the caller denote the same size in caller and callee, and must not be
    # renamed.
    outside = set(bound)
    dims = infer_call_dims([p for p, _ in typed_pairs], [g for _, g in typed_pairs], outside)
    dims = {symbol: dim for symbol, dim in dims.items() if not isinstance(dim, AnyDim)}
    outside.update(size_vars(p for p in params if p is not None))
    return {**{s: SizeVar(s.name) for s in _matched_dims(function) if s not in outside}, **dims}


def _matched_dims(function: Function) -> list[SizeVar]:
    """Return the symbolic dimensions that match_shape calls inside a function bind."""
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    shapes = [c.attrs.shape for c in calls if isinstance(c.attrs, MatchShapeAttrs)]
    return [d for shape in shapes for d in shape if isinstance(d, SizeVar)]


def instantiate(
    expr: RelayExpr, dims: DimSubstitution, within: Mapping[Var, RelayExpr] | None = None
) -> RelayExpr:
    """Return a fresh copy of an expression with free variables substituted by `within`, and
    symbolic dimensions by `dims`.
    """
    copy = fresh_copy(expr, within)
    return _DimSubstituter(dims, set((within or {}).values())).visit(copy) if dims else copy


class _DimSubstituter(ExprMutator):
    """Mutator that substitutes symbolic dimensions in an expression."""

    def __init__(self, dims: DimSubstitution, outside: set[RelayExpr]) -> None:
        super().__init__()
        self.dims = dims
        self.memo.update((expr, expr) for expr in outside)
        self._types: dict[Type, Type] = {}

    def _substitute_type(self, kind: Type) -> Type:
        if kind not in self._types:
            self._types[kind] = substitute_dims(kind, self.dims)
        return self._types[kind]

    def _substitute_types(self, kinds: tuple[Type, ...]) -> tuple[Type, ...]:
        return tuple(map(self._substitute_type, kinds))

    def rewrite(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Rebuild a node over substituted sizes, and set its substituted type."""
        old_type = old.checked_type_or_none()
        match new:
            case Var(type_annotation=kind) if kind is not None:
                new = Var(new.name_hint, self._substitute_type(kind), span=new.span)
            case Call():
                attrs = substitute_attr_dims(new.attrs, self.dims)
                kinds = self._substitute_types(new.type_args)
                if attrs is not new.attrs or kinds != new.type_args:
                    new = new.with_fields(attrs=attrs, type_args=kinds)
            case Function(ret_type=kind) if kind is not None:
                new = new.with_fields(ret_type=self._substitute_type(kind))
        if old_type is not None and (
            new is not old or self._substitute_type(old_type) is not old_type
        ):
            # Types are set on the node, so a node that other copies share must be copied first.
            new = new.with_fields() if new is old else new
            new.set_checked_type(self._substitute_type(old_type))
        return new


def substitute_attr_dims(attrs: Attrs | None, dims: DimSubstitution) -> Attrs | None:
    """Substitute symbolic dimensions in attributes; return the same object where there are none."""
    return cast("Attrs | None", _substitute_in_value(attrs, dims))


def _substitute_in_value(value: object, dims: DimSubstitution) -> object:
    """Substitute symbolic dimensions in one attribute value, recursively."""
    if isinstance(value, IntImm):
        return value
    if isinstance(value, PrimExpr):
        return simplify(substitute(value, dims))
    if isinstance(value, tuple):
        items = tuple(_substitute_in_value(v, dims) for v in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if isinstance(value, Attrs):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # type: ignore[arg-type]
        new = {name: _substitute_in_value(v, dims) for name, v in fields.items()}
        changed = {name: v for name, v in new.items() if v is not fields[name]}
        return value.with_fields(**changed) if changed else value
    return value


def has_unknown_dim(kind: Type | None) -> bool:
    """Return whether a type has an unknown (Any) dimension."""
    kinds = [] if kind is None else type_post_order(kind)
    return any(isinstance(d, AnyDim) for t in kinds if isinstance(t, TensorType) for d in t.shape)


def annotate_reference_types(function: Function) -> Function:
    """Annotate references of unknown size with their types, which more precise contents must not
    narrow.

    ref(%a) of %a: Tensor[(?, 3)]   ->   let %cell: ref(Tensor[(?, 3)]) = ref(%a); %cell

    What is written later may be of any size that the type admits.
    """

    def annotate_reference(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Bind a new reference to a variable of its declared type; return any other expression
        unchanged.
        """
        kind = old.checked_type_or_none()
        if not isinstance(old, RefCreate) or kind is None or not has_unknown_dim(kind):
            return new
        cell = Var("cell", kind)
        bound_cell = Let(cell, new, cell, span=old.span)
        for typed_expr in (cell, bound_cell):
            typed_expr.set_checked_type(kind)
        return bound_cell

    body = rewrite_graph(function.body, annotate_reference)
    return function if body is function.body else function.with_fields(body=body)
