"""What the seed documents name without code: a program for each, or why there is none."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from seed_blocks import described_instructions, flat, proposed_instructions, seed_text, seeds_folder

import ekiden as tvm
from ekiden import arith, micro, relay, rpc, runtime, te, tir, topi, tune
from ekiden.backend.vm.control_flow import MAX_JUMP_TABLE_CASES
from ekiden.cli import main
from ekiden.contrib.graph_executor import GraphModule
from ekiden.ir import register_op_attr
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.op import OP_ATTRS
from ekiden.relay import transform
from ekiden.runtime import Device, Module, Object, PackedFunc, vm
from ekiden.runtime.artifact.container_format import read_sections
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.binding.opcodes import OPCODES
from ekiden.runtime.errors import DeviceError

pytestmark = pytest.mark.skipif(
    seeds_folder() is None, reason="needs the seed documents: shared/seeds above the repository"
)

F32 = "float32"
PAGE = Path(__file__).parents[2] / "docs/seeds.md"


def run(text: str, *args: object) -> tuple[object, str]:
    """What the main function of a program gives, and its bytecode."""
    module = relay.parse(f'#[version = "0.0.5"]\n{text}')
    exe = relay.vm.compile(module, "llvm")
    return vm.VirtualMachine(exe, tvm.cpu()).invoke("main", *args), exe.bytecode


def doubled(name: str) -> Module:
    a = te.placeholder((3,), name="a")
    func = te.create_prim_func([a, te.compute((3,), lambda i: a[i] * 2.0, name="b")])
    return tvm.build(func, "llvm", name=name)


# 000, 001: instructions ---------------------------------------------------------------------------

LIST = """
type List[A] { Cons(A, List[A]), Nil, }
def @sum(%l: List[float32]) -> float32 {
  match (%l) { Cons(%h, %t) => add(%h, @sum(%t)), Nil => 0f }
}
def @apply(%f: fn (float32) -> float32, %x: float32) -> float32 { %f(add(%x, 1f)) }
"""
MANY = ", ".join(f"C{i}" for i in range(MAX_JUMP_TABLE_CASES + 1))
"""More constructors than one instruction tells apart."""
PROGRAMS: tuple[tuple[str, tuple[object, ...], object], ...] = (
    ("def @main(%x: Tensor[(2), float32]) { nn.relu(add(%x, %x)) }", (np.array([-1, 2], F32),),
     [0, 4]),
    ("def @main(%x: Tensor[(n), float32]) { nn.relu(%x) }", (np.array([-1, 2, 3], F32),),
     [0, 2, 3]),
    (LIST + "def @main() { @sum(Cons(1f, Cons(2f, Nil))) }", (), 3),
    (LIST + """def @main(%y: float32, %b: bool) {
       let %f = if (%b) { fn (%x: float32) { multiply(%x, %y) } }
                else { fn (%x: float32) { subtract(%x, %y) } };
       add(@apply(%f, 2f), (%y, 5f).1)
     }""", (np.float32(10), np.bool_(True)), 35),
    (f"""type Many {{ {MANY}, }}
     def @main(%b: bool) {{ let %t = if (%b) {{ C0 }} else {{ C{MAX_JUMP_TABLE_CASES} }};
       match? (%t) {{ C0 => 1f, C{MAX_JUMP_TABLE_CASES} => 2f }} }}""", (np.bool_(False),), 2),
    ("""type Two { One, Other, }
     def @main(%b: bool) { let %t = if (%b) { One } else { Other };
       match? (%t) { One => 1f } }""", (np.bool_(True),), 1),
)  # fmt: skip


def test_every_described_instruction_is_run() -> None:
    """Programs that give what they should, in whose bytecode each instruction stands."""
    seen = ""
    for text, args, expected in PROGRAMS:
        result, code = run(text, *args)
        assert np.asarray(result.numpy()).tolist() == expected, text  # type: ignore[attr-defined]
        seen += code
    mnemonics = {opcode.name: opcode.mnemonic for opcode in OPCODES}
    for name, operands in described_instructions().items():
        assert f" {mnemonics[name]}" in seen, f"no program has {name}({', '.join(operands)})"


NAMES = {"AllocDatatype": "AllocADT"}
"""A name of the proposal -> what became of it."""
STACK = ("Push", "Pop")


def test_instructions_of_the_proposal_became_those() -> None:
    proposed = set(proposed_instructions()) - set(STACK)
    assert proposed and {NAMES.get(name, name) for name in proposed} <= set(
        described_instructions()
    )


def test_no_pattern_matches_is_an_error() -> None:
    with pytest.raises(tvm.RunError, match="the program cannot go on"):
        run(PROGRAMS[-1][0], np.bool_(False))


# 000: the virtual machine -------------------------------------------------------------------------


def test_values_of_the_machine() -> None:
    """Tensors, data and closures."""
    assert isinstance(runtime.tensor(np.ones(2)), runtime.nd.NDArray)
    pair = runtime.ADT(3, [runtime.tensor(np.ones(2)), 1])
    assert runtime.convert(lambda it: it)(pair).tag == 3  # type: ignore[attr-defined]
    result, _ = run("def @main(%x: float32) { fn (%y: float32) { add(%x, %y) } }", np.float32(1))
    assert result is not None


@pytest.mark.parametrize("name", ["ToANormalForm", "LambdaLift", "InlinePrimitives"])
def test_passes_of_the_compiler(name: str) -> None:
    module = relay.transform.InferType()(relay.parse("def @main(%x: float32) { exp(exp(%x)) }"))
    assert isinstance(getattr(transform, name)()(module), tvm.IRModule)
    assert isinstance(tvm.get_global_func(f"relay._transform.{name}")()(module), tvm.IRModule)


def test_tail_calls_use_constant_stack() -> None:
    """What the document leaves to do."""
    text = """
    def @loop(%i: int32) -> int32 { if (equal(%i, 0)) { %i } else { @loop(subtract(%i, 1)) } }
    def @main(%n: int32) { @loop(%n) }"""
    result, code = run(text, np.int32(200_000))
    assert int(result.numpy()) == 0 and "invoke_tail" in code  # type: ignore[attr-defined]


def test_bytecode_sections_are_ordered(tmp_path: Path) -> None:
    x = relay.var("x", shape=(2,))
    exe = relay.vm.compile(relay.Function([x], relay.exp(x) + relay.const(np.ones(2, F32))))
    kinds = [kind for kind, _, _ in read_sections(exe.raw.to_bytes())]
    expected = [Section.GLOBALS, Section.CONSTANTS, Section.PRIMITIVES, Section.CODE]
    assert [kind for kind in kinds if kind in expected] == expected
    code, library = exe.save()
    library.export_library(tmp_path / "lib.so")
    loaded = runtime.vm.Executable.load_exec(code, runtime.load_module(tmp_path / "lib.so"))
    machine = vm.VirtualMachine(loaded, tvm.cpu())
    np.testing.assert_allclose(machine.invoke("main", np.zeros(2, F32)).numpy(), [2, 2])


def test_devices_of_several_kinds() -> None:
    """Copies are put in where values change their device."""
    x = relay.var("x", shape=(2,))
    there = relay.annotation.on_device(relay.exp(x), tvm.cpu(1))
    here = relay.annotation.on_device(relay.negative(there), tvm.cpu(0))
    module = tvm.IRModule.from_expr(relay.Function([x], here))
    exe = tvm.compile(module, {tvm.cpu(0): "llvm", tvm.cpu(1): "llvm"})
    assert "device_copy" in exe.disassemble()
    np.testing.assert_allclose(exe(np.zeros(2, F32)).numpy(), [-1, -1])


def test_hot_code_becomes_native() -> None:
    x = relay.var("x", shape=(2,))
    exe = tvm.compile(tvm.IRModule.from_expr(relay.Function([x], relay.exp(x))))
    exe.jit()
    np.testing.assert_allclose(exe(np.zeros(2, F32)).numpy(), [1, 1])


# 002, 004: the runtime ----------------------------------------------------------------------------


def test_kinds_of_arguments_of_a_packed_function() -> None:
    """int, float, string, function, module, tensor, any object of the IR."""
    echo = runtime.convert(lambda *args: args[0])
    module, node = doubled("f"), relay.var("x")
    for value in (1, 2.5, "text", module, node):
        assert echo(value) == value
    assert isinstance(echo(print), PackedFunc)
    assert echo(np.ones(2)).numpy().tolist() == [1, 1]


def test_function_of_python_is_called_from_compiled_code() -> None:
    seen: list[float] = []
    tvm.register_func("seeds.debug", lambda t: seen.append(float(t.numpy()[0])), override=True)

    def told(inputs: Sequence[tir.Buffer], outputs: Sequence[tir.Buffer]) -> tir.PrimExpr:
        return call_intrin("call_packed", tir.StringImm("seeds.debug"), inputs[0].access_ptr("r"))

    a = te.placeholder((1,), name="a")
    b = te.extern((1,), [a], told, name="b")
    function = tvm.build(te.create_prim_func([a, b]), "llvm", name="f")["f"]
    function(np.array([5], F32), np.zeros(1, F32))
    assert seen == [5]
    tvm.remove_global_func("seeds.debug")


def test_functions_and_types_are_known_by_name() -> None:
    names = tvm.runtime.list_global_func_names()
    assert {"relay._transform.InferType", "ir.GetOp", "node.SaveJSON"} <= set(names)
    key = relay.var("x").type_key
    assert key == "relay.Var" and runtime.is_defined(key)
    cls = runtime.object_class(key)
    assert issubclass(cls, Object)


def test_module_keeps_its_code_as_long_as_a_function_of_it() -> None:
    function = doubled("f")["f"]
    gc.collect()
    y = np.zeros(3, F32)
    function(np.ones(3, F32), y)
    assert y.tolist() == [2, 2, 2]


def test_every_pass_is_a_global_function() -> None:
    result = [n for n in dir(transform) if n[0].isupper() and not n.endswith("Pass")]
    passes = [n for n in result if tvm.get_global_func(f"relay._transform.{n}", True)]
    assert len(passes) > 50
    assert tvm.get_global_func("tir.transform.Simplify") is not None


def test_enabled_targets_are_reported() -> None:
    assert runtime.enabled("cpu") and runtime.enabled("llvm") and runtime.enabled("llvm -mcpu=x")
    assert runtime.enabled("rpc")
    assert not runtime.enabled("metal")  # tests of devices give "cuda" a driver
    with pytest.raises(ValueError, match="'abacus'"):
        runtime.enabled("abacus")


def test_device_is_a_value_whether_or_not_it_is_there() -> None:
    device = tvm.metal(1)
    assert str(device) == "metal(1)" and not device.exist and device == tvm.device("metal", 1)
    assert (tvm.cuda(0), tvm.metal(), tvm.gpu(0)) == tuple(
        map(tvm.device, ("cuda", "metal", "cuda"))
    )
    with pytest.raises(DeviceError, match=r"metal\(1\): there is no driver"):
        tvm.nd.array([1, 2, 3], device=device)


# 003: the design ----------------------------------------------------------------------------------


def test_both_kinds_of_functions_in_one_module() -> None:
    a = te.placeholder((2,), name="a")
    func = te.create_prim_func([a, te.compute((2,), lambda i: a[i] + 1.0, name="b")])
    name, x = relay.GlobalVar("kernel"), relay.var("x", shape=(2,))
    module = tvm.IRModule({name: func, "main": relay.Function([x], name(x))})
    assert relay.transform.InferType()(module)["main"].body.checked_type == relay.TensorType((2,))
    assert tvm.compile(module)(np.ones(2, F32)).numpy().tolist() == [2, 2]


def test_network_falls_into_kernels() -> None:
    text = "def @main(%x: Tensor[(1, 4, 4, 4), float32], %w: Tensor[(4, 4, 3, 3), float32]) {\n"
    text += "  nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1])) }"
    fused = transform.FuseOps()(transform.InferType()(relay.parse(text)))
    assert fused.astext().count("Primitive=1") == 1


def executors() -> dict[str, Callable[[tvm.IRModule], object]]:
    """The ways to run a program that the document names, behind one face."""

    def graph(module: tvm.IRModule) -> object:
        result = GraphModule(relay.build(module, "llvm")["default"](tvm.cpu(0)))
        result.set_input(0, np.zeros(2, F32))
        result.run()
        return result.get_output(0)

    def machine(module: tvm.IRModule) -> object:
        exe = relay.vm.compile(module, "llvm")
        return vm.VirtualMachine(exe, tvm.cpu()).invoke("main", np.zeros(2, F32))

    def ahead(module: tvm.IRModule) -> object:
        return tvm.compile(module, executor="aot").module["main"](np.zeros(2, F32))

    return {"graph executor": graph, "virtual machine": machine, "AOT": ahead}


@pytest.mark.parametrize("name", ["graph executor", "virtual machine", "AOT"])
def test_executors_run_the_program(name: str) -> None:
    x = relay.var("x", shape=(2,))
    module = tvm.IRModule.from_expr(relay.Function([x], relay.exp(x)))
    np.testing.assert_allclose(executors()[name](module).numpy(), [1, 1])  # type: ignore[attr-defined]


def test_operator_gets_attributes() -> None:
    register_op_attr("exp", "seeds.is_elementwise", True)
    assert relay.op.op.get("exp").get_attr("seeds.is_elementwise") is True
    relay.op.op.get("exp").reset_attr("seeds.is_elementwise")


def test_lower_layers_are_reachable() -> None:
    """target, arith, te, topi, the dialects qnn, vm and memory, layouts, a pass of one's own."""
    target = tvm.target.Target("llvm -mcpu=skylake")
    assert target.kind.name == "llvm" and "mcpu" in target.attrs
    i = tir.Var("i", "int64")
    assert arith.Analyzer().simplify((i * 4 + 8) // 4 - i).value == 2
    x = te.placeholder((2, 2), name="x")
    assert isinstance(te.create_prim_func([x, topi.nn.relu(x)]), tir.PrimFunc)
    assert relay.op.op.get("qnn.quantize") and relay.op.op.get("vm.shape_of")
    assert relay.op.op.get("memory.alloc_storage")

    @transform.function_pass(opt_level=0)
    def own(function: relay.Function, module: tvm.IRModule, context: object) -> relay.Function:
        return function.with_attr("seen", 1)

    assert own(relay.parse("def @main() { 1 }"))["main"].attrs["seen"] == 1
    assert transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]}) is not None


