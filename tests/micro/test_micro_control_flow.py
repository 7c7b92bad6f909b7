"""Control flow without the runtime: the C gives what the virtual machine gives, bit for bit, and
what has no bound is refused by its name."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import control_flow_models as models
import numpy as np
import onnx
import pytest
from bare_programs import (
    BOARDS,
    REFUSED,
    STRICT,
    build_bare,
    need_board,
    run_bare,
    write_files,
)

import ekiden
from ekiden import micro, relay, runtime
from ekiden.cli import main
from ekiden.compiler.export.model_library import build_metadata
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.testing.aot import AOTTestModel, AOTTestRunner, compile_and_run, generate_ref_data

X = np.array([0.1, -0.5, 0.3, 1.2], np.float32)
MATRIX = np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3)
Model = onnx.ModelProto | IRModule
pytestmark = pytest.mark.early


def leaves(value: object) -> list[np.ndarray]:
    """The arrays of a result, of nested tuples in turn."""
    if isinstance(value, ekiden.Tensor):
        return [value.numpy()]
    assert isinstance(value, Iterable)
    return list(itertools.chain.from_iterable(map(leaves, value)))


def check(
    model: Model, rows: Sequence[Sequence[np.ndarray]], folder: Path, *pools: micro.Pool
) -> micro.MicroProgram:
    """Compile a model both ways; for each row of inputs the outputs are the same bits."""
    program = micro.compile(model, "c", pools=pools or (micro.Pool("memory"),))
    path = build_bare(program, folder)
    machine = ekiden.compile(model, target=Target("c"))
    for row in rows:
        found, expected = run_bare(path, program, *row), leaves(machine(*row))
        for y, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(y, wanted.reshape(y.shape))
    return program


ONNX: dict[str, tuple[Callable[[], onnx.ModelProto], list[list[np.ndarray]]]] = {
    "choice": (models.choice, [[MATRIX], [-MATRIX]]),
    "loop": (models.loop, [[MATRIX, MATRIX + 1]]),
    "steps are an input": (lambda: models.loop(None),
                           [[MATRIX, MATRIX + 1, np.array(n)] for n in (0, 1, 4)]),
    "nested": (models.nested, [[X[:3]]]),
    "decoder": (models.decoder, [[np.array([n]), np.zeros((1, 4))] for n in (0, 1, 5)]),
    "scan": (models.scan, [[X[:3], np.linspace(-1, 1, 15).reshape(5, 3)]]),
    "bytes": (models.bytes_in_a_loop, [[np.linspace(-1, 1, 8).reshape(1, 8)]]),
}  # fmt: skip


@pytest.mark.parametrize("name", ONNX)
def test_loops_and_choices_of_onnx_give_what_the_machine_gives(name: str, tmp_path: Path) -> None:
    make, rows = ONNX[name]
    kinds = [i.type.tensor_type.elem_type for i in make().graph.input]
    dtypes = [onnx.helper.tensor_dtype_to_np_dtype(kind) for kind in kinds]
    cast = [[np.asarray(x, dtype) for x, dtype in zip(row, dtypes, strict=True)] for row in rows]
    check(make(), cast, tmp_path)


@pytest.mark.parametrize("name", models.RELAY)
def test_programs_of_relay_give_what_the_machine_gives(name: str, tmp_path: Path) -> None:
    rows = [[X, np.array(n, np.int32)] for n in (0, 1, 2, 3, 4)]
    check(models.program(models.RELAY[name]), rows, tmp_path)


def test_while_loop_of_relay_gives_what_the_machine_gives(tmp_path: Path) -> None:
    i, s = relay.var("i", shape=(), dtype="int32"), relay.var("s", shape=(4,))
    x = relay.var("x", shape=(4,))
    loop = relay.loops.while_loop(
        lambda i, s: relay.less(i, relay.const(10)),
        [i, s],
        lambda i, s: [i + relay.const(1), relay.tanh(s) + x],
    )
    last = relay.TupleGetItem(loop(relay.const(0), relay.zeros((4,), "float32")), 1)
    program = check(IRModule.from_expr(relay.Function([x], last)), [[X]], tmp_path)
    assert program.module.workspace <= 64


def test_recursion_over_a_known_list_is_unrolled_by_partial_evaluation(tmp_path: Path) -> None:
    module = models.program("""
