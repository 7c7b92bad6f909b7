"""One program half on a device and half on the host, with control flow between: every way to run it
equals the host alone, and moves what was planned and no more.
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ekiden
from ekiden import relay, rpc, runtime
from ekiden.backend.graph.executor_graph import ExecutorGraph
from ekiden.cli import main
from ekiden.compiler import auto_devices
from ekiden.contrib import graph_executor
from ekiden.contrib.debugger import debug_executor
from ekiden.ir.module import IRModule
from ekiden.relay.expr import RelayExpr
from ekiden.runtime import Device, cpu, vm
from ekiden.runtime.debug.debugger import Stepper
from ekiden.runtime.errors import CompileError, InputError, LoadError
from ekiden.target import Target
from ekiden.target.virtual_device import compilation_config
from fake_drivers import GPU
from long_runs import LONG, share

RNG = np.random.default_rng(7)
ROUNDS = (0, 1, 5)
DEVICE_MEMORY = 8
"""The kind of an object in a state, as runtime/src/ek_vm_state.c numbers them."""
T = relay.TensorType((4, 8), "float32")


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


W1, W2, X = numbers(16, 8), numbers(8, 16), numbers(4, 8)


@pytest.fixture(scope="module", params=["opencl", "fake_cuda"])
def place(request: pytest.FixtureRequest) -> Device:
    """A device that is no processor: one of OpenCL, one of CUDA."""
    result = request.getfixturevalue(request.param)
    assert isinstance(result, Device)
    return result


def placed(value: RelayExpr, where: Device | None) -> RelayExpr:
    return value if where is None else relay.annotation.on_device(value, where)


def layers(x: RelayExpr, there: Device | None, here: Device | None) -> RelayExpr:
    """The first layer there, the second one here."""
    hidden = placed(relay.tanh(relay.nn.dense(x, relay.const(W1))), there)
    return placed(relay.nn.relu(relay.nn.dense(hidden, relay.const(W2))), here)


def loop(there: Device | None = None, here: Device | None = None) -> IRModule:
    """As many rounds of the layers as an argument says, each with a branch on what came out."""
    again = relay.GlobalVar("again")
    i, n, y = relay.var("i", "int32"), relay.var("n", "int32"), relay.var("y", T)
    out = layers(y, there, here)
    is_large = placed(relay.sum(out), here) > relay.const(1.0)
    out = relay.If(is_large, out * relay.const(0.5), relay.negative(out))
    turn = relay.Call(again, (i + relay.const(1), n, out))
    x, rounds = relay.var("x", T), relay.var("rounds", "int32")
    module = IRModule()
    module[again] = relay.Function([i, n, y], relay.If(relay.less(i, n), turn, y), T)
    module["main"] = relay.Function([x, rounds], relay.Call(again, (relay.const(0), rounds, x)))
    return module


def straight(there: Device) -> IRModule:
    x = relay.var("x", T)
    return IRModule.from_expr(relay.Function([x], layers(x, there, cpu(0))))


@pytest.fixture(scope="module")
def wanted() -> list[np.ndarray]:
    """What the host alone computes."""
    alone = ekiden.compile(loop())
    return [alone(X, np.int32(n)).numpy() for n in ROUNDS]


def check(exe: ekiden.Executable, wanted: list[np.ndarray]) -> None:
    for n, right in zip(ROUNDS, wanted, strict=True):
        np.testing.assert_allclose(exe(X, np.int32(n)).numpy(), right, rtol=1e-4, atol=1e-5)


@share(4)
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_all_executors_match_host_results(
    place: Device, executor: str, wanted: list[np.ndarray]
) -> None:
    exe = ekiden.compile(loop(place, cpu(0)), [cpu(0), place], executor=executor)
    check(exe, wanted)
    assert exe.raw.devices == [cpu(0), place]


def test_placement_can_be_specified_in_several_ways(
    place: Device, wanted: list[np.ndarray]
) -> None:
    """The order of a list, a host, TVM's dictionaries."""
    kind = str(place).partition("(")[0]
    target = Target(kind, host="llvm")
    for argument in ([place, cpu(0)], {cpu(0): "llvm", place: kind}, {"cpu": "llvm", kind: target}):
        check(ekiden.compile(loop(place, cpu(0)), argument), wanted)


