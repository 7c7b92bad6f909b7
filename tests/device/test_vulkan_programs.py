"""Programs on Vulkan's devices: SPIR-V is valid and computes what NumPy does, on a software driver
(lavapipe) too; devices that lack something say so."""

from __future__ import annotations

import operator
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import test_cuda_text as cuda
import test_gpu_kernel_families as families
import test_ptx as ptx
import test_reductions_of_schedules as reductions

import ekiden
from ekiden import relay, runtime, tir
from ekiden.cli import main
from ekiden.ir.module import IRModule
from ekiden.runtime import Device, cpu
from ekiden.runtime.artifact.device_code import DeviceKernel, pack_kernels
from ekiden.runtime.errors import CompileError, DeviceError, IndexRangeError
from ekiden.target import Target
from long_runs import alike

numbers = families.numbers
ANY = "vulkan -model=any"
COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@pytest.fixture(scope="module")
def validator() -> str:
    """The path of SPIR-V's validator."""
    path = shutil.which("spirv-val")
    if path is None:
        pytest.skip("needs spirv-val: apt-get install spirv-tools")
    return path


def validate(validator: str, code: bytes) -> None:
    command = [validator, "--target-env", "vulkan1.2", "--scalar-block-layout", "-"]
    completed = subprocess.run(command, input=code, capture_output=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@alike(4)
@pytest.mark.parametrize("name", families.CASES)
def test_vulkan_kernel_families_validate(validator: str, name: str) -> None:
    for kernel in cuda.kernels_of(ptx.module_of(name), Target(ANY)):
        assert kernel.format == "vulkan"
        validate(validator, kernel.code)


@alike(4)
@pytest.mark.parametrize(("name", "shared"), families.SHARED + families.OTHERS)
def test_vulkan_kernel_families_match_numpy(vulkan: Device, name: str, shared: int | None) -> None:
    assert vulkan.exist
    families.check(name, Target("vulkan"), shared)


def network() -> IRModule:
    """A convolution and a dense layer."""
    x = relay.var("x", shape=(2, 3, 9, 7))
    y = relay.nn.conv2d(x, relay.const(numbers(5, 3, 3, 3)), padding=(1, 1), kernel_size=(3, 3))
    y = relay.nn.dense(relay.nn.batch_flatten(relay.nn.relu(y)), relay.const(numbers(11, 315)))
    return IRModule.from_expr(relay.Function([x], y))


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_network_is_saved_and_loaded(vulkan: Device, executor: str, tmp_path: Path) -> None:
    module, x = network(), numbers(2, 3, 9, 7)
    expected = ekiden.compile(module)(x).numpy()
    exe = ekiden.compile(module, "vulkan", executor=executor)
    result = exe(x)
    assert result.device == vulkan and exe.raw.devices == [cpu(0), vulkan]
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6 * expected.max())
    exe.save(tmp_path / "model.eki")
    again = ekiden.load(tmp_path / "model.eki")(x)
    np.testing.assert_array_equal(again.numpy(), result.numpy())


def test_program_runs_on_host_and_device(vulkan: Device) -> None:
    """A part that asks for the processor, between parts on the device."""
    x = relay.var("x", shape=(4, 8))
    y = relay.annotation.on_device(relay.exp(x), vulkan)
    z = relay.annotation.on_device(relay.cumsum(y, axis=1), cpu(0))
    module = IRModule.from_expr(relay.Function([x], relay.annotation.on_device(z * z, vulkan)))
    exe = ekiden.compile(module, {cpu(0): "llvm", vulkan: "vulkan"})
    data = numbers(4, 8)
    expected = np.cumsum(np.exp(data.astype("float64")), axis=1) ** 2
    np.testing.assert_allclose(exe(data).numpy(), expected, rtol=1e-5)


def test_runtime_sizes(vulkan: Device) -> None:
    x = relay.var("x", shape=(relay.Any(), relay.Any()))
    module = IRModule.from_expr(relay.Function([x], relay.sum(relay.exp(x), axis=1)))
    exe = ekiden.compile(module, {vulkan: "vulkan"})
    for rows, columns in ((1, 1), (3, 300), (257, 5), (0, 4)):
        data = numbers(rows, columns)
        np.testing.assert_allclose(exe(data).numpy(), np.exp(data).sum(1), rtol=1e-4)


DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()


@pytest.mark.parametrize("dtype", DTYPES)
def test_vulkan_supports_every_dtype(vulkan: Device, dtype: str) -> None:
    x, y = (relay.var(n, shape=(3, 5), dtype=dtype) for n in "xy")
    inputs = np.arange(15).reshape(3, 5) % 7, np.arange(15)[::-1].reshape(3, 5) % 5 + 1
    a, b = (g.astype(dtype) for g in inputs)
    body = relay.logical_xor(x, y) if dtype == "bool" else relay.maximum(x * y, x)
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x, y], body)), "vulkan")
    expected = a ^ b if dtype == "bool" else np.maximum(a * b, a)
    np.testing.assert_array_equal(exe(a, b).numpy(), expected)