type List[a] { Cons(a, List[a]), Nil }
def @rnn(%l: List[T4], %h: T4) -> T4 {
  match (%l) { Cons(%x, %r) => @rnn(%r, tanh(add(%x, %h))), Nil => %h }
}
def @main(%x: T4) -> T4 { @rnn(Cons(%x, Cons(exp(%x), Cons(negative(%x), Nil))), %x) }
""")
    with pytest.raises(CompileError, match="PartialEvaluate unrolls"):
        micro.compile(module, "c")
    unrolled = relay.transform.PartialEvaluate()(relay.transform.InferType()(module))
    check(unrolled, [[X]], tmp_path)


def test_loop_state_is_updated_in_place(tmp_path: Path) -> None:
    """No copy of the state between turns, and lists are the model's outputs from the start."""
    sources = write_files(micro.compile(models.loop(), "c"), tmp_path)
    text = next(s for s in sources if s.name.endswith("_lib0.c")).read_text()
    (turn,) = re.findall(r"for \(;;\) \{(.*?)continue;", text, re.DOTALL)
    copies = [line.strip() for line in turn.splitlines() if "memcpy(" in line]
    assert len(copies) == 1 and " + (size_t)n * 4, " in copies[0]  # of the new element alone
    entry = text.index("static int32_t run_arrays")
    assert "memcpy" not in text[entry:]


def test_loop_memory_does_not_grow_with_iterations() -> None:
    few, many = (micro.compile(models.loop(n), "c").module for n in (2, 2000))
    assert many.workspace - few.workspace <= 16
    assert [t.nbytes for t in many.outputs] == [24, 8000]


def test_branches_share_memory() -> None:
    x, c = relay.var("x", shape=(1000,)), relay.var("c", shape=(), dtype="bool")
    branches = [relay.sum(relay.cumsum(f(x))) for f in (relay.exp, relay.tanh)]
    both = relay.Function([x, c], relay.If(c, *branches))
    one = relay.Function([x, c], branches[0])
    used = [micro.compile(IRModule.from_expr(f), "c").module.workspace for f in (both, one)]
    assert used[0] <= used[1] + 32


def test_programs_link_no_allocator(tmp_path: Path) -> None:
    for number, make in enumerate((models.nested, models.decoder)):
        folder = tmp_path / str(number)
        sources = write_files(micro.compile(make(), "c -mcpu=cortex-m7"), folder)
        flags = [*STRICT, "-O2", "-ffreestanding", f"-I{folder}/include"]
        made = folder / "all.o"
        command = ["cc", *flags, "-r", "-nostdlib", *map(str, sources), "-o", str(made)]
        subprocess.run(command, check=True)
        shown = subprocess.run(["nm", "-u", str(made)], check=True, capture_output=True, text=True)
        assert set(shown.stdout.split()) - {"U"} <= {
            "memcpy",
            "memset",
            "fabsf",
            "fmaf",
            "copysignf",
        }


def test_caller_provided_memory_holds_frames(tmp_path: Path) -> None:
    pools = micro.Pool("fast", 64), micro.Pool("slow")
    program = check(models.nested(), [[X[:3]]], tmp_path, *pools)
    assert 0 < program.module.pools[0].used <= 64
    with pytest.raises(CompileError, match=r"fast \(16 bytes\) are too small"):
        micro.compile(models.nested(), "c", pools=[micro.Pool("fast", 16)])