def test_schedules_of_tensor_expressions() -> None:
    """te/schedule, and the bounds that lowering infers."""
    a = te.placeholder((4, 6), name="a")
    b = te.compute((4, 6), lambda i, j: a[i, j] + 1.0, name="b")
    schedule = te.create_schedule(b.op)
    outer, _ = schedule[b].split(b.op.axis[1], factor=3)
    schedule[b].reorder(outer, b.op.axis[0])
    bounds = te.schedule.InferBound(schedule)
    assert [int(bounds[axis].extent) for axis in b.op.axis] == [4, 6]
    y = np.zeros((4, 6), F32)
    tvm.build(schedule, [a, b], "llvm", name="f")["f"](np.ones((4, 6), F32), y)
    assert (y == 2).all()


@te.hybrid.script
def doubled_by_hand(p: object) -> object:
    q = output_tensor(p.shape, p.dtype)  # noqa: F821
    for i in range(p.shape[0]):
        q[i] = p[i] * 2.0
    return q


def test_hybrid_script_runs() -> None:
    d = te.placeholder((4,), name="d")
    twice = doubled_by_hand(d)
    y = np.zeros(4, F32)
    tvm.build(te.create_schedule(twice.op), [d, twice], "llvm", name="f")["f"](np.ones(4, F32), y)
    assert y.tolist() == [2] * 4


