"""Tensor operators over parameters of several ranks and sizes, drawn step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from choices import Choices

import ekiden
from comparison import Array
from ekiden import relay
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.relay import op

MAX_ELEMENTS = 4096
"""Elements of a parameter at most: the interpreter computes each operator in NumPy."""
MAX_SYMBOL = 33


def normal(*shape: int, seed: int = 0) -> Array:
    """Return float32 numbers of a normal distribution."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@dataclass
class TensorSteps:
    """Grows a graph of operators; every value may be used again.

    With `has_symbols` dimensions may be symbols, otherwise all are numbers.
    """

    choices: Choices
    has_symbols: bool
    symbols: dict[SizeVar, int] = field(default_factory=dict)
    params: list[relay.Var] = field(default_factory=list)
    values: list[relay.Expr] = field(default_factory=list)

    def dim(self) -> PrimExpr | int:
        """Draw a number or a symbol, often one that is used already."""
        kind = self.choices.integer(0, 3) if self.has_symbols else 0
        if kind == 3 and self.symbols:
            return self.choices.pick(list(self.symbols))
        if kind == 2 and len(self.symbols) < 3:
            symbol = SizeVar(f"n{len(self.symbols)}", "int64")
            self.symbols[symbol] = self.choices.pick([1, 0, 2, 3, 5, 8, 17, 33])
            return symbol
        return int(self.choices.pick([1, 2, 3, 4, 7, 16, 19, 64, 0]))

    def param(self, shape: Sequence[PrimExpr | int] | None = None) -> relay.Var:
        """Add a parameter, of any shape where none is given."""
        rank = self.choices.integer(0, 4)
        dims = [self.dim() for _ in range(rank)] if shape is None else list(shape)
        elements = prod(d if isinstance(d, int) else MAX_SYMBOL for d in dims)
        if shape is None and elements > MAX_ELEMENTS:
            dims = [d if isinstance(d, int) and d <= 4 else 3 for d in dims]
        parameter = relay.var(f"x{len(self.params)}", relay.tensor_type(dims))
        self.params.append(parameter)
        self.values.append(parameter)
        return parameter

    def arrays(self, seed: int) -> list[Array]:
        """Return arguments for the parameters, with the symbols' present values."""
        return [normal(*self.concrete(p), seed=seed + i) for i, p in enumerate(self.params)]

    def concrete(self, value: relay.Expr) -> tuple[int, ...]:
        """Return the shape of a value with the symbols' present values."""
        return tuple(
            d.value if isinstance(d, IntImm) else ekiden.arith.evaluate(d, dict(self.symbols))
            for d in shape_of(value)
        )

    def step(self) -> relay.Expr:
        """Add the result of an operator over earlier values."""
        value = self.choices.pick(STEPS)(self, self.choices.pick(self.values))
        self.values.append(value)
        return value


def shape_of(value: relay.Expr) -> tuple[PrimExpr, ...]:
    kind = relay.infer_expr_type(value)
    assert isinstance(kind, relay.TensorType)
    return kind.shape


def unary(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    return b.choices.pick([op.tanh, op.sigmoid, op.negative, op.abs, op.nn.relu, op.erf])(x)


def binary(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    """With itself, another of the same shape, a number, or a new parameter that broadcasts."""
    combine = b.choices.pick([op.add, op.subtract, op.multiply, op.maximum, op.minimum])
    shape = shape_of(x)
    kind = b.choices.integer(0, 3)
    if kind == 0:
        return combine(x, relay.const(b.choices.pick([0.5, -2.0])))
    if kind == 1:
        same = [v for v in b.values if tuple(map(str, shape_of(v))) == tuple(map(str, shape))]
        return combine(x, b.choices.pick(same))
    keep = [b.choices.chance(2) for _ in shape]
    other = [d if k else 1 for d, k in zip(shape, keep, strict=True)]
    if any(not isinstance(d, (int, IntImm, SizeVar)) for d in other):
        return combine(x, x)
    return combine(b.param(other[b.choices.integer(0, len(other)) :]), x)


def reduction(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    rank = len(shape_of(x))
    if not rank:
        return op.sqrt(op.abs(x))
    axes = b.choices.some(range(rank)) or [b.choices.integer(0, rank - 1)]
    return b.choices.pick([op.sum, op.mean])(x, axis=axes, keepdims=b.choices.chance(2))


def transpose(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    return op.transpose(x, b.choices.order(len(shape_of(x))))


def reshape(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    """Join two neighbouring dimensions, or make one more."""
    shape = list(shape_of(x))
    if len(shape) >= 2 and b.choices.chance(2):
        at = b.choices.integer(0, len(shape) - 2)
        return op.reshape(x, [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]], True)
    return op.expand_dims(x, b.choices.integer(0, len(shape))) if len(shape) < 5 else x


def concatenate(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    rank = len(shape_of(x))
    if not rank:
        return op.stack([x, op.negative(x)], 0)
    return op.concatenate([x, op.exp(op.negative(op.abs(x))), x], b.choices.integer(0, rank - 1))


def softmax(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    rank = len(shape_of(x))
    return op.nn.softmax(x, b.choices.integer(0, rank - 1)) if rank else op.cos(x)


def dense(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    """With a constant weight over a last dimension that is a number."""
    shape = shape_of(x)
    if not shape or not isinstance(shape[-1], IntImm):
        return op.tanh(x)
    weight = normal(b.choices.pick([1, 3, 16, 37]), shape[-1].value, seed=7)
    return op.nn.dense(x, relay.const(weight))


def image(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    """A convolution or a pool where there are four dimensions with known channels."""
    shape = shape_of(x)
    if len(shape) != 4 or not isinstance(shape[1], IntImm) or shape[1].value == 0:
        return op.nn.relu(x)
    if b.choices.chance(2):
        weight = normal(b.choices.pick([1, 5, 16]), shape[1].value, 3, 3, seed=9)
        return op.nn.conv2d(x, relay.const(weight), padding=1)
    return op.nn.max_pool2d(x, pool_size=(3, 3), strides=(1, 1), padding=(1, 1))


def scaled_product(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    """A product over its range, as dynamic quantisation scales it, where there is any element."""
    product = b.choices.pick([dense, image])(b, x)
    if not all(isinstance(d, IntImm) and d.value for d in shape_of(product)):
        return product
    low, high = op.min(product), op.max(product)
    return op.divide(op.subtract(product, low), op.add(op.subtract(high, low), relay.const(1.0)))


def slices(b: TensorSteps, x: relay.Expr) -> relay.Expr:
    """Every second row of the first dimension."""
    if not shape_of(x):
        return op.add(x, x)
    return op.strided_slice(x, begin=[0], end=[shape_of(x)[0]], strides=[2], axes=[0])


STEPS = (unary, binary, binary, reduction, transpose, reshape, concatenate, softmax, dense, image,
         scaled_product, slices)  # fmt: skip
