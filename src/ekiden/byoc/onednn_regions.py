"""oneDNN engine: the table of offloadable Relay operators, and the serialisation of regions as
plans of oneDNN primitives (`runtime/engines/onednn_plan.h`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Any

import numpy as np

from ekiden.byoc.region_conversion import (
    OperatorMapping,
    RegionConverter,
    floor_mode_pool_padding,
    operator_patterns,
    region_results,
    tensor_type,
)
from ekiden.ir.op import Array
from ekiden.relay.expr import Call, Constant, Function
from ekiden.relay.transform.external.merge_composite import PatternEntry
from ekiden.runtime.devices.engines import load_region
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["OneDnnEngine"]

ONEDNN_PLAN_MAGIC = 0x314C4E4E444B45
DNNL_RELU, DNNL_ADD = 0x20, 0x1FFF0


class OneDnnStepKind(IntEnum):
    """Primitive kind of a step, numbered as `onednn_kind` in onednn_plan.h."""

    PRODUCT = 0
    CONVOLUTION = 1
    POOLING = 2
    ELEMENT = 3
    BINARY = 4
    SOFTMAX = 5
    BIAS = 6
    """A bias, with its axis: part of the product before it, or a BINARY."""


Attributes = Sequence[int]


def _dense_attributes(call: Call) -> Attributes | None:
    ranks = [len(tensor_type(arg).shape) for arg in call.args]
    return [0] if ranks == [2, 2] else None


def _bias_add_attributes(call: Call) -> Attributes | None:
    axis: int = getattr(call.attrs, "axis")  # noqa: B009 - of BiasAddAttrs
    return [axis % len(tensor_type(call.args[0]).shape)]


def _softmax_attributes(call: Call) -> Attributes | None:
    axis: int = getattr(call.attrs, "axis")  # noqa: B009 - of SoftmaxAttrs
    return [axis % len(tensor_type(call).shape)]


def _conv2d_attributes(call: Call) -> Attributes | None:
    attrs: Any = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if layouts != ("NCHW", "OIHW", "NCHW"):
        return None
    return [*attrs.strides, *attrs.padding, *attrs.dilation, attrs.groups, 0]


def _pool2d_attributes(call: Call) -> Attributes | None:
    attrs: Any = call.attrs
    padding = floor_mode_pool_padding(call) if attrs.layout == "NCHW" else None
    if padding is None:
        return None
    return [*attrs.pool_size, *attrs.strides, *padding, *attrs.dilation]


def _eltwise_attributes(number: int) -> Callable[[Call], Attributes | None]:
    """Return a function from a call to an elementwise oneDNN algorithm number, or None for
    scalars.
    """
    return lambda call: [number] if all(tensor_type(arg).shape for arg in call.args) else None


ONEDNN_OPERATORS: dict[str, OperatorMapping[OneDnnStepKind, Attributes]] = {
    "nn.dense": OperatorMapping(OneDnnStepKind.PRODUCT, 2, _dense_attributes),
    "nn.bias_add": OperatorMapping(OneDnnStepKind.BIAS, 2, _bias_add_attributes),
    "nn.conv2d": OperatorMapping(OneDnnStepKind.CONVOLUTION, 2, _conv2d_attributes),
    "nn.max_pool2d": OperatorMapping(OneDnnStepKind.POOLING, 1, _pool2d_attributes),
    "nn.softmax": OperatorMapping(OneDnnStepKind.SOFTMAX, 1, _softmax_attributes),
    "nn.relu": OperatorMapping(OneDnnStepKind.ELEMENT, 1, _eltwise_attributes(DNNL_RELU)),
    "tanh": OperatorMapping(OneDnnStepKind.ELEMENT, 1, _eltwise_attributes(0x21)),
    "sqrt": OperatorMapping(OneDnnStepKind.ELEMENT, 1, _eltwise_attributes(0x25)),
    "sigmoid": OperatorMapping(OneDnnStepKind.ELEMENT, 1, _eltwise_attributes(0x29)),
    "exp": OperatorMapping(OneDnnStepKind.ELEMENT, 1, _eltwise_attributes(0x2A)),
    "add": OperatorMapping(OneDnnStepKind.BINARY, 2, _eltwise_attributes(DNNL_ADD)),
    "multiply": OperatorMapping(OneDnnStepKind.BINARY, 2, _eltwise_attributes(0x1FFF1)),
    "divide": OperatorMapping(OneDnnStepKind.BINARY, 2, _eltwise_attributes(0x1FFF4)),
    "subtract": OperatorMapping(OneDnnStepKind.BINARY, 2, _eltwise_attributes(0x1FFF5)),
}
"""By the name in Relay."""


@dataclass(slots=True)
class OneDnnEngine:
    """Backend that runs regions in the oneDNN C library."""

    name: str

    def patterns(self) -> Sequence[PatternEntry]:
        """Return a pattern for each operator of the table."""
        return operator_patterns(self.name, ONEDNN_OPERATORS)

    def compile(self, function: Function) -> bytes:
        """Serialize a region as a oneDNN plan. Raises CompileError for an operator outside the
        table.
        """
        region = _PlanBuilder()
        for param in function.params:
            region.values[param] = _PlanValue()
        inputs = list(region.values.values())
        region.convert(function.body)
        results = [region.values[result] for result in region_results(function.body)]
        _fuse_bias_and_relu(region.steps, region.constants, results)
        return _serialize_plan(inputs, region.constants, region.steps, results)

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        """Load the region in the runtime, without the compiler."""
        return load_region(self.name, symbol, code)


@dataclass(eq=False, slots=True)
class _PlanValue:
    """Value of a plan: an input, a constant, or the result of a step."""

    data: Array | None = None


@dataclass(eq=False, slots=True)
class _PlanStep(_PlanValue):
    """One oneDNN primitive with its arguments and attributes."""

    kind: OneDnnStepKind = OneDnnStepKind.ELEMENT
    args: list[_PlanValue] = field(default_factory=list)
    attributes: list[int] = field(default_factory=list)
    ndim: int = 0


class _PlanBuilder(RegionConverter[_PlanValue]):
    """Builder of a oneDNN plan from a region."""

    engine = "oneDNN"

    def __init__(self) -> None:
        super().__init__()
        self.constants: list[_PlanValue] = []
        self.steps: list[_PlanStep] = []

    def convert_constant(self, expr: Constant) -> _PlanValue:
        """Embed a constant in the plan."""
        self.constants.append(_PlanValue(np.asarray(expr.data)))
        return self.constants[-1]

    def convert_call(self, name: str, call: Call, inputs: Sequence[_PlanValue]) -> _PlanValue:
        """Append a step; `_fuse_bias_and_relu` fuses them later."""
        row = ONEDNN_OPERATORS.get(name)
        attributes = None if row is None else row.attributes(call)
        if row is None or attributes is None:
            raise CompileError(f"'{name}' of this form is not in oneDNN")
        ndim = len(tensor_type(call).shape)
        self.steps.append(
            _PlanStep(None, row.engine_operator, list(inputs), list(attributes), ndim)
        )
        return self.steps[-1]


CONTRACTION_KINDS = (OneDnnStepKind.PRODUCT, OneDnnStepKind.CONVOLUTION)


def _fuse_bias_and_relu(
    steps: list[_PlanStep], constants: list[_PlanValue], results: list[_PlanValue]
) -> None:
    """Fuse a bias and a following relu into the contraction before them if nothing else reads its
    result; turn other biases into additions.
    """
    for step in list(steps):
        # Recounted for each step, since fusion changes the readers of values.
        uses = Counter(id(arg) for reader in steps for arg in reader.args)
        uses.update(map(id, results))
        before = step.args[0]
        alone = (
            isinstance(before, _PlanStep)
            and before.kind in CONTRACTION_KINDS
            and uses[id(before)] == 1
        )
        if alone and _try_fuse(before, step):
            steps.remove(step)
            _replace_uses(step, before, steps, results)
        elif step.kind is OneDnnStepKind.BIAS:
            step.args[1] = _reshape_bias(
                step.args[1], step.ndim - 1 - step.attributes[0], constants
            )
            step.kind, step.attributes = OneDnnStepKind.BINARY, [DNNL_ADD]


def _reshape_bias(bias: _PlanValue, after: int, constants: list[_PlanValue]) -> _PlanValue:
    """Return the bias with trailing dimensions of 1, so that it broadcasts along the channels.
    Raises CompileError if it is not constant.
    """
    if not after:
        return bias
    if bias.data is None:
        raise CompileError(
            "a bias that is no constant, along an axis before the last, is not there"
        )
    constants.append(_PlanValue(bias.data.reshape(-1, *(1,) * after)))
    return constants[-1]


def _try_fuse(before: _PlanValue, step: _PlanStep) -> bool:
    """Fuse a step into the contraction before it, and return whether it could be fused."""
    assert isinstance(before, _PlanStep)
    # The relu post-operation comes last: nothing can be fused after it.
    if before.attributes[-1]:
        return False
    # NCHW convolutions have channels on axis 1, matrix products on the last axis.
    channel = 1 if step.ndim == 4 else step.ndim - 1
    if step.kind is OneDnnStepKind.BIAS and len(before.args) == 2 and step.attributes == [channel]:
        if isinstance(step.args[1], _PlanStep):  # which may come after the product
            return False
        before.args.append(step.args[1])
        return True
    if step.kind is OneDnnStepKind.ELEMENT and step.attributes == [DNNL_RELU]:
        before.attributes[-1] = 1
        return True
    return False


def _replace_uses(
    old: _PlanValue, new: _PlanValue, steps: list[_PlanStep], results: list[_PlanValue]
) -> None:
    """Replace every use of a value in the steps and results."""
    for values in (results, *(step.args for step in steps)):
        values[:] = [new if value is old else value for value in values]


def _serialize_plan(
    inputs: list[_PlanValue],
    constants: list[_PlanValue],
    steps: list[_PlanStep],
    results: list[_PlanValue],
) -> bytes:
    """Serialize a plan as the 64-bit words and constants that onednn_plan.h describes."""
    # Value numbers follow the order in which the runtime allocates: inputs, constants, steps.
    number = {id(value): index for index, value in enumerate((*inputs, *constants, *steps))}
    plan = _pack_words(ONEDNN_PLAN_MAGIC, len(inputs), len(constants), len(steps), len(results))
    for constant in constants:
        assert constant.data is not None
        numbers = constant.data.astype("<f4").tobytes()
        plan += (
            # Padding keeps every field of the plan 8-byte aligned.
            _pack_words(constant.data.ndim, *constant.data.shape)
            + numbers
            + bytes(-len(numbers) % 8)
        )
    for step in steps:
        args = [number[id(arg)] for arg in step.args]
        plan += _pack_words(step.kind, len(args), *args, len(step.attributes), *step.attributes)
    return plan + _pack_words(*(number[id(result)] for result in results))


def _pack_words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)
