"""No target, option or device is taken and then ignored: what cannot be had is refused where it
would be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime, tir
from ekiden.codegen.llvm import ir_to_assembly
from ekiden.compiler.build import compile_to_bytes
from ekiden.contrib import graph_executor
from ekiden.contrib.debugger import debug_executor
from ekiden.ir.module import IRModule
from ekiden.runtime import cpu
from ekiden.runtime.errors import CompileError, DeviceError, InputError
from ekiden.target import Target
from ekiden.target.features import CORTEX_M, FEATURE_TABLE
from ekiden.target.processors import PROCESSORS
from ekiden.target.triple import DEFAULT_TRIPLES
from ekiden.target.virtual_device import compilation_config

pytestmark = pytest.mark.quick

METAL = runtime.device("metal")
X = np.arange(3, dtype="float32")
HERE = Target.host().triple


def module() -> IRModule:
    x = relay.var("x", shape=(3,))
    return IRModule.from_expr(relay.Function([x], relay.add(x, relay.const(1.0))))


# fmt: off
THERE = "'llvm', 'c', 'cuda', 'nvptx', 'opencl', 'vulkan', 'metal' and 'webgpu'"
NO_ROCM = f"there is no code generator for target kind 'rocm'; there are {THERE}"
THERE_ARE = (
    "x86_64-unknown-linux-gnu, aarch64-unknown-linux-gnu, riscv64-unknown-linux-gnu, "
    "armv7-unknown-linux-gnueabihf, wasm32-unknown-unknown, x86_64-pc-windows-gnu"
)
TARGETS = [
    ("rocm", NO_ROCM),
    ("rocm -model=m4", NO_ROCM),
    ("llvm -mtriple=armv7l-linux-gnueabi",
     f"there is no runtime for the triple 'armv7-unknown-linux-gnueabi'; there are {THERE_ARE}"),
    ("llvm -mtriple=armv6l-linux-gnueabihf",
     f"there is no runtime for the triple 'armv6l-unknown-linux-gnueabihf'; there are {THERE_ARE}"),
    ("llvm -mtriple=aarch64-pc-windows-msvc",
     f"there is no runtime for the triple 'aarch64-pc-windows-msvc'; there are {THERE_ARE}"),
    ("llvm -mtriple=wasm64",
     f"there is no runtime for the triple 'wasm64-unknown-linux-gnu'; there are {THERE_ARE}"),
    ("llvm -libs=cblas", "target option -libs=cblas: there is no such thing"),
    ("llvm -fast-math", "target option -fast-math=1: only False can be had"),
    ("llvm -opt-level=0", "target option -opt-level=0: only 3 can be had"),
    ("llvm -mabi=ilp32", "target option -mabi=ilp32: only 'lp64d' can be had"),
    ("webgpu -mcpu=znver4", "target option -mcpu=znver4: there is no such thing"),
    ("llvm -mtriple=riscv64 -host='llvm -mtriple=aarch64'",
     "the host 'aarch64-unknown-linux-gnu' of a target must be its own "
     "'riscv64-unknown-linux-gnu'"),
]
WAYS: list[Callable[[str], object]] = [
    lambda t: ekiden.compile(module(), t),
    lambda t: ekiden.compile(module(), Target(t)),
    lambda t: ekiden.compile(module(), {cpu(0): t}),
    lambda t: ekiden.compile(module(), ["llvm", t]),
    lambda t: compile_to_bytes(module(), t),
    lambda t: relay.build(module(), t),
    lambda t: relay.build(module(), {"cpu": t}),
    lambda t: relay.optimize(module(), t),
    lambda t: relay.vm.compile(module(), t),
    lambda t: relay.vm.VMCompiler().lower(module(), t),
    lambda t: relay.create_executor("debug", module(), target=t),
    lambda t: relay.create_executor("vm", module(), target=t),
    lambda t: relay.create_executor("graph", module(), cpu(), t),
    lambda t: compilation_config(t),
]
# fmt: on


@pytest.mark.parametrize(("target", "message"), TARGETS)
def test_unsupported_targets_are_refused_at_codegen(target: str, message: str) -> None:
    Target(target)  # to say it is allowed
    for way in WAYS:
        with pytest.raises(CompileError) as raised:
            way(target)
        assert str(raised.value) == f"compile: {message}"
    func = tir.PrimFunc((), tir.Evaluate(0), {"global_symbol": "f"})
    with pytest.raises(CompileError) as raised:
        ekiden.build(func, target)
    assert str(raised.value) == f"build: {message}"


def test_current_target_is_refused_too() -> None:
    with Target("rocm"), pytest.raises(CompileError, match="no code generator"):
        ekiden.compile(module())


@pytest.mark.slow
def test_target_forms_are_equivalent() -> None:
    config: Mapping[str, object] = {"kind": "llvm", "cores": 1}
    forms = ["llvm -cores=1", '{"kind": "llvm", "cores": 1}', config, Target("llvm -cores=1")]
    made = [ekiden.compile(module(), form) for form in forms]
    assert len({exe.target for exe in made}) == 1
    assert (
        ekiden.compile(module(), Target("llvm")).target == ekiden.compile(module(), "llvm").target
    )


@pytest.mark.parametrize("argument", [["llvm", 3], [3], {cpu(0): 3}, 3])
def test_invalid_targets_are_refused(argument: object) -> None:
    with pytest.raises(CompileError, match=r"^compile: a target( or a device)? expected, got "):
        ekiden.compile(module(), argument)  # type: ignore[arg-type]


def test_missing_devices_are_refused() -> None:
    lib, exe = relay.build(module(), "llvm"), relay.vm.compile(module(), "llvm")
    graph, kernels = lib.get_graph_json(), lib.get_lib()
    machine = runtime.vm.VirtualMachine(exe, cpu(0))
    ways: dict[str, Callable[[runtime.Device], object]] = {
        "VirtualMachine": lambda d: runtime.vm.VirtualMachine(exe, d),
        "benchmark": lambda d: machine.benchmark(d, X),
        "debug_create": lambda d: lib["debug_create"]("default", d),
        "graph executor": lambda d: graph_executor.create(graph, kernels, d),
    }
    for what, way in ways.items():
        way(cpu(0))
        with pytest.raises(InputError) as raised:
            way(METAL)
        assert str(raised.value) == f"{what}: expected cpu(0), got metal(0), which is not there"
    for kind in ("vm", "graph", "aot"):
        with pytest.raises(DeviceError, match=r"metal\(0\): there is no driver"):
            relay.create_executor(kind, module(), [METAL])
    with pytest.raises(InputError, match=r"interprets on the host: expected cpu\(0\), got metal"):
        relay.create_executor("debug", module(), METAL)
    for named in ("metal", [METAL], (cpu(0), METAL)):
        with pytest.raises(InputError, match=r"^VirtualMachine: expected cpu\(0\), got metal\(0\)"):
            runtime.vm.VirtualMachine(exe, named)
    with pytest.raises(TypeError, match=r"^VirtualMachine: expected a device, got int$"):
        runtime.vm.VirtualMachine(exe, 1)
    with pytest.raises(InputError, match=r"^graph executor: expected cpu\(0\), got metal\(0\)"):
        debug_executor.create(graph, kernels, METAL)


def test_host_must_be_the_same_machine() -> None:
    other = "aarch64" if Target.host().architecture == "x86-64" else "x86_64"
    message = (
        rf"^compile: the host '{other}-unknown-linux-gnu' of a target must be its own '{HERE}'"
    )
    ways: list[Callable[[str], ekiden.Executable]] = [
        lambda host: relay.build(module(), "llvm", target_host=host),
        lambda host: relay.build(module(), {cpu(0): "llvm"}, target_host=host),
        lambda host: relay.vm.compile(module(), "llvm", target_host=host),
        lambda host: relay.vm.compile(module(), Target("llvm", host)),
        lambda host: lowered(host),
    ]
    for way in ways:
        assert Target(way("llvm").target).host == Target("llvm")
        with pytest.raises(CompileError, match=message):
            way(f"llvm -mtriple={other}-linux-gnu")


def lowered(host: str) -> ekiden.Executable:
    """What VMCompiler makes."""
    compiler = relay.vm.VMCompiler()
    compiler.lower(module(), "llvm", host)
    return compiler.get_exec()


@pytest.mark.slow
def test_code_for_c_goes_through_its_compiler() -> None:
    rng = np.random.default_rng(0)
    x, w = relay.var("x", shape=(relay.Any(), 8)), rng.normal(size=(8, 8)).astype("float32")
    body = relay.floor(
        relay.sin(relay.nn.softmax(relay.nn.dense(x, relay.const(w)))) * relay.const(9.0)
    )
    program = IRModule.from_expr(relay.Function([x], body))
    data = rng.normal(size=(3, 8)).astype("float32")
    want = ekiden.compile(program, "llvm")(data).numpy()
    for text, executor in (("c", "vm"), ("c", "aot"), (f"c -mtriple={HERE} -mcpu=generic", "vm")):
        exe = ekiden.compile(program, text, executor=executor)
        assert exe.target.startswith("c -mtriple=")
        np.testing.assert_array_equal(exe(data).numpy(), want)


def test_unsupported_c_target_options_are_refused() -> None:
    other = "aarch64" if Target.host().architecture == "x86-64" else "x86_64"
    with pytest.raises(CompileError, match=rf"for {other}; target kind 'llvm' does$"):
        ekiden.compile(module(), f"c -mtriple={other}-linux-gnu")


@pytest.mark.slow
def test_llvm_knows_every_processor_and_feature(capfd: pytest.CaptureFixture[str]) -> None:
    """Of what it does not know it says so to standard error, and goes on without."""
    triples = {CORTEX_M: PROCESSORS["cortex-m55"].triple, **DEFAULT_TRIPLES}
    texts = [f"-mtriple={p.triple or triples[p.architecture]} -mcpu={p.name}"
             for p in PROCESSORS.values()]  # fmt: skip
    texts += [f"-mtriple={triples[of]} -mcpu=generic -mattr=+{name}" for of, name in FEATURE_TABLE]
    for text in texts:
        target = Target(f"llvm {text}")
        ir_to_assembly(f'target triple = "{target.triple}"', target)
    assert capfd.readouterr().err == ""
