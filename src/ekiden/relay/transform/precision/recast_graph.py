"""Recast chosen operators to another dtype, with casts around each.

    recast(f, "int8", "int32")
    nn.conv2d(%x, %w)   ->   cast(nn.conv2d(cast(%x, "int8"), cast(%w, "int8"), out_dtype="int32"),
                                  "float32")

The casts cut values off: this is for measuring operators, not for using their results.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, Function, Tuple
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order, rewrite_graph
from ekiden.runtime.errors import CompileError

DEFAULT_RECAST_OPERATORS = ("nn.conv2d",)


def recast(
    expr: Expr | Function | IRModule,
    dtype: str,
    out_dtype: str,
    ops: Sequence[str] | None = None,
    skip_layers: Sequence[int] | None = None,
) -> Expr | IRModule:
    """Recast the operators of an expression, a function or a module's `main` (TVM's recast).

    Args:
        expr: What is recast.
        dtype: The dtype that operators of `ops` take.
        out_dtype: The dtype that they return, where they have an attribute for it.
        ops: The operators; convolutions if None.
        skip_layers: Which of them stay as they are, by their number in the order of evaluation,
            from
            the end where it is negative.

    Raises:
        CompileError: For a number without a layer.
    """
    if isinstance(expr, IRModule):
        main = recast(expr["main"], dtype, out_dtype, ops, skip_layers)
        assert isinstance(main, Function)
        return InferType()(expr.with_function("main", main))
    typed = InferType()(IRModule.from_expr(expr))["main"]
    assert isinstance(typed, Function)
    body = _recast_body(
        typed.body, dtype, out_dtype, set(ops or DEFAULT_RECAST_OPERATORS), skip_layers or ()
    )
    # The declared result type stays: the casts restore the dtype of each recast call.
    if isinstance(expr, Function):
        return typed.with_fields(body=body, ret_type=expr.ret_type)
    return body


def _recast_body(
    root: RelayExpr, dtype: str, out_dtype: str, ops: Collection[str], skipped: Sequence[int]
) -> RelayExpr:
    chosen = [e for e in evaluation_order(root) if _op_name(e) in ops]
    if wrong := [n for n in skipped if not -len(chosen) <= n < len(chosen)]:
        raise CompileError(f"recast: there are {len(chosen)} layers of {', '.join(sorted(ops))}, "
                           f"none has the number {wrong[0]}")  # fmt: skip
    # Negative numbers count from the end, as indices do.
    skipped_numbers = {n % len(chosen) for n in skipped}
    # `rewrite_graph` visits in evaluation order, so the numbers agree with those of `chosen`.
    numbers = count()

    def recast_call(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Recast a call of one of the operators, unless it is skipped. Calls are numbered in the
        order of the walk; skipped ones stay.
        """
        if _op_name(old) not in ops or next(numbers) in skipped_numbers:
            return new
        assert isinstance(new, Call)
        return _insert_casts(new, old, dtype, out_dtype)

    return rewrite_graph(root, recast_call)


def _op_name(expr: RelayExpr) -> str:
    return expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else ""


def _insert_casts(call: Call, old: RelayExpr, dtype: str, out_dtype: str) -> RelayExpr:
    """Cast a call's arguments, and cast its result back."""
    kind, attrs = old.checked_type, call.attrs
    if attrs is not None and "out_dtype" in attrs.keys():  # noqa: SIM118 - values iterate
        attrs = attrs.with_fields(out_dtype=out_dtype)
    inner_call = Call(call.op, tuple(_cast_argument(a, dtype) for a in call.args), attrs)
    return op.cast(inner_call, kind.dtype) if isinstance(kind, TensorType) else inner_call


def _cast_argument(arg: RelayExpr, dtype: str) -> RelayExpr:
    if isinstance(arg, Tuple):
        return Tuple(tuple(op.cast(field, dtype) for field in arg.fields))
    return op.cast(arg, dtype)


__all__ = ["recast"]
