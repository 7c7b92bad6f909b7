"""Constant folding: evaluate calls of constants at compile time by the operators' reference
semantics.

add(1f, 2f)  ->  3f          (%a, %b).1  ->  %b          if (True) { %a } else { %b }  ->  %a
shape_of(%x)  ->  [2, 3]     %x: Tensor[(2, 3), float32]

References are NumPy's arithmetic, which may round otherwise than a kernel would have: a folded
value may differ from that in its last bits. Stateful operators and what has effects stay, as do
calls that a run would refuse (an index out of range): whether they run at all is for the run to
say. So do calls whose reference is an interpreted loop program of more steps than
MAX_INTERPRETED_STEPS.
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
from ekiden.ir.node import node_fields
from ekiden.ir.op import Array, Op
from ekiden.ir.pass_context import WEIGHT_SIZE_OPTION
from ekiden.ir.prim import IntImm, PrimExpr, is_const
from ekiden.ir.span import Span
from ekiden.ir.structural import structural_digest
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.evaluate_call import evaluate_call
from ekiden.relay.expr import Call, Constant, ConstantData, Function, If, Tuple, TupleGetItem
from ekiden.relay.op.prim_func_call import CallLoweredAttrs
from ekiden.relay.transform.graph.constant_evaluation_cache import (
    MIN_CACHED_BYTES,
    cached_evaluation,
    lookup_result,
    store_result,
)
from ekiden.relay.transform.language.dead_code_elimination import has_effect
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    lift_body_rewrite,
    map_functions,
    operands,
    rewrite_graph,
)
from ekiden.relay.visitor import close_over_free_vars
from ekiden.runtime import environment
from ekiden.runtime.artifact import mapped_files
from ekiden.runtime.devices.memory import check_memory_limit
from ekiden.runtime.errors import IndexRangeError, LinAlgError
from ekiden.tir.interpreter_limits import StepBudget, StepLimitError

if TYPE_CHECKING:
    from concurrent import futures
else:  # for large constants
    futures = LazyModule("concurrent.futures")

MAX_FOLDED_BYTES, MAX_FOLDED_GROWTH = 1 << 20, 16
"""Maximum bytes of a folded result, or its maximum growth over its operands, so that folding does
not inflate artifacts.
"""

MAX_INTERMEDIATE_BYTES = 1 << 26
"""Maximum bytes of an intermediate whose uses are all small, discarded after folding. It is gone
when folding is done.
"""

MAX_INTERPRETED_STEPS = 1 << 22
"""Maximum interpreter steps per call, 0.2 to 2 s; compiled, that takes about a millisecond. A run
of its kernel takes about a millisecond then, which does not pay for more.
"""

UNFOLDABLE_ERRORS = (IndexRangeError, LinAlgError, StepLimitError)
"""Errors of an evaluation that leave the call unfolded, to be raised at run time if reached."""

MIN_LOAD_TIME_SAVING_BYTES = 1 << 12
"""Minimum artifact bytes saved by recomputing a constant at load time."""
MIN_PARALLEL_FOLDING_BYTES = 1 << 22
"""Minimum bytes of large constants that repay starting the thread pool, 3 ms."""
DeferredResult: TypeAlias = Callable[[], Array | tuple[Array, ...]]
"""Function that waits for an evaluation in a thread."""


def _is_constant(expr: RelayExpr) -> bool:
    if isinstance(expr, Tuple):
        return all(isinstance(f, Constant) for f in expr.fields)
    return isinstance(expr, Constant)


def has_symbolic_attrs(attrs: Attrs) -> bool:
    """Return whether an operator's attributes contain symbolic (non-constant) expressions."""
    values = [getattr(attrs, f.name) for f in node_fields(attrs)]
    while values:
        value = values.pop()
        if isinstance(value, tuple):
            values.extend(value)
        elif isinstance(value, PrimExpr) and not is_const(value):
            return True
    return False


def can_evaluate(op: Op, attrs: Attrs | None) -> bool:
    """Return whether a call of constant arguments can be evaluated at compile time.

    It must be a kernel's work, without state, of known attributes, and must call nothing that may
    do more than return results.
    """
    row = op.definition
    is_work = row.reference is not None and row.lower is not None and not row.stateful
    # Calls to external code may have effects, or not exist on the compiling machine.
    if isinstance(attrs, CallLoweredAttrs) and attrs.has_external_calls():
        return False
    return is_work and (attrs is None or not has_symbolic_attrs(attrs))


