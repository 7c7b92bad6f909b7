"""Transformations of a model before it is compiled: layout and precision."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.pass_context import KEEP_OUTPUT_DTYPE_OPTION, PassContext
from ekiden.ir.transform import Sequential
from ekiden.relay import transform
from ekiden.relay.expr import Call
from ekiden.relay.op.op import MIXED_PRECISION_ATTR
from ekiden.relay.transform.mixed_precision import MIXED_PRECISION_ALWAYS
from ekiden.runtime.errors import InputError

__all__ = [
    "MixedPrecision",
    "apply_graph_transforms",
    "convert_graph_layout",
    "convert_to_mixed_precision",
    "generate_transform_args",
    "parse_graph_transform_args",
]

LAYOUT_OPS = ("nn.conv2d", "nn.conv2d_transpose", "qnn.conv2d")
PRECISION_OPS = ("nn.conv2d", "nn.dense")
FLOAT_TYPES = ("float16", "float32")
TRANSFORM_ARGUMENTS = (
    "desired_layout",
    "desired_layout_ops",
    "mixed_precision",
    "mixed_precision_ops",
    "mixed_precision_calculation_type",
    "mixed_precision_acc_type",
)


class MixedPrecision:
    """Context in which `ToMixedPrecision` always converts some operators, with results of
    `acc_type`.
    """

    def __init__(self, ops: Sequence[str], acc_type: str) -> None:
        self._ops = [Op.get(name) for name in ops]
        self._acc_type = acc_type
        self._saved: dict[Op, object] = {}

    def _rule(self, call: Call, mixed_precision_type: str) -> list[object]:
        return [MIXED_PRECISION_ALWAYS, self._acc_type, mixed_precision_type]

    def __enter__(self) -> MixedPrecision:
        for op in self._ops:
            self._saved[op] = op.get_attr(MIXED_PRECISION_ATTR)
            op.set_attr(MIXED_PRECISION_ATTR, self._rule)
        return self

    def __exit__(self, *error: object) -> None:
        for op, rule in self._saved.items():
            op.reset_attr(MIXED_PRECISION_ATTR)
            if rule is not None:
                op.set_attr(MIXED_PRECISION_ATTR, rule)


def convert_to_mixed_precision(
    mod: IRModule,
    ops: Sequence[str] | None = None,
    calculation_type: str | None = "float16",
    acc_type: str | None = "float16",
) -> IRModule:
    """Convert operators to compute in `calculation_type`; results of functions keep their dtype."""
    options = {KEEP_OUTPUT_DTYPE_OPTION: True}
    with (
        MixedPrecision(PRECISION_OPS if ops is None else ops, acc_type or "float16"),
        PassContext(opt_level=3, config=options),
    ):
        return transform.ToMixedPrecision(calculation_type or "float16")(mod)


def convert_graph_layout(
    mod: IRModule, desired_layouts: str | Sequence[str], ops: Sequence[str] | None = None
) -> IRModule:
    """Convert operators to a layout.

    Args:
        mod: The module.
        desired_layouts: One layout for all operators, or one for each: "NHWC" or, with the layout
            of the kernel, "NHWC:HWIO".
        ops: The operators; by default convolutions of two dimensions.

    Raises:
        InputError: Another number of layouts.
    """
    names = list(LAYOUT_OPS if ops is None else ops)
    layouts = [desired_layouts] if isinstance(desired_layouts, str) else list(desired_layouts)
    if len(layouts) == 1:
        layouts *= len(names)
    if len(layouts) != len(names):
        raise InputError(f"tvmc: 1 or {len(names)} layouts expected, got {len(layouts)}")
    desired = {}
    for name, layout in zip(names, layouts, strict=True):
        data_layout, _, kernel_layout = layout.partition(":")
        desired[name] = [data_layout, kernel_layout or "default"]
    return Sequential(
        [
            transform.RemoveUnusedFunctions(),
            transform.ConvertLayout(desired),
            transform.FoldConstant(),
        ]
    )(mod)


def apply_graph_transforms(mod: IRModule, args: Mapping[str, Any] | None) -> IRModule:
    """Apply the transformations that the arguments of `parse_graph_transform_args` ask for."""
    values: dict[str, Any] = dict(args or {})
    if layouts := values.get("desired_layout"):
        mod = convert_graph_layout(mod, layouts, values.get("desired_layout_ops"))
    if values.get("mixed_precision"):
        options = [
            values.get(f"mixed_precision_{n}") for n in ("ops", "calculation_type", "acc_type")
        ]
        mod = convert_to_mixed_precision(mod, *options)
    return mod


def parse_graph_transform_args(
    args: argparse.Namespace | Mapping[str, Any],
) -> dict[str, Any]:
    """Return the transformations among parsed arguments."""
    values = vars(args) if isinstance(args, argparse.Namespace) else args
    return {name: values.get(name) for name in TRANSFORM_ARGUMENTS}


def generate_transform_args(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of transformations."""
    add = parser.add_argument
    add("--desired-layout", nargs="+", help="the layout of operators: NHWC, or NHWC:HWIO")
    add("--desired-layout-ops", nargs="+", help=f"those operators: {', '.join(LAYOUT_OPS)}")
    add("--mixed-precision", action="store_true", help="compute in a smaller type of floats")
    add("--mixed-precision-ops", nargs="+", help=f"the operators: {', '.join(PRECISION_OPS)}")
    add("--mixed-precision-calculation-type", choices=FLOAT_TYPES, default="float16")
    add("--mixed-precision-acc-type", choices=FLOAT_TYPES, default="float16")
