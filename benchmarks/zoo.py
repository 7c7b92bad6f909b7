"""Architectures of installed packages with seeded random weights, against PyTorch and ONNX Runtime.

    python benchmarks/zoo.py run --packages timm transformers --roads export onnx --sample 60
    python benchmarks/zoo.py table zoo.jsonl
    python benchmarks/zoo.py run --roads onnx-either --sample 40 --keep kept
    python benchmarks/zoo.py time kept

`run` draws a sample of each package's own list of names, builds each in a process of its own with
limits of time and memory, takes it the given roads, and appends a line of JSON for each to a file;
what has a line is not run again, so that it can be interrupted. The processes are forks of one that
has the packages imported. With `--tier quick --wait 60` each is compared by general kernels and by
its own ones, and a kernel that cannot be compiled is a refusal. With `ZOO_INDUCTOR=1` the road
`compile` runs Inductor beside. `table` writes what the lines say: how many ran and agree, also of
those that ONNX Runtime runs, speed as ratios of medians taken in turns in one process, compile
times, and the reasons of those that did not. `time` takes those ratios of the models of ONNX that
`--keep` has left compiled, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zoo_transformers
from zoo_models import (
    Model,
    TooLargeError,
    timm_families,
    timm_model,
    timm_names,
    torchvision_model,
    torchvision_names,
)
from zoo_ties import has_ties

SEED = 17
MOST_PARAMETERS = 40_000_000
"""Larger ones are left out, unless asked for."""


@dataclass(frozen=True)
class Package:
    """A package: its names, and how a model of at most so many parameters is built of one."""

    names: Callable[[], list[str]]
    build: Callable[[str, int], Model]
    families: Callable[[], list[list[str]]] | None = None
    """Names that are variants of each other, the smallest first."""


PACKAGES = {
    "torchvision": Package(torchvision_names, torchvision_model),
    "timm": Package(timm_names, timm_model, timm_families),
    "transformers": Package(zoo_transformers.names, zoo_transformers.build),
}


# Roads: from a module to something that runs.

Call = Callable[[Sequence[Any]], Sequence[Any]]
"""Inputs as tensors of PyTorch -> outputs as arrays."""

CPU = "compile_cpu_s"
"""What a compilation took of the processor, in lines of the export and ONNX roads."""
SAID: dict[str, Any] = {}
"""What a road says of a model beside, for its line; a process has one model."""
Engines = dict[str, Callable[[], Call]]
"""What makes a model ready, by engine: "ekiden" and its peers."""


class Compiled:
    """An executable of Ekiden as a call, whose kernels may still be compiled beside it."""

    def __init__(self, executable: Any, names: Sequence[str] | None = None) -> None:  # noqa: ANN401
        self._executable = executable
        self._names = names

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        given = inputs if self._names is None else _kept(self._executable, self._names, inputs)
        return _arrays(self._executable(*given))

    def save(self, path: Path) -> None:
        """Write the artifact."""
        self._executable.save(path)

    def wait(self, seconds: float) -> None:
        """Until every kernel has its own code. Raises what compiling raised, and TimeoutError."""
        self._executable.wait(seconds)


def _compiled(model: Any) -> Any:  # noqa: ANN401
    """An executable; what its compilation took of the processor, those of its workers included, and
    in what most of it, goes to the line: another load of the machine changes the clock alone.
    """
    import ekiden
    from ekiden.ir.timings import Timings
    from ekiden.ir.transform import PassContext

    timings = Timings()
    with PassContext(instruments=[timings]):
        executable = ekiden.compile(model, tier=_tier())
    own: dict[str, float] = {}
    for row in timings.rows():
        own[row.path[-1]] = own.get(row.path[-1], 0.0) + row.own
    name = max(own, key=lambda each: own[each])
    SAID.update({CPU: round(timings.cpu, 2)}, slowest_pass=name,
                slowest_pass_s=round(own[name], 2))  # fmt: skip
    return executable


def _export(model: Model, is_dynamic: bool, folder: Path) -> Engines:
    import torch

    given, shapes = _examples(model, is_dynamic)  # exported here, so that its errors are PyTorch's
    program = torch.export.export(model.module, given, dynamic_shapes=shapes, strict=False)

    def made() -> Call:
        return Compiled(_compiled(program))

    return {"ekiden": made}


def _tier() -> str:
    return os.environ.get("ZOO_TIER", "full")


def _examples(model: Model, is_dynamic: bool) -> tuple[tuple[Any, ...], Any]:
    """What an exporter is given, and its dynamic shapes: an example of 1 would be taken for a
    constant.
    """
    from torch.export import Dim

    if not is_dynamic:
        return tuple(model.inputs.values()), None
    called = [model.axes_of(name) for name in model.inputs]
    sizes = {n: Dim(n, min=1, max=64) for axes in called for n in axes.values()}
    shapes = tuple({a: sizes[n] for a, n in axes.items()} for axes in called)
    is_variadic = hasattr(model.module, "inner")
    return tuple(_larger(model, {"batch": 1})), (shapes,) if is_variadic else shapes


def _larger(model: Model, by: Mapping[str, int]) -> list[Any]:
    """The inputs, longer where axes have such names: what they have is there again."""
    import torch

    found = []
    for name, value in model.inputs.items():
        for axis, size in model.axes_of(name).items():
            if more := by.get(size, 0):
                value = torch.cat([value, value.narrow(axis, 0, more)], axis)
        found.append(value)
    return found


def _compile(model: Model, is_dynamic: bool, folder: Path) -> Engines:
    import torch

    from ekiden.frontend.torch.backend import counters

    def compiled(backend: str) -> Call:
        torch._dynamo.reset()  # graphs of another backend count against the limit of recompilations
        made = torch.compile(model.module, backend=backend, dynamic=is_dynamic or None)
        call: Call = lambda inputs: _arrays(made(*inputs))  # noqa: E731
        call(list(model.inputs.values()))
        return call

    def of_ekiden() -> Call:
        call = compiled("ekiden")
        breaks = torch._dynamo.utils.counters["graph_break"]
        SAID.update(graphs=counters["compiled"], breaks=sum(breaks.values()))
        if counters["eager"]:
            raise RuntimeError(f"{counters['eager']} graphs of {counters.total()} run eagerly")
        return call

    peers: Engines = {}
    if os.environ.get("ZOO_INDUCTOR"):
        peers["inductor"] = lambda: compiled("inductor")
    return {**peers, "ekiden": of_ekiden}


def _onnx(uses_dynamo: bool) -> Callable[[Model, bool, Path], Engines]:
    def road(model: Model, is_dynamic: bool, folder: Path) -> Engines:
        import numpy as np
        import torch

        path, names = folder / "model.onnx", list(model.inputs)
        options: dict[str, Any] = {"dynamo": uses_dynamo}
        given, shapes = _examples(model, is_dynamic)
        if is_dynamic and uses_dynamo:
            options["dynamic_shapes"] = shapes
        elif is_dynamic:
            options["dynamic_axes"] = {name: dict(model.axes_of(name)) for name in names}
        torch.onnx.export(model.module, given, str(path), input_names=names, **options)

        def made() -> Call:
            compiled = Compiled(_compiled(path), names)
            if "ZOO_KEEP" in os.environ:
                compiled.save(folder / ARTIFACT)
                np.savez(folder / INPUTS, **dict(zip(names, _arrays(given), strict=True)))
            return compiled

        return {"onnxruntime": lambda: _onnx_runtime(path, names), "ekiden": made}

    return road


def _onnx_either(model: Model, is_dynamic: bool, folder: Path) -> Engines:
    """By the exporter that traces, which is fast, else, or where its file is none, by the other."""
    import onnx

    _teach_exporter()
    try:
        engines = _onnx(uses_dynamo=False)(model, is_dynamic, folder)
        onnx.checker.check_model(folder / "model.onnx", full_check=True)
        _check_shapes(folder / "model.onnx")
        return engines
    except Exception as error:  # the exporter's, of any kind
        print(f"exporter of TorchScript: {_first(error)}", file=sys.stderr)
        engines = _onnx(uses_dynamo=True)(model, is_dynamic, folder)
        onnx.checker.check_model(folder / "model.onnx")  # raises where it reads what nothing makes
        return engines


def _teach_exporter() -> None:
    """Masks of attention take differences of places: the exporter that traces has none, and the
    other takes minutes for steps that are written out.
    """
    from torch.onnx import register_custom_op_symbolic, symbolic_helper

    @symbolic_helper.parse_args("v", "i", "i", "v", "v")
    def diff(g: Any, x: Any, times: int, dim: int, before: Any, after: Any) -> Any:  # noqa: ANN401
        there = [v for v in (before, x, after) if not symbolic_helper._is_none(v)]
        whole = there[0] if len(there) == 1 else g.op("Concat", *there, axis_i=dim)
        for _ in range(times):
            later = symbolic_helper._slice_helper(g, whole, [dim], [1], [sys.maxsize])
            earlier = symbolic_helper._slice_helper(g, whole, [dim], [0], [-1])
            whole = g.op("Sub", later, earlier)
        return whole

    register_custom_op_symbolic("aten::diff", diff, 9)


def _check_shapes(path: Path) -> None:
    """Raises what ONNX Runtime says of a file whose shapes do not fit each other."""
    try:
        _onnx_runtime(path, [])
    except Exception as error:  # of any kind: what it has no kernel for is a file all the same
        if "ShapeInferenceError" in str(error):
            raise


def _kept(made: Any, names: Sequence[str], inputs: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """The inputs that the exporter left."""
    given = dict(zip(names, inputs, strict=True))
    return [given[each.name] for each in made.inputs]


ARTIFACT, INPUTS = "model.eki", "inputs.npz"
"""What is kept of a model beside model.onnx."""


def _onnx_runtime(path: Path, names: Sequence[str]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    kept = {i.name for i in session.get_inputs()}
    return lambda inputs: session.run(
        None, {n: i.numpy() for n, i in zip(names, inputs, strict=True) if n in kept}
    )


ROADS: dict[str, Callable[[Model, bool, Path], Engines]] = {
    "export": _export,
    "compile": _compile,
    "onnx": _onnx(uses_dynamo=True),
    "onnx-script": _onnx(uses_dynamo=False),
    "onnx-either": _onnx_either,
}


def _arrays(found: Any) -> list[Any]:  # noqa: ANN401
    many = found if isinstance(found, (tuple, list)) else [found]
    return [each.numpy() for each in _leaves(many)]


def _leaves(many: Any) -> Iterator[Any]:  # noqa: ANN401
    from torch.utils._pytree import tree_leaves

    yield from (each for each in tree_leaves(list(many)) if hasattr(each, "numpy"))


# One model.

NOT_ASKED = ("large", "not built", "not exported")
"""States of models that did not come to Ekiden."""
STAGES = {
    "building": "not built",
    "exporting": "not exported",
    "running ONNX Runtime": "out of time",
    "compiling": "out of time",
    "running": "out of time",
}
"""What a process is at, and the state of a model whose time is over there."""
STAGE = multiprocessing.get_context("fork").RawValue("i", 0)
"""Which of them, as a process that ends another sees it."""


def _at(stage: str) -> None:
    STAGE.value = list(STAGES).index(stage)


CLOSE = 1e-3
"""Of the largest number that a model gives, how much may be different."""


def one(
    package: str,
    name: str,
    road: str,
    sizes: str,
    turns: int,
    most: int = MOST_PARAMETERS,
    wait: int = 0,
) -> dict[str, Any]:
    """What came of a model on a road: a line of the table."""
    import torch

    _at("building")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    line: dict[str, Any] = {"package": package, "name": name, "road": road, "sizes": sizes}
    try:
        model = PACKAGES[package].build(name, most)
        model.module.eval()
        with torch.no_grad():
            _wake(model.module)
            wanted = _arrays(model.module(*model.inputs.values()))
    except TooLargeError as error:
        return {**line, "state": "large", "why": str(error)}
    except Exception as error:
        return {**line, "state": "not built", "why": _first(error)}
    line["parameters"] = sum(p.numel() for p in model.module.parameters())
    with _folder(f"{package}-{name}") as folder, torch.no_grad():
        started = time.perf_counter()
        _at("exporting")
        try:
            engines = ROADS[road](model, sizes == "dynamic", folder)
        except Exception as error:
            return {**line, "state": "not exported", "why": _first(error)}
        line["export_s"] = round(time.perf_counter() - started, 2)
        ran = _ran(model, engines, wanted, sizes == "dynamic", turns, wait)
        return {**line, **ran, **SAID}


def _wake(module: Any) -> None:  # noqa: ANN401
    """Draw the weights that are 0 before training: what they multiply would not be looked at."""
    for weight in module.parameters():
        if weight.is_floating_point() and not weight.any():
            weight.normal_(std=0.1)


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """A folder for the files of a model, which stays where `--keep` says so."""
    if kept := os.environ.get("ZOO_KEEP"):
        folder = Path(kept, name)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)


def _ran(
    model: Model,
    engines: Engines,
    wanted: Sequence[Any],
    is_dynamic: bool,
    turns: int,
    wait: int = 0,
) -> dict[str, Any]:
    """What came of the engines. Limits of a peer are its own, and said under its name."""
    line: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    inputs = list(model.inputs.values())
    for name, make in engines.items():
        started = time.perf_counter()
        _at("compiling" if name == "ekiden" else "running ONNX Runtime")
        try:
            calls[name] = make()
            if name != "ekiden":
                line[name] = _error(calls[name](inputs), wanted)
        except Exception as error:
            if name == "ekiden":
                kind = type(error).__module__
                state = "refused" if kind.startswith("ekiden") else "failed"
                return {**line, "state": state, "why": _first(error)}
            line[name] = _first(error)
            calls.pop(name, None)
        else:
            key = "compile_s" if name == "ekiden" else f"compile_{name}_s"
            line[key] = round(time.perf_counter() - started, 2)
    _at("running")
    try:
        line.update(_compared(model, calls, wanted, is_dynamic))
        if why := _waited(line, calls["ekiden"], wait):
            return {**line, "state": "refused", "why": why}
        if wait:
            again = _compared(model, calls, wanted, is_dynamic)
            line["error"] = max(line["error"], again["error"])
        line.update(_timed(model, calls, turns))
    except Exception as error:
        return {**line, "state": "failed", "why": _first(error)}
    return {**line, "state": _state(line["error"], calls, model, wanted)}


def _waited(line: dict[str, Any], call: Call, seconds: int) -> str:
    """Why kernels stay general, after so much time for their own code; "" if they do not."""
    if not seconds or not isinstance(call, Compiled):
        return ""
    started = time.perf_counter()
    try:
        call.wait(seconds)
    except TimeoutError as error:
        line["kernels"] = str(error)
    except Exception as error:
        return f"kernels stay general: {_first(error)}"
    else:
        line["kernels_s"] = round(time.perf_counter() - started, 2)
    return ""


NOT_COMPARABLE = ("exported differently", "unstable")
"""States of models whose difference from PyTorch says nothing of Ekiden."""


def _state(error: float, calls: Mapping[str, Call], model: Model, wanted: Sequence[Any]) -> str:
    """What a difference from PyTorch is: the exporter's, where ONNX Runtime gives what Ekiden gives
    of the same file, or the model's, where PyTorch itself gives as much another answer, or chooses
    among equal numbers, and ONNX Runtime, where it runs, chooses otherwise too.
    """
    if error < CLOSE:
        return "agrees"
    inputs = list(model.inputs.values())
    peer = calls.get("onnxruntime")
    theirs = None if peer is None else peer(inputs)
    if theirs is not None and _error(calls["ekiden"](inputs), theirs) < CLOSE:
        return "exported differently"
    is_alone = theirs is not None and _error(theirs, wanted) < CLOSE
    is_open = _moves(model, wanted) or (not is_alone and has_ties(model))
    return "unstable" if is_open else "differs"


ROUNDED = 3e-7
"""By how much of itself an input is changed where a model is asked whether it bears roundings:
twice what one makes of a number in float32, up or down at random."""


def _moves(model: Model, wanted: Sequence[Any]) -> bool:
    """Whether PyTorch's results change as much as they may differ when inputs change by a rounding,
    or without that: random numbers, ties of boxes, sums of what cancels.
    """
    import torch

    torch.manual_seed(SEED)
    signs = [torch.randint(0, 2, v.shape) * 2 - 1 for v in model.inputs.values()]  # a common factor
    pairs = zip(model.inputs.values(), signs, strict=True)  # goes through norms and keeps orders
    given = [v * (1 + ROUNDED * sign) if v.is_floating_point() else v for v, sign in pairs]
    return not _error(_arrays(model.module(*given)), wanted) < CLOSE


def _first(error: Exception) -> str:
    lines = [text for text in str(error).splitlines() if text.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:4])}"[:700]


def _compared(
    model: Model, calls: Mapping[str, Call], wanted: Sequence[Any], is_dynamic: bool
) -> dict[str, Any]:
    """The largest difference from PyTorch, against the size of what it gives."""
    inputs = list(model.inputs.values())
    found = {"error": _error(calls["ekiden"](inputs), wanted)}
    if is_dynamic:
        by = {"batch": 1, "length": 5, "decoder_length": 3}
        for one_of in by, {**by, "batch": 0}:
            given = _larger(model, one_of)
            error = _error(calls["ekiden"](given), _arrays(model.module(*given)))
            found["error"] = max(found["error"], error)
    return found


def _error(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    import numpy as np

    if len(found) != len(wanted) or any(
        f.shape != w.shape for f, w in zip(found, wanted, strict=True)
    ):
        return math.inf
    worst = 0.0
    for mine, theirs in zip(found, wanted, strict=True):
        a, b = mine.astype(np.float64), theirs.astype(np.float64)
        if not a.size or np.array_equal(a, b, equal_nan=True):
            continue
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=np.finfo(np.float32).tiny))
        with np.errstate(invalid="ignore"):
            difference = np.where(a == b, 0, np.abs(a - b))
        both = np.isnan(a) & np.isnan(b)
        difference = np.where(both, 0, difference)
        worst = max(worst, float(np.nan_to_num(difference, nan=math.inf).max()) / scale)
    return worst


def _timed(model: Model, calls: Mapping[str, Call], turns: int) -> dict[str, float]:
    """How much longer each other takes, of medians taken in turns, in time of this thread."""
    every: dict[str, Call] = {**calls, "eager": lambda given: model.module(*given)}
    return _in_turns(every, list(model.inputs.values()), turns)


def _in_turns(every: Mapping[str, Call], inputs: Sequence[Any], turns: int) -> dict[str, float]:
    spent: dict[str, list[float]] = {name: [] for name in every}
    for turn in range(turns + 1):
        for name, call in every.items():
            started = time.thread_time()
            call(inputs)
            if turn:
                spent[name].append(time.thread_time() - started)
    medians = {name: statistics.median(times) for name, times in spent.items() if times}
    return {
        f"over_{name}": round(took / medians["ekiden"], 3)
        for name, took in medians.items()
        if name != "ekiden"
    }


# All of them.


def run(options: argparse.Namespace) -> None:
    """Append a line for each model, road and kind of sizes that has none."""
    os.environ.update(_ALONE, ZOO_TIER=options.tier)
    if options.keep:
        os.environ["ZOO_KEEP"] = str(options.keep)
    _prepare(options.packages)
    have = {_key(line): line for line in _lines(options.out)}
    for package in options.packages:
        for road, sizes in itertools.product(options.roads, options.sizes):
            asked = 0
            for name in _shuffled(package, options):
                if options.sample and asked >= options.sample:
                    break
                key = (package, name, road, sizes)
                line = have.get(key) or _appended(_apart(key, options), options.out)
                asked += line["state"] not in NOT_ASKED


def _appended(line: dict[str, Any], out: Path) -> dict[str, Any]:
    with open(out, "a") as file:
        file.write(json.dumps(line) + "\n")
    said = line.get("why", line.get("error", ""))
    print(*_key(line), line["state"], said, flush=True)
    return line


_FORKS = multiprocessing.get_context("fork")
_ALONE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "EKIDEN_NUM_THREADS": "1"}
"""What processes see."""


def _prepare(packages: Sequence[str]) -> None:
    """Import what every process would: by far the most of what a model's own takes."""
    for module in _IMPORTED:
        importlib.import_module(module)
    for package in packages:
        PACKAGES[package].names()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"what is forked must have one thread, it has {len(threads)}"