@pytest.mark.parametrize("interface", ["c", "packed"])
def test_several_models_with_control_flow_are_one_program(interface: str) -> None:
    rows = []
    for name, text in (("first", "parameters that change places"), ("second", "references")):
        module = models.program(models.RELAY[text])
        inputs = {"x": X, "n": np.array(4, np.int32)}
        outputs = generate_ref_data(module, inputs)
        rows.append(AOTTestModel(module, inputs, outputs, name=name, output_tolerance=1e-6))
    assert compile_and_run(rows, AOTTestRunner(), interface, True)


def test_command_line_writes_a_library_of_a_model_with_a_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(models.decoder(), tmp_path / "decoder.onnx")
    library = tmp_path / "decoder.tar"
    command = ["compile", str(tmp_path / "decoder.onnx"), "--executor", "aot", "--runtime", "crt",
               "-f", "mlf", "--target", "c -mcpu=cortex-m7", "-o", str(library)]  # fmt: skip
    assert main(command) == 0
    assert "memory workspace" in capsys.readouterr().out
    with tarfile.open(library) as archive:
        file = archive.extractfile("./metadata.json")
        assert file is not None
        about = json.load(file)
    (memory,) = about["modules"]["default"]["memory"]["functions"]["main"]
    assert memory["workspace_size_bytes"] == micro.compile(models.decoder(), "c").module.workspace
    project = micro.generate_project("host", library, tmp_path / "project")
    project.build()
    first, state = np.array([1]), np.zeros((1, 4), np.float32)
    with micro.Session(project.open_transport()) as session:
        text, _ = session.run(first, state)
    expected, _ = ekiden.compile(models.decoder())(first, state)
    np.testing.assert_array_equal(text.numpy(), expected.numpy())


@pytest.mark.parametrize("template", BOARDS)
def test_boards_run_nested_loops_in_the_memory_that_was_predicted(
    template: str, tmp_path: Path
) -> None:
    need_board()
    program = micro.compile(models.nested(), BOARDS[template])
    project = micro.generate_project(template, program, tmp_path / "project")
    project.build()
    report = micro.memory_report(program, project, X[:3])
    assert report.predicted.workspace == report.linked.model_workspace == program.module.workspace
    assert report.stack <= report.predicted.stack <= report.stack + 16
    assert report.predicted.calls == ()
    with micro.Session(project.open_transport()) as session:
        found = [y.numpy() for y in session.run(X[:3])]
    expected = leaves(ekiden.compile(models.nested())(X[:3]))
    for y, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


def test_unmatched_value_is_a_run_time_error(tmp_path: Path) -> None:
    module = models.program("""
type Opt[a] { Some(a), No }
def @opt(%n: int32, %x: T4) -> Opt[T4] { if (greater(%n, 0)) { Some(%x) } else { No } }
def @main(%x: T4, %n: int32) -> T4 { match? (@opt(%n, %x)) { Some(%y) => tanh(%y) } }
""")
    program = micro.compile(module, "c", pools=(micro.Pool("memory"),))
    path = build_bare(program, tmp_path)
    (y,) = run_bare(path, program, X, np.array(1, np.int32))
    np.testing.assert_allclose(y, np.tanh(X), rtol=1e-6)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run_bare(path, program, X, np.array(0, np.int32))
    assert refused.value.returncode == REFUSED


ENTRIES = """
def @decay(%n: int32, %x: T4) -> T4 {
  if (greater(%n, 0)) { @decay(subtract(%n, 1), tanh(%x)) } else { %x }
}
def @odd(%n: int32, %x: T4) -> T4 { if (less(%n, 1)) { negative(%x) } else { @even(%n - 1, %x) } }
def @even(%n: int32, %x: T4) -> T4 { if (less(%n, 1)) { %x } else { @odd(%n - 1, exp(%x)) } }
def @pair(%n: int32, %x: T4) { (@decay(%n, exp(%x)), (%n + 1, %x)) }
def @main(%n: int32, %x: T4) -> T4 { sqrt(abs(@decay(%n, %x + @even(%n, %x)))) }
"""


