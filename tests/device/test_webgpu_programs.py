"""WGSL programs, run through the package wgpu: results, and what WGSL cannot express."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import test_gpu_kernel_families as families

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.runtime import Device, cpu
from ekiden.runtime.errors import CompileError, DeviceError, IndexRangeError
from ekiden.target import Target

numbers = families.numbers
OF_64_BITS = {
    "gather": "WGSL keeps float32, int32, uint32 in memory: .* has int64",
    "scatter_add": "WGSL keeps float32, int32, uint32 in memory: .* has int64",
    "sort": "WGSL has no integers of 64 bits: left_shift of int64",
    "types": "WGSL keeps float32, int32, uint32 in memory: .* has float64",
}
"""Families that are given, or compute with, numbers of 64 bits, and what is said of each."""


def compiled(module: IRModule) -> ekiden.Executable:
    return ekiden.compile(module, "webgpu")


@pytest.mark.parametrize(("name", "shared"), families.SHARED + families.OTHERS)
def test_webgpu_kernel_families_match_numpy(webgpu: Device, name: str, shared: int | None) -> None:
    assert webgpu.exist
    if name in OF_64_BITS:
        with pytest.raises(CompileError, match=OF_64_BITS[name]):
            families.check(name, Target("webgpu"), shared)
    else:
        families.check(name, Target("webgpu"), shared)


def test_network_saved_and_loaded(webgpu: Device, tmp_path: Path) -> None:
    x = relay.var("x", shape=(2, 3, 9, 7))
    y = relay.nn.conv2d(x, relay.const(numbers(5, 3, 3, 3)), padding=(1, 1), kernel_size=(3, 3))
    y = relay.nn.dense(relay.nn.batch_flatten(relay.nn.relu(y)), relay.const(numbers(11, 315)))
    module, data = IRModule.from_expr(relay.Function([x], y)), numbers(2, 3, 9, 7)
    exe = compiled(module)
    result = exe(data)
    assert result.device == webgpu
    np.testing.assert_allclose(result.numpy(), ekiden.compile(module)(data).numpy(), rtol=1e-4)
    exe.save(tmp_path / "model.eki")
    again = ekiden.load(tmp_path / "model.eki")(data)
    np.testing.assert_array_equal(again.numpy(), result.numpy())


def test_runtime_sizes(webgpu: Device) -> None:
    x = relay.var("x", shape=(relay.Any(), relay.Any()))
    module = IRModule.from_expr(relay.Function([x], relay.sum(relay.exp(x), axis=1)))
    exe = ekiden.compile(module, {webgpu: "webgpu"})
    for rows, columns in ((1, 1), (3, 300), (257, 5), (0, 4)):
        data = numbers(rows, columns)
        np.testing.assert_allclose(exe(data).numpy(), np.exp(data).sum(1), rtol=1e-4)


@pytest.mark.parametrize("op", ["tanh", "erf", "log", "sqrt", "sigmoid", "round", "floor", "exp"])
def test_webgpu_elementwise_functions_match_numpy(webgpu: Device, op: str) -> None:
    x = relay.var("x", shape=(1003,))
    module = IRModule.from_expr(relay.Function([x], getattr(relay, op)(x)))
    assert webgpu.exist
    data = np.concatenate([numbers(1000) * 3, np.array([0.5, 1.5, 2.5], "float32")])
    data = np.abs(data) if op in ("log", "sqrt") else data
    expected = ekiden.compile(module)(data).numpy()
    np.testing.assert_allclose(compiled(module)(data).numpy(), expected, rtol=3e-5, atol=1e-6)


def test_integers_wrap_and_divide_down(webgpu: Device) -> None:
    x, y = (relay.var(n, shape=(6,), dtype="int32") for n in "xy")
    both = relay.floor_divide(x, y), relay.floor_mod(x, y), x * relay.const(65537) + y
    module = IRModule.from_expr(relay.Function([x, y], relay.Tuple(both)))
    assert webgpu.exist
    data = np.array([7, -7, 7, -7, 2**31 - 1, -(2**31)], "int32")
    by = np.array([2, 2, -2, -2, 3, 5], "int32")
    pairs = zip(compiled(module)(data, by), ekiden.compile(module)(data, by), strict=True)
    for actual, expected in pairs:
        np.testing.assert_array_equal(actual.numpy(), expected.numpy())


def test_indices_are_checked(webgpu: Device) -> None:
    data, index = relay.var("x", shape=(5, 2)), relay.var("i", shape=(4,), dtype="int32")
    body = relay.take(data, index, axis=0, mode="raise")
    module = IRModule.from_expr(relay.Function([data, index], body))
    exe, x = compiled(module), numbers(5, 2)
    assert webgpu.exist
    good = np.array([4, 0, -5, 1], "int32")
    np.testing.assert_array_equal(exe(x, good).numpy(), x[good])
    messages = []
    for item in (exe, ekiden.compile(module)):
        with pytest.raises(IndexRangeError) as raised:
            item(x, np.array([0, 7, 1, -9], "int32"))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_grid_longer_than_a_dimension(webgpu: Device) -> None:
    """More blocks than a launch may have along one axis are folded."""
    n = 256 * 65535 + 1000  # no smaller one does
    x = relay.var("x", shape=(n,))
    module = IRModule.from_expr(relay.Function([x], relay.negative(x)))
    assert webgpu.exist
    data = np.arange(n, dtype="float32")
    np.testing.assert_array_equal(compiled(module)(data).numpy(), -data)


def test_one_program_over_two_devices(webgpu: Device) -> None:
    x, w = relay.var("x", shape=(4, 6)), numbers(5, 6)
    inside = relay.annotation.on_device(relay.nn.dense(x, relay.const(w)), webgpu)
    outside = relay.annotation.on_device(relay.nn.relu(inside), cpu(0))
    branch = relay.If(relay.sum(outside) > relay.const(1.0), outside, relay.negative(outside))
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x], branch)), [cpu(0), webgpu])
    for scale in (1.0, 0.01):
        data = numbers(4, 6) * np.float32(scale)
        y = np.maximum(data @ w.T, 0)
        expected = y if y.sum() > 1 else -y
        np.testing.assert_allclose(exe(data).numpy(), expected, rtol=1e-4, atol=1e-6)
    assert exe.disassemble().count("device_copy") == 1


def test_what_is_refused_runs_on_the_host_that_is_compiled_for_too(
    webgpu: Device, tmp_path: Path
) -> None:
    x, index = relay.var("x", shape=(6, 8)), relay.var("i", shape=(4,), dtype="int64")
    rows = relay.take(relay.exp(x), index, axis=0)
    module = IRModule.from_expr(relay.Function([x, index], relay.argmax(relay.log(rows), axis=1)))
    with pytest.raises(CompileError, match="webgpu"):
        compiled(module)
    exe = ekiden.compile(module, ["webgpu", "llvm"])
    assert webgpu.exist and exe.disassemble().count("device_copy") == 3
    data, at = numbers(6, 8), np.array([5, 0, 2, 2])
    result = exe(data, at).numpy()
    np.testing.assert_array_equal(result, data[at].argmax(1))


@pytest.mark.parametrize("dtype", ["float64", "int64", "int8", "uint8", "bool", "float16"])
def test_unsupported_webgpu_dtypes_are_named(dtype: str) -> None:
    x = relay.var("x", shape=(3, 4), dtype=dtype)
    module = IRModule.from_expr(relay.Function([x], relay.transpose(x)))
    with pytest.raises(CompileError, match=f"webgpu.*WGSL keeps .* has {dtype}"):
        ekiden.compile(module, "webgpu")


def test_missing_webgpu_driver_is_reported() -> None:
    x = relay.var("x", shape=(8,))
    module = IRModule.from_expr(relay.Function([x], relay.exp(x)))
    exe = ekiden.compile(module, {"webgpu": "webgpu"})
    if not ekiden.webgpu(0).exist:
        with pytest.raises(DeviceError, match="libekiden_webgpu"):
            exe(numbers(8))
