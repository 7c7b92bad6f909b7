"""Candidates on another machine: what workers do that measure in a session with it.

A candidate is an artifact whose `main` calls its kernel, so that any server can run it:
`ekiden-rpc`, or a page at a proxy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import cast

from ekiden import rpc
from ekiden.backend.vm.compile import compile_variants
from ekiden.backend.vm.pipeline import lower
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import RECORDS, with_options
from ekiden.relay.expr import Call, Function, Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.runtime.errors import EkidenError, ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.target.virtual_device import compilation_config
from ekiden.tune.candidate import Candidate
from ekiden.tune.program import Source, outputs_of, shapes_of
from ekiden.tune.run_job import Array, compared, difference, make_arrays, sample, still_racing
from ekiden.tune.wire import Head, Message

__all__ = ["Remote", "build", "run"]

LEAST_MS = 2
"""Milliseconds that one timing takes there, at least."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A server of sessions; arguments are those of `rpc.connect`."""

    host: str
    port: int
    key: str = ""
    credentials: str | None = None

    def connect(self) -> rpc.RPCSession:
        """A session. Raises RPCError, OSError."""
        return rpc.connect(self.host, self.port, self.key, credentials=self.credentials)

    def head(self) -> Head:
        """As a job has it."""
        return dict(asdict(self))

    @property
    def processor(self) -> str:
        """What records call the machine: by the key, which other sessions with it have too."""
        return f"remote {self.key or self.host}"


def build(head: Head, parts: list[bytes], tell: Callable[[Head], None]) -> Message:
    """As `build_job.job`, with an artifact for the image; `key` is what records name the task."""
    target = Target(str(head["target"]))
    candidate = Candidate(str(head["rule"]), str(head["choice"]))
    try:
        source = Source.read(parts)
        program = source.lower(candidate, target)
        args = [
            arg
            for sizes in cast("list[Mapping[str, int]]", head["sizes"])
            for arg in shapes_of(program, sizes)
        ]
        artifact = _artifact(source, candidate, target, str(head["key"]))
    except EkidenError as error:
        return {"refused": f"{type(error).__name__}: {error}"}, []
    return {"args": args, "outputs": outputs_of(program)}, [artifact]


def _artifact(source: Source, candidate: Candidate, target: Target, key: str) -> bytes:
    """A program that calls the kernel, with what it is given."""
    kernel = source.function
    if not isinstance(kernel, Function):
        raise ScheduleError("tune: in a session kernels of models are tuned, no loop programs")
    params = tuple(Var(each.name_hint, each.type_annotation) for each in kernel.params)
    module = InferType()(IRModule.from_expr(Function(params, Call(kernel, params))))
    config = compilation_config(target)
    (only,) = config.primitive_targets
    with with_options({RECORDS: {key: [[[], candidate.rule, candidate.choice]]}}):
        lowered = lower(module, only, config)
        metadata: dict[str, object] = {"executor": "vm", "target": str(only)}
        return bytes(compile_variants([(lowered, metadata)]).file.joined())


def run(head: Head, parts: list[bytes], tell: Callable[[Head], None]) -> Message:
    """As `run_job.job`, of artifacts, in a session with `remote`; times are of the clock there."""
    args = cast("list[tuple[list[int], str]]", head["args"])
    shares = cast("list[float]", head["shares"])
    outputs, seed = int(str(head["outputs"])), int(str(head["seed"]))
    each = len(args) // len(shares)
    results: list[Head] = [{"seconds": 0.0, "ratio": 0.0, "sample": []} for _ in parts]
    with Remote(**cast("dict[str, str]", head["remote"])).connect() as session:  # type: ignore[arg-type]  # as head() wrote it
        modules = []
        for number, artifact in enumerate(parts):
            tell({"at": number})
            session.upload(artifact, f"{number}.eki")
            modules.append(session.load_module(f"{number}.eki"))
        for at, share in enumerate(shares):
            arrays = make_arrays(args[at * each : (at + 1) * each], outputs, seed)
            device = session.cpu()
            there = [device.array(array) for array in arrays.inputs]
            _check(modules, there, results, seed, tell)
            alive = [i for i, r in enumerate(results) if "wrong" not in r]
            if 0 not in alive:
                break
            tell({"at": "times"})
            found = _race(modules, there, alive, head)
            for i in alive:
                ratio = compared(found[i], found[0])
                results[i]["seconds"] = float(str(results[i]["seconds"])) + share * min(found[i])
                results[i]["ratio"] = float(str(results[i]["ratio"])) + share * ratio
    tell({"at": "end"})
    return {"results": results}, []


def _results(module: rpc.RemoteModule, there: Sequence[object]) -> list[Array]:
    found = module["main"](*there)
    tensors = found if isinstance(found, tuple) else (found,)
    return [cast("Array", cast(rpc.RemoteTensor, each).numpy()) for each in tensors]


def _check(
    modules: Sequence[rpc.RemoteModule],
    there: Sequence[object],
    results: list[Head],
    seed: int,
    tell: Callable[[Head], None],
) -> None:
    """Run each once, and compare what it gives with what the first does."""
    wanted: list[Array] = []
    for number, module in enumerate(modules):
        if "wrong" in results[number]:
            continue
        tell({"at": number})
        try:
            got = _results(module, there)
        except EkidenError as error:
            results[number] = {"wrong": f"{type(error).__name__}: {error}"}
            continue
        wanted = wanted or got
        if said := difference(got, wanted):
            results[number] = {"wrong": said}
            continue
        found = cast("list[float]", results[number]["sample"])
        results[number]["sample"] = [*found, *sample(got, seed)]


def _race(
    modules: Sequence[rpc.RemoteModule], there: Sequence[object], alive: list[int], head: Head
) -> list[list[float]]:
    """Seconds of a call, by candidate and turn; the first is never left out."""
    until = time.monotonic() + float(str(head["race_seconds"]))
    device = there[0].device if isinstance(there[0], rpc.RemoteTensor) else None
    times: list[list[float]] = [[] for _ in modules]
    timers = {
        i: modules[i].time_evaluator("main", device, number=1, repeat=1, min_repeat_ms=LEAST_MS)
        for i in alive
    }
    for turn in range(int(str(head["turns"]))):
        for i in alive if turn % 2 else reversed(alive):
            times[i].append(timers[i](*there).mean)
        alive = still_racing(times, alive, turn + 1)
        if time.monotonic() > until and turn >= 2:
            break
    return times