@pytest.mark.parametrize("pools", [(), (micro.Pool("fast", 40), micro.Pool("slow"))])
def test_entry_points_beside_main_give_what_the_machine_gives(
    pools: tuple[micro.Pool, ...], tmp_path: Path
) -> None:
    names = ("even", "pair")
    module = models.program(ENTRIES).with_attr("entries", names)
    program = micro.compile(module, "c", pools=pools)
    machine = runtime.VirtualMachine(ekiden.compile(module, target=Target("c")).raw)
    n = np.array(3, np.int32)
    for entry, name in enumerate(("main", *names)):
        (tmp_path / name).mkdir()
        path = build_bare(program, tmp_path / name, entry)
        outputs = run_bare(path, program, n, X, entry=entry)
        expected = leaves(machine.invoke(name, n, X))
        for y, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(y, wanted)


def test_entry_points_are_packed_functions_of_a_library(tmp_path: Path) -> None:
    module = models.program(ENTRIES).with_attr("entries", ("pair",))
    program = micro.compile(module, "c", packed=True)
    library = tmp_path / "model.so"
    sources = map(str, write_files(program, tmp_path))
    command = ["cc", *STRICT, "-shared", "-fPIC", f"-I{tmp_path}/include", *sources, "-lm"]
    subprocess.run([*command, "-o", str(library)], check=True)
    loaded = runtime.load_module(library)
    first, count, second = (runtime.tensor(v) for v in (X * 0, np.array(0, np.int32), X * 0))
    loaded["tvmgen_default_pair_run"](np.array(2, np.int32), X, first, count, second)
    np.testing.assert_allclose(first.numpy(), np.tanh(np.tanh(np.exp(X))), rtol=1e-6)
    assert count.numpy() == 3
    np.testing.assert_array_equal(second.numpy(), X)
    about = build_metadata(program.module)["modules"]["default"]["entry_points"]
    pair = {"run": "tvmgen_default_pair_run", "model": "ekiden_default_pair"}
    assert about["functions"] == {"pair": pair}


ENTRY_REFUSALS = {
    "missing": (
        "",
        "compile: the module has no Relay function 'f', which its attribute 'entries' names",
    ),
    "calls main": (
        "def @f(%n: int32, %x: T4) -> T4 { @main(%n, @main(%n, %x)) }",
        "compile: runtime 'crt': 'f' calls 'main', which only C may call; let both call a third "
        "function",
    ),
    "gives data": (
        "type Opt[a] { Some(a), No }\ndef @f(%x: T4) -> Opt[T4] { Some(%x) }",
        "compile: runtime 'crt': entry point 'f': output 'output' is Opt[Tensor[(4,), float32]], a "
        "tensor expected",
    ),
    "takes any size": (
        "def @f(%x: Tensor[(n, 4), float32]) { tanh(%x) }",
        "compile: runtime 'crt': entry point 'f': input 'x': a tensor float32(n, 4) has no "
        "constant size",
    ),
}


@pytest.mark.parametrize("name", ENTRY_REFUSALS)
def test_entry_points_without_a_c_interface_are_refused(name: str) -> None:
    text, message = ENTRY_REFUSALS[name]
    module = models.program(text + "\ndef @main(%n: int32, %x: T4) -> T4 { tanh(%x) }")
    with pytest.raises(CompileError) as refused:
        micro.compile(module.with_attr("entries", ("f",)), "c")
    assert str(refused.value).startswith(message)