def test_strategy_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(attrs: object, inputs: Sequence[te.Tensor], out: object) -> list[te.Tensor]:
        return [topi.multiply(inputs[0], te.const(3.0, F32))]

    def strategy(attrs: object, inputs: object, out: object, target: object) -> object:
        output = relay.op.OpStrategy()
        output.add_implementation(compute, plevel=15)
        return output

    monkeypatch.setitem(OP_ATTRS, "FTVMStrategy", dict(OP_ATTRS.get("FTVMStrategy", {})))
    relay.op.register_strategy("exp")(strategy)
    x = relay.var("x", shape=(2,))
    result = tvm.compile(tvm.IRModule.from_expr(relay.Function([x], relay.exp(x))))
    assert result(np.ones(2, F32)).numpy().tolist() == [3, 3]


def test_function_of_another_process() -> None:
    """002: RPCModule."""
    with rpc.LocalSession() as session:
        module = doubled("twice")
        module.export_library(str(session.get_function("tvm.rpc.server.workpath")("twice.so")))
        a = tvm.nd.array(np.ones(3, F32), session.cpu())
        b = tvm.nd.empty((3,), F32, session.cpu())
        session.load_module("twice.so")["twice"](a, b)
        assert b.numpy().tolist() == [2, 2, 2]


# 003: search, a frontend, small machines, devices -------------------------------------------------


