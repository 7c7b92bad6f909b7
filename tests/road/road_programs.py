"""Random Relay programs for tests, and comparing their compiled form with the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

import ekiden
from ekiden import relay
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.relay import op
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.values import ConstructorValue

Array = np.ndarray[Any, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
_T = TypeVar("_T")


def flatten(value: object) -> list[Array]:
    """The tensors of a result in order; a constructor's tag stands before its fields, unless it is
    0, the tag of tuples.
    """
    found: list[Array] = []
    work = [value]
    while work:
        at = work.pop()
        if isinstance(at, ConstructorValue):
            found += [np.asarray(at.tag)] if at.tag else []
            work.extend(reversed(at.fields))
        elif isinstance(at, tuple):
            if isinstance(at, ekiden.runtime.ADT) and at.tag:
                found.append(np.asarray(at.tag))
            work.extend(reversed(at))
        else:
            found.append(np.asarray(at))
    return found


def agree(found: object, wanted: object, rtol: float = 1e-4) -> None:
    """Same structure, shapes and dtypes; values to within `rtol` and 1e-5 of the range."""
    ours, theirs = flatten(found), flatten(wanted)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        finite = np.abs(b[np.isfinite(b)])
        span = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6 + 1e-5 * span)


def equal(found: object, wanted: object) -> None:
    """Same structure, shapes, dtypes and bits."""
    for a, b in zip(flatten(found), flatten(wanted), strict=True):
        assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


def check(module: relay.IRModule | relay.Function, *runs: Sequence[Array]) -> None:
    """The compiled program gives what the interpreter gives, on each list of arguments, and its
    native code what its bytecode gives.
    """
    if isinstance(module, relay.Function):
        module = relay.IRModule.from_expr(module)
    exe, native = ekiden.compile(module), ekiden.compile(module, executor="aot")
    for args in runs:
        found = exe(*args)
        agree(found, Interpreter(module).evaluate("main", *args))
        equal(native(*args), found)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@dataclass
class Builder:
    """Grows one function; every value made so far may be used again."""

    draw: Draw
    symbols: dict[SizeVar, int] = field(default_factory=dict)
    params: list[relay.Var] = field(default_factory=list)
    values: list[relay.Expr] = field(default_factory=list)

    def pick(self, choices: Sequence[_T]) -> _T:
        found: _T = self.draw(st.sampled_from(choices))
        return found

    def dim(self) -> PrimExpr | int:
        """A number or a symbol, often one that is there already."""
        kind = self.draw(st.integers(0, 3))
        if kind == 0 and self.symbols:
            return self.pick(list(self.symbols))
        if kind == 1 and len(self.symbols) < 3:
            new = SizeVar(f"n{len(self.symbols)}", "int64")
            self.symbols[new] = self.pick([0, 1, 2, 3, 5, 8, 17, 33])
            return new
        return int(self.pick([1, 2, 3, 4, 7, 16, 19, 64, 0]))

    def param(self, shape: Sequence[PrimExpr | int] | None = None) -> relay.Var:
        rank = self.draw(st.integers(0, 4))
        dims = [self.dim() for _ in range(rank)] if shape is None else list(shape)
        made = relay.var(f"x{len(self.params)}", relay.tensor_type(dims))
        self.params.append(made)
        self.values.append(made)
        return made

    def arrays(self, seed: int) -> list[Array]:
        """Arguments for the parameters, with the symbols' present values."""
        return [normal(*self.concrete(p), seed=seed + i) for i, p in enumerate(self.params)]

    def concrete(self, value: relay.Expr) -> tuple[int, ...]:
        return tuple(
            d.value if isinstance(d, IntImm) else ekiden.arith.evaluate(d, dict(self.symbols))
            for d in shape_of(value)
        )

    def step(self) -> relay.Expr:
        """One more value, made by a random operator from those there are."""
        made = self.pick(STEPS)(self, self.pick(self.values))
        self.values.append(made)
        return made


def shape_of(value: relay.Expr) -> tuple[PrimExpr, ...]:
    kind = relay.infer_expr_type(value)
    assert isinstance(kind, relay.TensorType)
    return kind.shape