DATA = (
    " has no constant size: {} follows from data when it runs, and there is no allocator; put it "
    "into a tensor of the largest shape, beside a number that says how much of it counts"
)
WAIT = (
    " and goes on after that call: nothing bounds how many calls wait for each other, each with "
    "memory of its own, and there is no allocator; a call whose result is the function's own "
    "result becomes a loop"
)
PARTIAL = (
    "; relay.transform.PartialEvaluate unrolls what is recursive over data whose structure is known"
)
REFUSALS: dict[str, tuple[Callable[[], Model] | str, str]] = {
    "an output that data size": (
        models.ends_by_data, "output 'ys': a tensor float32(?,)" + DATA.format("a size")),
    "a list that data size": (
        lambda: models.ends_by_data(is_stacked=False),
        "function 'main', Loop 'y': a tensor float32(?,)" + DATA.format("a size")),
    "a state that grows": (
        models.growing,
        "function 'loop', Loop 'all': a tensor float32(dim1,)" + DATA.format("dim1")),
    "recursion that waits": (
        """def @fib(%n: int32) -> int32 {
  if (less(%n, 2)) { %n } else { add(@fib(subtract(%n, 1)), @fib(subtract(%n, 2))) }
}
def @main(%n: int32) -> int32 { @fib(%n) }""",
        "function 'fib', text:3:38: it calls itself" + WAIT),
    "functions that wait for each other": (
        """def @a(%n: int32) -> int32 {
  if (less(%n, 1)) { 0 } else { add(@b(subtract(%n, 1)), 1) }
}
def @b(%n: int32) -> int32 { if (less(%n, 1)) { 0 } else { @a(subtract(%n, 1)) } }
def @main(%n: int32) -> int32 { @a(%n) }""",
        "function 'a', text:3:37: it calls 'b', which calls it" + WAIT),
    "a tree": (
        """type Tree[a] { Leaf(a), Node(Tree[a], Tree[a]) }
def @f(%t: Tree[T4], %n: int32) -> Tree[T4] {
  if (greater(%n, 0)) { @f(Node(%t, %t), subtract(%n, 1)) } else { %t }
}
def @main(%x: T4, %n: int32) -> T4 {
  match (@f(Leaf(%x), %n)) { Leaf(%y) => %y, Node(_, _) => %x }
}""",
        "function 'f', text:3:8: a value of Tree[Tensor[(4,), float32]] holds values of its own "
        "type: its size has no bound, and there is no allocator" + PARTIAL),
    "a function that is chosen": (
        """def @main(%x: T4, %n: int32) -> T4 {
  let %f = if (greater(%n, 0)) { fn (%y: T4) -> T4 { tanh(%y) } }
           else { fn (%y: T4) -> T4 { exp(%y) } };
  %f(%x)
}""",
        "function 'main', text:3:12: which function is called is known when it runs only; call the "
        "functions in the branches of an if in place of choosing one by it"),
    "a function that is given": (
        """def @f(%g: fn (T4) -> T4, %x: T4, %n: int32) -> T4 {
  if (greater(%n, 0)) { @f(%g, %g(%x), subtract(%n, 1)) } else { %x }
}
def @main(%x: T4, %n: int32) -> T4 { @f(fn (%y: T4) -> T4 { tanh(%y) }, %x, %n) }""",
        "function 'f', text:2:8: the parameter 'g' is a function that is known when it runs only; "
        "call it by its name, or relay.transform.PartialEvaluate unrolls what is recursive over "
        "data whose structure is known"),
    "references that turns make": (
        """def @f(%r: ref(T4), %n: int32) -> T4 {
  if (greater(%n, 0)) { let %q = ref(tanh(ref_read(%r))); @f(%q, subtract(%n, 1)) }
  else { ref_read(%r) }
}
def @main(%x: T4, %n: int32) -> T4 { @f(ref(%x), %n) }""",
        "function 'f', text:3:59: each turn has another reference, whose memory has no bound; a "
        "reference that stays the same can be changed by ref_write"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_unbounded_programs_are_refused_by_name(name: str) -> None:
    make, message = REFUSALS[name]
    module = models.program(make) if isinstance(make, str) else make()
    with pytest.raises(CompileError) as refused:
        micro.compile(module, "c")
    assert str(refused.value) == f"compile: runtime 'crt': {message}"