@pytest.mark.parametrize("bound", [4, -1, 2**31 - 1, 2**31, -(2**40)])
def test_widened_integers_compare_with_constants(vulkan: Device, bound: int) -> None:
    """Mesa 22.3 miscompiles `int64(x) < 4`, of which the upper halves are compared alone."""
    x = np.array([-(2**31), -5, -1, 0, 3, 4, 5, 2**31 - 1], "int32")
    value, constant = "T.Cast('int64', A[k])", f"T.int64({bound})"
    tests = [f"{value} {op} {constant}" for op in COMPARISONS]
    tests += [f"{constant} {op} {value}" for op in COMPARISONS]
    stores = [f"B[{n}, k] = T.if_then_else({test}, 1, 0)" for n, test in enumerate(tests)]
    func = tir.script.from_source(
        "@T.prim_func\n"
        "def f(A: T.Buffer((8,), 'int32'), B: T.Buffer((12, 8), 'int32')):\n"
        "    for k in T.thread_binding(8, thread='threadIdx.x'):\n        "
        + "\n        ".join(stores)
    )
    out = ekiden.nd.array(np.full((12, 8), 7, "int32"), vulkan)
    ekiden.build(func, target="vulkan")(ekiden.nd.array(x, vulkan), out)
    wide, of = x.astype("int64"), np.int64(bound)
    expected = [compare(wide, of) for compare in COMPARISONS.values()]
    expected += [compare(of, wide) for compare in COMPARISONS.values()]
    np.testing.assert_array_equal(out.numpy(), np.array(expected, "int32"))


@pytest.mark.parametrize("by_parts", [False, True])
def test_schedules_reduce_by_threads(vulkan: Device, by_parts: bool) -> None:
    schedule, args = reductions.argmax(9, 43, by_parts)
    x = reductions.values(9, 43)
    index = np.broadcast_to(np.arange(43, dtype="int32"), x.shape).copy()
    outs = [ekiden.nd.array(np.zeros(9, t.dtype), vulkan) for t in args[2:]]
    module = ekiden.build(schedule, args, "vulkan", name="f")
    module["f"](ekiden.nd.array(index, vulkan), ekiden.nd.array(x, vulkan), *outs)
    np.testing.assert_array_equal(outs[0].numpy(), x.argmax(1))
    np.testing.assert_array_equal(outs[1].numpy(), x.max(1))


def test_more_blocks_than_a_dimension_has(vulkan: Device) -> None:
    """A line of blocks is folded: a dimension may have 65,535."""
    blocks = 70_001
    func = tir.parse(
        f"""
@T.prim_func
def main(A: T.Buffer(({blocks},), "int32"), B: T.Buffer(({blocks},), "int32")):
    for i in T.thread_binding({blocks}, thread="blockIdx.x"):
        for j in T.thread_binding(1, thread="threadIdx.x"):
            B[i] = A[i] + i
"""
    )
    assert isinstance(func, tir.PrimFunc)
    x = np.arange(blocks, dtype="int32")
    out = ekiden.nd.array(np.zeros(blocks, "int32"), vulkan)
    ekiden.build(func, "vulkan")["main"](ekiden.nd.array(x, vulkan), out)
    np.testing.assert_array_equal(out.numpy(), 2 * x)


def test_vulkan_control_flow_matches_numpy(vulkan: Device) -> None:
    """A while loop, loops in loops, a guarded load and an array of the thread."""
    func = tir.parse(
        """
@T.prim_func
def main(A: T.Buffer((40,), "int32"), B: T.Buffer((40,), "int32")):
    for i in T.thread_binding(40, thread="threadIdx.x"):
        n = T.alloc_buffer((2,), "int32", scope="local")
        n[0] = A[i]
        n[1] = 0
        while n[0] > 1:
            if n[0] % 2 == 0:
                n[0] = n[0] // 2
            else:
                n[0] = n[0] * 3 + 1
            n[1] = n[1] + 1
        for j in range(i % 3):
            for k in range(2):
                n[1] = n[1] + T.if_then_else(i + j * 40 + k < 40, A[i + j * 40 + k], T.int32(-1))
        B[i] = n[1]
"""
    )
    assert isinstance(func, tir.PrimFunc)
    x = np.arange(1, 41, dtype="int32")
    out = ekiden.nd.array(np.zeros(40, "int32"), vulkan)
    ekiden.build(func, "vulkan")["main"](ekiden.nd.array(x, vulkan), out)

    def expected(i: int) -> int:
        n, steps = int(x[i]), 0
        while n > 1:
            n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
        places = [i + j * 40 + k for j in range(i % 3) for k in range(2)]
        return steps + sum(int(x[p]) if p < 40 else -1 for p in places)

    np.testing.assert_array_equal(out.numpy(), [expected(i) for i in range(40)])


