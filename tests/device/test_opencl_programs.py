"""Programs on OpenCL devices: what they compute, saved and loaded, refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Intrinsic, PrimExpr, Var, const
from ekiden.kernels.gpu.default import build_default_kernels
from ekiden.kernels.gpu.launch import thread_loop
from ekiden.runtime import Device, cpu
from ekiden.runtime.errors import CompileError, IndexRangeError
from ekiden.script import tir as T
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, ramp
from ekiden.tir.stmt import BufferStore, PrimFunc
from long_runs import alike

RNG = np.random.default_rng(3)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def layers() -> IRModule:
    """A convolution and a dense layer."""
    x = relay.var("x", shape=(2, 3, 9, 7))
    y = relay.nn.conv2d(x, relay.const(numbers(5, 3, 3, 3)), padding=(1, 1), kernel_size=(3, 3))
    y = relay.nn.dense(relay.nn.batch_flatten(relay.nn.relu(y)), relay.const(numbers(11, 315)))
    return IRModule.from_expr(relay.Function([x], y))


@pytest.mark.parametrize("host", ["llvm", "c"])
def test_opencl_loop_program_matches_numpy(opencl: Device, host: str) -> None:
    n = te.var("n")
    a = te.placeholder((n,), "float32", name="kernel")  # a word of the language
    b = te.compute((n,), lambda i: te.exp(a[i]) * 2.0 + a[i], name="float4")
    target = Target("opencl", host=host)
    module = ekiden.build(build_default_kernels([a], [b], target, "f"), target)
    assert "__kernel void f_kernel(" in module.get_source("opencl")
    data = numbers(1001)
    x = ekiden.runtime.nd.array(data, opencl)
    y = ekiden.runtime.nd.array(np.zeros_like(data), opencl)
    module["f"](x, y)
    terms = np.exp(data.astype("float64")) * 2, data.astype("float64")
    allowed = 4 * np.finfo("float32").eps * sum(map(np.abs, terms))
    assert (np.abs(y.numpy() - sum(terms)) <= allowed).all()
    with pytest.raises(ValueError, match="must lie on a device of type 4"):
        module["f"](ekiden.runtime.tensor(data), y)


def test_c_host_runs_two_opencl_kernels(opencl: Device) -> None:
    """What is between them lies on the device for as long as the call."""
    x = te.placeholder((70, 1000), "float32", name="x")
    k, j = te.reduce_axis((0, 1000), "k"), te.reduce_axis((0, 70), "j")
    rows = te.compute((70,), lambda i: te.sum(te.exp(x[i, k]), axis=k), name="rows")
    total = te.compute((), lambda: te.sum(rows[j], axis=j), name="total")
    target = Target("opencl", host="c")
    module = ekiden.build(build_default_kernels([x], [total], target, "f"), target)
    data, result = numbers(70, 1000), ekiden.runtime.nd.array(np.zeros((), "float32"), opencl)
    for sign in (1, -1):
        module["f"](ekiden.runtime.nd.array(sign * data, opencl), result)
        np.testing.assert_allclose(result.numpy(), np.exp(sign * data).sum(), rtol=1e-5)


@alike(3)
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_opencl_network_matches_numpy(opencl: Device, executor: str, tmp_path: Path) -> None:
    module, x = layers(), numbers(2, 3, 9, 7)
    expected = ekiden.compile(module)(x).numpy()
    exe = ekiden.compile(module, "opencl", executor=executor)
    actual = exe(x)
    assert actual.device == opencl and exe.raw.devices == [cpu(0), opencl]
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-6 * abs(expected).max())
    exe.save(tmp_path / "model.eki")
    again = ekiden.load(tmp_path / "model.eki")(x)
    np.testing.assert_array_equal(again.numpy(), actual.numpy())


def test_runtime_sizes(opencl: Device) -> None:
    x = relay.var("x", shape=(relay.Any(), relay.Any()))
    y = relay.sum(relay.exp(x), axis=1)
    module = IRModule.from_expr(relay.Function([x], y))
    exe = ekiden.compile(module, {opencl: "opencl"})
    for rows, columns in ((1, 1), (3, 300), (257, 5), (0, 4)):
        data = numbers(rows, columns)
        np.testing.assert_allclose(exe(data).numpy(), np.exp(data).sum(1), rtol=1e-4)


def test_attention_over_runtime_length(tmp_path: Path) -> None:
    """Whole tiles of rows and the rest have one buffer for their scores."""
    length = relay.Any()
    q, k, v = (relay.var(n, shape=(1, 2, length, 8)) for n in "qkv")
    module = IRModule.from_expr(relay.Function([q, k, v], relay.nn.attention(q, k, v)))
    ekiden.export(module, tmp_path / "attention.eki", "opencl -device=any")


def test_large_buffers_use_64_bit_indices() -> None:
    """Devices compute in 32 bits; more than 2**31 elements, and sizes that a run tells, take 64."""
    target = Target("opencl -device=any")

    def inside(*shape: int | te.Var) -> str:
        """The kernel that takes an exponential, behind the line with its parameters."""
        x = te.placeholder(shape, "float32", name="x")
        y = te.compute(shape, lambda *i: te.exp(x[i]), name="y")
        text = ekiden.build(build_default_kernels([x], [y], target, "f"), target).get_source(
            "opencl"
        )
        return text.split("__kernel void f_kernel(")[1].replace("(int64_t)get_", "get_")

    few, many, any_number = inside(7, 33), inside(70000, 70000), inside(te.var("n"), 33)
    assert few.count("int64_t") == 2  # where memory begins: x_at, y_at
    assert "int64_t" in many.replace("const int64_t x_at", "").replace("const int64_t y_at", "")
    assert "const int64_t block" in any_number


@pytest.mark.parametrize("options", ["-thread_warp_size=32", "-vector-bits=256"])
def test_ragged_rows_match_numpy(opencl: Device, options: str) -> None:
    """One launch: of row i a sum over 10 i + 3 elements, and what is done with it."""
    x = te.placeholder((5, 70), "float32", name="x")

    def total(i: Var) -> PrimExpr:
        k = te.reduce_axis((0, i * 10 + 3), name="k")
        return te.sum(x[i, k], k)

    sums = te.compute((5,), total, name="sums")
    y = te.compute((5, 70), lambda i, j: x[i, j] - sums[i], name="y")
    target = Target(f"opencl -device=any {options}")
    module = ekiden.build(build_default_kernels([x], [y], target, "f"), target)
    assert module.get_source("opencl").count("__kernel void") == 1
    data = RNG.integers(-9, 9, (5, 70)).astype("float32")
    actual = ekiden.runtime.nd.array(np.zeros_like(data), opencl)
    module["f"](ekiden.runtime.nd.array(data, opencl), actual)
    expected = [row - row[: 10 * i + 3].sum() for i, row in enumerate(data)]
    np.testing.assert_array_equal(actual.numpy(), expected)


def test_concatenation_beyond_kernel_argument_limit(tmp_path: Path) -> None:
    parts = [relay.var(f"x{n}", shape=(3,)) for n in range(70)]
    module = IRModule.from_expr(relay.Function(parts, relay.concatenate(parts, axis=0)))
    ekiden.export(module, tmp_path / "parts.eki", "opencl -device=any")
    target = Target("opencl -device=any")
    inputs = [te.placeholder((3,), "float32") for _ in range(70)]
    total = te.compute((3,), lambda i: sum((x[i] for x in inputs[1:]), inputs[0][i]))
    with pytest.raises(CompileError, match="'f_kernel': it has 71 arguments, and devices take 63"):
        ekiden.build(build_default_kernels(inputs, [total], target, "f"), target)


def test_opencl_byte_words_match_numpy(opencl: Device) -> None:
    """Four neighbours as one number, of any alignment."""
    target = Target("opencl")
    source, out = Buffer("source", (const(64),), "int8"), Buffer("out", (const(15),), "int32")
    at = Var("at")
    near = BufferLoad(source, (ramp(at * 4 + 1, 1, 4),), "int8x4")
    word = Intrinsic("reinterpret", (near,), "int32")
    body = thread_loop(at, 15, "threadIdx.x", BufferStore(out, word, (at,)))
    body = thread_loop(Var("block"), 1, "blockIdx.x", body)
    func = PrimFunc((source, out), body, {"global_symbol": "f"})
    data = RNG.integers(-128, 128, 64).astype("int8")
    result = ekiden.runtime.nd.array(np.zeros(15, "int32"), opencl)
    ekiden.build(func, target)["f"](ekiden.runtime.nd.array(data, opencl), result)
    np.testing.assert_array_equal(result.numpy(), data[1:61].view("<i4"))


def test_branch_on_a_shape(opencl: Device) -> None:
    x = relay.var("x", shape=(relay.Any(), 3))
    rows = relay.take(relay.shape_of(x, dtype="int64"), relay.const(0, "int64"), axis=0)
    y = relay.If(relay.equal(rows, relay.const(2, "int64")), relay.exp(x), relay.negative(x))
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x], y)), {opencl: "opencl"})
    for argument in (numbers(2, 3), numbers(5, 3)):
        expected = np.exp(argument) if len(argument) == 2 else -argument
        np.testing.assert_allclose(exe(argument).numpy(), expected, rtol=1e-5)


def test_indices_are_checked(opencl: Device) -> None:
    data, index = relay.var("x", shape=(5, 2)), relay.var("i", shape=(4,), dtype="int64")
    module = IRModule.from_expr(
        relay.Function([data, index], relay.take(data, index, axis=0, mode="raise"))
    )
    exe, x = ekiden.compile(module, "opencl"), numbers(5, 2)
    good = np.array([4, 0, -5, 1])
    np.testing.assert_array_equal(exe(x, good).numpy(), x[good])
    messages = []
    for item in (exe, ekiden.compile(module)):
        with pytest.raises(IndexRangeError) as raised:
            item(x, np.array([0, 7, 1, 9]))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    np.testing.assert_array_equal(exe(x, good).numpy(), x[good])


def test_one_program_over_two_devices(opencl: Device) -> None:
    """Half of it on OpenCL, a branch on the host: as many copies as were planned."""
    x, w = relay.var("x", shape=(4, 6)), relay.const(numbers(5, 6))
    inside = relay.annotation.on_device(relay.nn.dense(x, w), opencl)
    outside = relay.annotation.on_device(relay.nn.relu(inside), cpu(0))
    branch = relay.If(relay.sum(outside) > relay.const(1.0), outside, relay.negative(outside))
    module = IRModule.from_expr(relay.Function([x], branch))
    exe = ekiden.compile(module, [cpu(0), opencl])
    plain = ekiden.compile(IRModule.from_expr(relay.Function(
        [y := relay.var("x", shape=(4, 6))],
        relay.If(relay.sum(r := relay.nn.relu(relay.nn.dense(y, w))) > relay.const(1.0),
                 r, relay.negative(r)),
    )))  # fmt: skip
    for scale in (1.0, 0.01):
        data = numbers(4, 6) * np.float32(scale)
        result = exe(data)
        np.testing.assert_allclose(result.numpy(), plain(data).numpy(), rtol=1e-5, atol=1e-6)
    assert exe.disassemble().count("device_copy") == 1


def test_unsupported_opencl_programs_are_refused() -> None:
    module = layers()
    with pytest.raises(CompileError, match="makes no code for opencl"):
        ekiden.compile(module, {"opencl": "llvm"})
    with pytest.raises(CompileError, match="one target for all devices of opencl"):
        ekiden.compile(module, {"opencl": ["opencl", "opencl -max_num_threads=64"]})
    with pytest.raises(CompileError, match="must be a processor, got 'opencl'"):
        ekiden.compile(module, Target("opencl", host="opencl"))
    with pytest.raises(CompileError, match="bounds"):
        ekiden.compile(module, "opencl", bounds="check")
    for twice in ([ekiden.opencl(0)] * 2, {"opencl": "opencl", "opencl:0": "opencl"}):
        with pytest.raises(CompileError, match=r"different devices expected, got opencl\(0\) tw"):
            ekiden.compile(module, twice)
    with pytest.raises(CompileError, match=r"numbered from 0, got opencl\(-1\)"):
        ekiden.compile(module, [ekiden.opencl(-1)])
    x = relay.var("x", shape=(4,))
    there = relay.annotation.on_device(relay.tanh(x), ekiden.opencl(0))
    module = IRModule.from_expr(relay.Function([x], there))
    for argument in ("llvm", [ekiden.cuda(0), cpu(0)]):  # code of another kind read its memory
        with pytest.raises(CompileError, match=r"values on opencl\(0\), and is compiled for c"):
            ekiden.compile(module, argument)


def test_empty_tensors_run_on_opencl(opencl: Device) -> None:
    """Only their shapes are read: they may lie anywhere, and all that a kernel has may be such."""
    x = relay.var("x", shape=(0, 3))
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x], relay.exp(x))), "opencl")
    assert exe(np.zeros((0, 3), "float32")).numpy().shape == (0, 3)
    count = relay.var("count", shape=(2,), dtype="int64")
    y = relay.var("y", shape=(2, 3))
    tiled = relay.Function([y, count], relay.tile(y, count))
    data = np.arange(6, dtype="float32").reshape(2, 3)
    result = ekiden.compile(IRModule.from_expr(tiled), "opencl")(data, np.array([2, 1])).numpy()
    np.testing.assert_array_equal(result, np.tile(data, (2, 1)))


def test_rows_of_runtime_length(opencl: Device) -> None:
    """Their workspaces are memory of the device."""
    x = relay.var("x", shape=(3, relay.Any()))
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x], relay.sort(x, axis=1))), "opencl")
    for size in (5, 9000):
        data = np.random.default_rng(size).standard_normal((3, size)).astype("float32")
        np.testing.assert_array_equal(exe(data).numpy(), np.sort(data, 1))


def test_loops_over_one_axis_of_different_lengths(opencl: Device) -> None:
    """Threads are as many as the longest has steps; in the others the rest write nothing."""

    @T.prim_func
    def f(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")) -> None:
        for _ in T.thread_binding(1, "blockIdx.x"):
            for long in T.thread_binding(64, "threadIdx.x"):
                b[long] = a[long]
            for short in T.thread_binding(32, "threadIdx.x"):
                b[short] = a[short] * T.float32(2)

    x = ekiden.runtime.nd.array(np.ones(64, "float32"), opencl)
    y = ekiden.runtime.nd.array(np.zeros(64, "float32"), opencl)
    ekiden.build(f, Target("opencl"), name="f")["f"](x, y)
    assert y.numpy().tolist() == [2.0] * 32 + [1.0] * 32


@pytest.mark.parametrize("axis", [1, 2])
def test_softmax_over_rows_of_one_vector(opencl: Device, axis: int) -> None:
    """Its sums and maxima are arrays of vectors of two dimensions."""
    x = relay.var("x", shape=(16, 19, 4))
    module = IRModule.from_expr(relay.Function([x], relay.nn.softmax(x, axis=axis)))
    data = numbers(16, 19, 4)
    exponentials = np.exp(data.astype("float64"))
    expected = exponentials / exponentials.sum(axis, keepdims=True)
    result = ekiden.compile(module, "opencl")(data).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-5)
