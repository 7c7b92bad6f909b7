"""Hoist match_shape of parameters into the parameter types.

fn (%x: Tensor[(?, 2), float32]) { let %y = vm.match_shape(%x, shape=(x_0, 2)); nn.relu(%y) }
-> fn (%x: Tensor[(x_0, 2), float32]) { nn.relu(%x) }

So all that depends on them is known at entry. What the type of a parameter says already stays: a
match that names a dimension which has a name or is a number, or gives it the name or number that
something else has, checks it, and is left where it is. The types of the callers stay as they are:
this comes after the last type inference.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, PrimExpr, SizeVar
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Function, TupleGetItem, Var
from ekiden.relay.op.vm import MatchShapeAttrs
from ekiden.relay.transform.language.let_chains import (
    LetBinding,
    build_lets,
    called_op_name,
    parse_let_chain,
)
from ekiden.relay.transform.language.scope_tree import map_functions, rewrite_graph
from ekiden.relay.unify import size_vars
from ekiden.topi.dimensions import are_equal_dims

ParameterPath = tuple[Var, tuple[int, ...]]
"""Path of tuple indices from a parameter to a tensor in it."""


def _type_at_path(kind: Type, path: tuple[int, ...]) -> TensorType:
    for index in path:
        assert isinstance(kind, TupleType)
        kind = kind.fields[index]
    assert isinstance(kind, TensorType)
    return kind


def _merge_shape(
    actual: Sequence[PrimExpr], declared: Sequence[PrimExpr], in_use: set[SizeVar]
) -> tuple[PrimExpr, ...] | None:
    """Fill the unknown dimensions of a shape from a declared one, or return None.

    None means that the declared shape contradicts a known dimension, or that an unknown one would
    become anything but a new name.
    """
    pairs = tuple(zip(actual, declared, strict=True))
    if any(
        not (isinstance(o, AnyDim) or isinstance(s, AnyDim) or are_equal_dims(o, s))
        for o, s in pairs
    ):
        return None
    # Two equal names, or a name in use, would be a check of equal sizes: it must stay in the body.
    new = [s for o, s in pairs if isinstance(o, AnyDim) and not isinstance(s, AnyDim)]
    if len(set(new)) < len(new) or any(s in in_use or not isinstance(s, SizeVar) for s in new):
        return None
    return tuple(s if isinstance(o, AnyDim) else o for o, s in pairs)


def _type_with_shape(kind: Type, path: tuple[int, ...], shape: tuple[PrimExpr, ...]) -> Type:
    if isinstance(kind, TupleType):
        first, *deeper = path
        fields = list(kind.fields)
        fields[first] = _type_with_shape(fields[first], tuple(deeper), shape)
        return TupleType(tuple(fields))
    assert isinstance(kind, TensorType)
    return TensorType(shape, kind.dtype)


class _DimensionHoister:
    """Hoister of the dimension names that one function binds for its parameters."""

    def __init__(self, params: tuple[Var, ...], body: RelayExpr) -> None:
        self.param_paths: dict[RelayExpr, ParameterPath] = {p: (p, ()) for p in params}
        self.kinds: dict[Var, Type] = {p: p.checked_type for p in params}
        self.done: set[ParameterPath] = set()
        self.known = set(size_vars(self.kinds.values()))
        self.chain = parse_let_chain(body)
        self.chain.bindings = [
            (v, self._hoist_binding(v, value)) for v, value in self.chain.bindings
        ]

    def _hoist_binding(self, variable: Var, value: RelayExpr) -> RelayExpr:
        """Return a binding's value, after hoisting the names that it binds for a parameter."""
        if isinstance(value, TupleGetItem) and value.tuple_value in self.param_paths:
            param, path = self.param_paths[value.tuple_value]
            self.param_paths[variable] = (param, (*path, value.index))
        if called_op_name(value) != "vm.match_shape":
            kind = variable.checked_type_or_none()
            self.known.update(size_vars(() if kind is None else (kind,)))
            return value
        assert isinstance(value, Call) and isinstance(value.attrs, MatchShapeAttrs)
        position = self.param_paths.get(value.args[0])
        # A second match of the same tensor is a check, and stays in the body.
        if position is None or position in self.done:
            return value
        param, path = position
        shape = _merge_shape(
            _type_at_path(self.kinds[param], path).shape, value.attrs.shape, self.known
        )
        if shape is None:
            # Later matches that use these names are checks.
            self.known.update(d for d in value.attrs.shape if isinstance(d, SizeVar))
            return value
        self.known.update(d for d in shape if isinstance(d, SizeVar))
        self.done.add(position)
        # The match is dropped: the parameter itself has the named type.
        self.kinds[param] = _type_with_shape(self.kinds[param], path, shape)
        return value.args[0]

    def rewrite_body(self) -> tuple[dict[RelayExpr, RelayExpr], RelayExpr]:
        """Return the new parameters by old ones, and the body."""
        new: dict[RelayExpr, RelayExpr] = {}
        for param in {p for p, _ in self.done}:
            renamed = Var(param.name_hint, self.kinds[param], param.span)
            renamed.set_checked_type(self.kinds[param])
            new[param] = renamed
        bindings: list[LetBinding] = []
        for variable, value in self.chain.bindings:
            if isinstance(value, Var) and value in new:
                # The match became the parameter itself: its name is an alias.
                new[variable] = new[value]
            else:
                bindings.append((variable, value))
        assert self.chain.result is not None
        body = build_lets(bindings, self.chain.result)
        return new, rewrite_graph(body, lambda old, rebuilt: new.get(old, rebuilt))


def _hoist_function(function: Function) -> Function:
    inner = function.body
    if function.attr("Closure") is not None and isinstance(inner, Function):
        new, body = _hoist_body((*function.params, *inner.params), inner.body)
        inner = inner.with_fields(params=_replace_params(inner.params, new), body=body)
        return function.with_fields(params=_replace_params(function.params, new), body=inner)
    new, body = _hoist_body(function.params, inner)
    return function.with_fields(params=_replace_params(function.params, new), body=body)


def _hoist_body(
    params: tuple[Var, ...], body: RelayExpr
) -> tuple[dict[RelayExpr, RelayExpr], RelayExpr]:
    hoist = _DimensionHoister(params, body)
    return hoist.rewrite_body() if hoist.done else ({}, body)


def _replace_params(params: tuple[Var, ...], new: dict[RelayExpr, RelayExpr]) -> tuple[Var, ...]:
    replaced = (new.get(p, p) for p in params)
    return tuple(v for v in replaced if isinstance(v, Var))


@module_pass(name="HoistDimensions")
def _hoist_dimensions(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, _hoist_function)


def HoistDimensions() -> Pass:  # noqa: N802
    """Return a pass that hoists the dimension names of parameters into their types."""
    return _hoist_dimensions
