"""Elementwise operators with the same semantics in several formats.

A row defines the meaning once; a format's own table refers to the rows that name one of its
operators, and adds what only it has: fused activations, integer kernels, dtype promotion.
The columns of names state which specification a row implements:
    onnx         operators of ai.onnx, "@7" where the meaning holds from that opset on
    tensorflow   tf.raw_ops
    tflite       BuiltinOperator of TensorFlow Lite's schema
    torch        operators of PyTorch's library aten
    stablehlo    operations of the StableHLO specification; those of CHLO with their dialect
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial, reduce
from typing import Literal, TypeAlias

import numpy as np

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.constant_folding import Rule
from ekiden.frontend.common.float_functions import (
    atan2,
    clamped_shift,
    elu,
    erfc,
    expm1,
    fmod,
    hard_swish,
    log1p,
    prelu,
    python_mod,
    reciprocal,
    relu6,
    selu,
    silu,
    softplus,
    softsign,
    square,
    squared_difference,
)
from ekiden.frontend.common.node import Node
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.runtime.lazy_dataclass import dataclass

FormatName: TypeAlias = Literal["onnx", "tensorflow", "tflite", "torch", "stablehlo"]


class PromotionKind(Enum):
    """Type-promotion class of an operator: the dtypes of its operands and result in formats that
    promote.
    """

    SAME = "operands and result have one dtype"
    FLOAT = "operands and result are floats"
    INTEGER_IDENTITY = "integers are their own results"
    COMPARISON = "operands have one dtype, the result is a truth value"
    LOGICAL = "operands and result are truth values"


@dataclass(frozen=True, slots=True)
class ElementwiseRow:
    """Table entry of an elementwise operator: its Relay function and its name in each format.

    A name is "" where the format lacks the operator or means something else; several names are
    separated by blanks.
    """

    function: Callable[..., Expr]
    """Of as many expressions as the operator has operands, then of their dtype if `is_typed`."""
    onnx: str = ""
    tensorflow: str = ""
    tflite: str = ""
    torch: str = ""
    stablehlo: str = ""
    kind: PromotionKind = PromotionKind.SAME
    rule: Rule | None = None
    """The same of elements that are known at import."""
    bool_function: Callable[..., Expr] | None = None
    """What it means for truth values, where that is another function."""
    is_typed: bool = False

    @property
    def is_predicate(self) -> bool:
        """Return whether the result is Boolean."""
        return self.kind in (PromotionKind.COMPARISON, PromotionKind.LOGICAL)

    def emit(self, dtype: str, *operands: Expr) -> Expr:
        """Emit the call on operands of that dtype."""
        if self.kind is PromotionKind.INTEGER_IDENTITY and not is_float(dtype):
            return operands[0]
        if self.bool_function is not None and dtype == "bool":
            return self.bool_function(*operands)
        return self.function(*operands, dtype) if self.is_typed else self.function(*operands)

    def convert(self, node: Node) -> Expr:
        """Convert a node whose inputs have one dtype."""
        operands = node.exprs()  # which refuses what is no tensor of numbers
        return self.emit(node.dtype(0), *operands)


def elementwise_rows(name: FormatName) -> Iterator[tuple[str, int, ElementwiseRow]]:
    """Yield the table entries of a format as (operator, opset that introduced the semantics,
    entry).
    """
    for row in ELEMENTWISE_ROWS:
        for word in getattr(row, name).split():
            called, _, since = word.partition("@")
            yield called, int(since or 1), row


def add_n(*terms: Expr) -> Expr:
    """Emit the sum of one or more tensors, added from the left."""
    return reduce(op.add, terms)


def select(node: Node, per_row: bool) -> Expr:
    """Emit where(condition, x, y) for TensorFlow's Select and SelectV2. `per_row`: the first of
    them, whose condition may be one truth value for each first index.
    """
    condition, x, y = node.exprs()
    if per_row and node.rank(0) == 1 and node.rank(1) > 1:
        condition = op.expand_dims(condition, axis=1, num_newaxis=node.rank(1) - 1)
    return op.where(condition, x, y)


_floor_quotient_rule = rules.elementwise_rule(np.floor_divide, operator.floordiv)


def floor_div_rule(node: Node, inputs: Sequence[Array]) -> Array | None:
    """Evaluate floor division of known integers; return None for floats or a zero divisor."""
    if is_float(node.dtype(0)) or (inputs[1].dtype != np.object_ and not inputs[1].all()):
        return None
    return _floor_quotient_rule(inputs)


FLOAT, WHOLE, COMPARED, LOGICAL = (
    PromotionKind.FLOAT,
    PromotionKind.INTEGER_IDENTITY,
    PromotionKind.COMPARISON,
    PromotionKind.LOGICAL,
)

# fmt: off
ELEMENTWISE_ROWS = (
    #                            ONNX     TensorFlow TFLite       PyTorch    StableHLO
    ElementwiseRow(op.add,       "Add@7", "Add AddV2", "ADD",     "",        "add", rule=rules.add,
        bool_function=op.logical_or),
    ElementwiseRow(op.subtract,  "Sub@7", "Sub",     "SUB", "", "subtract", rule=rules.subtract),
    ElementwiseRow(op.multiply,  "Mul@7", "Mul",     "MUL",       "mul",     "multiply",
        rule=rules.multiply, bool_function=op.logical_and),
    ElementwiseRow(op.divide,    "Div@7", "Div RealDiv TruncateDiv", "DIV", rule=rules.divide),
    ElementwiseRow(add_n,        "",      "AddN",    "ADD_N"),
    ElementwiseRow(op.floor_mod, "",      "FloorMod", "FLOOR_MOD", rule=rules.floor_mod),
    ElementwiseRow(op.trunc_mod, "",      "Mod TruncateMod"),
    ElementwiseRow(fmod,         "",      "",        "",          "fmod", is_typed=True),
    ElementwiseRow(python_mod,   "",      "",        "",          "remainder", is_typed=True),
    ElementwiseRow(op.maximum,   "",      "Maximum", "MAXIMUM",   "maximum", "maximum",
        rule=rules.maximum, bool_function=op.logical_or),
    ElementwiseRow(op.minimum,   "",      "Minimum", "MINIMUM",   "minimum", "minimum",
        rule=rules.minimum, bool_function=op.logical_and),
    ElementwiseRow(op.power,     "",      "Pow",     "POW"),
    ElementwiseRow(atan2,        "",      "Atan2",   "ATAN2",     "atan2", "atan2", is_typed=True),
    ElementwiseRow(squared_difference, "", "SquaredDifference", "SQUARED_DIFFERENCE"),
    ElementwiseRow(square,       "",      "Square",  "SQUARE"),
    # comparisons
    ElementwiseRow(op.equal,     "Equal@7", "Equal", "EQUAL",     "eq", "", COMPARED, rules.equal),
    ElementwiseRow(op.not_equal, "", "NotEqual", "NOT_EQUAL", "ne", "", COMPARED, rules.not_equal),
    ElementwiseRow(op.less,      "Less@7", "Less",   "LESS",      "lt", "", COMPARED, rules.less),
    ElementwiseRow(op.less_equal, "LessOrEqual", "LessEqual", "LESS_EQUAL", "le", "",     COMPARED,
        rules.less_equal),
    ElementwiseRow(op.greater,   "Greater@7", "Greater", "GREATER", "gt",    "",          COMPARED,
        rules.greater),
    ElementwiseRow(op.greater_equal, "GreaterOrEqual", "GreaterEqual", "GREATER_EQUAL", "ge", "",
        COMPARED, rules.greater_equal),
    ElementwiseRow(op.isnan,     "IsNaN", "IsNan",   "",          "",        "",          COMPARED),
    ElementwiseRow(op.isinf,     "",      "IsInf",   "",          "", "chlo.is_inf", COMPARED),
    ElementwiseRow(op.isfinite,  "",      "IsFinite", "",         "",        "is_finite", COMPARED),
    # truth values and bits
    ElementwiseRow(op.logical_and, "And@7", "LogicalAnd", "LOGICAL_AND", "logical_and", "", LOGICAL,
        rules.logical_and),
    ElementwiseRow(op.logical_or, "Or@7", "LogicalOr", "LOGICAL_OR", "logical_or", "",    LOGICAL),
    ElementwiseRow(op.logical_xor, "Xor@7", "",      "",          "logical_xor", "",      LOGICAL),
    ElementwiseRow(op.logical_not, "Not", "LogicalNot", "LOGICAL_NOT", "logical_not", "", LOGICAL,
        rules.logical_not),
    ElementwiseRow(op.bitwise_and, "BitwiseAnd", "BitwiseAnd", "", "bitwise_and", "and",
        bool_function=op.logical_and),
    ElementwiseRow(op.bitwise_or, "BitwiseOr", "BitwiseOr", "",   "bitwise_or", "or",
        bool_function=op.logical_or),
    ElementwiseRow(op.bitwise_xor, "BitwiseXor", "BitwiseXor", "BITWISE_XOR", "bitwise_xor", "xor",
        bool_function=op.logical_xor),
    ElementwiseRow(op.bitwise_not, "BitwiseNot", "Invert", "",    "",        "not",
        bool_function=op.logical_not),
    ElementwiseRow(partial(clamped_shift, op.left_shift), "", "LeftShift", "", is_typed=True),
    ElementwiseRow(partial(clamped_shift, op.right_shift), "", "RightShift", "RIGHT_SHIFT",
        is_typed=True),
    # whole numbers and signs
    ElementwiseRow(op.ceil,      "Ceil",  "Ceil",    "CEIL", "ceil", "ceil", WHOLE, rules.ceil),
    ElementwiseRow(op.floor,     "Floor", "Floor",   "FLOOR", "floor", "floor", WHOLE, rules.floor),
    ElementwiseRow(op.round,     "Round", "Round Rint", "ROUND",  "", "round_nearest_even", WHOLE),
    ElementwiseRow(op.trunc,     "",      "",        "",          "trunc",   "",          WHOLE),
    ElementwiseRow(op.abs,       "Abs",   "Abs",     "ABS",       "",        "abs"),
    ElementwiseRow(op.negative,  "Neg",   "Neg",     "NEG", "", "negate", rule=rules.negative),
    ElementwiseRow(op.sign,      "Sign",  "Sign",    "SIGN"),
    # functions of floats
    ElementwiseRow(op.exp,       "Exp",   "Exp",     "EXP",       "exp",     "exponential", FLOAT),
    ElementwiseRow(expm1, "", "Expm1", "", "expm1", "exponential_minus_one", FLOAT, is_typed=True),
    ElementwiseRow(op.log,       "Log",   "Log",     "LOG",       "log",     "log",       FLOAT),
    ElementwiseRow(log1p,        "", "Log1p", "", "log1p", "log_plus_one", FLOAT, is_typed=True),
    ElementwiseRow(op.sqrt,      "Sqrt",  "Sqrt",    "SQRT", "sqrt", "sqrt", FLOAT, rules.sqrt),
    ElementwiseRow(op.rsqrt,     "",      "Rsqrt",   "RSQRT",     "rsqrt",   "rsqrt",     FLOAT),
    ElementwiseRow(reciprocal,   "Reciprocal", "Reciprocal Inv", "", "reciprocal", "",    FLOAT,
        is_typed=True),
    ElementwiseRow(op.sin,       "Sin",   "Sin",     "SIN",       "sin",     "sine",      FLOAT),
    ElementwiseRow(op.cos,       "Cos",   "Cos",     "COS",       "cos",     "cosine",    FLOAT),
    ElementwiseRow(op.tan,       "Tan",   "Tan",     "",          "tan",     "tan chlo.tan", FLOAT),
    ElementwiseRow(op.asin,      "Asin",  "Asin",    "",          "asin",    "chlo.asin", FLOAT),
    ElementwiseRow(op.acos,      "Acos",  "Acos",    "",          "acos",    "chlo.acos", FLOAT),
    ElementwiseRow(op.atan,      "Atan",  "Atan",    "",          "atan",    "chlo.atan", FLOAT),
    ElementwiseRow(op.sinh,      "Sinh",  "Sinh",    "",          "sinh",    "chlo.sinh", FLOAT),
    ElementwiseRow(op.cosh,      "Cosh",  "Cosh",    "",          "cosh",    "chlo.cosh", FLOAT),
    ElementwiseRow(op.tanh,      "Tanh",  "Tanh",    "TANH",      "tanh",    "tanh",      FLOAT),
    ElementwiseRow(op.asinh,     "Asinh", "Asinh",   "",          "asinh",   "chlo.asinh", FLOAT),
    ElementwiseRow(op.acosh,     "Acosh", "Acosh",   "",          "acosh",   "chlo.acosh", FLOAT),
    ElementwiseRow(op.atanh,     "Atanh", "Atanh",   "",          "atanh",   "chlo.atanh", FLOAT),
    ElementwiseRow(op.erf,       "Erf",   "Erf",     "",          "erf",     "chlo.erf",  FLOAT),
    ElementwiseRow(erfc,         "",      "Erfc", is_typed=True),
    ElementwiseRow(op.sigmoid,   "Sigmoid", "Sigmoid", "LOGISTIC", "sigmoid", "logistic", FLOAT),
    # activations
    ElementwiseRow(op.nn.relu,   "Relu",  "Relu",    "RELU"),
    ElementwiseRow(relu6,        "",      "Relu6",   "RELU6"),
    ElementwiseRow(elu,          "",      "Elu",     "ELU", is_typed=True),
    ElementwiseRow(selu,         "",      "Selu", is_typed=True),
    ElementwiseRow(prelu,        "PRelu@7", "",      "PRELU", is_typed=True),
    ElementwiseRow(softplus,     "Softplus", "Softplus", is_typed=True),
    ElementwiseRow(softsign,     "Softsign", "Softsign", is_typed=True),
    ElementwiseRow(silu,         "",      "",        "",          "silu",    "",          FLOAT),
    ElementwiseRow(hard_swish,   "",      "", "HARD_SWISH", "hardswish", "", FLOAT, is_typed=True),
    ElementwiseRow(op.zeros_like, "",     "ZerosLike", "ZEROS_LIKE"),
    ElementwiseRow(op.ones_like, "",      "OnesLike"),
)
# fmt: on
