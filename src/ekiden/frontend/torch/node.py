"""FX node context of converters, and the entries of the converter table.

A converter is called with the node, the arguments in their places and those given by name:

    def _add(node: Node, a: Value, b: Operand, *, alpha: Scalar = 1) -> Expr:

Tensors come as values, sizes that are symbolic as expressions of dimensions, absent ones as None.
What a converter gives is brought to the dtype that PyTorch says the output has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch

from ekiden.frontend.common import data_dependent_dims
from ekiden.frontend.common import node as common
from ekiden.frontend.common.error_translation import format_source_line
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.dtype import COMPLEX_PART_DTYPES, TORCH_DTYPES, from_torch_dtype
from ekiden.frontend.torch.sympy_conversion import Scalar, SymbolTable
from ekiden.ir.dtype import is_float, is_int
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, Shape, known_int, to_attr_dims

Operand: TypeAlias = Value | Scalar
Converter: TypeAlias = Callable[..., "Result | Scalar | list[PrimExpr] | None"]
ComplexResult: TypeAlias = Result | tuple[Result, Result]
"""Something real, or the two parts of what is complex."""
ComplexRule: TypeAlias = Callable[..., ComplexResult]
"""What is done to complex numbers: (node, arguments in their places, those by name)."""
ConverterRow: TypeAlias = (
    tuple[str, Converter] | tuple[str, Converter, Callable[[Converter], ComplexRule]]
)
"""(name and overload, "add.Tensor"; converter; what it does to complex numbers, if it takes them:
see `ekiden.frontend.torch.complex_rules`): the name alone for all overloads."""


def target_name(target: object) -> str:
    """Return the name of a node's target: `aten.add.Tensor`, `getitem`, `cond`."""
    if isinstance(target, str):
        return target
    text = str(target)
    return str(getattr(target, "__name__", text)) if text.startswith("<") else text


def describe_node(node: torch.fx.Node) -> str:
    """Return a node for messages, `aten.relu.default 'relu_1'`, with the user's source line if
    known.
    """
    location = user_source_line(node)
    return f"{target_name(node.target)} '{node.name}'" + (f" ({location})" if location else "")


_FRAME_PATTERN = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n?\s*([^\n]*)')
_FRAMEWORK_PATHS = (
    "torch/",
    "<eval_with_key>",
    "<frozen",
    os.path.dirname(torch.__file__) + os.sep,
)


def user_source_line(node: torch.fx.Node) -> str:
    """Return the innermost source line outside PyTorch that made a node, `model.py:12: y =
    x.relu()`.
    """
    trace = node.meta.get("stack_trace")  # of a file, which may hold anything
    frames = _FRAME_PATTERN.findall(trace if isinstance(trace, str) else "")
    user_frames = [f for f in frames if not f[0].startswith(_FRAMEWORK_PATHS)]
    if not user_frames:
        return ""
    file, line, code = user_frames[-1]
    return format_source_line(file, line, code)