def test_program_on_one_device_matches_host(place: Device) -> None:
    """What nothing places lies there."""
    x = relay.var("x", T)
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x], relay.tanh(x))), place)
    result = exe(X)
    assert result.device == place
    np.testing.assert_allclose(result.numpy(), np.tanh(X), rtol=1e-5, atol=1e-6)


def test_executed_transfers_match_the_plan(place: Device, tmp_path: Path) -> None:
    """The argument goes there; in each round comes back what goes there for the next one; weights
    were put where they are used once."""
    exe = ekiden.compile(loop(place, cpu(0)), [cpu(0), place])
    where = {c.shape: c.device for c in exe.raw.constants if c.nbytes > 8}
    assert sorted(str(d) for d in where.values()) == sorted(["cpu(0)", str(place)])
    exe.save(tmp_path / "two.eki")
    for item in (exe, ekiden.load(tmp_path / "two.eki")):
        for rounds in ROUNDS:
            report = item.profile(X, np.int32(rounds), peak=False)
            names = [call.name for call in report.calls if call.name.startswith("device_copy")]
            there, back = f"device_copy cpu(0) -> {place}", f"device_copy {place} -> cpu(0)"
            assert names == [f"device_copy argument -> {place}", *[back, there] * rounds]
            assert all(call.nbytes > 0 for call in report.calls if call.name in names)


@pytest.mark.skipif(GPU, reason="needs the stand-in for libcuda.so.1, which counts")
def test_cuda_transfers_match_the_plan(fake_cuda: Device, fake_cuda_libraries: Path) -> None:
    """Counted by the library below the driver."""
    library = ctypes.CDLL(str(fake_cuda_libraries / "libcuda.so.1"))
    names = (b"cuMemcpyHtoDAsync_v2", b"cuMemcpyDtoHAsync_v2", b"cuMemcpyDtoDAsync_v2")
    exe = ekiden.compile(loop(fake_cuda, cpu(0)), [cpu(0), fake_cuda])
    exe(X, np.int32(1))  # which places weights
    before = [library.stand_in_calls(name) for name in names]
    exe(X, np.int32(5))
    result = [library.stand_in_calls(n) - b for n, b in zip(names, before, strict=True)]
    assert result == [1 + 5, 5, 0]


@pytest.mark.skipif(GPU, reason="needs the stand-in for libcuda.so.1, which sees the order")
def test_copies_do_not_wait_for_kernels(fake_cuda: Device, fake_cuda_libraries: Path) -> None:
    """What the host computes goes to the device while the device still works at what it began."""
    library = ctypes.CDLL(str(fake_cuda_libraries / "libcuda.so.1"))
    x, y = relay.var("x", T), relay.var("y", T)
    there = placed(x + placed(relay.exp(y), cpu(0)), fake_cuda)
    out = relay.Tuple([placed(relay.tanh(x), fake_cuda), there])
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x, y], out)), [fake_cuda, cpu(0)])
    inputs = X, numbers(4, 8)
    for _ in range(2):  # the second time in memory of the first
        before = library.stand_in_overtaken()
        result = exe(*inputs)
        assert library.stand_in_overtaken() == before + 1
        for value, right in zip(result, (np.tanh(X), X + np.exp(inputs[1])), strict=True):
            np.testing.assert_allclose(value.numpy(), right, rtol=1e-5)


@pytest.mark.skipif(GPU, reason="needs the stand-in for libcuda.so.1, which counts")
def test_device_to_host_copy_waits_for_its_kernel_only(
    fake_cuda: Device, fake_cuda_libraries: Path
) -> None:
    """Three kernels are queued before the host takes from any; the first two copies come before
    kernels behind theirs. Nothing waits but copies, and a run takes memory of the one before."""
    library = ctypes.CDLL(str(fake_cuda_libraries / "libcuda.so.1"))
    x = relay.var("x", T)
    values = [placed(op(x), fake_cuda) for op in (relay.tanh, relay.exp, relay.negative)]
    out = relay.Tuple([placed(v + relay.const(float(n)), cpu(0)) for n, v in enumerate(values)])
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x], out)), [cpu(0), fake_cuda])
    exe(X)  # from then on launches are noted
    names = (b"cuStreamSynchronize", b"cuMemAlloc_v2", b"cuMemFree_v2")
    for _ in range(2):
        before = [library.stand_in_calls(n) for n in names], library.stand_in_overtaken()
        result = exe(X)
        counts = [library.stand_in_calls(n) - b for n, b in zip(names, before[0], strict=True)]
        assert counts == [4, 0, 0]  # of the argument's copy and of three results
        assert library.stand_in_overtaken() == before[1] + 2
        for value, right in zip(result, (np.tanh(X), np.exp(X) + 1, 2 - X), strict=True):
            np.testing.assert_allclose(value.numpy(), right, rtol=1e-5)