_IMPORTED = (
    "ekiden.backend.kernels", "ekiden.backend.vm", "ekiden.codegen.llvm", "ekiden.compiler",
    "ekiden.frontend.onnx.importer", "ekiden.frontend.torch.export", "onnx", "torch.onnx",
)  # fmt: skip


def _shuffled(package: str, options: argparse.Namespace) -> list[str]:
    if options.names:
        return list(options.names)
    draw = random.Random(options.seed)  # a smaller sample is the begin of a larger one
    families = PACKAGES[package].families
    if options.smallest and families is not None:
        drawn = families()
        draw.shuffle(drawn)
        rounds = itertools.zip_longest(*drawn)
        return [name for each in rounds for name in each if name is not None]
    names = sorted(PACKAGES[package].names())
    draw.shuffle(names)
    return names


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[k] for k in ("package", "name", "road", "sizes"))


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(text) for text in path.read_text().splitlines()]


def _apart(asked: tuple[str, str, str, str], options: argparse.Namespace) -> dict[str, Any]:
    """A line made by a process of its own, which ends with all that it started."""
    line = dict(zip(("package", "name", "road", "sizes"), asked, strict=True))
    with TemporaryDirectory() as folder:
        limits = (options.turns, options.parameters, options.wait)
        given = (asked, limits, options.gigabytes, Path(folder))
        process = _FORKS.Process(target=_in_process, args=given)
        process.start()
        process.join(options.seconds)
        if process.exitcode is None:
            _end(process)
            return {**line, **_overdue(options.seconds)}
        answer = Path(folder, "line.json")
        if not answer.is_file():
            said = Path(folder, "errors.txt").read_text(errors="replace").strip()
            why = said.rpartition("\n")[2] or f"ended with {process.exitcode}"
            return {**line, "state": "crashed", "why": f"{process.exitcode}: {why[:700]}"}
        made: dict[str, Any] = json.loads(answer.read_text())
        return made


