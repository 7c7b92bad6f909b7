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
types, with sums in float32; of bytes those of one kind alone, which products of uint8 with int8
become (`byte_products`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, Op, Precision
from ekiden.ir.pass_context import PRECISION
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.geometry import Conv2DAttrs
from ekiden.relay.transform.graph.calls import Rewrite, rewrite_calls
from ekiden.relay.transform.graph.float_rewrites import allows
from ekiden.relay.transform.graph.fold_scale_axis import op_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import map_functions, on_body
from ekiden.runtime.errors import PassError
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.relay.transform.quantization import byte_products
    from ekiden.topi.nn import winograd
else:
    winograd = LazyModule("ekiden.topi.nn.winograd")
    byte_products = LazyModule("ekiden.relay.transform.quantization.byte_products")

WIDE_DTYPE, BRIEF_DTYPE = "float32", "bfloat16"
SMALL_DTYPES = ("float16", BRIEF_DTYPE)


def _dtype(expr: RelayExpr) -> str:
    kind = expr.checked_type
    return kind.dtype if isinstance(kind, TensorType) else ""


def _widened(expr: RelayExpr) -> RelayExpr:
    """Return an operand in float32; if it was rounded from float32, the unrounded value."""
    # The unrounded value is more exact and saves the cast.
    is_rounded = op_of(expr) == "cast" and allows("keep operands wide")
    if is_rounded and isinstance(expr, Call) and _dtype(expr.args[0]) == WIDE_DTYPE:
        return expr.args[0]
    return expr if _dtype(expr) == WIDE_DTYPE else op.cast(expr, WIDE_DTYPE)


def _product_in(call: Call, operands: list[RelayExpr]) -> RelayExpr:
    """Rebuild a product over other operands, accumulated in float32, and cast the result to its
    original dtype.
    """
    out = _dtype(call)
    attrs = call.attrs
    if attrs is not None and hasattr(attrs, "out_dtype"):
        attrs = attrs.with_fields(out_dtype=WIDE_DTYPE)
    wide_product = Call(call.op, tuple(operands), attrs, span=call.span)
    return wide_product if out == WIDE_DTYPE else op.cast(wide_product, out)


def _accumulator_dtype(call: Call) -> str:
    """Return the accumulation dtype of a product, or "" where it declares none."""
    return str(getattr(call.attrs, "out_dtype", ""))


def _is_brief(call: Call, target: Target) -> bool:
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


def _rewrite(target: Target, option: str) -> Rewrite:

    def rewrite(call: Call) -> RelayExpr | None:
        """Return the product accumulated in float32, or None to leave it.

        Its operands are bfloat16 where the target multiplies it, widened to float32 otherwise;
        float32 data become bfloat16 only where the option asks for it.
        """
        data, weight = call.args[:2]
        is_brief = _is_brief(call, target)
        dtypes = {_dtype(data), _dtype(weight)}
        # Products of integers have rules of their own.
        if _dtype(call) not in (*SMALL_DTYPES, WIDE_DTYPE):
            return byte_products.product_of_bytes(call, target)
        if is_brief and dtypes == {BRIEF_DTYPE}:
            return (
                None if _accumulator_dtype(call) == WIDE_DTYPE else _product_in(call, [*call.args])
            )
        # Tensor cores multiply the small type as it is, and only the sums become wider.
        if len(dtypes) == 1 and dtypes.issubset(SMALL_DTYPES) and target.has("tensor_cores"):
            return (
                None if _accumulator_dtype(call) == WIDE_DTYPE else _product_in(call, [*call.args])
            )
        if len(dtypes) == 1 and dtypes.issubset(SMALL_DTYPES):
            return _product_in(call, [_widened(a) for a in call.args])
        # Float32 operands lose bits here, so the user must have asked for it.
        if is_brief and option and dtypes == {WIDE_DTYPE} == {_dtype(call)}:
            casts: list[RelayExpr] = [
                op.cast(a, BRIEF_DTYPE).with_fields(span=a.span) for a in call.args
            ]
            return _product_in(call, casts)
        return None

    return rewrite


def ProductPrecision(target: Target) -> Pass:  # noqa: N802
    """Return a pass that chooses the precision of products for a target. It raises PassError for an
    unknown type.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite the products of a module. Raises PassError for another type than bfloat16 in the
        option.
        """
        option = str(context.option(PRECISION))
        if option not in ("", BRIEF_DTYPE):
            raise PassError(f"ProductPrecision: expected {BRIEF_DTYPE!r} or '', got {option!r}")
        # Operators that always gain from a small type are the products.
        products = [name for name, row in OPS.rows() if row.precision is Precision.ALWAYS]
        table = dict.fromkeys(products, _rewrite(target, option))
        return map_functions(module, on_body(lambda body: rewrite_calls(body, table)))

    return Pass("ProductPrecision", transform, 0, (InferType(),))
