"""A node of a graph of PyTorch as converters see it.

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

from ekiden.frontend.common import node as common
from ekiden.frontend.common import sizes
from ekiden.frontend.common.libraries import shown
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.dtype import DTYPES, PARTS, from_torch_dtype
from ekiden.frontend.torch.symbols import Scalar, Symbols
from ekiden.ir.dtype import is_float, is_int
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, Shape, as_attr, known

Operand: TypeAlias = Value | Scalar
Converter: TypeAlias = Callable[..., "Result | Scalar | list[PrimExpr] | None"]
Found: TypeAlias = Result | tuple[Result, Result]
"""Something real, or the two parts of what is complex."""
Rule: TypeAlias = Callable[..., Found]
"""What is done to complex numbers: (node, arguments in their places, those by name)."""
Row: TypeAlias = tuple[str, Converter] | tuple[str, Converter, Callable[[Converter], Rule]]
"""(name and overload, "add.Tensor"; converter; what it does to complex numbers, if it takes them:
see `ekiden.frontend.torch.complex`): the name alone for all overloads."""


def target_name(target: object) -> str:
    """`aten.add.Tensor`, `getitem`, `cond`."""
    if isinstance(target, str):
        return target
    text = str(target)
    return str(getattr(target, "__name__", text)) if text.startswith("<") else text


def describe(node: torch.fx.Node) -> str:
    """`aten.relu.default 'relu_1'`, with the line of the user's program where it is known."""
    place = source(node)
    return f"{target_name(node.target)} '{node.name}'" + (f" ({place})" if place else "")


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n?\s*([^\n]*)')
_OURS = ("torch/", "<eval_with_key>", "<frozen", os.path.dirname(torch.__file__) + os.sep)


