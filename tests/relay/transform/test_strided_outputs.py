"""Kernels that write a part of longer rows: what they give without the rows, and nothing beside it,
whatever lay there before; images of known and of symbolic sizes, each family that has such kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from pass_checks import evaluate, main_of

import ekiden
from ekiden import relay
from ekiden.arith import simplify
from ekiden.backend.kernels.build import build_kernels
from ekiden.backend.vm.pipeline import optimize_module
from ekiden.codegen.cache import KernelCache
from ekiden.ir.module import IRModule
from ekiden.ir.op import get
from ekiden.ir.pass_context import PassContext
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, const
from ekiden.ir.prim_visitor import substitute
from ekiden.ir.type import TensorType, tensor_type
from ekiden.relay.expr import Call, Constant, Expr, Function, Var
from ekiden.relay.op.vm import InvokeAttrs
from ekiden.relay.transform import InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.runtime import load_image, tensor
from ekiden.target import Target
from long_runs import share

TARGET = Target.host()
MARGIN = 1024
"""Elements before and behind a result that a kernel must leave alone too."""
Network = Callable[[Expr], Expr]


def weights(*shape: int) -> Constant:
    """Such that results are about as large as the data: small ones would not show what is wrong."""
    result = np.random.default_rng(shape).standard_normal(shape, np.float32)
    return Constant(result / np.float32(np.prod(shape[1:]) ** 0.5))


def conv(
    data: Expr, depth: int, channels: int, size: int, stride: int = 1, groups: int = 1
) -> Expr:
    """A convolution and its activation, two readers of the sums."""
    weight = weights(channels, depth // groups, size, size)
    output = relay.nn.conv2d(
        data, weight, strides=(stride, stride), padding=(size // 2, size // 2), groups=groups,
        channels=channels, kernel_size=(size, size),
    )  # fmt: skip
    return relay.multiply(output, relay.sigmoid(output))


def pooled(x: Expr) -> Expr:
    return relay.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1))


def joined(channels: int, *parts: Expr) -> Expr:
    """A kernel of its own reads the parts, `channels` in all."""
    return conv(relay.concatenate(parts, 1), channels, 16, 1)


NETWORKS: Mapping[str, Network] = {
    "stride": lambda x: joined(80, conv(x, 64, 64, 3, 2), conv(x, 64, 16, 1, 2)),
    "direct": lambda x: joined(96, conv(x, 64, 32, 1), conv(x, 64, 16, 5), conv(x, 64, 48, 1)),
    "winograd": lambda x: joined(96, conv(x, 64, 64, 3), conv(x, 64, 32, 3)),
    "depthwise": lambda x: joined(128, conv(x, 64, 64, 3, 1, 64), conv(x, 64, 64, 5, 1, 64)),
    "pooling": lambda x: joined(96, conv(x, 64, 32, 3, 2), pooled(x)),
}


def network(make: Network, shape: tuple[PrimExpr | int, ...]) -> IRModule:
    x = Var("x", tensor_type(shape))
    return InferType()(IRModule.from_expr(Function([x], make(x))))


def writers(module: IRModule) -> list[Function]:
    """The kernels of a module that write a part of rows."""
    calls = [e for e in evaluation_order(main_of(module).body) if isinstance(e, Call)]
    kernels = [c.args[0] for c in calls if isinstance(c.attrs, InvokeAttrs)]
    return [
        f
        for f in kernels
        if isinstance(f, Function) and isinstance(f.body, Call) and f.body.op is get("vm.part")
    ]


def alone(function: Function) -> Function:
    """The kernel of the part without the rows."""
    assert isinstance(function.body, Call)
    return Function(function.params, function.body.args[0], None, (), function.attrs)


def extents(expr: Expr, sizes: Mapping[PrimExpr, PrimExpr]) -> tuple[int, ...]:
    """The shape of a tensor where the symbols have these values."""
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    result = [simplify(substitute(d, dict(sizes))) for d in kind.shape]
    assert all(isinstance(d, IntImm) for d in result)
    return tuple(d.value for d in result if isinstance(d, IntImm))


def assert_writes_its_part(module: IRModule, shape: tuple[int, ...]) -> None:
    """Each kernel of a part gives in rows what it gives without, and leaves all else. None may
    replace what it reads, whose rows are others."""
    output = optimize_module(module, TARGET)
    functions = writers(output)
    assert len(functions) >= 2
    kernels = build_kernels([*functions, *map(alone, functions)], TARGET, cache=KernelCache(None))
    assert [f.in_place for f in kernels.facts[: len(functions)]] == [()] * len(functions)
    image = load_image(kernels.link(TARGET))
    kind = main_of(output).params[0].checked_type
    assert isinstance(kind, TensorType)
    sizes = {d: const(n) for d, n in zip(kind.shape, shape, strict=True) if isinstance(d, SizeVar)}
    random = np.random.default_rng(0)
    plain_names = kernels.names[len(functions) :]
    for function, name, plain in zip(functions, kernels.names, plain_names, strict=False):
        assert isinstance(function.body, Call)
        args = [random.standard_normal(extents(p, sizes), np.float32) for p in function.params]
        expected = np.full(extents(function.body.args[0], sizes), np.nan, np.float32)
        image[plain](*map(tensor, args), tensor(expected))
        rows = extents(function.body, sizes)
        own = expected.shape[-1]
        for before in (np.float32(77), np.float32("nan")):
            memory = np.full(int(np.prod(rows)) + 2 * MARGIN, before)
            result = memory[MARGIN:-MARGIN].reshape(rows)
            image[name](*map(tensor, args), tensor(result))
            np.testing.assert_allclose(result[..., :own], expected, rtol=1e-4, atol=1e-4)
            result[..., :own] = before
            np.testing.assert_array_equal(memory, np.full_like(memory, before))


@share(4)
@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "symbolic"])
@pytest.mark.parametrize("name", NETWORKS)
def test_kernel_writes_its_part_alone(name: str, symbolic: bool) -> None:
    shape = (2, 64, 13, 10)
    argument = (SizeVar("n"), 64, SizeVar("h"), SizeVar("w")) if symbolic else shape
    assert_writes_its_part(network(NETWORKS[name], argument), shape)


@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "symbolic"])
def test_product_and_a_copy_write_their_parts_alone(symbolic: bool) -> None:
    def beside(x: Expr) -> Expr:
        return relay.concatenate([relay.nn.dense(x, weights(96, 64)), x], 1)

    argument = (SizeVar("n"), 64) if symbolic else (37, 64)
    assert_writes_its_part(network(beside, argument), (37, 64))


@pytest.mark.parametrize("family", ["conv_nhwc_pack", "dense_pack"])
def test_partial_sums_use_strided_output_rows(family: str) -> None:
    """Blocks of k leave what they have summed in the result, and take it up again."""
    shape = (2, 512, 5, 6) if family == "conv_nhwc_pack" else (37, 512)

    def halves(x: Expr) -> Expr:
        if len(shape) == 4:
            return joined(512, conv(x, 512, 192, 1), conv(x, 512, 320, 1))
        return relay.concatenate([relay.nn.dense(x, weights(n, 512)) for n in (32, 48)], 1)

    with PassContext(config={"kernels.decisions": {family: {"k_block": 256}}}):
        assert_writes_its_part(network(halves, shape), shape)


def test_sums_of_one_sequence_of_any_length_wait_in_the_result() -> None:
    length = SizeVar("n")
    x, y = (relay.var(n, shape=(1, length, 512), dtype="float32") for n in "xy")
    body = relay.add(y, relay.nn.dense(x, weights(512, 512)))
    module = ekiden.IRModule.from_expr(relay.Function([x, y], body))
    with PassContext(config={"kernels.decisions": {"dense_pack": {"k_block": 256}}}):
        exe = ekiden.compile(module, num_threads=1)
    inputs = [np.random.default_rng(i).standard_normal((1, 9, 512), np.float32) for i in range(2)]
    (expected,) = evaluate(module, inputs)
    np.testing.assert_allclose(np.asarray(exe(*inputs)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_images_of_any_size_through_joined_strides(threads: int) -> None:
    """The necks of detectors: an earlier result joined behind a convolution of stride 2, whose
    height is `(h + 1) // 2` in one and a dimension of its own in the other."""

    def neck(x: Expr) -> Expr:
        early = conv(x, 32, 64, 3, 2)
        late = conv(conv(relay.nn.relu(x), 32, 32, 3), 32, 32, 3, 2)
        return conv(relay.concatenate([late, early], 1), 96, 32, 1)

    module = network(neck, (SizeVar("n"), 32, SizeVar("h"), SizeVar("w")))
    exe = ekiden.compile(module, num_threads=threads)
    for shape in ((2, 32, 6, 4), (1, 32, 9, 7), (2, 32, 6, 4)):
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        (expected,) = evaluate(module, [x])
        np.testing.assert_allclose(np.asarray(exe(x)), expected, rtol=1e-3, atol=1e-4)