@tune.template("seeds/product")
def template(n: int) -> tuple[te.schedule.Schedule, list[te.Tensor]]:
    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    s = te.create_schedule(c.op)
    config = tune.get_config()
    config.define_knob("vectors", [False, True])
    if config["vectors"].val:
        s[c].vectorize(s[c].op.axis[1])
    return s, [a, b, c]


@pytest.mark.parametrize("words", ["AutoTVM", "auto_scheduler"])
def test_program_is_searched_for(words: str) -> None:
    """003: by a template with knobs, and by sketches that rules derive from what is computed."""
    if words == "AutoTVM":
        task = tune.template_task("seeds/product", (8,), "llvm")
    else:
        task = tune.te_task(template(8)[1], "llvm", name="seeds.product")
    session = tune.Session([task], measurer=tune.Measurer(turns=2, race_seconds=0.02, jobs=1))
    session.run(2)
    assert {t.status for t in session.records.query(kind="trial")} <= {"ok", "unsteady"}
    result = tvm.build(task.program(session.records), "llvm", name="product")
    x, out = np.arange(64, dtype=F32).reshape(8, 8), np.zeros((8, 8), F32)
    result["product"](x, x, out)
    np.testing.assert_allclose(out, x @ x, rtol=1e-5)


def test_benchmark_is_logged(tmp_path: Path) -> None:
    """003: Benchmark Performance Log Format."""
    x = relay.var("x", shape=(2,))
    (tmp_path / "m.relay").write_text(
        tvm.IRModule.from_expr(relay.Function([x], relay.exp(x))).astext()
    )
    model, log = str(tmp_path / "m.relay"), tmp_path / "log.json"
    assert main(["bench", model, "--seconds", "0.01", "--log", str(log)]) == 0
    line = json.loads(log.read_text())
    assert line["runtime_ms_mean"] > 0 and line["workload"] == "m.relay"