def _in_process(
    asked: tuple[str, str, str, str], limits: tuple[int, int, int], gigabytes: int, folder: Path
) -> None:
    """Write the line of a model to a file, within limits. Its group of processes is its own."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))
    with open(folder / "errors.txt", "w") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    line = one(*asked, *limits)
    (folder / "line.json").write_text(json.dumps({**line, "tier": _tier()}))
    os.killpg(0, signal.SIGKILL)  # kernels that are still being compiled for a quick start


def _overdue(seconds: float) -> dict[str, str]:
    """What came of the process that was ended after so long: only what it left to Ekiden is
    Ekiden's."""
    stage = list(STAGES)[STAGE.value]
    return {"state": STAGES[stage], "why": f"{seconds} s over, {stage}"}


def _end(process: BaseProcess) -> None:
    assert process.pid is not None, "it was started"
    os.killpg(process.pid, signal.SIGKILL)
    process.join()


# The table.


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """What lines say, as Markdown."""
    heads = ("package", "road", "sizes", "drawn", "models", "agree", "own kernels",
             "of ONNX Runtime's", "over eager", "over Inductor", "over ONNX Runtime",
             "compile, median s of the processor")  # fmt: skip
    rows = [f"| {' | '.join(heads)} |", "|---|---|---|" + "--:|" * (len(heads) - 3)]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["package"], line["road"], line["sizes"]), []).append(line)
    for key, group in sorted(groups.items()):
        asked = [e for e in group if e["state"] not in (*NOT_ASKED, *NOT_COMPARABLE)]
        good = [each for each in asked if each["state"] == "agrees"]
        times = [each[CPU] for each in good if CPU in each]
        theirs = [each for each in asked if isinstance(each.get("onnxruntime"), float)]
        both = [each for each in theirs if each["state"] == "agrees"]
        own = [each for each in good if each.get("tier") == "full" or "kernels_s" in each]
        cells = [*key, len(group), len(asked),
                 f"{len(good)} ({len(good) / max(len(asked), 1):.1%})", len(own),
                 f"{len(both)} of {len(theirs)}" if theirs else "",
                 _mean(good, "over_eager"), _mean(good, "over_inductor"),
                 _mean(good, "over_onnxruntime"),
                 f"{statistics.median(times):.1f}" if times else ""]  # fmt: skip
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    slow = sorted((e for e in lines if CPU in e), key=lambda e: -e[CPU])[:10]
    rows += ["", "Slowest to compile, seconds of the processor:"]
    rows += [f"- {e['name']}, {e['road']}: {e[CPU]}{_most_of(e)}" for e in slow]
    left = [e for e in lines if e["state"] not in ("agrees", "large")]
    rows += ["", "| model | road | state | why |", "|---|---|---|---|"] if left else []
    for each in left:
        why = str(each.get("why", each.get("error", ""))).replace("|", "/")
        rows.append(
            f"| {each['name']} | {each['road']} {each['sizes']} | {each['state']} | {why} |"
        )
    return "\n".join(rows)


