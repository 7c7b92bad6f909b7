"""Realization: turn simulated quantization into integer operators.

    nn.conv2d(simulated_quantize(%x, s, ..), simulated_quantize(w, t, ..))
->  qnn.dequantize(qnn.conv2d(qnn.quantize(%x, s, 0), w', 0, 0, s, t), s * t, 0)

Each rounding becomes a quantize and a dequantize; FakeQuantizationToInteger does the rest.
"""

from __future__ import annotations

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.quantization.relay.annotate import SIMULATED_QUANTIZE
from ekiden.quantization.relay.config import current_qconfig
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, const
from ekiden.relay.qnn.config import requantize_config
from ekiden.relay.qnn.scale_conversion import dequantize, quantize
from ekiden.relay.transform.graph.fold_constant import FoldConstant
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)
from ekiden.relay.transform.quantization.fake_quantization_to_integer import (
    FakeQuantizationToInteger,
)
from ekiden.runtime.errors import CompileError

__all__ = ["realize"]

MAX_SYMMETRIC_INT8 = 127.0
"""The most of the integers of 8 bits on both sides of 0."""


def _quantization_parameters(call: Call) -> list[float]:
    """Return the step, lower and upper bound of a simulated quantization. Raises CompileError if
    they are not calibrated.
    """
    values = [arg.data.item() for arg in call.args[1:] if isinstance(arg, Constant)]
    if len(values) != 3 or not values[0] > 0.0:
        raise CompileError(
            "realize: a value is rounded to steps that are not known: calibrate comes first"
        )
    return values


def _realize_quantize(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    """simulated_quantize(x, s, low, high) -> dequantize(quantize(clip(x), s, 0), s, 0)"""
    if not isinstance(new, Call) or op_name_of(new) != SIMULATED_QUANTIZE:
        return new
    step, low, high = _quantization_parameters(new)
    data = new.args[0]
    # `qnn.quantize` saturates at int8 only; narrower ranges need a clip in floats.
    if (low, high) != (-MAX_SYMMETRIC_INT8, MAX_SYMMETRIC_INT8):
        data = op.clip(data, low * step, high * step)
    steps = const(np.float32(step)), const(np.int32(0))
    return dequantize(quantize(data, *steps), *steps)


def realize() -> Pass:
    """Return the realization pass; it rounds as the current `qconfig` says."""
    config = current_qconfig()

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Replace simulated quantization by qnn.quantize and dequantize, and operators in between
        by integer ones.
        """
        realized = map_functions(
            module, lift_body_rewrite(lambda body: rewrite_graph(body, _realize_quantize))
        )
        realized = InferType()(realized)
        with requantize_config(rounding=config.rounding):
            realized = FakeQuantizationToInteger(use_qat=True)(realized)
        return FoldConstant()(InferType()(realized))

    return Pass("QuantizeRealize", transform, 1, (InferType(),))