def _static_tensors(kind: Type | None) -> list[TensorType] | None:
    """Return the tensor types of a type, or None if a shape is not static."""
    fields = kind.fields if isinstance(kind, TupleType) else (kind,)
    tensors = [t for t in fields if isinstance(t, TensorType)]
    is_static = all(isinstance(d, IntImm) for t in tensors for d in t.shape)
    return tensors if len(tensors) == len(fields) and is_static else None


def _tensor_bytes(kind: TensorType) -> int:
    return itemsize(kind.dtype) * math.prod(d.value for d in kind.shape if isinstance(d, IntImm))


def _typed_constant(data: Array, kind: TensorType, span: Span | None) -> Constant:
    constant = Constant(data, span=span)
    constant.set_checked_type(kind)
    return constant


def _foldable_types(
    call: Call, kind: Type | None, is_passing: bool = False, origin_bytes: int | None = None
) -> list[TensorType] | None:
    """Return the result types of a foldable call, or None.

    Args:
        call: The call.
        kind: The type of its result.
        is_passing: Whether the result is an intermediate, which may be larger.
        origin_bytes: The bytes of the constants it is made of; None for those of its arguments.
    """
    if not isinstance(call.op, Op):
        return None
    # The elements of such operands are not read, so they need not be constant.
    if call.op.definition.shape_only:
        return (
            _static_tensors(kind)
            if all(_static_tensors(a.checked_type) for a in call.args)
            else None
        )
    if not all(map(_is_constant, call.args)):
        return None
    if not can_evaluate(call.op, call.attrs):
        return None
    kinds = _static_tensors(kind)
    fits = kinds is not None and (
        is_passing
        or _is_within_size_limit(
            kinds, _constant_bytes(call) if origin_bytes is None else origin_bytes
        )
    )
    return kinds if fits else None


def _is_within_size_limit(kinds: list[TensorType], origin_bytes: int) -> bool:
    """Return whether results are small enough to store, given the size of the constants they derive
    from.
    """
    return sum(map(_tensor_bytes, kinds)) <= max(MAX_FOLDED_BYTES, MAX_FOLDED_GROWTH * origin_bytes)


def _large_intermediates(root: RelayExpr) -> set[RelayExpr]:
    """Return the calls of constants whose results exceed the size limit but are only intermediates
    of small results.

    Whatever reads them is such a call, too, or one whose result fits beside the constants that all
    began with.
    """
    origin_bytes: dict[
        RelayExpr, int
    ] = {}  # of what is known: bytes of the constants that it is made of
    large: list[tuple[RelayExpr, int]] = []
    order = evaluation_order(root)
    for expr in order:
        if isinstance(expr, Constant):
            origin_bytes[expr] = expr.data.nbytes
        elif (
            isinstance(expr, Call)
            and (kinds := _computable_tensors(expr, origin_bytes)) is not None
        ):
            # An operand that occurs twice is stored once.
            origin_bytes[expr] = sum(origin_bytes[a] for a in set(expr.args))
            # The limit relates to the original constants, not to the intermediates, or chains could
            # grow without bound.
            if not _is_within_size_limit(kinds, origin_bytes[expr]):
                large.append((expr, sum(map(_tensor_bytes, kinds))))
    if not large:
        return set()
    users: dict[RelayExpr, set[RelayExpr]] = {large_expr: set() for large_expr, _ in large}
    for expr in order:
        for operand in (*operands(expr), *bodies(expr)):
            if operand in users:
                users[operand].add(expr)
    intermediates: set[RelayExpr] = set()
    too_large = {large_call for large_call, _ in large}
    # Reverse order: a chain of intermediates is allowed only if its end is small.
    for operand, size in reversed(large):  # what uses it has been looked at
        is_read = bool(users[operand]) and operand is not root
        if is_read and size <= MAX_INTERMEDIATE_BYTES and all(
            u in origin_bytes and (u in intermediates or u not in too_large) for u in users[operand]
        ):  # fmt: skip
            intermediates.add(operand)
    return intermediates


