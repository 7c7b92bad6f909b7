"""Loops as tail-recursive Relay functions.

    let %loop = fn (%i, %go, %x, %kept) {
      if (%i < limit && %go) { ...; %loop(%i + 1, go, x, Cons(part, %kept)) } else { (%x, %kept) }
    };
    %loop(0, go, x, Nil)

A dimension that changes from one iteration to the next has a name of its own in the function and is
unknown in its result. The slices that iterations collect are stored in a list, so that none is
copied more than once when they are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from ekiden.frontend.common.import_block import ImportBlock
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.scope import Scope, is_as_specific
from ekiden.frontend.common.sequence_value import SequenceValue, join_types
from ekiden.frontend.common.sum_value import possible_dtypes, value_of_type_call
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value, known_value
from ekiden.ir.expr_text import format_type
from ekiden.ir.prim import PrimExpr
from ekiden.ir.prim import const as prim_const
from ekiden.ir.type import FuncType, TensorType, TupleType, Type, TypeCall
from ekiden.relay import op
from ekiden.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    const,
)
from ekiden.relay.op import sequence
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import is_unknown_dim

MAX_UNROLLED_ITERATIONS = 64
"""The most iterations that are written out one after the other."""


class CarriedRankChange(Unsupported):
    """Signal that an iteration changes the rank or dtype of a carried value, which then has no
    single type.

    index: the number of the value where only its rank changes; None where its dtype does.
    """

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason)
        self.index = index


@dataclass(frozen=True, slots=True)
class Iteration:
    """Result of one iteration: the condition to continue, the carried values, and a slice of each
    scan output.
    """

    condition: Value
    carried: Sequence[Value]
    scan_slices: Sequence[Value] = ()


ImportIteration = Callable[[Value, Value, Sequence[Value]], Iteration]
"""(number of the iteration, whether it goes on, carried values) -> what the iteration gives."""


@dataclass(frozen=True, slots=True)
class CollectedSlices:
    """Run-time list of the slices that the iterations collected for one scan output."""

    sequence: Expr
    type: TensorType


def _carried_type(value: Value) -> Type | None:
    """Return the type of a carried value; None for an empty sequence, whose element type is
    unknown.
    """
    if isinstance(value, SequenceValue) and value.items == ():
        return None
    return value.relay_type


def as_tensor_type(kind: Type) -> TensorType:
    """Return a type, asserted to be a tensor type."""
    assert isinstance(kind, TensorType), f"expected a tensor, got {kind!r}"
    return kind


def _bound_loop_function(loop: Let) -> Function:
    """Return the function that a loop binds."""
    assert isinstance(loop.value, Function)
    return loop.value


def is_constant_true(value: Value) -> bool:
    """Return whether a condition is known to hold at import."""
    return value.array is not None and bool(np.all(value.array))


def as_scalar(scope: Scope, value: Value) -> Expr:
    """Emit a one-element value as a tensor of rank 0."""
    expr = scope.expr(value)
    return scope.attach_span(expr if not value.type.shape else op.reshape(expr, ()))


@dataclass(slots=True)
class Loop:
    """Loop under construction: its initial values and the function that imports one iteration.

    limit: the maximum trip count, an int64 scalar. initial_condition: whether to begin at all; None
    for yes.
    """

    node: Node
    names: Sequence[str]
    initial_values: Sequence[Value]
    limit: Expr | None
    initial_condition: Value | None
    import_iteration: ImportIteration

    def build(self) -> tuple[list[Value], list[CollectedSlices], bool]:
        """Build the loop; return the last carried values, the collected slices, and whether the
        limit alone ends the loop.

        Raises CarriedRankChange when a carried value changes its rank or dtype.
        """
        kinds, endless = (
            [_carried_type(v) for v in self.initial_values],
            self.initial_condition is None or is_constant_true(self.initial_condition),
        )
        scope, births_before = self.node.scope, self.node.scope.num_created_exprs()
        # Fixed-point iteration over the carried types: the body is imported anew until they are
        # stable.
        while True:
            # A fresh block in each round: the bindings of a failed round must not stay.
            block = ImportBlock()
            with scope.enter_block(block):
                index = self._carried_param("i", TensorType((), "int64"))
                go = constant_value(np.array(True))
                if not endless:
                    go = self._carried_param("go", TensorType((), "bool"))
                params = [
                    v if k is None else self._carried_param(n, k)
                    for n, k, v in zip(self.names, kinds, self.initial_values, strict=True)
                ]
                iteration = self.import_iteration(index, go, params)
                changed = self._widened_types(kinds, iteration.carried)
                if endless and not is_constant_true(iteration.condition):
                    endless = False  # it was taken for true, which iterations change
                elif all(a is b for a, b in zip(kinds, changed, strict=True)):
                    head = [index] if endless else [index, go]
                    if any(k is None for k in kinds):  # they stay empty: of any type
                        kinds = [
                            v.relay_type if k is None else k
                            for k, v in zip(kinds, self.initial_values, strict=True)
                        ]
                        continue
                    typed = [k for k in kinds if k is not None]
                    moving = self._variant_indices(typed, params, iteration.carried)
                    loop, slice_types = self._build_function(typed, head, params, iteration, moving)
                    break
                else:
                    kinds = changed
        fixed = self._invariant_values(params, moving)
        loop = loop.with_fields(
            value=scope.hoist_loop_invariants(_bound_loop_function(loop), births_before, fixed)
        )
        last, collected = self._unpack_results(scope.attach_span(loop), slice_types, moving)
        return last, collected, endless

    def unroll(self) -> tuple[list[Value], list[list[Value]]] | None:
        """Unroll a loop of constant trip count.

        None where the trip count is unknown or above MAX_UNROLLED_ITERATIONS.
        """
        limit = self.limit
        if not isinstance(limit, Constant) or limit.data.size != 1:
            return None
        trip_count = int(limit.data.item())
        if trip_count > MAX_UNROLLED_ITERATIONS or not (
            self.initial_condition is None or is_constant_true(self.initial_condition)
        ):
            return None
        values, slices = list(self.initial_values), list[list[Value]]()
        for number in range(trip_count):
            iteration = self.import_iteration(
                constant_value(np.array(number)), constant_value(np.array(True)), values
            )
            # A condition that depends on data cannot end an unrolled loop.
            if iteration.condition.array is None:
                return None
            values = list(iteration.carried)
            slices.append(list(iteration.scan_slices))
            if not is_constant_true(iteration.condition):
                break
        return values, slices

    def _carried_param(self, name: str, kind: Type) -> Value:
        """Add a parameter of the loop function for a carried value."""
        var = self.node.scope.new_parameter(name, kind)
        if isinstance(kind, TypeCall):
            return value_of_type_call(var, kind)
        return Value(self.node.scope.tensor_type_of(var), expr=var)

    def _widened_types(
        self, kinds: Sequence[Type | None], after: Sequence[Value]
    ) -> list[Type | None]:
        """Return the carried types, widened by unknown dimensions where an iteration changes an
        extent.
        """
        widened_types: list[Type | None] = []
        every = zip(self.names, kinds, after, strict=True)
        for index, (name, kind, value) in enumerate(every):
            if _carried_type(value) is None:
                widened_types.append(kind)
                continue
            new = self.node.scope.erase_block_dims(value.relay_type)
            common_type = new if kind is None else join_types(kind, new)
            if common_type is None:
                was = "" if kind is None else format_type(kind)
                raise CarriedRankChange(
                    f"the carried value {name!r} must keep its type and rank, but is "
                    f"{was} before an iteration and {format_type(value.relay_type)} after it",
                    index
                    if kind is not None and possible_dtypes(kind) == possible_dtypes(new)
                    else None,
                )
            widened_types.append(
                kind if kind is not None and is_as_specific(kind, common_type) else common_type
            )
        return widened_types

    def _variant_indices(
        self, kinds: Sequence[Type], params: Sequence[Value], after: Sequence[Value]
    ) -> list[int]:
        """Return the numbers of the loop-variant carried values; the invariant others are
        captured.
        """
        every = zip(kinds, params, after, self.initial_values, strict=True)
        return [
            n
            for n, (kind, param, value, start) in enumerate(every)
            if param.expr is None or value.expr is not param.expr or start.relay_type is not kind
        ]

    def _invariant_values(self, params: Sequence[Value], moving: Sequence[int]) -> dict[Var, Value]:
        """Return the initial values of the loop-invariant variables."""
        pairs = zip(params, self.initial_values, strict=True)
        steady = [p for n, p in enumerate(pairs) if n not in moving]
        return {p.expr: value for p, value in steady if isinstance(p.expr, Var)}

    def _build_function(
        self,
        kinds: Sequence[Type],
        head: Sequence[Value],
        params: Sequence[Value],
        iteration: Iteration,
        moving: Sequence[int],
    ) -> tuple[Let, list[TensorType]]:
        """Build the loop function over the variant values and its first call; return also the types
        of the slices.

        Closes the block of the function's body.
        """
        scope = self.node.scope
        slice_types = [
            as_tensor_type(scope.erase_block_dims(p.type)) for p in iteration.scan_slices
        ]
        lists = [sequence.list_type(p) for p in slice_types]
        collected_vars = [Var(f"kept{n}", kind, scope.span) for n, kind in enumerate(lists)]
        parameters = [*head, *(params[n] for n in moving)]
        variables = [v.expr for v in parameters if isinstance(v.expr, Var)] + collected_vars
        for var, kind in zip(collected_vars, lists, strict=True):
            var.set_checked_type(kind)
        result = TupleType((*(kinds[n] for n in moving), *lists))
        loop = Var("loop", FuncType(tuple(v.checked_type for v in variables), result), scope.span)
        state = variables[len(head) :]
        go_on = self._continue_condition(variables[: len(head)])
        carried = [iteration.carried[n] for n in moving]
        # The call is in tail position, so that the VM and the AOT executor run it as a jump.
        again = self._recursive_call(
            loop, variables[: len(head)], iteration, carried, collected_vars, slice_types, state
        )
        body = If(go_on, again, Tuple(tuple(state)))
        function = Function(tuple(variables), body, result, span=scope.span)
        start: list[Expr] = [const(np.int64(0))]
        if len(head) > 1:
            start.append(
                const(True)
                if self.initial_condition is None
                else as_scalar(self.node.scope, self.initial_condition)
            )
        start += [scope.relax_to_type(self.initial_values[n], kinds[n]) for n in moving]
        start += [sequence.empty() for _ in lists]
        loop_let = Let(loop, function, Call(loop, tuple(start), span=scope.span), span=scope.span)
        return loop_let, slice_types

    def _continue_condition(self, head: Sequence[Var]) -> Expr:
        """Emit the condition to run another iteration: below the limit, and the model's own
        condition.
        """
        tests: list[Expr] = list(head[1:])
        if self.limit is not None:
            tests.insert(0, op.less(head[0], self.limit))
        return reduce(op.logical_and, tests) if tests else const(True)

    def _recursive_call(
        self,
        loop: Var,
        head: Sequence[Var],
        iteration: Iteration,
        after: Sequence[Value],
        collected_vars: Sequence[Var],
        slice_types: Sequence[TensorType],
        params: Sequence[Var],
    ) -> Expr:
        """Emit the tail call with the values after an iteration."""
        scope = self.node.scope
        added = [
            scope.relax_type(scope.expr(p), k)
            for p, k in zip(iteration.scan_slices, slice_types, strict=True)
        ]
        lists = [
            sequence.append(collected, new)
            for collected, new in zip(collected_vars, added, strict=True)
        ]
        go = [as_scalar(self.node.scope, iteration.condition)] if len(head) > 1 else []
        carried = [
            scope.relax_to_type(v, p.checked_type)
            if isinstance(v, SequenceValue)
            else scope.expr(v)
            for v, p in zip(after, params, strict=False)
        ]
        args = (op.add(head[0], const(np.int64(1))), *go, *carried, *lists)
        return scope.close_block(scope.attach_span(Call(loop, args)))

    def _unpack_results(
        self, loop_result: Expr, slice_types: Sequence[TensorType], moving: Sequence[int]
    ) -> tuple[list[Value], list[CollectedSlices]]:
        """Return the final carried values and the collected slices from the loop's result tuple."""
        scope = self.node.scope
        last = list(self.initial_values)
        for index, number in enumerate(moving):
            last[number] = scope.bind_named(TupleGetItem(loop_result, index), self.names[number])
        first = len(moving)
        lists = [
            scope.attach_span(TupleGetItem(loop_result, first + i)) for i in range(len(slice_types))
        ]
        return last, [CollectedSlices(e, k) for e, k in zip(lists, slice_types, strict=True)]


def stack_slices(
    scope: Scope,
    slices: CollectedSlices,
    name: str,
    length: PrimExpr | None,
    axis: int = 0,
    reverse: bool = False,
) -> Value:
    """Stack the collected slices along a new axis.

    Where there are none, the result has the extents that each slice would have, 0 for
    data-dependent ones.
    """
    kind = slices.type
    dims = np.array([prim_const(0) if is_unknown_dim(d) else d for d in kind.shape], object)
    shape, like = scope.expr(known_value(dims, "int64")), const(0, kind.dtype)
    stack = scope.bind_named(sequence.stack(slices.sequence, shape, like, length, reverse), name)
    if axis == 0:
        return stack
    order = list(range(1, len(kind.shape) + 1))
    order.insert(axis, 0)
    return scope.bind_named(op.transpose(scope.expr(stack), order), name)