def test_kernels_are_timed_by_events(place: Device) -> None:
    """What is queued takes the time that it runs, not that of queueing: products of half a
    million terms take longer than a copy of no bytes."""
    x = relay.var("x", shape=(64, 512))
    module = IRModule.from_expr(
        relay.Function([x], relay.nn.dense(x, relay.const(numbers(16, 512))))
    )
    exe = ekiden.compile(module, {place: str(place).partition("(")[0]})
    data = numbers(64, 512)
    exe(data)
    report = exe.profile(data, peak=False)
    (call,) = [c for c in report.calls if not c.name.startswith("device_copy")]
    assert call.flops == 2 * 64 * 16 * 512
    assert call.duration > 1000  # a launch alone is below; 1 ns for each product is 500 times that


def test_graph_executor_runs_on_several_devices(place: Device, tmp_path: Path) -> None:
    kind = str(place).partition("(")[0]
    right = ekiden.compile(straight(cpu(0)))(X).numpy()
    built = relay.build(straight(place), {cpu(0): "llvm", place: kind})
    graph = graph_executor.GraphModule(built["default"](cpu(0), place))
    graph.set_input("x", X)
    graph.run()
    np.testing.assert_allclose(graph.get_output(0).numpy(), right, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=rf"one of the 2 devices of the program, as {kind}"):
        built["default"](runtime.device("vulkan", 0))
    built.export_library(tmp_path / "two.so")
    session = rpc.LocalSession()
    session.upload(tmp_path / "two.so")
    there = (session.cpu(0), session.device(kind, 0))
    assert there[1].exist and not session.device(kind, 99).exist
    far = graph_executor.GraphModule(session.load_module("two.so")["default"](*there))
    far.set_input("x", X)
    far.run()
    np.testing.assert_allclose(far.get_output(0).numpy(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(GPU, reason="needs the stand-in for libcuda.so.1, which has several devices")
@pytest.mark.parametrize("kind", ["vm", "aot", "graph"])
def test_executor_runs_on_the_device_that_is_asked_for(kind: str, fake_cuda: Device) -> None:
    x = relay.var("x", shape=(3,))
    module = IRModule.from_expr(relay.Function([x], relay.exp(x)))
    second = runtime.cuda(1)
    asked: list[tuple[Device, dict[str, object]]] = [
        (fake_cuda, {"target": "cuda"}),
        (fake_cuda, {"device": fake_cuda}),
        (second, {"device": second, "target": "cuda"}),
        (second, {"device": second, "target": {"kind": "cuda"}}),
        (second, {"device": ["cuda:1"]}),
        (second, {"device": second, "target": {second: "cuda"}}),
    ]
    for where, options in asked:
        result = relay.create_executor(kind, module, **options).evaluate()(X[0, :3])
        assert result.device == where
    for device, target in ((cpu(0), "cuda"), (fake_cuda, "llvm")):
        with pytest.raises(CompileError, match=f"target kind '{target}' makes no code for"):
            relay.create_executor(kind, module, device, target)
    with pytest.raises(InputError, match=r"expected cuda\(0\), got cuda\(1\)"):
        relay.create_executor(kind, module, device=second, target={fake_cuda: "cuda"})


@pytest.mark.skipif(GPU, reason="needs the stand-in for libcuda.so.1, which has several devices")
def test_program_refuses_other_devices(fake_cuda: Device) -> None:
    x = relay.var("x", shape=(3,))
    module = IRModule.from_expr(relay.Function([x], relay.exp(x)))
    lib = relay.build(module, "cuda")
    exe = relay.vm.compile(module, "cuda")
    graph, far = lib.get_graph_json(), lib.get_lib()
    faces = (
        lambda device: vm.VirtualMachine(exe, device),
        lambda device: lib["default"](device),
        lambda device: lib["debug_create"]("default", device),
        lambda device: graph_executor.create(graph, far, device),
        lambda device: debug_executor.create(graph, far, device),
    )
    for face in faces:
        face(fake_cuda)
        for other in (cpu(0), runtime.cuda(1), runtime.device("vulkan", 0)):
            with pytest.raises(InputError, match=rf"expected.*got {re.escape(str(other))}"):
                face(other)
    with pytest.raises(InputError, match=r"'debug' interprets on the host: .* got cuda\(0\)"):
        relay.create_executor("debug", module, target="cuda")


@pytest.mark.parametrize("is_half", [False, True])
def test_graph_created_from_its_text_runs_on_its_devices(
    place: Device, is_half: bool, tmp_path: Path
) -> None:
    """Inputs and constants are there, the text names devices, and the debugger runs each node."""
    x = relay.var("x", T)
    kind = str(place).partition("(")[0]
    body = layers(x, place, cpu(0)) if is_half else layers(x, None, None)
    target = {cpu(0): "llvm", place: kind} if is_half else kind
    lib = relay.build(IRModule.from_expr(relay.Function([x], body)), target)
    lib.export_library(tmp_path / "far.so")
    library, text = runtime.load_module(tmp_path / "far.so"), lib.get_graph_json()
    types = set(json.loads(text)["attrs"]["device_index"][1])
    assert types == {place.device_type, *([cpu(0).device_type] if is_half else [])}
    assert ExecutorGraph.from_json(text).to_json() == text
    wanted = np.maximum(np.tanh(X @ W1.T) @ W2.T, 0)
    devices = [cpu(0), place] if is_half else place
    for create in (graph_executor.create, debug_executor.create):
        for kernels in (lib, library):
            module = create(text, kernels, devices)
            module.set_input("x", X)
            module.run()
            np.testing.assert_allclose(module.get_output(0).numpy(), wanted, rtol=1e-4, atol=1e-5)
            assert module.get_output(0).device == (cpu(0) if is_half else place)


@pytest.mark.parametrize("suffix", [".eki", ".so"])
def test_late_bound_constants_move_to_their_device(
    place: Device, suffix: str, tmp_path: Path
) -> None:
    """The file that they came from is let go; runs check the files that are left."""
    x = relay.var("x", T)
    kind = str(place).partition("(")[0]
    module = IRModule.from_expr(relay.Function([x], layers(x, place, cpu(0))))
    exe = ekiden.compile(module, {place: kind, cpu(0): "llvm"})
    exe.move_late_bound_consts(tmp_path / "weights", byte_limit=64)
    write = exe.save if suffix == ".eki" else exe.export_library
    write(tmp_path / f"model{suffix}")
    wanted = np.maximum(np.tanh(X @ W1.T) @ W2.T, 0)
    for program in (exe, ekiden.load(tmp_path / f"model{suffix}")):
        program.load_late_bound_consts(tmp_path / "weights")
        for _ in range(2):
            np.testing.assert_allclose(program(X).numpy(), wanted, rtol=1e-4, atol=1e-5)


RESUME_STATES = """
import sys
import numpy as np
import ekiden
from ekiden.runtime.debug.debugger import Stepper
for state in sys.argv[2:]:
    stepper = Stepper(ekiden.load(sys.argv[1]).raw)
    stepper.load_state(state)
    assert stepper.resume()
    np.save(state, stepper.result.numpy())
"""


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_state_with_memory_of_a_device_goes_on(
    place: Device, executor: str, wanted: list[np.ndarray]
) -> None:
    """From each instruction of a loop that is half on the device."""
    kind = str(place).partition("(")[0]
    exe = ekiden.compile(loop(place, cpu(0)), {place: kind, cpu(0): "llvm"}, executor=executor)
    first, second = Stepper(exe.raw), Stepper(exe.raw)
    first.start("main", X, np.array(1, "int32"))
    saved = 0
    while not first.step():
        second.set_state(first.state())
        assert second.resume()
        np.testing.assert_allclose(second.result.numpy(), wanted[1], rtol=1e-4, atol=1e-5)
        saved += 1
    assert saved > 5


def test_another_process_goes_on_from_memory_of_a_device(opencl: Device, tmp_path: Path) -> None:
    x = relay.var("x", T)
    module = IRModule.from_expr(relay.Function([x], layers(x, None, None)))
    exe = ekiden.compile(module, "opencl")
    exe.save(tmp_path / "model.eki")
    stepper, states = Stepper(exe.raw), []
    stepper.start("main", X)
    while not stepper.step():
        states.append(tmp_path / f"state{len(states)}")
        stepper.save_state(states[-1])
    command = [sys.executable, "-c", RESUME_STATES, tmp_path / "model.eki", *states]
    subprocess.run(command, check=True, timeout=100)
    for state in states:
        result = np.load(state.with_suffix(".npy"))
        np.testing.assert_allclose(result, exe(X).numpy(), rtol=1e-5, atol=1e-6)


def test_state_names_devices_of_its_executable(opencl: Device) -> None:
    x = relay.var("x", T)
    module = IRModule.from_expr(relay.Function([x], relay.tanh(relay.exp(x))))
    stepper = Stepper(ekiden.compile(module, "opencl").raw)
    stepper.start("main", X)
    stepper.step(4)
    state = stepper.state()
    memory = struct.pack("<II", DEVICE_MEMORY, 1)
    assert memory in state
    for number in (0, 2, 2**32 - 1):
        body = state[16:].replace(memory, struct.pack("<II", DEVICE_MEMORY, number))
        with pytest.raises(LoadError, match="resume state: a device"):
            stepper.set_state(state[:12] + struct.pack("<I", zlib.crc32(body)) + body)


def test_session_has_devices(place: Device, wanted: list[np.ndarray], tmp_path: Path) -> None:
    """Arguments sent to a device there, results read from one."""
    kind = str(place).partition("(")[0]
    exe = ekiden.compile(loop(place, place), {place: kind, cpu(0): "llvm"})
    exe.export_library(tmp_path / "far.so")
    session = rpc.LocalSession()
    session.upload(tmp_path / "far.so")
    module = session.load_module("far.so")
    device = session.device(kind, 0)
    sent = device.array(X), session.cpu(0).array(np.array(5, "int32"))
    np.testing.assert_array_equal(sent[0].numpy(), X)
    actual = module["main"](*sent)
    np.testing.assert_allclose(actual.numpy(), wanted[2], rtol=1e-4, atol=1e-5)
    assert module.time_evaluator("main", device, number=2, repeat=2)(*sent).min > 0


def test_invalid_placements_are_refused(place: Device) -> None:
    x = relay.var("x", T)
    where = relay.annotation.on_device(relay.tanh(x), runtime.device("rocm", 0))
    with pytest.raises(CompileError, match="no code generator for rocm"):
        ekiden.compile(IRModule.from_expr(relay.Function([x], where)), [cpu(0), place])
    far = relay.annotation.on_device(relay.tanh(x), Device(place.type, 40))
    module = IRModule.from_expr(relay.Function([x], far))
    with pytest.raises(CompileError, match=r"values on \w+\(40\), and is compiled for cpu\(0\), "):
        ekiden.compile(module, [cpu(0), place])
    with pytest.raises(LoadError, match=r"\(40\) is not here: this machine has \w+\(0\)"):
        ekiden.compile(module, [cpu(0), Device(place.type, 40)])


def test_targets_match_devices_in_any_order(place: Device) -> None:
    """What stands behind the device too: kernels have the threads that are asked for."""
    kind = str(place).partition("(")[0]
    for argument in (
        [place, f"{kind} -max_num_threads=64"],
        [f"{kind} -max_num_threads=64", place],
    ):
        assert compilation_config(argument).device_targets[0].max_num_threads == 64


def test_auto_devices_selects_the_fastest(
    opencl: Device, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every plan is measured, and what is left computes as the host."""
    monkeypatch.setattr(auto_devices, "MIN_MEASURE_TIME_S", 0.0)
    x = relay.var("x", shape=(3, 33))
    y = relay.nn.softmax(relay.nn.dense(x, relay.const(numbers(17, 33))))
    module, data = IRModule.from_expr(relay.Function([x], y)), numbers(3, 33)
    with caplog.at_level("INFO", "ekiden"):
        exe = ekiden.compile(module, [opencl, cpu(0)], devices="auto")
    right = ekiden.compile(module)(data).numpy()
    np.testing.assert_allclose(exe(data).numpy(), right, rtol=1e-4, atol=1e-6)
    message = "\n".join(r.getMessage() for r in caplog.records if "devices: " in r.getMessage())
    plans = ["all on cpu(0)", "all on opencl(0)"]
    plans += ["placed over cpu(0), opencl(0)", "placed over opencl(0), cpu(0)"]
    assert all(f"devices: {plan}: " in message for plan in plans)
    caplog.clear()
    there = straight(opencl)
    with caplog.at_level("INFO", "ekiden"):
        exe = ekiden.compile(there, devices="auto")
    assert exe.raw.devices == [cpu(0), opencl]  # what the program places stays there
    np.testing.assert_allclose(exe(X).numpy(), ekiden.compile(straight(cpu(0)))(X).numpy(), 1e-4)
    assert "devices: the rest on cpu(0): " in "\n".join(r.getMessage() for r in caplog.records)
    with pytest.raises(
        CompileError,
        match=r"devices 'auto' measures on devices of this machine, and opencl\(9\) is not here",
    ):
        ekiden.compile(module, [runtime.device("opencl", 9), cpu(0)], devices="auto")
    with pytest.raises(CompileError, match="devices 'auto' or '' expected, got 'best'"):
        ekiden.compile(module, devices="best")


def test_command_line_selects_the_fastest_devices(
    opencl: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    infos = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", infos[:1], infos[1:]))
    path, out = str(tmp_path / "relu.onnx"), str(tmp_path / "relu.eki")
    onnx.save(model, path)
    command = ["compile", path, "-o", out, "--devices", "auto", "--target", "llvm"]
    assert main(command) == 0
    np.testing.assert_array_equal(ekiden.load(out)(np.float32([-1, 0, 2])).numpy(), [0, 0, 2])
    assert main([*command, "--target", "llvm -mcpu=x86-64-v3"]) == 1
    assert "--devices auto: one target for each device expected" in capsys.readouterr().err


@pytest.mark.parametrize("executor", ["vm", "async"])
def test_regions_of_an_engine_run_on_the_host_between_kernels_of_a_device(
    opencl: Device, executor: str
) -> None:
    """Values are copied to the engine and back, whatever stands around the region; where the
    program places the value on the device, it stays with Ekiden."""
    pytest.importorskip("onnxruntime")
    x = relay.var("x", T)
    body = relay.nn.dense(relay.cumsum(relay.tanh(x), axis=1), relay.const(W1))
    module = IRModule.from_expr(relay.Function([x], relay.cumsum(body, axis=1)))
    wanted = ekiden.compile(module)(X).numpy()
    for target in ("opencl", ["opencl", "llvm"], [cpu(0), opencl]):
        exe = ekiden.compile(module, target, executor=executor, byoc="onnxruntime")
        assert "external" in exe.raw.metadata
        np.testing.assert_allclose(exe(X).numpy(), wanted, 1e-5, 1e-5)
    exe = ekiden.compile(module, "opencl", executor=executor, byoc="onnxruntime")
    assert "regions of 'onnxruntime': runs in an engine" in exe.placement
    there = relay.annotation.on_device(relay.nn.dense(x, relay.const(W1)), opencl)
    marked = IRModule.from_expr(relay.Function([x], relay.cumsum(there, axis=1)))
    exe = ekiden.compile(marked, [cpu(0), opencl], executor=executor, byoc="onnxruntime")
    assert "external" not in exe.raw.metadata


@LONG
def test_state_of_a_program_on_a_device_is_saved_and_taken_up_again(
    opencl: Device, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")

    class Counting(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A sum over runs, and how many there were."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("runs", torch.zeros((), dtype=torch.int64))
            self.register_buffer("total", torch.zeros(8))

        def forward(self, x: Any) -> Any:  # noqa: ANN401
            self.runs.add_(1)
            self.total.add_(torch.tanh(x).sum(0))
            return self.total * 2

    argument = torch.from_numpy(X)
    exe = ekiden.compile(Counting().eval(), example_inputs=(argument,), target="opencl")
    for _ in range(3):
        exe(X)
    runtime.save_params(tmp_path / "state.safetensors", exe.state)
    exe.save(tmp_path / "program.eki")
    known = runtime.load_params(tmp_path / "state.safetensors")
    assert int(known["runs"].numpy()) == 3
    wanted = exe(X).numpy()
    np.testing.assert_allclose(wanted, 8 * np.tanh(X).sum(0), 1e-5, 1e-5)
    for other in (
        ekiden.load(tmp_path / "program.eki"),
        ekiden.compile(Counting().eval(), example_inputs=(argument,)),
    ):
        other.set_state(known)
        np.testing.assert_allclose(other(X).numpy(), wanted, 1e-5, 1e-5)
