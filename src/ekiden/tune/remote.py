"""Measurement of candidates on a remote machine: what workers do that measure in a session with it.

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
from ekiden.ir.pass_context import TUNING_RECORDS_OPTION, with_options
from ekiden.relay.expr import Call, Function, Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.runtime.errors import EkidenError, ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.target.virtual_device import compilation_config
from ekiden.tune.candidate import Candidate
from ekiden.tune.job_messages import Head, Message
from ekiden.tune.program import TaskSource, argument_shapes, num_outputs
from ekiden.tune.run_job import (
    Array,
    describe_difference,
    make_arrays,
    output_fingerprint,
    surviving_candidates,
    time_ratio,
)

__all__ = ["Remote", "build", "run"]

MIN_REMOTE_REPEAT_MS = 2
"""Minimum duration of one remote timing in milliseconds."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Address of an RPC session server; the fields are the arguments of `rpc.connect`. With
    `is_tracker` it is that of a tracker, which is asked for a server of the key.
    """

    host: str
    port: int
    key: str = ""
    credentials: str | None = None
    is_tracker: bool = False

    def connect(self) -> rpc.RPCSession:
        """Open a session. Raises RPCError, OSError."""
        if self.is_tracker:
            return rpc.connect_tracker(self.host, self.port).request(self.key)
        return rpc.connect(self.host, self.port, self.key, credentials=self.credentials)

    def head(self) -> Head:
        """Return the fields for a job's header."""
        return dict(asdict(self))

    @property
    def processor(self) -> str:
        """Return the machine's name in records: its key, which other sessions share."""
        return f"remote {self.key or self.host}"


def build(head: Head, blobs: list[bytes], tell: Callable[[Head], None]) -> Message:
    """Compile a candidate as `build_job.job` does, to an artifact instead of an image; `key` is the
    task's record key.
    """
    target = Target(str(head["target"]))
    candidate = Candidate(str(head["rule"]), str(head["choice"]))
    try:
        source = TaskSource.read(blobs)
        program = source.lower(candidate, target)
        args = [
            arg
            for sizes in cast("list[Mapping[str, int]]", head["sizes"])
            for arg in argument_shapes(program, sizes)
        ]
        artifact = _build_artifact(source, candidate, target, str(head["key"]))
    except EkidenError as error:
        return {"refused": f"{type(error).__name__}: {error}"}, []
    return {"args": args, "outputs": num_outputs(program)}, [artifact]


def _build_artifact(source: TaskSource, candidate: Candidate, target: Target, key: str) -> bytes:
    """Return a program that calls the kernel on its arguments."""
    kernel = source.function
    if not isinstance(kernel, Function):
        raise ScheduleError("tune: in a session kernels of models are tuned, no loop programs")
    params = tuple(
        Var(parameter.name_hint, parameter.type_annotation) for parameter in kernel.params
    )
    module = InferType()(IRModule.from_expr(Function(params, Call(kernel, params))))
    config = compilation_config(target)
    (only,) = config.primitive_targets
    with with_options({TUNING_RECORDS_OPTION: {key: [[[], candidate.rule, candidate.choice]]}}):
        lowered = lower(module, only, config)
        metadata: dict[str, object] = {"executor": "vm", "target": str(only)}
        return bytes(compile_variants([(lowered, metadata)]).file.to_bytes())


def run(head: Head, blobs: list[bytes], tell: Callable[[Head], None]) -> Message:
    """Run artifacts as `run_job.job` does, in a session with `remote`; times are measured by the
    remote clock.
    """
    args = cast("list[tuple[list[int], str]]", head["args"])
    shares = cast("list[float]", head["shares"])
    outputs, seed = int(str(head["outputs"])), int(str(head["seed"]))
    args_per_size = len(args) // len(shares)
    results: list[Head] = [{"seconds": 0.0, "ratio": 0.0, "sample": []} for _ in blobs]
    with Remote(**cast("dict[str, str]", head["remote"])).connect() as session:  # type: ignore[arg-type]  # as head() wrote it
        modules = []
        for number, artifact in enumerate(blobs):
            tell({"at": number})
            session.upload(artifact, f"{number}.eki")
            modules.append(session.load_module(f"{number}.eki"))
        for index, share in enumerate(shares):
            arrays = make_arrays(
                args[index * args_per_size : (index + 1) * args_per_size], outputs, seed
            )
            device = session.cpu()
            remote_args = [device.array(array) for array in arrays.inputs]
            _check_modules(modules, remote_args, results, seed, tell)
            alive = [i for i, r in enumerate(results) if "wrong" not in r]
            if 0 not in alive:
                break
            tell({"at": "times"})
            times = _race_modules(modules, remote_args, alive, head)
            for i in alive:
                ratio = time_ratio(times[i], times[0])
                results[i]["seconds"] = float(str(results[i]["seconds"])) + share * min(times[i])
                results[i]["ratio"] = float(str(results[i]["ratio"])) + share * ratio
    tell({"at": "end"})
    return {"results": results}, []


def _call_and_fetch(module: rpc.RemoteModule, remote_args: Sequence[object]) -> list[Array]:
    """Call a module and fetch its results."""
    result = module["main"](*remote_args)
    tensors = result if isinstance(result, tuple) else (result,)
    return [cast("Array", cast(rpc.RemoteTensor, tensor).numpy()) for tensor in tensors]


def _check_modules(
    modules: Sequence[rpc.RemoteModule],
    remote_args: Sequence[object],
    results: list[Head],
    seed: int,
    tell: Callable[[Head], None],
) -> None:
    """Run each module once and compare its results with the first one's."""
    expected: list[Array] = []
    for number, module in enumerate(modules):
        if "wrong" in results[number]:
            continue
        tell({"at": number})
        try:
            outputs = _call_and_fetch(module, remote_args)
        except EkidenError as error:
            results[number] = {"wrong": f"{type(error).__name__}: {error}"}
            continue
        expected = expected or outputs
        if mismatch := describe_difference(outputs, expected):
            results[number] = {"wrong": mismatch}
            continue
        sample_so_far = cast("list[float]", results[number]["sample"])
        results[number]["sample"] = [*sample_so_far, *output_fingerprint(outputs, seed)]


def _race_modules(
    modules: Sequence[rpc.RemoteModule], remote_args: Sequence[object], alive: list[int], head: Head
) -> list[list[float]]:
    """Return the seconds per call, by candidate and round; the first candidate is never
    eliminated.
    """
    until = time.monotonic() + float(str(head["race_seconds"]))
    device = remote_args[0].device if isinstance(remote_args[0], rpc.RemoteTensor) else None
    times: list[list[float]] = [[] for _ in modules]
    timers = {
        i: modules[i].time_evaluator(
            "main", device, number=1, repeat=1, min_repeat_ms=MIN_REMOTE_REPEAT_MS
        )
        for i in alive
    }
    for round_index in range(int(str(head["turns"]))):
        for i in alive if round_index % 2 else reversed(alive):
            times[i].append(timers[i](*remote_args).mean)
        alive = surviving_candidates(times, alive, round_index + 1)
        if time.monotonic() > until and round_index >= 2:
            break
    return times