def unary(b: Builder, x: relay.Expr) -> relay.Expr:
    return b.pick([op.tanh, op.sigmoid, op.negative, op.abs, op.nn.relu, op.erf])(x)


def binary(b: Builder, x: relay.Expr) -> relay.Expr:
    """With itself, another of the same shape, a number, or a new parameter that broadcasts."""
    combine = b.pick([op.add, op.subtract, op.multiply, op.maximum, op.minimum])
    shape = shape_of(x)
    kind = b.draw(st.integers(0, 3))
    if kind == 0:
        return combine(x, relay.const(b.pick([0.5, -2.0])))
    if kind == 1:
        same = [v for v in b.values if tuple(map(str, shape_of(v))) == tuple(map(str, shape))]
        return combine(x, b.pick(same))
    keep = [b.draw(st.booleans()) for _ in shape]
    other = [d if k else 1 for d, k in zip(shape, keep, strict=True)]
    if any(not isinstance(d, (int, IntImm, SizeVar)) for d in other):
        return combine(x, x)
    return combine(b.param(other[b.draw(st.integers(0, len(other))) :]), x)


def reduction(b: Builder, x: relay.Expr) -> relay.Expr:
    rank = len(shape_of(x))
    if not rank:
        return op.sqrt(op.abs(x))
    axes = b.draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
    return b.pick([op.sum, op.mean])(x, axis=axes, keepdims=b.draw(st.booleans()))


def transpose(b: Builder, x: relay.Expr) -> relay.Expr:
    return op.transpose(x, b.draw(st.permutations(range(len(shape_of(x))))))


def reshape(b: Builder, x: relay.Expr) -> relay.Expr:
    """Join two neighbouring dimensions, or make one more."""
    shape = list(shape_of(x))
    if len(shape) >= 2 and b.draw(st.booleans()):
        at = b.draw(st.integers(0, len(shape) - 2))
        return op.reshape(x, [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]], True)
    return op.expand_dims(x, b.draw(st.integers(0, len(shape)))) if len(shape) < 5 else x


def concatenate(b: Builder, x: relay.Expr) -> relay.Expr:
    rank = len(shape_of(x))
    if not rank:
        return op.stack([x, op.negative(x)], 0)
    return op.concatenate([x, op.exp(op.negative(op.abs(x))), x], b.draw(st.integers(0, rank - 1)))


def softmax(b: Builder, x: relay.Expr) -> relay.Expr:
    rank = len(shape_of(x))
    return op.nn.softmax(x, b.draw(st.integers(0, rank - 1))) if rank else op.cos(x)


def dense(b: Builder, x: relay.Expr) -> relay.Expr:
    """With a constant weight over a last dimension that is a number."""
    shape = shape_of(x)
    if not shape or not isinstance(shape[-1], IntImm):
        return op.tanh(x)
    weight = normal(b.pick([1, 3, 16, 37]), shape[-1].value, seed=7)
    return op.nn.dense(x, relay.const(weight))


def image(b: Builder, x: relay.Expr) -> relay.Expr:
    """A convolution or a pool where there are four dimensions with known channels."""
    shape = shape_of(x)
    if len(shape) != 4 or not isinstance(shape[1], IntImm) or shape[1].value == 0:
        return op.nn.relu(x)
    if b.draw(st.booleans()):
        weight = normal(b.pick([1, 5, 16]), shape[1].value, 3, 3, seed=9)
        return op.nn.conv2d(x, relay.const(weight), padding=1)
    return op.nn.max_pool2d(x, pool_size=(3, 3), strides=(1, 1), padding=(1, 1))


def slices(b: Builder, x: relay.Expr) -> relay.Expr:
    """Every second row of the first dimension."""
    if not shape_of(x):
        return op.add(x, x)
    return op.strided_slice(x, begin=[0], end=[shape_of(x)[0]], strides=[2], axes=[0])


STEPS = (unary, binary, binary, reduction, transpose, reshape, concatenate, softmax, dense, image,
         slices)  # fmt: skip
