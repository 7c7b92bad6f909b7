"""Range fusion: matrix products also return the maximum and minimum of their results, which saves
their users a reduction pass over memory.

    %0 = fn (%p0, %p1, Primitive=1) { nn.relu(nn.conv2d(%p0, %p1)) }(%x, %w)
    %1 = fn (%p0, Primitive=1) { max(%p0, axis=[0, 1, 2, 3]) }(%0)
->  %0 = fn (%p0, %p1, Primitive=1) {
             let %1 = nn.relu(nn.conv2d(%p0, %p1)); (%1, max(%1, axis=[0, 1, 2, 3])) }(%x, %w)
    %0.0; %0.1

Dynamic quantisation (DynamicQuantizeLinear of ONNX) reads whole tensors for these two numbers: 9 %
of a MobileNetV2 on AVX2. Maxima and minima do not depend on the order in which they are taken, so
that the results are the same.

Before: primitive functions, as FuseOps leaves them. After: those with ranges return tuples.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.pass_context import MAX_FUSE_DEPTH_OPTION
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import FuncType, TensorType, TupleType
from ekiden.kernels.families import has_epilogue
from ekiden.kernels.family import RANGE_EPILOGUE
from ekiden.relay.expr import Call, Function, Tuple, TupleGetItem
from ekiden.relay.op.reduce import ReduceAttrs, reduced_axes
from ekiden.relay.transform.fusion.fuse_ops import DEFAULT_KERNEL_LIMITS
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    find_scopes,
    lift_body_rewrite,
    map_functions,
    replace_children,
)

NUM_RANGES = 2
"""A kernel returns the maximum and the minimum of its result."""


def _primitive_of(expr: RelayExpr) -> Function | None:
    """Return the primitive function that a call applies, unless it is another compiler's, which
    knows none of our epilogues.
    """
    function = expr.op if isinstance(expr, Call) else None
    if not isinstance(function, Function) or function.attr("Compiler") is not None:
        return None
    return function if function.attr("Primitive") else None


def _range_operand(expr: RelayExpr) -> RelayExpr | None:
    """Return the operand of a kernel that only computes its maximum or minimum."""
    function = _primitive_of(expr)
    if function is None or not isinstance(expr, Call):
        return None
    body = function.body
    if not isinstance(body, Call) or not isinstance(body.op, Op) or len(function.params) != 1:
        return None
    kind = function.params[0].checked_type
    if not body.op.definition.is_extremum or body.args != function.params:
        return None
    if not isinstance(body.attrs, ReduceAttrs) or not isinstance(kind, TensorType):
        return None
    axes = reduced_axes(body.op.name, body.attrs, len(kind.shape))
    is_whole = len(axes) == len(kind.shape) > 0 and not body.attrs.keepdims
    return expr.args[0] if is_whole and kind.dtype == "float32" else None


def _can_return_ranges(expr: RelayExpr, limit: int) -> bool:
    """Return whether an expression calls a kernel that can reduce its result's range in
    registers.
    """
    function = _primitive_of(expr)
    if function is None or not isinstance(function.body.checked_type, TensorType):
        return False
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    # The ranges add operators to the kernel, which count against its limit.
    if len(calls) + NUM_RANGES > limit:
        return False
    return dt.is_float(function.body.checked_type.dtype) and any(
        isinstance(e.op, Op) and has_epilogue(e.op.definition.kernels, RANGE_EPILOGUE)
        for e in calls
    )


def _with_ranges(call: Call, ranges: list[Call]) -> Call:
    """Return a call of the function whose result is a tuple of the original and its ranges."""
    function = call.op
    assert isinstance(function, Function)
    fields: list[RelayExpr] = [function.body]
    for range_call in ranges:
        assert isinstance(range_call.op, Function)
        inner = range_call.op.body
        fields.append(replace_children(inner, {range_call.op.params[0]: function.body}))
    kind = TupleType(tuple(f.checked_type for f in fields))
    body = Tuple(tuple(fields))
    body.set_checked_type(kind)
    new = function.with_fields(body=body, ret_type=kind)
    new.set_checked_type(FuncType(tuple(p.checked_type for p in function.params), kind))
    result = call.with_fields(op=new)
    result.set_checked_type(kind)
    return result


def fuse_ranges(root: RelayExpr, limit: int = DEFAULT_KERNEL_LIMITS.operators) -> RelayExpr:
    """Fuse range reductions below root into the kernels, of at most `limit` operators, that compute
    their operands.
    """
    ranges: dict[RelayExpr, list[Call]] = {}
    for scope in find_scopes(root):
        inside = set(scope.nodes)
        for expr in scope.nodes:
            source = _range_operand(expr)
            # A branch that may not be taken has no kernel outside of it return more.
            if source is not None and source in inside and _can_return_ranges(source, limit):
                assert isinstance(expr, Call)
                ranges.setdefault(source, []).append(expr)
    if not ranges:
        return root
    members = {e for calls in ranges.values() for e in calls}
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in evaluation_order(root):
        # Calls of ranges are replaced together with the kernel of their operand.
        if expr in members:
            continue
        rebuilt = replace_children(expr, new)
        new[expr] = rebuilt
        if expr in ranges:
            assert isinstance(rebuilt, Call)
            both = _with_ranges(rebuilt, ranges[expr])
            for index, old in enumerate((expr, *ranges[expr])):
                item = TupleGetItem(both, index, span=old.span)
                item.set_checked_type(old.checked_type)
                new[old] = item
    return new[root]


def FuseRanges() -> Pass:  # noqa: N802
    """Return a pass that fuses the minimum and maximum of a product's result into its kernel."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Fuse the range reductions of a module, unless kernels are limited to single operators."""
        limit = context.option(MAX_FUSE_DEPTH_OPTION)
        assert isinstance(limit, int)
        if context.opt_level == 0:
            return module
        return map_functions(module, lift_body_rewrite(lambda body: fuse_ranges(body, limit)))

    return Pass("FuseRanges", transform, required=(InferType(),))


__all__ = ["FuseRanges", "fuse_ranges"]
