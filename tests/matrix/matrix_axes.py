"""The axes of the matrix: executors, targets, ways to run what was compiled, views of a
compilation.

A cell is one value of each. Every value is a row with what it does; a pair of values that is no
call at all is a row of `refusals.NO_CALLS`.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from matrix_programs import Program, with_places
from sessions import ExecutableSession, GraphSession, MainSession, Session, as_data

import ekiden
from ekiden import relay
from ekiden.backend.vm.pipeline import vm_pipeline
from ekiden.compiler.tune import extract_tasks
from ekiden.ir.instrument import PassTimingInstrument, PrintAfterAll, Verify
from ekiden.ir.json import load_json, save_json
from ekiden.ir.pass_context import PassContext, PassInfo, PassInstrument
from ekiden.ir.prim import SizeVar
from ekiden.ir.structural import structural_digest, structural_equal
from ekiden.relay import IRModule, parse
from ekiden.relay.analysis import verify
from ekiden.relay.transform import InferType
from ekiden.relay.transform.shapes.name_dimensions import NameDimensions
from ekiden.runtime import Device, cpu
from ekiden.target import Target, TargetLike
from ekiden.tune import Best, Records

Options = dict[str, Any]
"""Arguments of `ekiden.compile` besides the module, the target and the executor."""


@dataclass(frozen=True)
class TargetRow:
    """What code is made for: a text, or devices, each of a share of the program's tensors."""

    name: str
    target: object
    devices: tuple[Device, ...] = ()
    is_c: bool = False
    has_opencl: bool = False

    def is_here(self) -> bool:
        """Return whether this machine runs its code."""
        if self.has_opencl and not ekiden.opencl(0).exist:
            return False
        kind = self.target
        return not isinstance(kind, str) or Target.parse(kind).serves(Target.host()) or self.is_c

    def place(self, module: IRModule) -> IRModule:
        """Return the module with marks where tensors are, if there are several devices."""
        return with_places(module, self.devices, 0.3) if self.devices else module


TARGETS = (
    TargetRow("llvm", "llvm"),
    TargetRow("llvm x86-64-v4", "llvm -mcpu=x86-64-v4"),
    TargetRow("llvm x86-64-v3", "llvm -mcpu=x86-64-v3"),
    TargetRow("llvm x86-64-v2", "llvm -mcpu=x86-64-v2"),
    TargetRow("c", "c", is_c=True),
    TargetRow("opencl", "opencl", has_opencl=True),
    TargetRow("llvm+llvm", [cpu(0), cpu(1)], (cpu(0), cpu(1))),
    TargetRow(
        "llvm+opencl", [cpu(0), ekiden.opencl(0)], (cpu(0), ekiden.opencl(0)), has_opencl=True
    ),
)


@dataclass
class Built:
    """What an executor has made of a program."""

    program: Program
    executor: ExecutorRow
    executable: ekiden.Executable | None
    """None of the interpreter, which makes none."""
    session: Callable[[], Session]
    """Begins a session in this process."""


Build = Callable[[Program, IRModule, TargetRow, Options], Built]


@dataclass(frozen=True)
class ExecutorRow:
    """Who runs a program. `kind` is what an executable says of itself."""

    name: str
    kind: str
    build: Build

    @property
    def is_graph(self) -> bool:
        """Return whether inputs are set and outputs asked for."""
        return self.name == "graph"


def _compile(kind: str) -> Build:
    def build(program: Program, module: IRModule, target: TargetRow, options: Options) -> Built:
        """Compile by `ekiden.compile`."""
        exe = ekiden.compile(module, target.target, executor=kind, **options)
        row = next(row for row in EXECUTORS if row.name == kind)
        return Built(program, row, exe, lambda: ExecutableSession(exe))

    return build


def _build_graph(program: Program, module: IRModule, target: TargetRow, options: Options) -> Built:
    """Compile by `relay.build`, whose result makes graph executors."""
    assert not options, "relay.build takes none of them"
    factory = relay.build(module, target.target)  # type: ignore[arg-type]
    assert isinstance(factory, ekiden.Executable)
    factory.get_graph_json()  # type: ignore[attr-defined]  # says why there is none
    row = next(row for row in EXECUTORS if row.is_graph)
    return Built(
        program, row, factory, lambda: GraphSession(factory.module, factory.raw.devices, program)
    )


def _interpret(program: Program, module: IRModule, target: TargetRow, options: Options) -> Built:
    """Interpret by `relay.create_executor`."""
    assert not options, "an interpreter compiles nothing"
    main = relay.create_executor("debug", module, target=target.target).evaluate()  # type: ignore[arg-type]
    row = next(row for row in EXECUTORS if row.name == "debug")
    return Built(program, row, None, lambda: MainSession(main, program))  # type: ignore[arg-type]


EXECUTORS = (
    ExecutorRow("vm", "vm", _compile("vm")),
    ExecutorRow("aot", "aot", _compile("aot")),
    ExecutorRow("async", "async", _compile("async")),
    ExecutorRow("graph", "vm", _build_graph),
    ExecutorRow("debug", "", _interpret),
)


