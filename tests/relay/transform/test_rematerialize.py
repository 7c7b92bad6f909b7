"""Rematerialize: cheap kernels are duplicated into their users where that saves memory traffic."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import Array, assert_same_meaning, calls, check, program

import ekiden
from ekiden.ir.module import IRModule
from ekiden.relay.analysis import verify
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform import FuseOps, InferType, Rematerialize
from ekiden.relay.transform.language.scope_tree import evaluation_order


def kernels(module: IRModule) -> int:
    """Calls of primitive functions after fusion."""
    result = evaluation_order(FuseOps()(InferType()(module))["main"].body)
    return sum(isinstance(e, Call) and isinstance(e.op, Function) for e in result)


def random(*shape: int, dtype: str = "float32") -> Array:
    return (10 * np.random.default_rng(sum(shape)).random(shape)).astype(dtype)


def test_cast_is_repeated() -> None:
    check(
        Rematerialize(),
        """def @main(%x: Tensor[(n, 8), uint8], %y: Tensor[(n, 8), float32]) {
          %0 = cast(%x, dtype="float32");
          (multiply(%0, %y), sum(%0, axis=[1])) }""",
        """def @main(%x: Tensor[(n, 8), uint8], %y: Tensor[(n, 8), float32]) {
          (multiply(cast(%x, dtype="float32"), %y), sum(cast(%x, dtype="float32"), axis=[1])) }""",
    )


MASK = """def @main(%m: Tensor[(3, 5, 1), int64], %x: Tensor[(3, 5, 8), float32]) {
  %0 = cast(broadcast_to(%m, shape=[3, 5, 8]), dtype="float32");
  divide(sum(multiply(%x, %0), axis=[1]), sum(%0, axis=[1])) }"""
NORM = """def @main(%x: Tensor[(4, 64), float32]) {
  %0 = subtract(%x, mean(%x, axis=[1], keepdims=True));
  divide(%0, sqrt(add(mean(multiply(%0, %0), axis=[1], keepdims=True), 1f))) }"""
FULL = """def @main(%x: Tensor[(4, 6), float32]) {
  %0 = full(1f, shape=[4, 6], dtype="float32");
  (add(%x, strided_slice(%0, begin=[0, 0], end=[1, 6])), multiply(%x, %0)) }"""


@pytest.mark.parametrize(
    ("text", "before", "after"), [(MASK, 4, 3), (NORM, 4, 3), (FULL, 3, 2)]
)  # fmt: skip
def test_rematerialization_reduces_kernels(text: str, before: int, after: int) -> None:
    module = program(text)
    transformed = Rematerialize()(module)
    verify(transformed)
    assert (kernels(module), kernels(transformed)) == (before, after)
    dtypes = [p.checked_type for p in module["main"].params]
    inputs = [random(*(int(str(d)) for d in t.shape), dtype=t.dtype) for t in dtypes]
    assert_same_meaning(module, InferType()(transformed), inputs)
    interpreted = ekiden.compile(module)(*inputs)
    with ekiden.transform.PassContext(disabled_pass=["Rematerialize"]):
        kept = ekiden.compile(module)(*inputs)
    pair = [x if isinstance(x, (tuple, list)) else [x] for x in (interpreted, kept)]
    for again, once in zip(*pair, strict=True):
        np.testing.assert_allclose(again.numpy(), once.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "%0 = exp(%x); (sum(%0, axis=[0]), multiply(%0, %y))",  # costly
        "%0 = add(%x, %y); (sum(%0, axis=[0]), max(%0, axis=[1]), min(%0))",  # reads as much
        "%0 = nn.relu(%x); (nn.dense(%0, %y), sum(%0))",  # a dense layer holds none
        "%0 = nn.relu(%x); (reshape(%0, newshape=[48]), sum(%0))",  # nor does a view
        "%0 = nn.relu(%x); (%0, sum(%0))",  # the result is asked for
        "%0 = negative(max(%x, axis=[1], keepdims=True)); (add(%0, %y), sum(%0))",  # a larger user
        "sum(nn.relu(%x))",  # one user
    ],
)
def test_expensive_kernels_are_not_repeated(body: str) -> None:
    module = program(
        f"""def @main(%x: Tensor[(6, 8), float32], %y: Tensor[(6, 8), float32]) {{
          {body} }}"""
    )
    assert calls(Rematerialize()(module)) == calls(module)


def test_long_chains() -> None:
    x = ekiden.relay.var("x", shape=(4,), dtype="uint8")
    body: ekiden.relay.Expr = x
    for _ in range(3000):
        wide = ekiden.relay.cast(body, "float32")
        total = ekiden.relay.sum(wide, axis=[0], keepdims=True)
        body = ekiden.relay.cast(ekiden.relay.subtract(wide, total), "uint8")
    module = InferType()(IRModule.from_expr(Function([x], body)))
    assert 4 * 3000 < len(calls(Rematerialize()(module))) < 6 * 3000  # every second link