def _most_of(line: Mapping[str, Any]) -> str:
    """What a compilation spent most time in."""
    return f", of which {line['slowest_pass']} {line['slowest_pass_s']} s"


# What was kept.


def time_kept(folder: Path, turns: int) -> None:
    """Print what ONNX Runtime takes of Ekiden's time for each model that was kept, and the mean."""
    import numpy as np
    import torch

    import ekiden

    lines = []
    for each in sorted(folder.iterdir()):
        if not (each / ARTIFACT).is_file():
            continue
        stored = np.load(each / INPUTS)
        names, inputs = list(stored), [torch.from_numpy(stored[name]) for name in stored]
        executable = ekiden.load(each / ARTIFACT, num_threads=1)
        try:
            peer = _onnx_runtime(each / "model.onnx", names)
            line = _in_turns(
                {"ekiden": Compiled(executable, names), "onnxruntime": peer}, inputs, turns
            )
        except Exception as error:
            print(f"{each.name:48} {_first(error)}", flush=True)
            continue
        lines.append(line)
        print(f"{each.name:48} {line['over_onnxruntime']:6.2f}", flush=True)
    print(f"geometric mean of {len(lines)}: {_mean(lines, 'over_onnxruntime')}")


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    """The geometric mean of a ratio."""
    values = [line[name] for line in lines if line.get(name)]
    return f"{math.exp(statistics.fmean(map(math.log, values))):.2f}" if values else ""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("names")
    listing.add_argument("package", choices=PACKAGES)
    running = commands.add_parser("run")
    running.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=PACKAGES)
    running.add_argument("--roads", nargs="+", default=["export", "onnx"], choices=ROADS)
    running.add_argument("--sizes", nargs="+", default=["static"], choices=["static", "dynamic"])
    running.add_argument("--names", nargs="+", help="these models of one package alone")
    running.add_argument(
        "--sample", type=int, default=0, help="draw until so many come to Ekiden; 0 for all names"
    )
    running.add_argument("--seed", type=int, default=SEED)
    running.add_argument(
        "--smallest", action="store_true",
        help="of families of models draw the smallest of each first, then the second of each",
    )  # fmt: skip
    running.add_argument(
        "--tier", default="full", choices=["full", "quick"],
        help="general kernels take a tenth of the time: what runs and agrees, not how fast",
    )  # fmt: skip
    running.add_argument(
        "--wait", type=int, default=0,
        help="of tier quick, seconds that kernels have to become their own; 0 does not ask",
    )  # fmt: skip
    running.add_argument("--turns", type=int, default=5)
    running.add_argument("--parameters", type=int, default=MOST_PARAMETERS, help="at most")
    running.add_argument("--seconds", type=int, default=600)
    running.add_argument("--gigabytes", type=int, default=16)
    running.add_argument("--out", type=Path, default=Path("zoo.jsonl"))
    running.add_argument("--keep", type=Path, help="leave files and artifacts of models here")
    timing = commands.add_parser("time")
    timing.add_argument("folder", type=Path)
    timing.add_argument("--turns", type=int, default=9)
    writing = commands.add_parser("table")
    writing.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.command == "names":
        print("\n".join(PACKAGES[options.package].names()))
    elif options.command == "run":
        run(options)
    elif options.command == "time":
        time_kept(options.folder, options.turns)
    else:
        print(table(_lines(options.file)))


if __name__ == "__main__":
    main()
