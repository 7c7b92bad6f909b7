"""Give kernels an argument for every dimension that their attributes are made of.

A kernel reads dimensions off the shapes of its arguments and results. Where an attribute needs
another one, a tensor that has it becomes one more argument, of which only the shape is read:

    fn (%t: Tensor[(64, 8)], Primitive=1) { strided_slice(%t, begin=[p], end=[p + n]) }(%t)
 -> fn (%t: Tensor[(64, 8)], %c: Tensor[(p,)], Primitive=1) { ... }(%t, %cache)

Where there is no such tensor, because the dimension is data, one of no elements is made:

    %dims: Tensor[(0, p), uint8] = vm.reshape_tensor(%nothing, shape=[0, p]);
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from ekiden.arith import prove_equal
from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.prim_visitor import children
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Constant, Function, Var
from ekiden.relay.op.vm import reshape_tensor
from ekiden.relay.transform.language.chains import Binding, Chain, map_chains
from ekiden.relay.transform.language.scopes import evaluation_order, map_functions
from ekiden.relay.transform.memory.manifest_alloc import primitive_of, tensor_types


def attribute_dimensions(attrs: Attrs | None) -> Iterator[PrimExpr]:
    """The scalar expressions in attributes."""
    waiting: list[object] = [attrs]
    while waiting:
        match waiting.pop():
            case PrimExpr() as found:
                yield found
            case tuple() as many:
                waiting.extend(many)
            case Attrs() as inner:
                waiting.extend(getattr(inner, f.name) for f in dataclasses.fields(inner))  # type: ignore[arg-type]


def missing_dimensions(function: Function) -> list[Symbol]:
    """The symbols in attributes of a primitive function that its types do not give: neither alone,
    nor in an expression that stands in both.
    """
    kinds = [*(p.checked_type for p in function.params), function.body.checked_type]
    dims = [d for k in kinds for t in tensor_types(k) for d in t.shape]
    plain = {d for d in dims if isinstance(d, Symbol)}
    compound = [d for d in dims if not isinstance(d, Symbol) and children(d)]
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    waiting = [d for c in calls for d in attribute_dimensions(c.attrs)]
    found: dict[Symbol, None] = {}
    while waiting:
        each = waiting.pop()
        if isinstance(each, Symbol):
            if each not in plain:
                found[each] = None
        elif children(each) and not any(prove_equal(each, d) for d in compound):
            waiting.extend(children(each))
    return list(found)


def _shown(kind: Type) -> Iterator[Symbol]:
    """The symbols that are dimensions of the tensors in a type."""
    if isinstance(kind, (TensorType, TupleType)) and _is_flat(kind):
        yield from (d for t in tensor_types(kind) for d in t.shape if isinstance(d, Symbol))


def _is_flat(kind: Type) -> bool:
    """Whether there is nothing but tensors in a type."""
    if isinstance(kind, TupleType):
        return all(map(_is_flat, kind.fields))
    return isinstance(kind, TensorType)


_E = TypeVar("_E", bound=RelayExpr)


def _typed(expr: _E, kind: Type) -> _E:
    expr.set_checked_type(kind)
    return expr


class _Carrier:
    """One function: where its symbols can be read."""

    def __init__(self, params: Iterable[Var]) -> None:
        self.params: dict[Symbol, Var] = {}
        for each in params:
            self._note(each, self.params)

    def _note(self, variable: Var, places: dict[Symbol, Var]) -> None:
        kind = variable.checked_type
        for symbol in _shown(kind) if isinstance(kind, TensorType) else ():
            places.setdefault(symbol, variable)

    def chain(self, chain: Chain, is_function_body: bool) -> Chain:
        """A chain whose kernels have what they need."""
        places, made = dict(self.params), list[Binding]()
        for variable, value in chain.bindings:
            made.extend(self._binding(variable, value, places))
            self._note(variable, places)
        return Chain(made, chain.result)

    def _binding(
        self, variable: Var, value: RelayExpr, places: dict[Symbol, Var]
    ) -> Iterator[Binding]:
        """The binding of a kernel's result, after that of what shows its dimensions."""
        function = primitive_of(value)
        missing = missing_dimensions(function) if function is not None else []
        if not missing or function is None:
            yield variable, value
            return
        assert isinstance(value, Call)
        unseen = tuple(s for s in missing if s not in places)
        if unseen:
            made = _typed(Var("dims"), TensorType((const(0), *unseen), "uint8"))
            places.update(dict.fromkeys(unseen, made))
            nothing = _typed(Constant(np.zeros(0, np.uint8)), TensorType((const(0),), "uint8"))
            view = reshape_tensor(nothing, (const(0), *unseen)).with_fields(span=value.span)
            yield made, _typed(view, made.checked_type)
        added = list(dict.fromkeys(places[s] for s in missing))
        params = [_typed(Var(p.name_hint, p.checked_type), p.checked_type) for p in added]
        wider = function.with_fields(params=(*function.params, *params))
        call = value.with_fields(op=wider, args=(*value.args, *added))
        yield variable, _typed(call, value.checked_type)


def _carry(function: Function) -> Function:
    inner, params = function.body, function.params
    if function.attr("Closure") is not None and isinstance(inner, Function):
        carrier = _Carrier((*params, *inner.params))
        return function.with_fields(
            body=inner.with_fields(body=map_chains(inner.body, carrier.chain))
        )
    return function.with_fields(body=map_chains(inner, _Carrier(params).chain))


@module_pass(name="CarryDimensions")
def _carry_dimensions(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, _carry)


def CarryDimensions() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _carry_dimensions