def _computable_tensors(call: Call, origin_bytes: dict[RelayExpr, int]) -> list[TensorType] | None:
    """Return the result types of a call whose arguments are all known at compile time, or None."""
    if not isinstance(call.op, Op) or not all(a in origin_bytes for a in call.args):
        return None
    return (
        _static_tensors(call.checked_type_or_none()) if can_evaluate(call.op, call.attrs) else None
    )


def _constant_bytes(call: Call) -> int:
    """Return the size of a call's constant arguments in bytes.

    16 MB of packed weights of 1 MB are folded, and `zeros` of 16 MB are left to the program.
    """
    return sum(array.nbytes for array in _constant_arrays(call))


def _constant_arrays(call: Call) -> list[Array]:
    """Return the arrays of a call's constant arguments."""
    values = [_constant_value(a) for a in call.args if _is_constant(a)]
    return [d for value in values for d in (value if isinstance(value, tuple) else (value,))]


def _evaluate(call: Call) -> Array | tuple[Array, ...]:
    assert isinstance(call.op, Op)
    value = _zeros_of_type if call.op.definition.shape_only else _constant_value
    arguments = [value(a) for a in call.args]
    result = evaluate_call(call.op, call.attrs, arguments, StepBudget(MAX_INTERPRETED_STEPS))
    views = [result] if isinstance(result, np.ndarray) else result
    for array in _constant_arrays(
        call
    ):  # what was computed of a file's need not stay in memory beside it
        if array.nbytes >= MIN_CACHED_BYTES and not any(
            np.may_share_memory(array, view) for view in views
        ):
            mapped_files.advise_dontneed(array)
    return result


def _computation_key(call: Call) -> Hashable:
    """Return the cache key of a computation: everything its result depends on besides the
    arrays.
    """
    assert isinstance(call.op, Op)
    fields = tuple(len(a.fields) if isinstance(a, Tuple) else -1 for a in call.args)
    return call.op.definition.reference, structural_digest(call.attrs), fields


def _evaluate_cached(call: Call) -> Array | tuple[Array, ...]:
    """Evaluate a call of constants, through the cache if they are large."""
    if not all(map(_is_constant, call.args)) or _constant_bytes(call) < MIN_CACHED_BYTES:
        return _evaluate(call)
    return cached_evaluation(
        _computation_key(call), _constant_arrays(call), lambda: _evaluate(call)
    )


def _zeros_of_type(expr: RelayExpr) -> Array:
    """Return zeros of an expression's tensor type, broadcast from one element.

    What reads the shape alone gets strides of 0, whatever the extents.
    """
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return np.broadcast_to(np.zeros((), to_numpy(kind.dtype)), kind.concrete_shape)


def _fold_constant_call(
    call: Call,
    kind: Type | None,
    begun: dict[RelayExpr, DeferredResult],
    is_passing: bool = False,
    origin_bytes: int | None = None,
) -> RelayExpr:
    kinds = _foldable_types(call, kind, is_passing, origin_bytes)
    if kinds is None:
        return call
    assert isinstance(call.op, Op)
    if not call.op.definition.shape_only:
        # An error that names the operator is better than one of the allocator.
        check_memory_limit(sum(map(_tensor_bytes, kinds)), f"the value of '{call.op.name}'")
    try:
        value = begun.pop(call)() if call in begun else _evaluate_cached(call)
    except UNFOLDABLE_ERRORS:
        return call
    values = value if isinstance(value, tuple) else (value,)
    folded = tuple(_typed_constant(v, k, call.span) for v, k in zip(values, kinds, strict=True))
    if not isinstance(kind, TupleType):
        _record_source(folded[0], call)
        return folded[0]
    folded_tuple = Tuple(folded, span=call.span)
    folded_tuple.set_checked_type(kind)
    return folded_tuple


