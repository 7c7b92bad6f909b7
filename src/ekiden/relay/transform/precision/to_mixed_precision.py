"""Automatic mixed precision: convert operators to float16 or bfloat16 by their precision category.

    nn.softmax(nn.dense(%x, %w))
->  nn.softmax(cast(nn.dense(cast(%x, "float16"), cast(%w, "float16"), out_dtype="float16"),
                    "float32"))

The column `precision` of the operator table decides: operators of ALWAYS take the smaller type in
the place of float32 (kernels add up in float32 and round the sum once), those of FOLLOW take it
when all floating-point numbers that are computed for them have it, and all others never do (or,
with missing_op_mode 0, always). An operator whose attributes the smaller type has no numbers for
does not. Casts of one value are made once; a variable that a let binds has the type of its value.

Before it, types are inferred; after it, no expression but functions keeps a type that it had, since
each may have become narrower: they are inferred again. Bodies of functions and branches are cast
back at their ends, so that what holds them has the types it had.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, Op, PrecisionPolicy
from ekiden.ir.pass_context import KEEP_OUTPUT_DTYPE_OPTION
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType, TupleType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Function, Let, Tuple, TupleGetItem, Var
from ekiden.relay.op.elementwise import ClipAttrs
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    is_atom,
    map_functions,
    replace_children,
)
from ekiden.relay.transform.mixed_precision import apply_user_rule
from ekiden.relay.visitor import children, rebuild
from ekiden.runtime.errors import PassError

WIDE_FLOAT_DTYPE = "float32"


class _MixedPrecisionRewriter:
    """Mixed-precision rewriter of one function body, with a cache of the casts it emitted."""

    def __init__(self, small: str, missing_op_mode: int) -> None:
        self.narrow_dtype = small
        self.missing_op_mode = missing_op_mode
        self.rewritten: dict[RelayExpr, RelayExpr] = {}
        self._casts: dict[tuple[RelayExpr, str], RelayExpr] = {}
        self._bound: dict[Var, RelayExpr] = {}
        """Value bound to each let variable."""
        self.uncategorized_ops: dict[str, None] = {}

    def run(self, root: RelayExpr) -> RelayExpr:
        """Return the rewritten expression."""
        order = evaluation_order(root)
        # Values of variables are needed before the lets around them are met.
        for expr in order:
            if isinstance(expr, Let):
                self._bound[expr.var] = expr.value
        for expr in order:
            self.rewritten[expr] = self._rewrite_expr(expr)
        return self.rewritten[root]

    def _replacement_of(self, expr: RelayExpr) -> RelayExpr:
        """Return the replacement of an expression; let variables take the type of their rewritten
        value.

        A variable that a let binds becomes one of the type of its new value.
        """
        if expr not in self.rewritten and isinstance(expr, Var) and expr in self._bound:
            value = self._replacement_of(self._bound[expr])
            kind = value.checked_type_or_none()
            # The value became narrower, so the variable needs the new type.
            if kind is not None and kind != expr.checked_type_or_none():
                self.rewritten[expr] = Var(expr.name_hint, kind, span=expr.span)
                self.rewritten[expr].set_checked_type(kind)
        return self.rewritten.get(expr, expr)

    def _rewrite_expr(self, expr: RelayExpr) -> RelayExpr:
        if is_atom(expr) or isinstance(expr, Constant):
            return self._replacement_of(expr)
        if isinstance(expr, Let) and not isinstance(expr.value, Function):
            var, value, body = map(self._replacement_of, (expr.var, expr.value, expr.body))
            rewritten = rebuild(expr, [var, value, body])
            rewritten.set_checked_type(body.checked_type)
            return rewritten
        if isinstance(expr, Call) and isinstance(expr.op, Op):
            return self._rewrite_call(expr, [*map(self._replacement_of, expr.args)])
        if isinstance(expr, (Tuple, TupleGetItem)):
            below = children(expr)
            return infer_new_types(rebuild(expr, [*map(self._replacement_of, below)]))
        # Bodies of functions and branches end in a cast back, so that the expression around them
        # keeps its type.
        inside = set(bodies(expr))
        wide = {
            c: self.cast_like(self._replacement_of(c), c)
            for c in children(expr)
            if not is_atom(c) or c in inside
        }
        return replace_children(expr, wide)

    def cast_like(self, value: RelayExpr, original: RelayExpr) -> RelayExpr:
        """Cast a value back to the type of the original expression."""
        kind, have = original.checked_type, value.checked_type
        if isinstance(kind, TensorType) and isinstance(have, TensorType):
            return value if kind.dtype == have.dtype else self._cast(value, kind.dtype)
        # Only fields whose type differs are cast; the others are passed on.
        if isinstance(kind, TupleType) and isinstance(have, TupleType) and kind != have:
            fields = []
            for i, field in enumerate(kind.fields):
                element = (
                    value.fields[i]
                    if isinstance(value, Tuple)
                    else infer_new_types(TupleGetItem(value, i))
                )
                same = element.checked_type == field
                assert isinstance(field, TensorType), "tuples of tensors alone are cast"
                fields.append(element if same else self._cast(element, field.dtype))
            return infer_new_types(Tuple(tuple(fields)))
        return value

    def _cast(self, value: RelayExpr, dtype: str) -> RelayExpr:
        key = (value, dtype)
        if key not in self._casts:
            self._casts[key] = infer_new_types(op.cast(value, dtype))
        return self._casts[key]

    def _rewrite_call(self, call: Call, args: Sequence[RelayExpr]) -> RelayExpr:
        assert isinstance(call.op, Op)
        name = call.op.name
        if self._computes_in_small_dtype(call, name, args):
            return self._emit_small_call(call, [self._narrow(a, self.narrow_dtype) for a in args])
        # An operator that stays in float32 reads operands of the types that it had before.
        wide = [self.cast_like(a, old) for a, old in zip(args, call.args, strict=True)]
        return infer_new_types(_with_args(call, wide))

    def _computes_in_small_dtype(self, call: Call, name: str, args: Sequence[RelayExpr]) -> bool:
        rule = apply_user_rule(call, name, self.narrow_dtype)
        precision = rule[0] if rule is not None else OPS[name].precision
        # A bound that overflows to infinity would change what is clipped.
        if not self._has_representable_bounds(call):
            return False
        if precision is PrecisionPolicy.ALWAYS:
            return _is_convertible(call, self.narrow_dtype)
        if precision is PrecisionPolicy.NEVER:
            return False
        if precision is PrecisionPolicy.UNKNOWN:
            self.uncategorized_ops[name] = None
            if self.missing_op_mode == 2:
                raise PassError(f"ToMixedPrecision: operator {name!r} has no colour")
            return self.missing_op_mode == 0
        # A bias or a mask that is given follows what it meets; were it asked, one constant of
        # float32 would end a region and cost a cast there and one back.
        # FOLLOW operators take the precision of their computed operands.
        leaves = [
            d
            for a, old in zip(args, call.args, strict=True)
            if not self._is_constant_or_param(old)
            for d in _leaf_dtypes(a)
        ]
        return all(d == self.narrow_dtype for d in leaves if "float" in d)

    def _is_constant_or_param(self, expr: RelayExpr) -> bool:
        """Return whether an operand is a constant or parameter, which can be cast before
        the run.
        """
        return isinstance(expr, Constant) or (isinstance(expr, Var) and expr not in self._bound)

    def _has_representable_bounds(self, call: Call) -> bool:
        """Return whether the smaller dtype can represent a clip's bounds."""
        if not isinstance(call.attrs, ClipAttrs):
            return True
        largest = float(ml_dtypes.finfo(self.narrow_dtype).max)
        return max(abs(call.attrs.a_min), abs(call.attrs.a_max)) <= largest

    def _narrow(self, value: RelayExpr, dtype: str) -> RelayExpr:
        """Cast a float32 tensor, or the float32 fields of a tuple, to the smaller dtype."""
        kind = value.checked_type
        if isinstance(kind, TensorType):
            return self._cast(value, dtype) if kind.dtype == WIDE_FLOAT_DTYPE else value
        if isinstance(kind, TupleType) and isinstance(value, Tuple):
            return infer_new_types(Tuple(tuple(self._narrow(f, dtype) for f in value.fields)))
        return value

    def _emit_small_call(self, call: Call, args: Sequence[RelayExpr]) -> RelayExpr:
        assert isinstance(call.op, Op)
        rule = apply_user_rule(call, call.op.name, self.narrow_dtype)
        is_sum = rule is not None or call.op.definition.precision is PrecisionPolicy.ALWAYS
        # Operators without sums have no accumulator to choose.
        if not is_sum or not hasattr(call.attrs, "out_dtype"):
            return infer_new_types(_with_args(call, args))
        assert call.attrs is not None
        attrs = call.attrs.with_fields(out_dtype=self.narrow_dtype if rule is None else rule[1])
        return infer_new_types(Call(call.op, tuple(args), attrs, span=call.span))