@dataclass
class Watched(PassInstrument):
    """Reads every module that a pass makes back from its text and its JSON."""

    seen: set[str] = field(default_factory=set)
    last: IRModule | None = None
    """The module of the last pass: half of the passes change nothing."""

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Raise AssertionError where a text or JSON does not mean what it came from."""
        functions = module.functions.values()
        if info.is_sequence or module is self.last:
            return
        self.last = module
        if not any(isinstance(function, relay.Function) for function in functions):
            return
        digest = structural_digest(module)
        if digest in self.seen:
            return
        self.seen.add(digest)
        loaded = load_json(save_json(module))
        assert isinstance(loaded, IRModule)
        assert structural_equal(loaded, module), f"JSON after pass {info.name}"
        assert structural_equal(parse(module.astext()), module), f"text after pass {info.name}"


@dataclass(frozen=True)
class View:
    """How a program is looked at while it is compiled or run."""

    name: str
    rewrite: Callable[[IRModule, random.Random], IRModule] = lambda module, chance: module
    """Changes the module before it is compiled, not what it means."""
    context: Callable[[random.Random], AbstractContextManager[object]] = lambda chance: (
        nullcontext()
    )
    """What the compilation runs under."""
    options: Callable[[IRModule, TargetRow, random.Random], Options] = lambda *_: {}
    after: Callable[[Built, Sequence[Sequence[Any]]], None] = lambda built, calls: None
    """What is asked of the executable after its runs."""


def _through_text(module: IRModule, chance: random.Random) -> IRModule:
    parsed = parse(module.astext())
    assert structural_equal(parsed, module), "the text parses as another module"
    return parsed


def _through_json(module: IRModule, chance: random.Random) -> IRModule:
    loaded = load_json(save_json(module))
    assert isinstance(loaded, IRModule)
    assert structural_equal(loaded, module), "the JSON loads as another module"
    assert structural_digest(loaded) == structural_digest(module)
    return loaded


def _pass_names() -> list[str]:
    """Return the passes of the language and of graphs: those before kernels are made."""
    names = [member.name for member in vm_pipeline(Target("llvm")).passes]
    return names[: names.index("PlanDevices")]


MORE_PASSES = (
    "ToANormalForm",
    "ToBasicBlockNormalForm",
    "ToGraphNormalForm",
    "PartialEvaluate",
    "DeadCodeElimination",
    "CanonicalizeOps",
    "LambdaLift",
    "DynamicToStatic",
)
"""Passes that users call and the default pipeline does not, or later."""


def _one_pass(module: IRModule, chance: random.Random) -> IRModule:
    """Run one pass alone."""
    members = {p.name: p for p in vm_pipeline(Target("llvm")).passes}
    name = chance.choice([*_pass_names(), *MORE_PASSES])
    one = members.get(name) or getattr(relay.transform, name)()
    return one(InferType()(module))


def _one_disabled(chance: random.Random) -> AbstractContextManager[object]:
    """Disable one pass that is not needed."""
    names = [p.name for p in vm_pipeline(Target("llvm")).passes if not p.reason]
    return PassContext(disabled_pass=[chance.choice(names)])


def _opt_level(chance: random.Random) -> AbstractContextManager[object]:
    return PassContext(opt_level=chance.choice([0, 1, 2, 4]))


def _all_instruments(chance: random.Random) -> AbstractContextManager[object]:
    watchers = [PassTimingInstrument(), Verify(verify), PrintAfterAll(io.StringIO())]
    return PassContext(instruments=watchers)


def _tuned(module: IRModule, target: TargetRow, chance: random.Random) -> Options:
    """Return records with a decision at random of each kernel that has any."""
    main = NameDimensions()(InferType()(module))["main"]
    assert isinstance(main, relay.Function)
    kinds = [p.checked_type for p in main.params]
    dims = [d for k in kinds if isinstance(k, relay.TensorType) for d in k.shape]
    sizes = {d.name: 2 for d in dims if isinstance(d, SizeVar)}
    records = Records()
    for task in extract_tasks(module, cast(TargetLike, target.target), sizes).tasks:
        candidate = task.space.sample(chance)
        if not task.space.refusal(candidate):
            records.append(
                Best(
                    workload=task.workload, target=str(task.target), rule=candidate.rule,
                    choice=candidate.choice, name=task.name, ratio=0.5, at=1.0,
                )
            )  # fmt: skip
    return {"records": records}


def _profile(built: Built, calls: Sequence[Sequence[Any]]) -> None:
    """Profile the first call."""
    assert built.executable is not None
    args = [as_data(arg, ekiden.runtime.tensor) for arg in calls[0]]
    report = built.executable.profile(*args, peak=False)
    assert all(call.duration >= 0 for call in report.calls)


def _wait(built: Built, calls: Sequence[Sequence[Any]]) -> None:
    """Wait until each kernel has its own code."""
    assert built.executable is not None
    built.executable.wait()
    assert set(built.executable.tiers.values()) <= {"compiled"}


VIEWS = (
    View("as written"),
    View("text", rewrite=_through_text),
    View("JSON", rewrite=_through_json),
    View("every stage", context=lambda _: PassContext(instruments=[Watched()])),
    View("pass alone", rewrite=_one_pass),
    View("pass disabled", context=_one_disabled),
    View("opt level", context=_opt_level),
    View("instruments", context=_all_instruments),
    View("profile", after=_profile),
    View("tuned", options=_tuned),
    View("tier quick", options=lambda *_: {"tier": "quick"}, after=_wait),
)
