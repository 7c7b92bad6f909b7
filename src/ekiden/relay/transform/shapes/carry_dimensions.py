"""Dimension arguments of kernels: pass an argument for every symbolic dimension that a kernel's
attributes use.

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
from ekiden.relay.transform.language.let_chains import LetBinding, LetChain, map_chains
from ekiden.relay.transform.language.scope_tree import evaluation_order, map_functions
from ekiden.relay.transform.memory.manifest_alloc import called_primitive, flatten_tensor_types


def iter_attr_exprs(attrs: Attrs | None) -> Iterator[PrimExpr]:
    """Yield the scalar expressions in an operator's attributes."""
    waiting: list[object] = [attrs]
    while waiting:
        match waiting.pop():
            case PrimExpr() as expr:
                yield expr
            case tuple() as items:
                waiting.extend(items)
            case Attrs() as inner:
                waiting.extend(getattr(inner, f.name) for f in dataclasses.fields(inner))  # type: ignore[arg-type]


def undetermined_symbols(function: Function) -> list[Symbol]:
    """Return the symbols in a primitive function's attributes that its types do not determine.

    A symbol is shown alone as a dimension, or within an expression that is in both.
    """
    kinds = [*(p.checked_type for p in function.params), function.body.checked_type]
    dims = [d for k in kinds for t in flatten_tensor_types(k) for d in t.shape]
    plain = {d for d in dims if isinstance(d, Symbol)}
    # A compound dimension is read off its tensor as a whole, without its symbols.
    compound = [d for d in dims if not isinstance(d, Symbol) and children(d)]
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    waiting = [d for c in calls for d in iter_attr_exprs(c.attrs)]
    missing: dict[Symbol, None] = {}
    while waiting:
        expr = waiting.pop()
        if isinstance(expr, Symbol):
            if expr not in plain:
                missing[expr] = None
        elif children(expr) and not any(prove_equal(expr, d) for d in compound):
            waiting.extend(children(expr))
    return list(missing)


def _determined_symbols(kind: Type) -> Iterator[Symbol]:
    """Yield the symbols that a type's tensors determine."""
    if isinstance(kind, (TensorType, TupleType)) and _is_tensor_tuple(kind):
        yield from (d for t in flatten_tensor_types(kind) for d in t.shape if isinstance(d, Symbol))


def _is_tensor_tuple(kind: Type) -> bool:
    """Return whether a type consists only of tensors and tuples."""
    if isinstance(kind, TupleType):
        return all(map(_is_tensor_tuple, kind.fields))
    return isinstance(kind, TensorType)


_E = TypeVar("_E", bound=RelayExpr)


def _with_type(expr: _E, kind: Type) -> _E:
    expr.set_checked_type(kind)
    return expr


class _DimensionArgumentInserter:
    """Rewriter of one function that tracks the variables whose shapes determine each symbol."""

    def __init__(self, params: Iterable[Var]) -> None:
        self.params: dict[Symbol, Var] = {}
        for param in params:
            # The first tensor that shows a symbol is the one that is passed on.
            self._record_symbols(param, self.params)

    def _record_symbols(self, variable: Var, holders: dict[Symbol, Var]) -> None:
        kind = variable.checked_type
        for symbol in _determined_symbols(kind) if isinstance(kind, TensorType) else ():
            holders.setdefault(symbol, variable)

    def rewrite_chain(self, chain: LetChain, is_function_body: bool) -> LetChain:
        """Return a let chain whose kernels receive all dimensions that they use."""
        holders, bindings = dict(self.params), list[LetBinding]()
        for variable, value in chain.bindings:
            bindings.extend(self._rewrite_binding(variable, value, holders))
            # Only now: a kernel cannot read its own result's shape.
            self._record_symbols(variable, holders)
        return LetChain(bindings, chain.result)

    def _rewrite_binding(
        self, variable: Var, value: RelayExpr, holders: dict[Symbol, Var]
    ) -> Iterator[LetBinding]:
        """Yield the binding of a kernel call, after a tensor that carries its undetermined
        symbols.
        """
        function = called_primitive(value)
        missing = undetermined_symbols(function) if function is not None else []
        if not missing or function is None:
            yield variable, value
            return
        assert isinstance(value, Call)
        # No tensor shows these: an empty one is made whose shape has them.
        unseen = tuple(s for s in missing if s not in holders)
        if unseen:
            carrier = _with_type(Var("dims"), TensorType((const(0), *unseen), "uint8"))
            holders.update(dict.fromkeys(unseen, carrier))
            nothing = _with_type(Constant(np.zeros(0, np.uint8)), TensorType((const(0),), "uint8"))
            view = reshape_tensor(nothing, (const(0), *unseen)).with_fields(span=value.span)
            yield carrier, _with_type(view, carrier.checked_type)
        # Several symbols may be read off one tensor.
        added = list(dict.fromkeys(holders[s] for s in missing))
        params = [_with_type(Var(p.name_hint, p.checked_type), p.checked_type) for p in added]
        # The kernel reads the shape of the added arguments alone, never their data.
        wider = function.with_fields(params=(*function.params, *params))
        call = value.with_fields(op=wider, args=(*value.args, *added))
        yield variable, _with_type(call, value.checked_type)


def _add_dimension_arguments_in(function: Function) -> Function:
    inner, params = function.body, function.params
    # The body of a closure sees the captured values and its own parameters.
    if function.attr("Closure") is not None and isinstance(inner, Function):
        carrier = _DimensionArgumentInserter((*params, *inner.params))
        return function.with_fields(
            body=inner.with_fields(body=map_chains(inner.body, carrier.rewrite_chain))
        )
    return function.with_fields(
        body=map_chains(inner, _DimensionArgumentInserter(params).rewrite_chain)
    )


@module_pass(name="CarryDimensions")
def _add_dimension_arguments(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, _add_dimension_arguments_in)


def CarryDimensions() -> Pass:  # noqa: N802
    """Return a pass that adds kernel arguments for symbolic dimensions that occur only in
    attributes.
    """
    return _add_dimension_arguments
