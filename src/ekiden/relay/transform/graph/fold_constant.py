"""Evaluate at compile time what depends on constants alone, with the reference semantics of each
operator.

add(1f, 2f)  ->  3f          (%a, %b).1  ->  %b          if (True) { %a } else { %b }  ->  %a
shape_of(%x)  ->  [2, 3]     %x: Tensor[(2, 3), float32]

References are NumPy's arithmetic, which may round otherwise than a kernel would have: a folded
value may differ from that in its last bits. Stateful operators and what has effects stay, as do
calls that a run would refuse (an index out of range): whether they run at all is for the run to
say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from itertools import chain, count
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import itemsize, to_numpy
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.node import fields_of
from ekiden.ir.op import Array, Op
from ekiden.ir.pass_context import SIZE
from ekiden.ir.prim import IntImm, PrimExpr, is_const
from ekiden.ir.span import Span
from ekiden.ir.structural import structural_digest
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.evaluate_call import evaluate_call
from ekiden.relay.expr import Call, Constant, ConstantData, Function, If, Tuple, TupleGetItem
from ekiden.relay.op.lowered import CallLoweredAttrs
from ekiden.relay.transform.graph.result_cache import LARGE, computed, kept, known
from ekiden.relay.transform.language.dead_code_elimination import has_effect
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import (
    bodies,
    evaluation_order,
    map_functions,
    on_body,
    operands,
    rewrite_graph,
)
from ekiden.relay.visitor import closed
from ekiden.runtime import environment
from ekiden.runtime.artifact import mapped
from ekiden.runtime.devices.memory import check_room
from ekiden.runtime.errors import IndexRangeError, LinAlgError

if TYPE_CHECKING:
    from concurrent import futures
else:  # for large constants
    futures = LazyModule("concurrent.futures")

MAX_BYTES, MAX_GROWTH = 1 << 20, 16
"""A result may be this large, or this many times as large as what it is made from (a weight of one
row is packed to a vector's width), so that folding does not blow an artifact up.
"""

MAX_PASSING = 1 << 26
"""A result may be this large where all that is made of it is small again: the hidden layer of a
perceptron that gives attention its bias. It is gone when folding is done.
"""

WORTH = 1 << 12
"""Bytes that an artifact must save for a constant to be made when it is loaded."""
MANY = 1 << 22
"""Bytes of large constants from which threads win more than they take to be imported, 3 ms."""
Values: TypeAlias = Callable[[], Array | tuple[Array, ...]]
"""Waits for what a thread computes."""


def _is_constant(expr: RelayExpr) -> bool:
    if isinstance(expr, Tuple):
        return all(isinstance(f, Constant) for f in expr.fields)
    return isinstance(expr, Constant)


def has_symbols(attrs: Attrs) -> bool:
    """Whether attributes hold an expression that is not a constant."""
    values = [getattr(attrs, f.name) for f in fields_of(attrs)]
    while values:
        value = values.pop()
        if isinstance(value, tuple):
            values.extend(value)
        elif isinstance(value, PrimExpr) and not is_const(value):
            return True
    return False


def can_compute(op: Op, attrs: Attrs | None) -> bool:
    """Whether a call of known arguments can be computed now: a kernel's work, without state, of
    known attributes, which calls nothing that may do more than give its results.
    """
    row = op.definition
    is_work = row.reference is not None and row.lower is not None and not row.stateful
    if isinstance(attrs, CallLoweredAttrs) and attrs.calls_out():
        return False
    return is_work and (attrs is None or not has_symbols(attrs))


def _leaves(kind: Type | None) -> list[TensorType] | None:
    """The tensors of a type; None if they are not known in full (attributes may hold symbols)."""
    fields = kind.fields if isinstance(kind, TupleType) else (kind,)
    found = [t for t in fields if isinstance(t, TensorType)]
    is_static = all(isinstance(d, IntImm) for t in found for d in t.shape)
    return found if len(found) == len(fields) and is_static else None


def _bytes(kind: TensorType) -> int:
    return itemsize(kind.dtype) * math.prod(d.value for d in kind.shape if isinstance(d, IntImm))


def _constant(data: Array, kind: TensorType, span: Span | None) -> Constant:
    made = Constant(data, span=span)
    made.set_checked_type(kind)
    return made


def _foldable(
    call: Call, kind: Type | None, is_passing: bool = False, given: int | None = None
) -> list[TensorType] | None:
    """The tensors that a call gives, None where it is not to be computed; `given` are the bytes of
    the constants that it is made of, its arguments where None."""
    if not isinstance(call.op, Op):
        return None
    if call.op.definition.shape_only:
        return _leaves(kind) if all(_leaves(a.checked_type) for a in call.args) else None
    if not all(map(_is_constant, call.args)):
        return None
    if not can_compute(call.op, call.attrs):
        return None
    kinds = _leaves(kind)
    fits = kinds is not None and (
        is_passing or _fits(kinds, _given(call) if given is None else given)
    )
    return kinds if fits else None


def _fits(kinds: list[TensorType], given: int) -> bool:
    """Whether a result may be kept that is made of constants of so many bytes."""
    return sum(map(_bytes, kinds)) <= max(MAX_BYTES, MAX_GROWTH * given)


def _passing(root: RelayExpr) -> set[RelayExpr]:
    """Calls of constants whose results are too large to be kept, and are not: whatever reads them
    is such a call, too, or one whose result fits beside the constants that all began with.
    """
    given: dict[RelayExpr, int] = {}  # of what is known: bytes of the constants that it is made of
    large: list[tuple[RelayExpr, int]] = []
    order = evaluation_order(root)
    for expr in order:
        if isinstance(expr, Constant):
            given[expr] = expr.data.nbytes
        elif isinstance(expr, Call) and (kinds := _known(expr, given)) is not None:
            given[expr] = sum(given[a] for a in set(expr.args))
            if not _fits(kinds, given[expr]):
                large.append((expr, sum(map(_bytes, kinds))))
    if not large:
        return set()
    users: dict[RelayExpr, set[RelayExpr]] = {each: set() for each, _ in large}
    for expr in order:
        for each in (*operands(expr), *bodies(expr)):
            if each in users:
                users[each].add(expr)
    found: set[RelayExpr] = set()
    too_large = {each for each, _ in large}
    for each, size in reversed(large):  # what uses it has been looked at
        is_read = bool(users[each]) and each is not root
        if is_read and size <= MAX_PASSING and all(
            u in given and (u in found or u not in too_large) for u in users[each]
        ):  # fmt: skip
            found.add(each)
    return found


def _known(call: Call, given: dict[RelayExpr, int]) -> list[TensorType] | None:
    """The tensors that a call gives, if it can be computed of what is known."""
    if not isinstance(call.op, Op) or not all(a in given for a in call.args):
        return None
    return _leaves(call.checked_type_or_none()) if can_compute(call.op, call.attrs) else None


def _given(call: Call) -> int:
    """The bytes of constant arguments: what a result is measured against, so that 16 MB of packed
    weights of 1 MB are made, and `zeros` of 16 MB are left to the program."""
    return sum(each.nbytes for each in _arrays(call))


def _arrays(call: Call) -> list[Array]:
    """Those of constant arguments."""
    values = [_value(a) for a in call.args if _is_constant(a)]
    return [d for each in values for d in (each if isinstance(each, tuple) else (each,))]


def _evaluate(call: Call) -> Array | tuple[Array, ...]:
    assert isinstance(call.op, Op)
    value = _of_type if call.op.definition.shape_only else _value
    made = evaluate_call(call.op, call.attrs, [value(a) for a in call.args])
    views = [made] if isinstance(made, np.ndarray) else made
    for each in _arrays(call):  # what was computed of a file's need not stay in memory beside it
        if each.nbytes >= LARGE and not any(np.may_share_memory(each, view) for view in views):
            mapped.drop(each)
    return made


def _what(call: Call) -> Hashable:
    """What is computed of the arrays: all that a result depends on beside them."""
    assert isinstance(call.op, Op)
    fields = tuple(len(a.fields) if isinstance(a, Tuple) else -1 for a in call.args)
    return call.op.definition.reference, structural_digest(call.attrs), fields


def _computed(call: Call) -> Array | tuple[Array, ...]:
    """The value of a call of constants, which those of large ones may have had before."""
    if not all(map(_is_constant, call.args)) or _given(call) < LARGE:
        return _evaluate(call)
    return computed(_what(call), _arrays(call), lambda: _evaluate(call))


def _of_type(expr: RelayExpr) -> Array:
    """Zeros of the type of a tensor, in the memory of one element: what reads the shape alone gets
    strides of 0, whatever the extents."""
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return np.broadcast_to(np.zeros((), to_numpy(kind.dtype)), kind.concrete_shape)


def _fold_call(
    call: Call,
    kind: Type | None,
    begun: dict[RelayExpr, Values],
    is_passing: bool = False,
    given: int | None = None,
) -> RelayExpr:
    kinds = _foldable(call, kind, is_passing, given)
    if kinds is None:
        return call
    assert isinstance(call.op, Op)
    if not call.op.definition.shape_only:
        check_room(sum(map(_bytes, kinds)), f"the value of '{call.op.name}'")
    try:
        value = begun.pop(call)() if call in begun else _computed(call)
    except (IndexRangeError, LinAlgError):  # of a program that fails, if it comes here at all
        return call
    values = value if isinstance(value, tuple) else (value,)
    folded = tuple(_constant(v, k, call.span) for v, k in zip(values, kinds, strict=True))
    if not isinstance(kind, TupleType):
        _note_source(folded[0], call)
        return folded[0]
    made = Tuple(folded, span=call.span)
    made.set_checked_type(kind)
    return made


def _note_source(folded: Constant, call: Call) -> None:
    """Where weights are to stay small, a result larger than what it is made of is made at load."""
    data = folded.data
    assert isinstance(data, ConstantData)
    if PassContext.current().option(SIZE) != "small" or not all(map(_is_array, call.args)):
        return
    stored = {id(each): each.nbytes for a in call.args for each in stored_arrays(a)}
    if data.nbytes >= sum(stored.values()) + WORTH:
        data.source = call


def _is_array(expr: RelayExpr) -> bool:
    return isinstance(expr, Constant)


def stored_arrays(constant: RelayExpr) -> list[Array]:
    """The arrays that an artifact holds for a constant: its own, or what it is made of at load."""
    found: list[Array] = []
    waiting = [constant]
    while waiting:
        each = waiting.pop()
        assert isinstance(each, Constant) and isinstance(each.data, ConstantData)
        source = each.data.source
        if isinstance(source, Call):
            waiting.extend(source.args)
        else:
            found.append(each.data)
    return found


def _value(expr: RelayExpr) -> Array | tuple[Array, ...]:
    if isinstance(expr, Tuple):
        return tuple(f.data for f in expr.fields if isinstance(f, Constant))
    assert isinstance(expr, Constant)
    return expr.data


def fold_call(call: Call) -> RelayExpr:
    """One call with its type: folded, if it depends on constants alone."""
    return _fold_call(call, call.checked_type, {})


def fold_constant(root: RelayExpr) -> RelayExpr:
    """Fold an expression whose checked types are known. Only what has no effect is dropped."""
    large = _large(root)
    if sum(map(_given, large)) < MANY:
        return _fold(root, {})
    with futures.ThreadPoolExecutor(environment.compile_jobs()) as pool:
        return _fold(root, {call: _later(call, pool) for call in large})


def _large(root: RelayExpr) -> list[Call]:
    """What takes large constants, weights that are packed or transformed: each is computed in a
    thread, as the work is NumPy's, which lets others run.
    """
    return [
        call
        for call in evaluation_order(root)
        if isinstance(call, Call)
        and all(map(_is_constant, call.args))
        and _given(call) >= LARGE
        and _foldable(call, call.checked_type_or_none())
    ]


def _later(call: Call, pool: futures.ThreadPoolExecutor) -> Values:
    """The value of a call of large constants, begun in a thread if it is not kept."""
    what, arrays = _what(call), _arrays(call)
    found = known(what, arrays)
    if found is not None:
        return lambda: found
    kinds = _leaves(call.checked_type_or_none())
    assert isinstance(call.op, Op)
    check_room(sum(map(_bytes, kinds or ())), f"the value of '{call.op.name}'")
    begun = pool.submit(_evaluate, call)
    return lambda: kept(what, arrays, begun.result())


def _fold(root: RelayExpr, begun: dict[RelayExpr, Values]) -> RelayExpr:
    effects: set[RelayExpr] = set()
    passing = _passing(root)

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Folds a node, and notes whether anything in it has an effect: what has is not evaluated,
        nor what holds it. A function value has none of its body's.
        """
        if isinstance(new, Call) and not any(a in effects for a in new.args):
            made = _fold_made(old, new, begun, old in passing)
        else:
            made = _rewrite(new, effects)
        inside = operands(made) if isinstance(made, Function) else [*operands(made), *bodies(made)]
        if has_effect(made) or any(e in effects for e in inside):
            effects.add(made)
        return made

    return rewrite_graph(root, rewrite)


def _fold_made(
    old: RelayExpr,
    new: Call,
    begun: dict[RelayExpr, Values],
    is_passing: bool,
) -> RelayExpr:
    """Fold a call. What it may grow to is measured by the constants that all began with: step by
    step, and pass by pass, a value that doubles would have no bound."""
    if not all(map(_is_constant, new.args)):
        return _fold_call(new, old.checked_type_or_none(), begun, is_passing)
    leaves = {f for a in new.args for f in (a.fields if isinstance(a, Tuple) else (a,))}
    given = sum(map(_origin, leaves))
    folded = _fold_call(new, old.checked_type_or_none(), begun, is_passing, given)
    if folded is not new:
        for each in folded.fields if isinstance(folded, Tuple) else (folded,):
            if isinstance(each, Constant) and isinstance(each.data, ConstantData):
                each.data.origin_bytes = given
    return folded


def _origin(constant: RelayExpr) -> int:
    """Return the bytes of the constants that a constant was made of: its own, if of none."""
    assert isinstance(constant, Constant)
    made_of = getattr(constant.data, "origin_bytes", -1)
    return constant.data.nbytes if made_of < 0 else made_of


def _rewrite(new: RelayExpr, effects: set[RelayExpr]) -> RelayExpr:
    match new:
        case TupleGetItem(tuple_value=Tuple(fields=fields) as made, index=index):
            return new if made in effects else fields[index]
        case If(cond=Constant(data=data), true_branch=yes, false_branch=no):
            return yes if bool(data) else no
        case _:
            return new


@module_pass(name="FoldConstant", opt_level=2, required=(InferType(),))
def _fold_constant(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, on_body(fold_constant))


def FoldConstant(fold_qnn: bool = False) -> Pass:  # noqa: N802
    """The pass described at the top of this file; `fold_qnn`: also operators of quantised tensors,
    by their own reference semantics."""
    if not fold_qnn:
        return _fold_constant

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(module, on_body(_fold_quantised))

    return Pass("FoldConstant", transform, 2, (InferType(),))


def FoldConstantExpr(  # noqa: N802
    expr: RelayExpr, mod: IRModule | None = None, fold_qnn: bool = False
) -> RelayExpr:
    """One expression, folded (TVM's name); it may call the functions of a module."""
    names = set() if mod is None else {v.name_hint for v in mod.functions}
    entry = next(n for n in chain(("main",), map("main_{}".format, count())) if n not in names)
    whole = IRModule() if mod is None else mod
    made = FoldConstant(fold_qnn)(whole.with_function(entry, closed(expr)))[entry]
    assert isinstance(made, Function)
    return made if isinstance(expr, Function) else made.body


def _fold_quantised(body: RelayExpr) -> RelayExpr:
    """A body with constant calls folded, those of the dialect of quantised tensors too."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """A qnn call on constants becomes the constant that its reference gives."""
        if not isinstance(new, Call) or not isinstance(new.op, Op):
            return new
        row, kind = new.op.definition, old.checked_type
        if not row.expanded or row.reference is None or row.stateful:
            return new
        if not isinstance(kind, TensorType) or not all(map(_is_constant, new.args)):
            return new
        if new.attrs is not None and has_symbols(new.attrs):
            return new
        value = evaluate_call(new.op, new.attrs, [_value(a) for a in new.args])
        return _constant(value, kind, new.span) if isinstance(value, np.ndarray) else new

    return fold_constant(rewrite_graph(fold_constant(body), rewrite))
