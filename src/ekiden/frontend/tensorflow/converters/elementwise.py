"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.composite_ops import bucketize
from ekiden.frontend.common.converters.elementwise import elementwise_rows, floor_div_rule, select
from ekiden.frontend.common.node import Result
from ekiden.frontend.tensorflow.node import TensorflowNode, TensorflowRow
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def _const_like_input(node: TensorflowNode, value: float) -> Expr:
    return const(value, node.dtype(0))


def _div_no_nan(node: TensorflowNode) -> Expr:
    """Emit the quotient, 0 where the divisor is 0."""
    zero = _const_like_input(node, 0)
    is_zero = op.equal(node.expr(1), zero)
    # Dividing by 1 there keeps infinities and NaN out of the branch that is not selected.
    divisor = op.where(is_zero, _const_like_input(node, 1), node.expr(1))
    return op.where(is_zero, zero, op.divide(node.expr(0), divisor))


def _multiply_no_nan(node: TensorflowNode) -> Expr:
    zero = _const_like_input(node, 0)
    product = op.multiply(node.expr(0), node.expr(1))
    # 0 wins over infinities and NaN of the first factor.
    return op.where(op.equal(node.expr(1), zero), zero, product)


def _xlogy(node: TensorflowNode) -> Expr:
    zero = _const_like_input(node, 0)
    # 0 * log(0) is NaN and must be 0.
    product = op.multiply(node.expr(0), op.log(node.expr(1)))
    return op.where(op.equal(node.expr(0), zero), zero, product)


def _bias_add(node: TensorflowNode) -> Expr:
    """Add the bias along the channel axis."""
    axis = 1 if node.string_attribute("data_format", "NHWC").startswith("NC") else node.rank(0) - 1
    return op.nn.bias_add(node.expr(0), node.expr(1), axis=axis)


def _floor_div(node: TensorflowNode) -> Expr:
    """Emit floor division; floats floor the rounded quotient, so 1 // 0.1 is 10."""
    x, y = node.expr(0), node.expr(1)
    return op.floor(op.divide(x, y)) if is_float(node.dtype(0)) else op.floor_divide(x, y)


def _leaky_relu(node: TensorflowNode) -> Expr:
    return op.nn.leaky_relu(node.expr(0), node.float_attribute("alpha", 0.2))


def _clip(node: TensorflowNode) -> Expr:
    return op.minimum(op.maximum(node.expr(0), node.expr(1)), node.expr(2))


def _cast(node: TensorflowNode) -> Expr:
    dtype = node.dtype_attribute("DstT")
    # A cast would truncate 0.5 to 0 first; TensorFlow compares with 0.
    if is_float(node.dtype(0)) and dtype == "bool":
        return op.not_equal(node.expr(0), _const_like_input(node, 0))
    return op.cast(node.expr(0), dtype)


def _identity_n(node: TensorflowNode) -> Result:
    return node.exprs()


def _evaluate_cast(node: TensorflowNode, inputs: Sequence[Array]) -> Array | None:
    return rules.cast_rule(node.dtype_attribute("DstT"))(inputs)


def _bucketize(node: TensorflowNode) -> Expr:
    return bucketize(node.expr(0), node.dtype(0), node.float_list_attribute("boundaries"))


# fmt: off
ROWS = (
    *(TensorflowRow(name, row.convert,
                    None if row.rule is None else rules.to_node_rule(row.rule), row.is_predicate)
      for name, _, row in elementwise_rows("tensorflow")),
    TensorflowRow("DivNoNan",    _div_no_nan),
    TensorflowRow("MulNoNan",    _multiply_no_nan),
    TensorflowRow("Xlogy",       _xlogy),
    TensorflowRow("FloorDiv",    _floor_div,                               floor_div_rule),
    *(TensorflowRow(n, _bias_add) for n in ("BiasAdd", "BiasAddV1")),
    TensorflowRow("LeakyRelu",   _leaky_relu),
    TensorflowRow("ClipByValue", _clip),
    TensorflowRow("Bucketize",   _bucketize),
    TensorflowRow("Cast",        _cast,                                    _evaluate_cast),
    TensorflowRow("Select",      lambda node: select(node, per_row=True),
        rules.to_node_rule(rules.where)),
    TensorflowRow("SelectV2",    lambda node: select(node, per_row=False),
        rules.to_node_rule(rules.where)),
    TensorflowRow("IdentityN",   _identity_n),
)
# fmt: on
