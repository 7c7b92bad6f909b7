"""oneDNN regions: fused epilogues, dynamic sizes, damaged code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ekiden
from ekiden import byoc, relay, runtime
from ekiden.byoc import backend
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.runtime.devices.engines import engine_folder, missing_engine_message
from ekiden.runtime.errors import LoadError

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(
        bool(missing_engine_message("onednn")), reason="needs oneDNN: pip install ekiden[onednn]"
    ),
]

Array = np.ndarray[Any, Any]


def network(groups: int, shared: bool) -> IRModule:
    """A convolution with bias and relu, pooling, and a classifier; `shared`: what the convolution
    gives has another use, so that nothing may be joined to it."""
    rng = np.random.default_rng(0)

    def const(*shape: int) -> relay.Constant:
        return relay.const(rng.integers(-3, 4, shape).astype(np.float32))

    x = relay.var("x", shape=(SizeVar("n"), 4, 9, 9))
    conv = relay.nn.conv2d(
        x, const(8, 4 // groups, 3, 3), strides=(2, 1), padding=(1, 0, 2, 1), groups=groups
    )
    active = relay.nn.relu(relay.nn.bias_add(conv, const(8)))
    pooled = relay.nn.max_pool2d(active, pool_size=(3, 2), strides=(2, 2), padding=(1, 0, 1, 0))
    scaled = relay.multiply(pooled, const(8, 1, 1))
    result = relay.Tuple([scaled, conv]) if shared else scaled
    return IRModule.from_expr(relay.Function([x], result))


def outputs(exe: ekiden.Executable, x: Array) -> list[Array]:
    argument = exe(x)
    return [item.numpy() for item in (argument if isinstance(argument, tuple) else (argument,))]


@pytest.mark.parametrize(("groups", "shared"), [(1, False), (2, False), (4, True)])
def test_network_runs_with_changing_batch(groups: int, shared: bool) -> None:
    module = network(groups, shared)
    result = byoc.partition(module, "onednn")
    assert sum(f.attr("Compiler") is not None for f in result.functions.values()) == 1  # type: ignore[attr-defined]  # functions of Relay
    exes = ekiden.compile(result), ekiden.compile(module)
    for rows in (1, 5, 2, 5):
        x = np.random.default_rng(rows).integers(-4, 5, (rows, 4, 9, 9)).astype(np.float32)
        for actual, expected in zip(*(outputs(exe, x) for exe in exes), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_biases_and_relus_are_fused_into_matmuls() -> None:
    """Products and biases are steps of one word less each."""
    rows = ["dense", "bias_add(dense, %b)", "relu(bias_add(dense, %b))"]
    taker = backend._REGISTERED_BACKENDS["onednn"]
    sizes = []
    for row in rows:
        body = row.replace("dense", "nn.dense(%x, %w)").replace("relu", "nn.relu")
        body = body.replace("bias_add", "nn.bias_add")
        module = relay.parse(f"""def @main(%x: Tensor[(2, 3), float32],
            %w: Tensor[(4, 3), float32], %b: Tensor[(4), float32]) {{ {body} }}""")
        functions = byoc.partition(module, "onednn").functions.values()
        (region,) = [f for f in functions if isinstance(f, relay.Function) and f.attr("Compiler")]
        code = taker.compile(region)
        sizes.append(int(np.frombuffer(code, "<i8")[3]))
    assert sizes == [1, 1, 1]


def test_damaged_code_is_refused() -> None:
    """Every prefix, and words of other values."""
    load = runtime.get_global_func("ek.engine.load")
    functions = byoc.partition(network(2, True), "onednn").functions.values()
    (region,) = [f for f in functions if isinstance(f, relay.Function) and f.attr("Compiler")]
    code = backend._REGISTERED_BACKENDS["onednn"].compile(region)
    folder = engine_folder("onednn")
    load("onednn", folder, "whole", code)
    for size in range(0, len(code), 8):
        with pytest.raises(LoadError, match="link executable: 'part': onednn: "):
            load("onednn", folder, "part", code[:size])
    words = np.frombuffer(code, "<i8")
    for at in (0, 2, 3, 4):  # another number of inputs is refused when it runs
        for value in (-1, 2**62, 99):
            changed = words.copy()
            changed[at] = value
            with pytest.raises(LoadError):
                load("onednn", folder, "part", changed.tobytes())