def test_index_out_of_range_names_position_and_bound(vulkan: Device) -> None:
    x, i = relay.var("x", shape=(5, 7)), relay.var("i", shape=(9,), dtype="int64")
    taken = relay.Function([x, i], relay.take(x, i, axis=0, mode="raise"))
    exe = ekiden.compile(IRModule.from_expr(taken), "vulkan")
    data, places = numbers(5, 7), np.arange(9) % 5
    np.testing.assert_array_equal(exe(data, places).numpy(), data[places])
    places[6], places[8] = -6, 5
    with pytest.raises(IndexRangeError, match=r"index -6 at position 6 .*axis 0 of size 5"):
        exe(data, places)


# What is refused.


def kernel(code: bytes) -> DeviceKernel:
    return DeviceKernel("f", 7, "vulkan", "b", code)


def run_code(vulkan: Device, code: bytes) -> None:
    module = runtime.load_device_code(pack_kernels([kernel(code)]))
    module["f"](0, 1, 1, 1, 1, 1, 1, runtime.nd.array(np.zeros(4, "float32"), vulkan))


def test_driver_refuses_code_that_is_no_spirv(vulkan: Device) -> None:
    for code, why in ((b"abc", "it is cut"), (bytes(40), "its first word is another")):
        with pytest.raises(DeviceError, match=f"kernel 'f': its code is no SPIR-V: {why}"):
            run_code(vulkan, code)
    head = np.array([0x07230203, 0x10500, 0, 9, 0], "uint32").tobytes()
    with pytest.raises(DeviceError, match="an instruction does not end in it"):
        run_code(vulkan, head + np.array([9 << 16 | 17, 1], "uint32").tobytes())


def test_driver_names_a_capability_that_the_device_lacks(vulkan: Device) -> None:
    head = np.array([0x07230203, 0x10500, 0, 9, 0], "uint32").tobytes()
    with pytest.raises(DeviceError, match="has not what it needs: a capability of SPIR-V"):
        run_code(vulkan, head + np.array([2 << 16 | 17, 6], "uint32").tobytes())


def test_too_many_threads_are_refused_by_the_kernels_name(vulkan: Device) -> None:
    result = next(iter(cuda.kernels_of(ptx.module_of("types"), Target(ANY))))
    module = runtime.load_device_code(pack_kernels([result]))
    memory = [runtime.nd.array(np.zeros(300, "float64"), vulkan) for c in result.args if c == "b"]
    with pytest.raises(DeviceError, match=f"kernel '{result.name}': .* threads a block, of which"):
        module[result.name](
            0, 1, 1, 1, 1 << 20, 1, 1, *memory, *(0 for c in result.args if c == "l")
        )


def test_kernel_of_the_hosts_functions_is_refused() -> None:
    func = tir.parse(
        """
@T.prim_func
def main(A: T.Buffer((4,), "float32")):
    for i in T.thread_binding(4, thread="threadIdx.x"):
        A[i] = T.call_pure_extern("float32", "other", A[i])
"""
    )
    assert isinstance(func, tir.PrimFunc)
    with pytest.raises(CompileError, match="a thread cannot call 'other' of the host"):
        ekiden.build(func, ANY)


def test_missing_loader_says_what_to_install(tmp_path: Path) -> None:
    """No driver is found where the loader is told of none."""
    text = """
import numpy as np
from ekiden import runtime
try:
    runtime.nd.array(np.zeros(1, "float32"), runtime.device("vulkan"))
except runtime.errors.DeviceError as error:
    print(error)
print(runtime.nd.array(np.ones(1, "float32")).numpy(), runtime.device("vulkan").exist)
"""
    none = {**os.environ, "VK_ICD_FILENAMES": str(tmp_path), "VK_DRIVER_FILES": str(tmp_path)}
    command = [sys.executable, "-c", text]
    ran = subprocess.run(command, capture_output=True, text=True, env=none, check=True)
    assert "install" in ran.stdout and "[1.] False" in ran.stdout, ran


def test_inspect_prints_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = relay.var("x", shape=(2, 4))
    module = IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))
    (tmp_path / "relu.relay").write_text(module.astext())
    words = ["inspect", str(tmp_path / "relu.relay"), "--target", ANY, "--stage", "vulkan"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "OpEntryPoint" in text and "OpPtrAccessChain" in text
