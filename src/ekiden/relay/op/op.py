"""Operator registration functions, under TVM's module name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.ir.affine_type import AffineType
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import (
    Op,
    OpPattern,
    get,
    make_attr_registrar,
    register_op_attr,
    register_reference,
    set_op_attr,
    set_pattern,
    set_stateful,
)
from ekiden.ir.op import declare_own as register
from ekiden.relay.expr import Call

FAKE_QUANTIZATION_ATTR = "FTVMFakeQuantizationToInteger"
OPTIONAL_FAKE_QUANTIZATION_ATTR = "FTVMOptionalFakeQuantizationToInteger"
KEEPS_SCALE_ATTR, CONVERTS_ALONE_ATTR = "FakeQuantizationKeeps", "FakeQuantizationAlone"
MIXES_SCALES_ATTR, ADDS_BIAS_ATTR = "FakeQuantizationMixes", "FakeQuantizationBiases"
"""Operator attributes that FakeQuantizationToInteger and relay.quantize read."""

Types = Mapping[RelayExpr, AffineType]
"""Affine types by expression; for a call itself, its required type."""
QuantizationRule = Callable[[Call, Types], Sequence[object]]
"""Function (call on integers, affine types) -> (integer expression, its affine type); raises if it
does not apply. Raises where it cannot.
"""


def register_fake_quantization_to_integer(
    op_name: str,
    func: QuantizationRule | None = None,
    level: int = 10,
    *,
    keeps: bool = False,
    alone: bool = False,
    mixes: bool = False,
    biases: bool = False,
) -> Callable[[QuantizationRule], QuantizationRule]:
    """Register an operator's rule for FakeQuantizationToInteger.

    Args:
        op_name: The operator.
        func: The rule; without it, a decorator is returned.
        level: TVM's priority; not used.
        keeps: Results are among the first argument's values, in their scale.
        alone: The scale of results follows from the arguments, without loss.
        mixes: Results of bytes are in the steps of the rounding below.
        biases: Sums of 32 bits are taken as they are if the second argument is constant.

    Raises:
        KeyError: There is no such operator.
    """

    def register(rule: QuantizationRule) -> QuantizationRule:
        """Set the rule and its attributes; the latest registration wins, whatever its level."""
        register_op_attr(op_name, FAKE_QUANTIZATION_ATTR, rule, level)
        # All of them, so that a second registration takes back what the first one said.
        columns = {
            KEEPS_SCALE_ATTR: keeps,
            CONVERTS_ALONE_ATTR: alone,
            MIXES_SCALES_ATTR: mixes,
            ADDS_BIAS_ATTR: biases,
        }
        for attribute, value in columns.items():
            set_op_attr(op_name, attribute, value)
        return rule

    if func is not None:
        register(func)
    return register


MIXED_PRECISION_ATTR = "FTVMMixedPrecisionConversionType"
"""Operator attribute of ToMixedPrecision's conversion rules."""


register_mixed_precision_conversion = make_attr_registrar(
    MIXED_PRECISION_ATTR,
    "Give an operator its rule of ToMixedPrecision (ekiden.relay.transform.mixed_precision).",
)
register_optional_fake_quantization_to_integer = make_attr_registrar(
    OPTIONAL_FAKE_QUANTIZATION_ATTR,
    "As `register_fake_quantization_to_integer`, of a rule that is used where the pass is given"
    " the operator's name in `optional_qnn_ops`: it changes results by more than rounding.",
)


def register_pattern(op_name: str, pattern: OpPattern, level: int = 10) -> None:
    """Set the fusion pattern of a user-defined operator.

    Raises:
        ValueError: The operator is one of Ekiden's.
    """
    set_pattern(op_name, pattern)


def register_stateful(op_name: str, stateful: bool, level: int = 10) -> None:
    """Set whether a user-defined operator has side effects.

    Raises:
        ValueError: The operator is one of Ekiden's.
    """
    set_stateful(op_name, stateful)


register_alter_op_layout = make_attr_registrar(
    "FTVMAlterOpLayout",
    "What AlterOpLayout() makes of calls: (attributes, arguments, tensors with their shapes and"
    " dtypes, type of the result) -> another call, or None.",
)
register_convert_op_layout = make_attr_registrar(
    "FTVMConvertOpLayout",
    "What ConvertLayout makes of calls that it is given layouts for: (attributes, arguments,"
    " tensors, layouts) -> another call, or None.",
)
register_infer_correct_layout = make_attr_registrar(
    "FInferCorrectLayout",
    "How an operator follows layouts: (attributes, layouts now or None, layouts before, types) ->"
    " InferCorrectLayoutOutput.",
)


__all__ = [
    "Op",
    "OpPattern",
    "get",
    "register",
    "register_alter_op_layout",
    "register_convert_op_layout",
    "register_fake_quantization_to_integer",
    "register_infer_correct_layout",
    "register_op_attr",
    "register_optional_fake_quantization_to_integer",
    "register_pattern",
    "register_reference",
    "register_stateful",
]