def test_graph_of_tensorflow() -> None:
    """003: TensorFlow Frontend."""
    tf = pytest.importorskip("tensorflow", reason="needs the package tensorflow")
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder("float32", [2, 3], "x")
        tf.nn.relu(x - 1.0, name="out")
    result, params = relay.frontend.from_tensorflow(graph.as_graph_def(), outputs=["out"])
    run = relay.create_executor("vm", result, tvm.cpu(), "llvm", params).evaluate()
    assert run(np.full((2, 3), 3, F32)).numpy().tolist() == [[2] * 3] * 2


def test_model_on_a_small_machine(tmp_path: Path) -> None:
    """003: microTVM, its Project API, Model Library Format: a project made of an archive, built,
    and run by a session on this machine."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("needs a C compiler and make: apt-get install gcc make")
    x = relay.var("x", shape=(4,))
    made = micro.compile(tvm.IRModule.from_expr(relay.Function([x], relay.tanh(x))), "c")
    micro.export_model_library_format(made, tmp_path / "model.tar")
    project = micro.generate_project("host", tmp_path / "model.tar", tmp_path / "project")
    project.build()
    data = np.linspace(-1, 1, 4, dtype=F32)
    with micro.Session(project.open_transport()) as session:
        (result,) = session.run(data)
    np.testing.assert_allclose(result, np.tanh(data), rtol=1e-5)


def test_function_of_a_library_calls_what_the_driver_loads(fake_cuda: Device) -> None:
    """003: CUDAModule, behind a function of the host that says how many threads there are."""
    a = te.placeholder((3,), name="a")
    schedule = tir.Schedule(te.create_prim_func([a, te.compute((3,), lambda i: a[i] + 1.0)]))
    (loop,) = schedule.get_loops(schedule.get_block("compute"))
    schedule.bind(loop, "threadIdx.x")
    library = tvm.build(schedule.func, "cuda", name="addone")
    (device_module,) = library.imported_modules
    assert device_module.type_key == "cuda" and "threadIdx.x" in device_module.get_source()
    data, out = (tvm.nd.array(np.zeros(3, F32), fake_cuda) for _ in range(2))
    library["addone"](data, out)
    assert out.numpy().tolist() == [1, 1, 1] and out.device == fake_cuda


# What is not tried --------------------------------------------------------------------------------

EXCUSED = {
    ("002", "Extension types"): "C++ types are objects here; there is no other registry of types",
    ("001", "Push"): "the proposed stack machine became one with registers, in the same thread",
    ("001", "Pop"): "the proposed stack machine became one with registers, in the same thread",
}
"""Seed and words -> why nothing tries it. They stand on docs/seeds.md."""


@pytest.mark.parametrize(("seed", "words"), EXCUSED)
def test_untested_interfaces_are_listed_on_the_page(seed: str, words: str) -> None:
    assert flat(words) in flat(seed_text(seed))
    assert f"| {seed} | {words} | {EXCUSED[seed, words]} |" in " ".join(PAGE.read_text().split())