def _record_source(folded: Constant, call: Call) -> None:
    """Record the call that produced a constant, so that small artifacts can recompute it when
    loaded.

    A result larger than what it is made of is then computed when the artifact is loaded.
    """
    data = folded.data
    assert isinstance(data, ConstantData)
    if PassContext.current().option(WEIGHT_SIZE_OPTION) != "small" or not all(
        map(_is_single_constant, call.args)
    ):
        return
    stored = {id(array): array.nbytes for a in call.args for array in serialized_arrays(a)}
    # An array that occurs twice in the source is stored once.
    if data.nbytes >= sum(stored.values()) + MIN_LOAD_TIME_SAVING_BYTES:
        data.source = call


def _is_single_constant(expr: RelayExpr) -> bool:
    return isinstance(expr, Constant)


def serialized_arrays(constant: RelayExpr) -> list[Array]:
    """Return the arrays that an artifact stores for a constant: its own, or those it is recomputed
    from when loaded.
    """
    arrays: list[Array] = []
    waiting = [constant]
    while waiting:
        current = waiting.pop()
        assert isinstance(current, Constant) and isinstance(current.data, ConstantData)
        source = current.data.source
        if isinstance(source, Call):
            waiting.extend(source.args)
        else:
            arrays.append(current.data)
    return arrays


def _constant_value(expr: RelayExpr) -> Array | tuple[Array, ...]:
    if isinstance(expr, Tuple):
        return tuple(f.data for f in expr.fields if isinstance(f, Constant))
    assert isinstance(expr, Constant)
    return expr.data


def fold_call(call: Call) -> RelayExpr:
    """Fold one typed call if all its arguments are constants."""
    return _fold_constant_call(call, call.checked_type, {})


def fold_constant(root: RelayExpr) -> RelayExpr:
    """Fold the constant subexpressions of a typed expression. Only what has no effect is
    dropped.
    """
    large = _large_constant_calls(root)
    # Importing the thread pool would take longer than the work.
    if sum(map(_constant_bytes, large)) < MIN_PARALLEL_FOLDING_BYTES:
        return _fold_graph(root, {})
    # NumPy releases the interpreter's lock in large operations.
    with futures.ThreadPoolExecutor(environment.num_compile_jobs()) as pool:
        return _fold_graph(root, {call: _start_evaluation(call, pool) for call in large})


def _large_constant_calls(root: RelayExpr) -> list[Call]:
    """Return the foldable calls with large constant arguments, such as weights to pack or
    transform.

    Each is computed in a thread, as the work is NumPy's, which releases the GIL.
    """
    return [
        call
        for call in evaluation_order(root)
        if isinstance(call, Call)
        and all(map(_is_constant, call.args))
        and _constant_bytes(call) >= MIN_CACHED_BYTES
        and _foldable_types(call, call.checked_type_or_none())
    ]


def _start_evaluation(call: Call, pool: futures.ThreadPoolExecutor) -> DeferredResult:
    """Submit the evaluation of a call of large constants to a thread pool, unless its result is
    cached.
    """
    what, arrays = _computation_key(call), _constant_arrays(call)
    cached = lookup_result(what, arrays)
    if cached is not None:
        return lambda: cached
    kinds = _static_tensors(call.checked_type_or_none())
    assert isinstance(call.op, Op)
    check_memory_limit(sum(map(_tensor_bytes, kinds or ())), f"the value of '{call.op.name}'")
    begun = pool.submit(_evaluate, call)
    return lambda: store_result(what, arrays, begun.result())