class FxNode(common.Node):
    """FX node in the form that converters receive."""

    def __init__(
        self,
        fx: torch.fx.Node,
        inputs: Sequence[Value | None],
        scope: Scope,
        symbols: SymbolTable,
        output_names: Sequence[str],
        graph: object = None,
    ) -> None:
        """Create the view of a node; `graph` is the importer of the graph that contains it."""
        super().__init__(describe_node(fx), inputs, scope, output_names)
        self.fx, self.symbols, self.graph = fx, symbols, graph

    # What PyTorch says of the outputs.

    @property
    def output_meta(self) -> object:
        """Return the outputs as PyTorch inferred them: fake tensors, numbers, or lists of these."""
        return self.fx.meta.get("val")

    @property
    def out_dtype(self) -> str:
        """Return the dtype of the (first) output; of a complex one, that of its parts."""
        dtype = self._first_meta.dtype
        return from_torch_dtype(COMPLEX_PART_DTYPES.get(dtype, dtype))

    @property
    def is_complex(self) -> bool:
        """Return whether the (first) output is complex."""
        return self._first_meta.dtype in COMPLEX_PART_DTYPES

    @property
    def part_dtype(self) -> str:
        """Return the dtype of the parts of the complex output, or else of a complex input."""
        metas = [self._first_meta, *(n.meta.get("val") for n in self.fx.all_input_nodes)]
        dtypes = [
            m.dtype for m in metas if isinstance(m, torch.Tensor) and m.dtype in COMPLEX_PART_DTYPES
        ]
        return from_torch_dtype(COMPLEX_PART_DTYPES[dtypes[0]]) if dtypes else self.out_dtype

    @property
    def _first_meta(self) -> torch.Tensor:
        output = (
            self.output_meta[0] if isinstance(self.output_meta, (list, tuple)) else self.output_meta
        )
        assert isinstance(output, torch.Tensor), f"{self.name} gives no tensor"
        return output

    @property
    def out_shape(self) -> tuple[PrimExpr, ...]:
        """Return the shape of the (first) output. Raises Unsupported for a data-dependent size
        without a name.
        """
        return self.symbols.to_shape(self._first_meta.shape)

    # Arguments.

    def to_expr(self, value: Operand, dtype: str = "") -> Expr:
        """Return a tensor or number as an expression, cast to `dtype` if one is given."""
        if isinstance(value, Value):
            expr = self.scope.expr(value)
            return expr if dtype in ("", value.type.dtype) else op.cast(expr, dtype)
        if isinstance(value, PrimExpr):
            scalar = self.scope.emit_dim(value)
            have = self.scope.tensor_type_of(scalar).dtype
            return scalar if dtype in ("", have) else op.cast(scalar, dtype)
        if not dtype:
            dtype = "bool" if isinstance(value, bool) else ""
            dtype = dtype or ("int64" if isinstance(value, int) else "float32")
        return const(_wrap_integer(value, dtype), dtype)

    def promoted_dtype(self, *values: Operand) -> str:
        """Return the dtype to which PyTorch promotes these operands."""
        return promote_dtypes(values)

    def to_dim(self, value: object) -> Dim:
        """Return a size argument as a dimension."""
        if isinstance(value, Value):
            (size,) = self.dims_of(value)
            return size
        return value if isinstance(value, PrimExpr) else int(value)  # type: ignore[call-overload]

    def to_dims(self, values: Sequence[object]) -> tuple[Dim, ...]:
        """Return size arguments as dimensions."""
        return to_attr_dims(self.to_dim(v) for v in values)

    def dims_of(self, value: Value) -> tuple[Dim, ...]:
        """Return the elements of a tensor of known length as dimensions."""
        dims = data_dependent_dims.to_named_dims(self.scope, value)
        return self.reject("a vector of known length expected") if dims is None else dims

    def constant_number(self, value: Scalar | None, what: str) -> int | float:
        """Return an argument that must be a constant number. Raises Unsupported otherwise."""
        if isinstance(value, PrimExpr) or value is None:
            self.reject(f"'{what}' must be a number")
        return value

    def static_shape(self, shape: Shape, what: str) -> tuple[int, ...]:
        """Return a shape whose extents must be constant. Raises Unsupported otherwise."""
        numbers = [known_int(d) for d in shape]
        if None in numbers:
            self.reject(f"{what} must have constant extents")
        return tuple(n for n in numbers if n is not None)


def _wrap_integer(value: float, dtype: str) -> float:
    """Wrap a number to an integer dtype, without an error for one out of range."""
    if is_int(dtype) and dtype in _NUMPY_INTS and not isinstance(value, bool):
        # Like ATen, an integer that does not fit its dtype wraps around.
        return int(np.array(int(value)).astype(dtype))
    return value


_NUMPY_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _promotion_category(value: Operand) -> int:
    """Return PyTorch's promotion category: 0 for bool, 1 for integers, 2 for floats."""
    if isinstance(value, Value):
        dtype = value.type.dtype
    elif isinstance(value, PrimExpr):
        dtype = value.dtype
    else:
        return 0 if isinstance(value, bool) else 1 if isinstance(value, int) else 2
    return 0 if dtype == "bool" else 2 if is_float(dtype) else 1


def promote_dtypes(values: Sequence[Operand]) -> str:
    """Return the result dtype of PyTorch's type promotion.

    Tensors with dimensions decide, then zero-dimensional tensors, then numbers, each only if of a
    higher category.
    """
    tiers: list[list[Operand]] = [[], [], []]
    for value in values:
        is_tensor = isinstance(value, Value)
        # PyTorch ranks tensors with dimensions above those of rank 0, and both above Python
        # numbers.
        tiers[2 if not is_tensor else 0 if value.type.shape else 1].append(value)  # type: ignore[union-attr]
    dtype, best_category = "", -1
    for tier in tiers:
        category = max(map(_promotion_category, tier), default=-1)
        if category <= best_category:
            continue
        dtypes = {
            v.type.dtype
            for v in tier
            if isinstance(v, Value) and _promotion_category(v) == category
        }
        if dtypes:
            dtype = _promote_within_category(dtypes)
        else:
            dtype = ("bool", "int64", "float32")[category]
        best_category = category
    return dtype or "float32"


def _promote_within_category(dtypes: set[str]) -> str:
    """Return the dtype that holds all of these, which are of one category."""
    ours = {ours: theirs for theirs, ours in TORCH_DTYPES.items()}
    joined = None
    for name in dtypes:
        torch_dtype = ours[name]
        joined = torch_dtype if joined is None else torch.promote_types(joined, torch_dtype)
    assert joined is not None
    return from_torch_dtype(joined)
