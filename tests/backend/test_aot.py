"""AOT-compiled functions behave like their bytecode: results, errors, memory, recursion depth."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.backend.aot.jit import compile_functions
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.codegen.llvm import parse_image
from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.debug.instructions import Instruction, make_instruction
from ekiden.runtime.errors import CompileError, EkidenError, RunError
from ekiden.runtime.executable.executable import Executable
from long_runs import sizes

COUNTING = """
def @down(%n: int32, %sum: int32) -> int32 {
  if (less(%n, 1)) { %sum } else { @down(subtract(%n, 1), add(%sum, %n)) }
}
def @even(%n: int32) -> bool { if (less(%n, 1)) { True } else { @odd(subtract(%n, 1)) } }
def @odd(%n: int32) -> bool { if (less(%n, 1)) { False } else { @even(subtract(%n, 1)) } }
def @depth(%n: int32) -> int32 {
  if (less(%n, 1)) { 0 } else { add(1, @depth(subtract(%n, 1))) }
}
def @main(%n: int32) { (@down(%n, 0), @even(%n), @depth(%n)) }
"""
LISTS = """
type List[A] { Cons(A, List[A]), Nil, }
type Shape { Square(Tensor[(), float32]), Box(Tensor[(), float32], Tensor[(), float32]), Dot, }
def @map[A, B](%f: fn(A) -> B, %l: List[A]) -> List[B] {
  match (%l) { Cons(%h, %t) => Cons(%f(%h), @map(%f, %t)), Nil => Nil, }
}
def @fold(%l: List[float32], %sum: float32) -> float32 {
  match (%l) { Cons(%h, %t) => @fold(%t, add(%sum, %h)), Nil => %sum, }
}
def @area(%s: Shape) -> float32 {
  match (%s) { Square(%a) => multiply(%a, %a), Box(%a, %b) => multiply(%a, %b), Dot => 0f, }
}
def @main(%x: float32) {
  let %add = fn (%s: Shape) -> float32 { add(@area(%s), %x) };
  let %l = Cons(Square(%x), Cons(Box(%x, 3f), Cons(Dot, Nil)));
  (@fold(@map(%add, %l), 0f), @map(%add, %l))
}
"""
REFERENCES = """
def @main(%x: float32) {
  let %r = ref(%x);
  let %twice = fn () { let %u = ref_write(%r, multiply(ref_read(%r), 2f)); ref_read(%r) };
  let %a = %twice();
  let %b = %twice();
  (%a, %b, ref_read(%r))
}
"""


def module_of(text: str) -> relay.IRModule:
    return relay.parse('#[version = "0.0.5"]\n' + text)


def forms(module: relay.IRModule) -> list[Executable]:
    """Interpreted, compiled with the artifact, compiled in this process, compiled when hot."""
    now, hot = ekiden.compile(module), ekiden.compile(module)
    now.jit()
    hot.jit(3)
    return [ekiden.compile(module), ekiden.compile(module, executor="aot"), now, hot]


def leaves(value: object) -> list[object]:
    result: list[object] = []
    stack = [value]
    while stack:
        at = stack.pop()
        if isinstance(at, tuple):
            stack.extend(reversed(at))
            result.append(getattr(at, "tag", 0))
        else:
            array = np.asarray(at)
            result.append((array.shape, array.dtype, array.tobytes()))
    return result


@pytest.mark.parametrize("text", [COUNTING, LISTS, REFERENCES], ids=["calls", "data", "references"])
def test_aot_jit_and_bytecode_agree(text: str) -> None:
    module = module_of(text)
    data = np.int32(7) if "int32" in text else np.float32(1.5)
    machines = forms(module)
    expected = leaves(machines[0](data))
    for item in machines * 2:
        assert leaves(item(data)) == expected
    plain = np.asarray(leaves(Interpreter(module).evaluate("main", np.asarray(data)))[1][2])  # type: ignore[index]
    assert plain == expected[1][2]  # type: ignore[index]


@pytest.mark.parametrize("n", [0, 1, 30_000])
def test_calls_of_any_depth(n: int) -> None:
    native = ekiden.compile(module_of(COUNTING), executor="aot")
    total, even, depth = native(np.int32(n))
    assert total.numpy() == np.arange(n + 1, dtype=np.int32).sum(dtype=np.int32)
    assert bool(even.numpy()) == (n % 2 == 0)
    assert depth.numpy() == n


def test_function_names_are_escaped() -> None:
    name = GlobalVar('a"b\\41é')
    n = relay.var("n", shape=(), dtype="int32")
    again = relay.Call(name, [relay.subtract(n, relay.const(1, "int32"))])
    body = relay.If(relay.less(n, relay.const(1, "int32")), n, again)
    down = relay.Function([n], body, relay.TensorType((), "int32"))
    m = relay.var("m", shape=(), dtype="int32")
    module = IRModule({name: down, "main": relay.Function([m], relay.Call(name, [m]))})
    assert int(ekiden.compile(module, executor="aot")(np.int32(5)).numpy()) == 0


def test_recursion_beyond_the_limit_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_MAX_DEPTH", "1000")
    native = ekiden.compile(module_of(COUNTING), executor="aot")
    used = set()
    for _ in range(3):
        with pytest.raises(RunError, match="recursion is deeper than 1000 calls"):
            native(np.int32(5000))
        used.add(in_use())
    assert len(used) == 1
    assert native(np.int32(500))[2].numpy() == 500


def in_use() -> int:
    gc.collect()
    return runtime.memory_stats().in_use


def test_dynamic_shapes_and_no_elements() -> None:
    n = relay.SizeVar("n", "int64")
    x = relay.var("x", shape=(n, 3))
    y = relay.nn.softmax(relay.concatenate([x, relay.exp(x)], axis=0))
    body = relay.Tuple([y, relay.reshape(relay.negative(x), (-1,))])
    machines = forms(relay.IRModule.from_expr(relay.Function([x], body)))
    for size in (0, 1, 5, 64, 0, 7):
        data = np.random.default_rng(size).random((size, 3), dtype=np.float32)
        expected = leaves(machines[0](data))
        assert all(leaves(item(data)) == expected for item in machines)


def test_error_releases_intermediates() -> None:
    @runtime.register_func("test.aot.fail", override=True)
    def fail(x: runtime.Tensor, out: runtime.Tensor) -> None:
        if x.numpy()[0] < 0:
            raise ValueError("a negative number")
        out.numpy()[:] = x.numpy()

    size = make_instruction("LoadConsti", dst=1, value=16)
    room = make_instruction("AllocStorage", dst=2, size=1, size_index=0, alignment=64, device=0)
    tensor = make_instruction(
        "AllocTensor", dst=3, storage=2, offset=0, dtype="float32", shape=(4,)
    )
    call = make_instruction("InvokePacked", packed_index=0, output_size=1, args=(0, 3))
    inner = VMFunction(
        "inner", ("x",), 4, (size, room, tensor, call, make_instruction("Ret", src=3))
    )
    code = (
        make_instruction("AllocADT", dst=1, tag=5, fields=(0, 0)),
        make_instruction("Invoke", dst=2, func=0, args=(0,)),
        make_instruction("AllocADT", dst=3, tag=0, fields=(2, 1)),
        make_instruction("Ret", src=3),
    )
    main = VMFunction("main", ("x",), 4, code)
    exe = runtime.Executable.from_bytes(
        write_executable([inner, main], [], ["test.aot.fail"], b"", {})
    )
    compile_functions(exe, ["main", "inner"])
    machine = runtime.VirtualMachine(exe)
    good = np.arange(4, dtype="float32")
    machine.invoke("main", good)
    before = in_use()
    for _ in range(5):
        with pytest.raises(ValueError, match="a negative number"):
            machine.invoke("main", good - 9)
        first, _ = machine.invoke("main", good)
        np.testing.assert_array_equal(first.numpy(), good)
        del first, _
    assert in_use() == before
    runtime.remove_global_func("test.aot.fail")


def test_artifact_keeps_its_native_code(tmp_path: Path) -> None:
    module = module_of(COUNTING)
    exe = ekiden.compile(module, executor="aot")
    exe.save(tmp_path / "model.eki")
    data = (tmp_path / "model.eki").read_bytes()
    assert data == ekiden.compile(module, executor="aot").raw.to_bytes()
    assert exe.raw.metadata["executor"] == "aot"
    start = data.index(b"EKIMG\0\0\1")
    size = int.from_bytes(data[start + 40 : start + 48], "little")
    names = set(parse_image(data[start : start + size]).exports)
    assert {f"vm2:{name}" for name in exe.raw.globals} <= names
    loaded = ekiden.load(tmp_path / "model.eki")
    assert leaves(loaded(np.int32(9))) == leaves(exe(np.int32(9)))
    exe.export_library(tmp_path / "model.so")
    library = runtime.load_module(tmp_path / "model.so")
    assert leaves(library["main"](np.asarray(9, "int32"))) == leaves(exe(np.int32(9)))


def test_executors_of_relay_agree() -> None:
    x = relay.var("x", shape=(4, 4))
    function = relay.Function([x], relay.Tuple([relay.nn.softmax(x), relay.Tuple([x + x])]))
    data = np.random.default_rng(0).random((4, 4), dtype=np.float32)
    module = relay.IRModule.from_expr(function)
    result = [
        leaves(relay.create_executor(kind, module).evaluate()(data))
        for kind in ("vm", "aot", "graph")
    ]
    assert result[0] == result[1] == result[2]


def test_building_with_an_executor() -> None:
    lib = relay.build(module_of(COUNTING), executor=relay.backend.Executor("aot"))
    assert lib.raw.metadata["executor"] == "aot"
    with pytest.raises(CompileError, match="\"vm\" is not defined; expected 'graph' or 'aot'"):
        relay.backend.Executor("vm")
    with pytest.raises(CompileError, match='Attribute "woof" is not available on this Executor'):
        relay.backend.Executor("aot", {"woof": True})
    with pytest.raises(CompileError, match='"interface-api" should have type "runtime.String"'):
        relay.backend.Executor("aot", {"interface-api": True})
    packed = relay.backend.Executor("aot", {"interface-api": "c", "link-params": True})
    assert packed["interface-api"] == "c" and "interface-api" in packed and "woof" not in packed
    with pytest.raises(CompileError, match="got: c\\) when targeting c\\+\\+ runtime"):
        relay.build(module_of(COUNTING), executor=packed)


def test_building_for_a_runtime_under_a_name() -> None:
    run_time = relay.backend.Runtime("cpp", {"system-lib": False})
    lib = relay.build(module_of(COUNTING), runtime=run_time, mod_name="net")
    assert lib.libmod_name == "net" and not run_time["system-lib"]
    assert "crt" in relay.backend.Runtime.list_registered()
    assert relay.backend.Runtime.list_registered_options("crt") == {"system-lib": "IntImm"}
    with pytest.raises(CompileError, match="Runtime 'crt': executor 'aot' expected, got 'graph'"):
        relay.build(module_of(COUNTING), runtime="crt")


def test_unknown_executor_is_refused() -> None:
    with pytest.raises(CompileError, match="one of 'vm', 'aot', 'async' expected, got 'fast'"):
        ekiden.compile(module_of(COUNTING), executor="fast")


def test_jit_hook_is_installed_once() -> None:
    exe = ekiden.compile(module_of(COUNTING))
    exe.jit(2)
    with pytest.raises(RuntimeError, match="it is watched already"):
        exe.jit(2)


def test_stepping_and_profiling_see_the_bytecode() -> None:
    counts = []
    for exe in forms(module_of(COUNTING)):
        machine = runtime.VirtualMachine(exe.raw)
        debugger = runtime.get_global_func("ek.vm.module")(machine)
        index, data = exe.raw.index("main"), np.asarray(5, "int32")
        module = runtime.get_global_func("ek.executable.module")(exe.raw)
        result, counted, _ = module["profile"](index, 0, data)
        assert int(result[0].numpy()) == 15
        ran = int(np.frombuffer(counted, "int64").reshape(-1, 2)[:, 0].sum())
        debugger["start"](index, data)
        steps = 1
        while isinstance(debugger["step"](1), int):
            steps += 1
        counts.append((ran, steps))
    assert counts == [counts[0]] * 4


# Random instructions: whatever a register holds, both forms do the same with it.

REGISTERS = 6


def random_code(random: np.random.Generator, length: int) -> tuple[Instruction, ...]:
    """Instructions without loops; registers hold what they happen to hold."""

    def register() -> int:
        return int(random.integers(REGISTERS))

    def moved() -> int:
        number = register()
        return number if random.random() < 0.6 else -1 - number

    code: list[Instruction] = []
    while len(code) < length - 2:
        left = length - 2 - len(code)

        def jump(left: int = left) -> int:
            return int(random.integers(1, left + 1))

        dst = register()
        choices = [
            make_instruction("LoadConsti", dst=dst, value=int(random.integers(-1, 3))),
            make_instruction("LoadConst", dst=dst, const_index=int(random.integers(3))),
            make_instruction("Move", dst=dst, src=moved()),
            make_instruction("Move", dst=dst, src=moved()),
            make_instruction(
                "AllocADT", dst=dst, tag=int(random.integers(3)), fields=(moved(), moved())
            ),
            make_instruction("GetField", dst=dst, object=register(), index=int(random.integers(2))),
            make_instruction("GetTag", dst=dst, object=register()),
            make_instruction("KillRegister", dst=dst),
            make_instruction("AllocRef", dst=dst, value=moved()),
            make_instruction("ReadRef", dst=dst, ref=register()),
            make_instruction("AllocClosure", dst=dst, func=0, free=(moved(),)),
            make_instruction("Invoke", dst=dst, func=0, args=(moved(), moved())),
            make_instruction("InvokeClosure", dst=dst, closure=register(), args=(moved(),)),
            make_instruction(
                "If", test=register(), target=register(), true_offset=jump(), false_offset=jump()
            ),
            make_instruction("Switch", value=register(), offsets=(jump(), jump(), jump())),
            make_instruction("Goto", offset=jump()),
        ]
        weights = np.ones(len(choices))
        weights[:5] = 4
        code.append(choices[int(random.choice(len(choices), p=weights / weights.sum()))])
    code.append(make_instruction("AllocADT", dst=0, tag=0, fields=tuple(range(REGISTERS))))
    code.append(make_instruction("Ret", src=0))
    return tuple(code)


def outcome(exe: runtime.Executable, args: list[object]) -> object:
    """What a run gives, as text; an error's text."""
    try:
        return shown(runtime.VirtualMachine(exe).invoke("main", *args))
    except (EkidenError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"{getattr(value, 'tag', 0)}({', '.join(map(shown, value))})"
    return str(value.numpy()) if isinstance(value, runtime.Tensor) else type(value).__name__


@pytest.mark.parametrize("seed", range(5))
@sizes("programs", 80, 3000)
def test_random_instructions(seed: int, programs: int) -> None:
    random = np.random.default_rng(seed)
    constants = [np.asarray(1, "int32"), np.asarray(True), np.arange(3.0)]
    result = make_instruction("AllocADT", dst=2, tag=1, fields=(-1, 1))
    pair = VMFunction("pair", ("a", "b"), 3, (result, make_instruction("Ret", src=2)))
    kinds = set()
    for _ in range(programs // 5):
        main = VMFunction("main", ("x", "n"), REGISTERS, random_code(random, 24))
        data = write_executable([pair, main], constants, [], b"", {})
        plain, native = (runtime.Executable.from_bytes(data) for _ in range(2))
        compile_functions(native, ["main", "pair"] if random.random() < 0.7 else ["main"])
        args: list[object] = [np.ones(2, "float32"), int(random.integers(3))]
        expected = outcome(plain, args)
        assert outcome(native, args) == expected
        kinds.add(str(expected)[:8])
    assert "0(" in {k[:2] for k in kinds}
    before = in_use()
    for _ in range(3):
        outcome(native, args)
    assert in_use() == before