def _fold_graph(root: RelayExpr, begun: dict[RelayExpr, DeferredResult]) -> RelayExpr:
    effects: set[RelayExpr] = set()
    passing = _large_intermediates(root)

    def fold_node(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Fold a node, and record whether it contains an effect.

        What has an effect is not evaluated, nor what contains it. A function value has none of its
        body's.
        """
        if isinstance(new, Call) and not any(a in effects for a in new.args):
            folded = _fold_with_origin(old, new, begun, old in passing)
        else:
            folded = _simplify_control(new, effects)
        inside = (
            operands(folded)
            if isinstance(folded, Function)
            else [*operands(folded), *bodies(folded)]
        )
        if has_effect(folded) or any(e in effects for e in inside):
            effects.add(folded)
        return folded

    return rewrite_graph(root, fold_node)


def _fold_with_origin(
    old: RelayExpr,
    new: Call,
    begun: dict[RelayExpr, DeferredResult],
    is_passing: bool,
) -> RelayExpr:
    """Fold a call, and record the total size of the constants it originates from. Its growth is
    measured by the constants that all began with.

    Measured call by call, and pass by pass, a value that doubles would have no bound.
    """
    if not all(map(_is_constant, new.args)):
        return _fold_constant_call(new, old.checked_type_or_none(), begun, is_passing)
    leaves = {f for a in new.args for f in (a.fields if isinstance(a, Tuple) else (a,))}
    origin_bytes = sum(map(_origin_bytes, leaves))
    folded = _fold_constant_call(new, old.checked_type_or_none(), begun, is_passing, origin_bytes)
    if folded is not new:
        for constant in folded.fields if isinstance(folded, Tuple) else (folded,):
            if isinstance(constant, Constant) and isinstance(constant.data, ConstantData):
                # So that growth is measured against the first constants, not step by step.
                constant.data.origin_bytes = origin_bytes
    return folded


def _origin_bytes(constant: RelayExpr) -> int:
    """Return the total size of the constants that a constant was folded from, or its own size."""
    assert isinstance(constant, Constant)
    made_of = getattr(constant.data, "origin_bytes", -1)
    return constant.data.nbytes if made_of < 0 else made_of


def _simplify_control(new: RelayExpr, effects: set[RelayExpr]) -> RelayExpr:
    match new:
        case TupleGetItem(tuple_value=Tuple(fields=fields) as tuple_expr, index=index):
            # An unused field with an effect must still be evaluated.
            return new if tuple_expr in effects else fields[index]
        case If(cond=Constant(data=data), true_branch=yes, false_branch=no):
            # The branch that is dropped has not been evaluated, so its effects do not matter.
            return yes if bool(data) else no
        case _:
            return new


@module_pass(name="FoldConstant", opt_level=2, required=(InferType(),))
def _fold_constant(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(fold_constant))


def FoldConstant(fold_qnn: bool = False) -> Pass:  # noqa: N802
    """Return a pass that folds constants (TVM's FoldConstant).

    Args:
        fold_qnn: Whether operators of quantized tensors are folded too, by their reference
            semantics.
    """
    if not fold_qnn:
        return _fold_constant

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Fold operators of qnn in each function."""
        return map_functions(module, lift_body_rewrite(_fold_qnn))

    return Pass("FoldConstant", transform, 2, (InferType(),))


def FoldConstantExpr(  # noqa: N802
    expr: RelayExpr, mod: IRModule | None = None, fold_qnn: bool = False
) -> RelayExpr:
    """Fold one expression (TVM's FoldConstantExpr).

    Args:
        expr: The expression.
        mod: A module whose functions it may call.
        fold_qnn: Whether operators of quantized tensors are folded too.
    """
    names = set() if mod is None else {v.name_hint for v in mod.functions}
    # The module may have a function of that name already.
    entry = next(n for n in chain(("main",), map("main_{}".format, count())) if n not in names)
    module = IRModule() if mod is None else mod
    folded = FoldConstant(fold_qnn)(module.with_function(entry, close_over_free_vars(expr)))[entry]
    assert isinstance(folded, Function)
    return folded if isinstance(expr, Function) else folded.body


def _fold_qnn(body: RelayExpr) -> RelayExpr:
    """Fold the constant calls of a body, including those of qnn operators."""

    def fold_qnn_call(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Fold a qnn call of constants by its reference implementation."""
        if not isinstance(new, Call) or not isinstance(new.op, Op):
            return new
        row, kind = new.op.definition, old.checked_type
        if not row.expanded or row.reference is None or row.stateful:
            return new
        if not isinstance(kind, TensorType) or not all(map(_is_constant, new.args)):
            return new
        if new.attrs is not None and has_symbolic_attrs(new.attrs):
            return new
        arguments = [_constant_value(a) for a in new.args]
        try:
            value = evaluate_call(new.op, new.attrs, arguments, StepBudget(MAX_INTERPRETED_STEPS))
        except UNFOLDABLE_ERRORS:
            return new
        return _typed_constant(value, kind, new.span) if isinstance(value, np.ndarray) else new

    # The quantized calls may turn more operands into constants.
    return fold_constant(rewrite_graph(fold_constant(body), fold_qnn_call))
