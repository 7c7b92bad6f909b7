"""ai.onnx.preview.training: Gradient, and one step of Adagrad, Adam and Momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, Function, Tuple, TupleGetItem, Var, const
from ekiden.relay.visitor import bind, free_vars

if TYPE_CHECKING:
    from ekiden.relay.transform.differentiation import differentiate
else:
    differentiate = LazyModule("ekiden.relay.transform.differentiation.differentiate")


def _group_operands(node: OnnxNode, states: int) -> list[list[Expr]]:
    """Return [tensor, gradient, states...] per trained tensor."""
    operands = [node.expr(i) for i in range(2, len(node.inputs))]
    if len(operands) % (states + 2):
        node.reject(f"expected {states + 2} inputs for each tensor, got {len(operands)}")
    count = len(operands) // (states + 2)
    # ONNX lists all tensors, then all gradients, then each kind of state: a stride picks one group.
    return [operands[i::count] for i in range(count)]


def _flatten_by_column(rows: Sequence[Sequence[Expr]]) -> list[Expr]:
    """Return rows flattened column by column: all tensors, then all states."""
    return [result for column in zip(*rows, strict=True) for result in column]


def _const_like(node: OnnxNode, value: float, like: Expr) -> Expr:
    """Return a scalar constant of an expression's dtype."""
    return const(value, node.tensor_type_of(like).dtype)


def _add_l2_regularization(node: OnnxNode, x: Expr, gradient: Expr) -> Expr:
    """Emit the gradient with L2 regularisation: norm_coefficient * x added."""
    share = node.get_float("norm_coefficient", 0.0)
    return op.add(op.multiply(_const_like(node, share, x), x), gradient)


def _step_number(node: OnnxNode) -> Expr:
    """Emit the step number in the dtype of the learning rate."""
    return op.cast(node.expr(1), node.dtype(0))


def _adagrad(node: OnnxNode) -> list[Expr]:
    one = const(1, node.dtype(0))
    decay = op.multiply(
        _step_number(node), const(node.get_float("decay_factor", 0.0), node.dtype(0))
    )
    rate = op.divide(node.expr(0), op.add(one, decay))
    epsilon = node.get_float("epsilon", np.float32(1e-6))
    rows = []
    for x, gradient, squares in _group_operands(node, 1):
        g = _add_l2_regularization(node, x, gradient)
        total = op.add(squares, op.multiply(g, g))
        scale = op.add(op.sqrt(total), _const_like(node, epsilon, x))
        rows.append([op.subtract(x, op.divide(op.multiply(rate, g), scale)), total])
    return _flatten_by_column(rows)


def _adam(node: OnnxNode) -> list[Expr]:
    alpha, beta = (
        node.get_float("alpha", np.float32(0.9)),
        node.get_float("beta", np.float32(0.999)),
    )
    epsilon = node.get_float("epsilon", np.float32(1e-6))
    after = node.get_float("norm_coefficient_post", 0.0)
    kind = node.dtype(0)
    one, step = const(1, kind), _step_number(node)

    def bias_correction(factor: float) -> Expr:
        """Emit 1 - factor ** step."""
        return op.subtract(one, op.power(const(factor, kind), step))

    # Bias correction (Kingma and Ba 2015), folded into the rate: sqrt(1 - beta^t) / (1 - alpha^t).
    corrected = op.divide(
        op.multiply(node.expr(0), op.sqrt(bias_correction(beta))), bias_correction(alpha)
    )
    rate = op.where(op.greater(step, const(0, kind)), corrected, node.expr(0))
    rows = []
    for x, gradient, mean, squares in _group_operands(node, 2):

        def moving_average(old: Expr, new: Expr, share: float, like: Expr = x) -> Expr:
            """Emit share * old + (1 - share) * new."""
            old_share = op.multiply(_const_like(node, share, like), old)
            return op.add(old_share, op.multiply(_const_like(node, 1 - share, like), new))

        g = _add_l2_regularization(node, x, gradient)
        first, second = (
            moving_average(mean, g, alpha),
            moving_average(squares, op.multiply(g, g), beta),
        )
        scale = op.add(op.sqrt(second), _const_like(node, epsilon, x))
        moved = op.subtract(x, op.divide(op.multiply(rate, first), scale))
        rows.append([op.multiply(_const_like(node, 1 - after, x), moved), first, second])
    return _flatten_by_column(rows)


def _momentum(node: OnnxNode) -> list[Expr]:
    kind, rate = node.dtype(0), node.expr(0)
    alpha = const(node.get_float("alpha", 0.0), kind)
    beta = const(node.get_float("beta", 0.0), kind)
    first = op.greater(_step_number(node), const(0, kind))
    # In the first step the gradient enters the velocity undamped (ONNX Momentum).
    share = op.where(first, beta, const(1, kind))
    nesterov = node.get_string("mode", "standard") == "nesterov"
    rows = []
    for x, gradient, velocity in _group_operands(node, 1):
        g = _add_l2_regularization(node, x, gradient)
        new = op.add(op.multiply(alpha, velocity), op.multiply(share, g))
        change = op.add(g, op.multiply(alpha, new)) if nesterov else new
        rows.append([op.subtract(x, op.multiply(rate, change)), new])
    return _flatten_by_column(rows)


_TRAINING_DOMAIN = "ai.onnx.preview.training"


def _gradient(node: OnnxNode) -> list[Expr]:
    """Convert Gradient: derivatives of `y` by `xs`, at the node's inputs."""
    names = (*node.get_strings("xs"), *node.get_strings("zs"))
    y = node.scope.expr(node.lookup_value(node.get_string("y", "")))
    variables = [_model_input(node, n) for n in names]
    # Variables of `y` other than `xs` and `zs` are parameters too, so that the function is closed.
    free = list(dict.fromkeys((*variables, *free_vars(y))))
    if not node.scope.param_names.keys() >= set(free):
        node.reject("'y' depends on values whose shapes are found at run time")
    derivative = differentiate.gradient(Function(tuple(free), y), node.scope.module)
    bindings = {p: node.expr(variables.index(v)) if v in variables else v
                for p, v in zip(derivative.params, free, strict=True)}  # fmt: skip
    gradients = _tuple_field(bind(derivative.body, bindings), 1)
    return [_tuple_field(gradients, i) for i in range(len(node.get_strings("xs")))]


def _tuple_field(value: Expr, index: int) -> Expr:
    """Return a field of a tuple."""
    return value.fields[index] if isinstance(value, Tuple) else TupleGetItem(value, index)


def _model_input(node: OnnxNode, name: str) -> Var:
    """Return the variable of a model input; raise Unsupported for other tensors."""
    variable = node.scope.expr(node.lookup_value(name))
    if not isinstance(variable, Var) or variable not in node.scope.param_names:
        node.reject(f"{name!r} in 'xs' or 'zs' must be an input of the model")
    return variable


# fmt: off
ROWS = (
    OnnxRow("Gradient", _gradient, domain=_TRAINING_DOMAIN, attributes="xs y zs"),
    OnnxRow("Adagrad",  _adagrad, domain=_TRAINING_DOMAIN,
        attributes="decay_factor epsilon norm_coefficient"),
    OnnxRow("Adam",     _adam, domain=_TRAINING_DOMAIN,
        attributes="alpha beta epsilon norm_coefficient norm_coefficient_post"),
    OnnxRow("Momentum", _momentum, domain=_TRAINING_DOMAIN,
        attributes="alpha beta mode norm_coefficient",
        supported_values={"mode": ("standard", "nesterov")}),
)
# fmt: on