def _is_convertible(call: Call, small: str) -> bool:
    """Return whether a call reads and returns only float32 or the smaller dtype.

    Sums of integers would overflow in the smaller type, and float64 is used for its digits.
    """
    return all(
        d in (WIDE_FLOAT_DTYPE, small) for expr in (*call.args, call) for d in _leaf_dtypes(expr)
    )


def _leaf_dtypes(expr: RelayExpr) -> list[str]:
    kind = expr.checked_type
    fields = kind.fields if isinstance(kind, TupleType) else [kind]
    return [f.dtype for f in fields if isinstance(f, TensorType)]


def _with_args(call: Call, args: Sequence[RelayExpr]) -> Call:
    """Return the call over other arguments, untyped if one has changed."""
    if all(new is old for new, old in zip(args, call.args, strict=True)):
        return call
    return Call(call.op, tuple(args), call.attrs, call.type_args, span=call.span)


def ToMixedPrecision(  # noqa: N802
    mixed_precision_type: str = "float16", missing_op_mode: int = 1
) -> Pass:
    """Return a pass that converts functions to mixed precision (TVM's ToMixedPrecision).

    Args:
        mixed_precision_type: The smaller type.
        missing_op_mode: Operators of no colour take the smaller type (0), keep theirs (1), or raise
            PassError (2).
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Convert the functions of a module to mixed precision.

        With the option KEEP_OUTPUT_DTYPE_OPTION, results of functions are cast back to their
        original types.
        """
        keeps = bool(context.option(KEEP_OUTPUT_DTYPE_OPTION))

        def convert_function(function: Function) -> Function:
            """Convert one function; its result type is re-inferred."""
            mixer = _MixedPrecisionRewriter(mixed_precision_type, missing_op_mode)
            body = mixer.run(function.body)
            if keeps:
                body = mixer.cast_like(body, function.body)
            # The result type is dropped: the body may have become narrower.
            return Function(
                function.params, body, None, function.type_params, function.attrs,
                span=function.span,
            )  # fmt: skip

        return InferType()(map_functions(module, convert_function))

    return Pass("ToMixedPrecision", transform, 0, (InferType(),))