def source(node: torch.fx.Node) -> str:
    """`model.py:12: y = x.relu()`, the innermost line outside of PyTorch that made a node."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    mine = [f for f in frames if not f[0].startswith(_OURS)]
    if not mine:
        return ""
    file, line, code = mine[-1]
    return shown(file, line, code)


class Node(common.Node):
    """What a converter is given."""

    def __init__(
        self,
        fx: torch.fx.Node,
        inputs: Sequence[Value | None],
        scope: Scope,
        symbols: Symbols,
        output_names: Sequence[str],
        graph: object = None,
    ) -> None:
        """`graph` is the one that the node stands in."""
        super().__init__(describe(fx), inputs, scope, output_names)
        self.fx, self.symbols, self.graph = fx, symbols, graph

    # What PyTorch says of the outputs.

    @property
    def meta(self) -> object:
        """The outputs as PyTorch inferred them: fake tensors, numbers, lists of such."""
        return self.fx.meta.get("val")

    @property
    def out_dtype(self) -> str:
        """The dtype of the (first) output; of complex numbers that of a part."""
        found = self._first.dtype
        return from_torch_dtype(PARTS.get(found, found))

    @property
    def is_complex(self) -> bool:
        """Whether the (first) output is of complex numbers."""
        return self._first.dtype in PARTS

    @property
    def part_dtype(self) -> str:
        """The dtype of a part of the complex numbers that it gives, or else that it takes."""
        metas = [self._first, *(n.meta.get("val") for n in self.fx.all_input_nodes)]
        found = [m.dtype for m in metas if isinstance(m, torch.Tensor) and m.dtype in PARTS]
        return from_torch_dtype(PARTS[found[0]]) if found else self.out_dtype

    @property
    def _first(self) -> torch.Tensor:
        found = self.meta[0] if isinstance(self.meta, (list, tuple)) else self.meta
        assert isinstance(found, torch.Tensor), f"{self.name} gives no tensor"
        return found

    @property
    def out_shape(self) -> tuple[PrimExpr, ...]:
        """The shape of the (first) output. Raises Unsupported where it is data without a name."""
        return self.symbols.shape(self._first.shape)

    # Arguments.

    def of(self, value: Operand, dtype: str = "") -> Expr:
        """A tensor or number as an expression, of that dtype if one is named."""
        if isinstance(value, Value):
            expr = self.scope.expr(value)
            return expr if dtype in ("", value.type.dtype) else op.cast(expr, dtype)
        if isinstance(value, PrimExpr):
            scalar = self.scope.scalar(value)
            have = self.scope.typed(scalar).dtype
            return scalar if dtype in ("", have) else op.cast(scalar, dtype)
        if not dtype:
            dtype = "bool" if isinstance(value, bool) else ""
            dtype = dtype or ("int64" if isinstance(value, int) else "float32")
        return const(_wrapped(value, dtype), dtype)

    def promoted(self, *values: Operand) -> str:
        """The dtype in which PyTorch computes with these together."""
        return common_dtype(values)

    def size(self, value: object) -> Dim:
        """A size of an argument as attributes hold it."""
        if isinstance(value, Value):
            (found,) = self.dims_of(value)
            return found
        return value if isinstance(value, PrimExpr) else int(value)  # type: ignore[call-overload]

    def sizes(self, values: Sequence[object]) -> tuple[Dim, ...]:
        """Sizes of an argument."""
        return as_attr(self.size(v) for v in values)

    def dims_of(self, value: Value) -> tuple[Dim, ...]:
        """The elements of a tensor as dimensions."""
        found = sizes.dims(self.scope, value)
        return self.unsupported("a vector of known length expected") if found is None else found

    def number(self, value: Scalar | None, what: str) -> int | float:
        """An argument that must be a number."""
        if isinstance(value, PrimExpr) or value is None:
            self.unsupported(f"'{what}' must be a number")
        return value

    def static(self, shape: Shape, what: str) -> tuple[int, ...]:
        """A shape whose extents must be constant."""
        numbers = [known(d) for d in shape]
        if None in numbers:
            self.unsupported(f"{what} must have constant extents")
        return tuple(n for n in numbers if n is not None)


def _wrapped(value: float, dtype: str) -> float:
    """A number as an integer dtype holds it, without an error for one that is too large."""
    if is_int(dtype) and dtype in _NUMPY_INTS and not isinstance(value, bool):
        return int(np.array(int(value)).astype(dtype))
    return value


_NUMPY_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _category(value: Operand) -> int:
    """0 for truth values, 1 for integers, 2 for floats."""
    if isinstance(value, Value):
        dtype = value.type.dtype
    elif isinstance(value, PrimExpr):
        dtype = value.dtype
    else:
        return 0 if isinstance(value, bool) else 1 if isinstance(value, int) else 2
    return 0 if dtype == "bool" else 2 if is_float(dtype) else 1


def common_dtype(values: Sequence[Operand]) -> str:
    """PyTorch's promotion: tensors with dimensions decide, then scalars' tensors, then numbers,
    each only where it is of a higher kind.
    """
    tiers: list[list[Operand]] = [[], [], []]
    for each in values:
        is_tensor = isinstance(each, Value)
        tiers[2 if not is_tensor else 0 if each.type.shape else 1].append(each)  # type: ignore[union-attr]
    found, kind = "", -1
    for tier in tiers:
        category = max(map(_category, tier), default=-1)
        if category <= kind:
            continue
        dtypes = {v.type.dtype for v in tier if isinstance(v, Value) and _category(v) == category}
        if dtypes:
            found = _joined(dtypes)
        else:
            found = ("bool", "int64", "float32")[category]
        kind = category
    return found or "float32"


def _joined(dtypes: set[str]) -> str:
    """The dtype that holds all of these, which are of one kind."""
    ours = {ours: theirs for theirs, ours in DTYPES.items()}
    found = None
    for name in dtypes:
        each = ours[name]
        found = each if found is None else torch.promote_types(found, each)
    assert found is not None
    return from_torch_dtype(found)
