"""Choose the dtypes in which matrix products and convolutions are computed and accumulated.

    nn.dense(%x f16, %w f16)                ->  cast(nn.dense(cast(%x, f32), cast(%w, f32)), f16)
    nn.dense(cast(%x f32, bf16), W), no bf16   ->  nn.dense(%x, cast(W, f32))
    nn.dense(%x f32, W f32), asked for bf16    ->  nn.dense(cast(%x, bf16), cast(W, bf16), f32)

Processors multiply float32; some bfloat16 too, twice as many at a time or in registers that hold
matrices sixteen times as many, with sums in float32. So products of float16 and bfloat16 are
computed in float32, of the values from which their operands were rounded where those are available,
but for dense layers and convolutions of bfloat16 with constant weights on a processor that has
them. Where the option `relay.ProductPrecision.dtype` is "bfloat16", those of float32 become such;
on processors without them they stay exact, and so do convolutions that Winograd's method computes
with fewer products than twice as many at a time make up for. Products whose `out_dtype` is float64
or an integer take their operands as that, and stay. Tensor cores of devices multiply both small
types, with sums in float32; they take bytes of one signedness only, to which products of uint8 with
int8 are converted (`int8_products`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, Op, PrecisionPolicy
from ekiden.ir.pass_context import PRODUCT_PRECISION_OPTION
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs
from ekiden.relay.transform.graph.call_rewrites import CallRewrite, rewrite_calls
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions
from ekiden.runtime.errors import PassError
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.relay.transform.quantization import int8_products
    from ekiden.topi.nn import winograd
else:
    winograd = LazyModule("ekiden.topi.nn.winograd")
    int8_products = LazyModule("ekiden.relay.transform.quantization.int8_products")

WIDE_FLOAT_DTYPE, BFLOAT16_DTYPE = "float32", "bfloat16"
HALF_PRECISION_DTYPES = ("float16", BFLOAT16_DTYPE)


def _tensor_dtype(expr: RelayExpr) -> str:
    kind = expr.checked_type
    return kind.dtype if isinstance(kind, TensorType) else ""


def _widen_operand(expr: RelayExpr) -> RelayExpr:
    """Return an operand in float32; if it was rounded from float32, the unrounded value."""
    # The unrounded value is more exact and saves the cast.
    is_rounded = op_name_of(expr) == "cast" and is_rewrite_allowed("keep operands wide")
    if is_rounded and isinstance(expr, Call) and _tensor_dtype(expr.args[0]) == WIDE_FLOAT_DTYPE:
        return expr.args[0]
    return expr if _tensor_dtype(expr) == WIDE_FLOAT_DTYPE else op.cast(expr, WIDE_FLOAT_DTYPE)


def _rebuild_product(call: Call, operands: list[RelayExpr]) -> RelayExpr:
    """Rebuild a product over other operands, accumulated in float32, and cast the result to its
    original dtype.
    """
    out = _tensor_dtype(call)
    attrs = call.attrs
    if attrs is not None and hasattr(attrs, "out_dtype"):
        attrs = attrs.with_fields(out_dtype=WIDE_FLOAT_DTYPE)
    wide_product = Call(call.op, tuple(operands), attrs, span=call.span)
    return wide_product if out == WIDE_FLOAT_DTYPE else op.cast(wide_product, out)


def _accumulator_dtype(call: Call) -> str:
    """Return the accumulation dtype of a product, or "" where it declares none."""
    return str(getattr(call.attrs, "out_dtype", ""))


def _prefers_bfloat16(call: Call, target: Target) -> bool:
    """Return whether bfloat16 kernels are the fastest for a product on the target."""
    has_matrices = target.has("amx_bf16")
    # Only a constant weight can be packed in advance, which the kernels need.
    if not (has_matrices or target.has("dot2_bf16")) or not isinstance(call.args[1], Constant):
        return False
    if isinstance(call.op, Op) and call.op.name == "nn.dense":
        return True
    attrs = call.attrs
    # Grouped convolutions have no kernels for bfloat16.
    if not isinstance(attrs, Conv2DAttrs) or attrs.groups > 1:
        return False
    # Winograd's method in float32 needs fewer products than bfloat16 saves.
    suits = attrs.kernel_size == (winograd.WINOGRAD_TAPS, winograd.WINOGRAD_TAPS)
    is_plain = attrs.strides == attrs.dilation == (1, 1) and suits
    return has_matrices or not is_plain


def _make_precision_rewrite(target: Target, option: str) -> CallRewrite:

    def rewrite_product(call: Call) -> RelayExpr | None:
        """Return the product accumulated in float32, or None to leave it.

        Its operands are bfloat16 where the target multiplies it, widened to float32 otherwise;
        float32 data become bfloat16 only where the option asks for it.
        """
        data, weight = call.args[:2]
        is_brief = _prefers_bfloat16(call, target)
        dtypes = {_tensor_dtype(data), _tensor_dtype(weight)}
        # Products of integers have rules of their own.
        if _tensor_dtype(call) not in (*HALF_PRECISION_DTYPES, WIDE_FLOAT_DTYPE):
            return int8_products.select_int8_product(call, target)
        if is_brief and dtypes == {BFLOAT16_DTYPE}:
            return (
                None
                if _accumulator_dtype(call) == WIDE_FLOAT_DTYPE
                else _rebuild_product(call, [*call.args])
            )
        # Tensor cores multiply the small type as it is, and only the sums become wider.
        if (
            len(dtypes) == 1
            and dtypes.issubset(HALF_PRECISION_DTYPES)
            and target.has("tensor_cores")
        ):
            return (
                None
                if _accumulator_dtype(call) == WIDE_FLOAT_DTYPE
                else _rebuild_product(call, [*call.args])
            )
        if len(dtypes) == 1 and dtypes.issubset(HALF_PRECISION_DTYPES):
            return _rebuild_product(call, [_widen_operand(a) for a in call.args])
        # Float32 operands lose bits here, so the user must have asked for it.
        if is_brief and option and dtypes == {WIDE_FLOAT_DTYPE} == {_tensor_dtype(call)}:
            casts: list[RelayExpr] = [
                op.cast(a, BFLOAT16_DTYPE).with_fields(span=a.span) for a in call.args
            ]
            return _rebuild_product(call, casts)
        return None

    return rewrite_product


def ProductPrecision(target: Target) -> Pass:  # noqa: N802
    """Return a pass that chooses the precision of products for a target. It raises PassError for an
    unknown type.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite the products of a module. Raises PassError for another type than bfloat16 in the
        option.
        """
        option = str(context.option(PRODUCT_PRECISION_OPTION))
        if option not in ("", BFLOAT16_DTYPE):
            raise PassError(f"ProductPrecision: expected {BFLOAT16_DTYPE!r} or '', got {option!r}")
        # Operators that always gain from a small type are the products.
        products = [name for name, row in OPS.rows() if row.precision is PrecisionPolicy.ALWAYS]
        table = dict.fromkeys(products, _make_precision_rewrite(target, option))
        return map_functions(module, lift_body_rewrite(lambda body: rewrite_calls(body, table)))

    return Pass("ProductPrecision", transform, 0, (InferType(),))
