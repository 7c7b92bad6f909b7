"""Profiles, stepping, breakpoints, and states resumed in another process."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import ekiden
from ekiden import IRModule, relay
from ekiden.cli import main
from ekiden.compiler.machine_peak import measure_peak
from ekiden.ir.span import Span
from ekiden.runtime.artifact.dim_expression import evaluate_dim
from ekiden.runtime.debug.debugger import CodeLocation, Stepper
from ekiden.runtime.errors import InputError, LoadError, RunError
from ekiden.runtime.profile.report import (
    CallArgument,
    KernelCall,
    MachinePeak,
    Report,
    profile,
    short_name,
)
from ekiden.runtime.profiler_vm import VirtualMachineProfiler
from ekiden.runtime.vm import VirtualMachine

X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def executable() -> ekiden.Executable:
    """softmax(relu(dense(x))) of n rows, each from a node with a name."""
    weight = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    x = relay.var("x", shape=(relay.Any(), 64))
    y = relay.nn.dense(x, relay.const(weight)).with_fields(span=Span("Gemm 'first'"))
    y = relay.nn.relu(y).with_fields(span=Span("Relu 'second'"))
    y = relay.nn.softmax(y).with_fields(span=Span("Softmax 'third'"))
    return ekiden.compile(IRModule.from_expr(relay.Function([x], y)))


def test_work_over_a_dimension_that_is_an_expression() -> None:
    weight = relay.const(np.ones((5, 4), np.float32))
    x = relay.var("x", shape=(relay.SizeVar("n"), 2))
    tensor = relay.nn.dense(relay.reshape(x, (-1, 4)), weight)
    half = ekiden.compile(IRModule.from_expr(relay.Function([x], tensor)))
    report = half.profile(np.ones((6, 2), np.float32), peak=False)
    assert [call.flops for call in report.calls if "dense" in call.name] == [2 * 3 * 4 * 5]


def test_each_kernel_call_is_reported(executable: ekiden.Executable) -> None:
    report = executable.profile(X)
    assert report.peak is not None and report.peak.flops > 1e9 and report.peak.bandwidth > 1e8
    dense = next(call for call in report.calls if "dense" in call.name)
    assert dense.flops == 8 * 32 * (2 * 64 + 1)
    assert dense.arguments[0] == CallArgument("float32", (8, 64), 8 * 64 * 4)
    assert dense.nbytes == 4 * (8 * 64 + 64 * 32 + 8 * 32)
    assert "second" in dense.source
    assert all(call.duration >= 0 and call.start >= 0 for call in report.calls)
    np.testing.assert_array_equal(report.result.numpy(), executable(X).numpy())  # type: ignore[attr-defined]


def test_each_instruction_is_counted(executable: ekiden.Executable) -> None:
    report = profile(executable.raw, "main", [X])
    lines = [line for line in executable.disassemble().splitlines() if ": " in line[:8]]
    assert [instruction.instruction for instruction in report.instructions] == list(
        range(len(lines))
    )
    assert all(instruction.count == 1 for instruction in report.instructions)
    assert report.instructions[-1].name == "Ret"


def test_tables_json_and_traces(executable: ekiden.Executable) -> None:
    report = profile(executable.raw, "main", [X], peak=MachinePeak(1e9, 1e9))
    table = str(report).splitlines()
    assert table[0].split()[:3] == ["kernel", "source", "calls"]
    assert any(line.startswith("softmax ") and "memory" in line for line in table)
    long = report.table(long_names=True).splitlines()
    assert any(line.startswith("fused_nn_softmax_") for line in long)
    assert '"fused_nn_softmax_' in report.csv()
    assert len(report.rows(aggregate=False)) == len(report.calls)
    assert len(report.csv().splitlines()) == len(report.rows()) + 1
    read = json.loads(report.json())
    assert read["configuration"]["Executor"] == "VM" and read["configuration"]["Peak GB/s"] == 1
    assert [c["Name"] for c in read["calls"]] == [c.name for c in report.calls]
    assert sum(c["Percent"] for c in read["calls"]) <= 100
    events = json.loads(report.trace())["traceEvents"]
    function = next(e for e in events if e["cat"] == "function")
    kernels = [e for e in events if e["cat"] == "kernel"]
    assert function["name"] == "main" and len(kernels) == len(report.calls)
    assert all(
        function["ts"] <= e["ts"] and e["ts"] + e["dur"] <= function["ts"] + function["dur"]
        for e in kernels
    )


def test_cached_working_set_uses_cache_bandwidth() -> None:
    """A kernel on 16 KB that moves 160 GB/s is at 80% of its cache, not 1600% of memory."""
    peak = MachinePeak(1e12, 10e9, ((1 << 14, 200e9), (1 << 18, 100e9), (1 << 26, 10e9)))
    assert peak.limit(100) == peak.limit(1 << 17) == (200e9, "cache")
    assert peak.limit(1 << 20) == (100e9, "cache")
    assert peak.limit(1 << 26) == (10e9, "memory") and MachinePeak(1.0, 2.0).limit(5) == (
        2.0,
        "memory",
    )
    arguments = (CallArgument("float32", (4096,), 1 << 14),)
    call = KernelCall("main", 0, "k", "", 0, 102, arguments, 0, 1 << 14)
    report = Report((call,) * 3, (), (), None, 1, peak)
    assert [report.cells(row)[7] for row in report.rows()] == ["80% cache"]


def test_gather_traffic_counts_taken_rows_only() -> None:
    program = """
    def @main(%table: Tensor[(50000, 64), float32], %rows: Tensor[(n), int32]) {
      take(%table, %rows, axis=0)
    }"""
    report = ekiden.compile(relay.parse(program)).profile(
        np.zeros((50000, 64), np.float32), np.arange(9, dtype=np.int32), peak=False
    )
    sizes = {call.title: call.nbytes for call in report.calls}
    assert sizes.pop("take") == 2 * 9 * 64 * 4 + 9 * 4
    assert all(size < 200 for size in sizes.values()), "shape functions read shapes alone"


def test_work_of_attention_is_counted() -> None:
    b, n = relay.SizeVar("b"), relay.SizeVar("n")
    inputs = [relay.var(name, shape=(b, 2, n, 8)) for name in "qkv"]
    result = relay.Function(inputs, relay.nn.attention(*inputs))
    report = ekiden.compile(IRModule.from_expr(result)).profile(
        *[np.ones((3, 2, 16, 8), np.float32)] * 3, peak=False
    )
    assert [c.flops for c in report.calls if c.title == "attention"] == [
        2 * 2 * 3 * 2 * 16 * 16 * 8
    ]


def test_kernels_without_vectors_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "def @main(%x: Tensor[(512), float32]) { nn.relu(%x) }"
    data = np.ones(512, np.float32)
    report = ekiden.compile(relay.parse(program)).profile(data, peak=False)
    assert not any("scalar" in report.cells(row)[7] for row in report.rows())
    monkeypatch.setattr("ekiden.backend.kernels.kernel_facts._has_vectors", lambda lowered: False)
    monkeypatch.setenv("EKIDEN_CACHE_DIR", "")
    report = ekiden.compile(relay.parse(program)).profile(data, peak=False)
    assert [report.cells(row)[7] for row in report.rows()] == ["scalar"]
    assert [c["Vectors"] for c in json.loads(report.json())["calls"]] == [False]


@pytest.mark.parametrize(
    ("operators", "title"),
    [
        (["nn.contrib_dense_pack", "add", "nn.relu"], "dense_pack+add+relu"),
        (["nn.conv2d"] + ["add", "nn.relu"] * 9, "conv2d+add+relu+add+relu+add+13"),
        (["a" * 50, "add"], "a" * 28 + "+1"),
        (["nn.contrib_conv2d_winograd_without_weight_transform", "add"], "conv2d_winograd+add"),
        ([], ""),
    ],
)
def test_names_of_kernels_are_short(operators: list[str], title: str) -> None:
    assert short_name(operators) == title and len(title) <= 32


def test_calls_of_functions_are_frames() -> None:
    program = """
    #[version = "0.0.5"]
    def @main(%x: Tensor[(4), float32]) -> Tensor[(4), float32] { add(@half(%x), @half(%x)) }
    def @half(%x: Tensor[(4), float32]) -> Tensor[(4), float32] { multiply(%x, 0.5f) }
    """
    compiled = ekiden.compile(ekiden.parser.fromtext(program))
    report = profile(compiled.raw, "main", [np.ones(4, np.float32)])
    names = [name for name, start, end in report.frames if start <= end]
    assert names[-1] == "main" and len(names) == len(report.frames)


def test_tvm_profiler_interface_works(executable: ekiden.Executable) -> None:
    machine = VirtualMachineProfiler(executable, ekiden.cpu())
    assert len(machine.profile(X).calls) == len(machine.profile(x=X).calls)
    with pytest.raises(ValueError, match="collectors are not known here"):
        machine.profile(X, collectors=[object()])


def test_run_that_fails_is_not_profiled(executable: ekiden.Executable) -> None:
    with pytest.raises(InputError, match="1 arguments expected, got 2"):
        profile(executable.raw, "main", [X, X], warm_up=0)


def test_dimension_expressions_are_evaluated() -> None:
    assert evaluate_dim("n * 4 + floordiv(m, 2) - 1", {"n": 3, "m": 5}) == 13
    assert evaluate_dim("max(n, 2) * -1", {"n": 1}) == -2
    assert evaluate_dim("select(n == 1, m, n * 2)", {"n": 1, "m": 5}) == 5
    for text in ("n", "__import__('os')", "2 ** 9", "floordiv(1, 0)", "n.real", "1 +"):
        with pytest.raises(ValueError, match="evaluate"):
            evaluate_dim(text, {})


def test_peaks_are_plausible() -> None:
    peak = measure_peak()
    assert 1e9 < peak.flops < 1e14 and 1e8 < peak.bandwidth < 1e13


def test_steps_show_registers(executable: ekiden.Executable) -> None:
    machine = VirtualMachine(executable)
    machine.start("main", X)
    assert machine.where() == CodeLocation("main", 0)
    (first, *others) = machine.registers()
    np.testing.assert_array_equal(first.numpy(), X)  # type: ignore[attr-defined]
    assert all(value is None for value in others)
    steps = 0
    while not machine.step():
        steps += 1
    assert steps == len(profile(executable.raw, "main", [X]).instructions) - 1
    result = machine.stepper.result
    np.testing.assert_array_equal(result.numpy(), executable(X).numpy())  # type: ignore[attr-defined]


def test_paused_call_does_not_block_other_calls(executable: ekiden.Executable) -> None:
    machine = VirtualMachine(executable)
    machine.start("main", X)
    machine.step(3)
    expected = executable(X).numpy()
    result = machine.invoke("main", X)
    np.testing.assert_array_equal(result.numpy(), expected)  # type: ignore[attr-defined]
    machine.start("main", X)
    assert machine.where() == CodeLocation("main", 0)


def test_breakpoints_stop_at_instructions_and_nodes(executable: ekiden.Executable) -> None:
    stepper = Stepper(executable.raw)
    (third,) = stepper.set_breakpoint(source="Softmax 'third'")
    stepper.start("main", X)
    assert not stepper.resume()
    assert stepper.where() == third and stepper.source(third) == "Softmax 'third'"
    assert stepper.resume()
    stepper.set_breakpoint("main", 2)
    stepper.start("main", X)
    assert not stepper.resume() and stepper.where() == CodeLocation("main", 2)
    stepper.clear_breakpoints()
    assert stepper.resume()
    with pytest.raises(InputError, match="no instruction was made from 'Conv'; there are"):
        stepper.set_breakpoint(source="Conv")
    with pytest.raises(InputError, match="'main' has .* instructions, got 1000"):
        stepper.set_breakpoint("main", 1000)


def test_invalid_stepper_calls_are_refused(executable: ekiden.Executable) -> None:
    stepper = Stepper(executable.raw)
    with pytest.raises(RuntimeError, match="no call was started"):
        stepper.step()
    with pytest.raises(RunError, match="the call has not ended"):
        _ = stepper.result
    with pytest.raises(ValueError, match="a count >= 0 expected"):
        stepper.step(-1)
    stepper.start("main", X)
    with pytest.raises(IndexError):
        stepper.registers(3)


RESUME = """
import sys
import numpy as np
import ekiden
from ekiden.runtime.debug.debugger import Stepper
stepper = Stepper(ekiden.load(sys.argv[1]).raw)
stepper.load_state(sys.argv[2])
assert stepper.resume()
np.save(sys.argv[3], stepper.result.numpy())
"""


def test_stepper_state_resumes_in_another_process(
    executable: ekiden.Executable, tmp_path: Path
) -> None:
    executable.save(tmp_path / "model.eki")
    stepper = Stepper(executable.raw)
    stepper.start("main", X)
    stepper.step(8)
    stepper.save_state(tmp_path / "state")
    files = [str(tmp_path / name) for name in ("model.eki", "state", "out.npy")]
    subprocess.run([sys.executable, "-c", RESUME, *files], check=True, timeout=100)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), executable(X).numpy())


def test_saved_states_are_validated(executable: ekiden.Executable) -> None:
    stepper = Stepper(executable.raw)
    stepper.start("main", X)
    state = stepper.state()
    for damaged in (b"", state[:-1], b"X" + state[1:], state[:-1] + b"\1"):
        with pytest.raises(LoadError, match="resume state: "):
            stepper.set_state(damaged)
    stepper.set_state(state)
    assert stepper.resume()


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_saved_state_preserves_sharing(executor: str) -> None:
    program = """
    #[version = "0.0.5"]
    type List[A] { Cons(A, List[A]), Nil }
    def @main(%x: Tensor[(), float32]) -> Tensor[(), float32] { @sum(Cons(%x, Cons(%x, Nil))) }
    def @sum(%l: List[Tensor[(), float32]]) -> Tensor[(), float32] {
      match (%l) { Cons(%h, %t) => add(%h, @sum(%t)), Nil => 0f }
    }
    """
    compiled = ekiden.compile(ekiden.parser.fromtext(program), executor=executor)
    x = np.array(3, np.float32)
    assert [call.function for call in compiled.profile(x, peak=False).calls] == ["sum", "sum"]
    first, second = Stepper(compiled.raw), Stepper(compiled.raw)
    first.start("main", x)
    while not first.step():
        second.set_state(first.state())
        assert second.frames() == first.frames()
        assert second.resume() and second.result.numpy() == 6  # type: ignore[attr-defined]


def test_command_line_profiles(
    executable: ekiden.Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    executable.save(tmp_path / "model.eki")
    written = [f"--json={tmp_path / 'p.json'}", f"--trace={tmp_path / 'p.trace'}"]
    assert main(["profile", str(tmp_path / "model.eki"), *written]) == 0
    shown = capsys.readouterr().out
    assert (
        "limits of" in shown
        and "softmax" in shown
        and "fused_nn_softmax" not in shown
        and "total" in shown
    )
    assert json.loads((tmp_path / "p.json").read_text())["calls"]
    assert json.loads((tmp_path / "p.trace").read_text())["traceEvents"]


def test_command_line_debugs_by_names_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"], "first"),
        helper.make_node("Relu", ["hidden"], ["active"], "second"),
        helper.make_node("Softmax", ["active"], ["soft"], "third"),
        helper.make_node("MatMul", ["soft", "v"], ["y"], "fourth"),
    ]
    weights = [
        helper.make_tensor(name, 1, (4, 4), np.eye(4, dtype=np.float32).ravel()) for name in "wv"
    ]
    infos = [helper.make_tensor_value_info(name, 1, ["n", 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "names", infos[:1], infos[1:], weights)
    path = tmp_path / "names.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    np.save(tmp_path / "x.npy", np.array([[2, 2, 2, 2]], np.float32))
    script = [
        "print x",
        "print soft",
        "break soft",
        "continue",
        "step",
        "print soft",
        "print hiden",
    ]
    script += ["print hidden", "break y", "continue", "step", "print soft", "print y"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(script) + "\n"))
    assert main(["debug", str(path), "--input", f"x={tmp_path / 'x.npy'}"]) == 0
    shown = capsys.readouterr().out
    assert "[[2. 2. 2. 2.]]" in shown and "[[0.25 0.25 0.25 0.25]]" in shown
    assert "print: 'soft' is not computed yet; it is made by main:" in shown
    assert "print: no tensor 'hiden' is stored outside of kernels; there are " in shown
    assert "print: no tensor 'hidden' is stored outside of kernels; there are " in shown
    assert "print: 'soft' is no longer available: its memory has been reused" in shown
    assert shown.count("[[0.25 0.25 0.25 0.25]]") == 2, "soft, and y"


def test_command_line_debugs(
    executable: ekiden.Executable,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable.save(tmp_path / "model.eki")
    state = tmp_path / "state"
    script = ["step 2", "list", "reg", "break 'third'", "break Softmax", "continue", "where"]
    script += [f"save {state}", "print 99", "nonsense", "step x", "print $1", "continue"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(script) + "\n"))
    assert main(["debug", str(tmp_path / "model.eki")]) == 0
    shown = capsys.readouterr().out
    assert "-> main:2" in shown and "$0 = float32[1, 64]" in shown
    assert "# Softmax 'third'" in shown and "breakpoint at main:" in shown
    assert "print: expected a register below" in shown
    assert "no command is called 'nonsense'" in shown and "expected a number, got 'x'" in shown
    assert shown.rstrip().endswith("the run has ended: float32[1, 32]")
    monkeypatch.setattr(sys, "stdin", io.StringIO("where\nquit\n"))
    assert main(["debug", str(tmp_path / "model.eki"), "--state", str(state)]) == 0
    assert "Softmax 'third'" in capsys.readouterr().out
