"""Architectures of installed model packages with seeded random weights, compared with PyTorch and
ONNX Runtime.

    python benchmarks/zoo.py run --packages timm transformers --frontends export onnx --sample 60
    python benchmarks/zoo.py table zoo.jsonl
    python benchmarks/zoo.py run --frontends onnx-either --sample 40 --keep kept
    python benchmarks/zoo.py time kept

`run` draws a sample of each package's own list of names, builds each in a process of its own with
limits of time and memory, compiles it through the given frontends, and appends a line of JSON for
each to a file; what has a line is not run again, so that it can be interrupted. The processes are
forks of one that has the packages imported. With `--tier quick --wait 60` each is compared by
general kernels and by its own ones, and a kernel that cannot be compiled is a refusal. With
`ZOO_INDUCTOR=1` the frontend `compile` runs Inductor beside. `format_table` writes what the lines
say: how many ran and agree, also of those that ONNX Runtime runs, speed as ratios of medians taken
in turns in one process, compile times, and the reasons of those that did not. `time` takes those
ratios of the models of ONNX that `--keep` has left compiled, on a machine that does nothing else.
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
    TooLargeError,
    ZooModel,
    timm_families,
    timm_model,
    timm_names,
    torchvision_model,
    torchvision_names,
)
from zoo_tie_detection import has_ties

WEIGHT_SEED = 17
MAX_PARAMETERS = 40_000_000
"""Larger ones are left out, unless asked for."""


@dataclass(frozen=True)
class Package:
    """A package: its model names, and how to build one of at most so many parameters."""

    names: Callable[[], list[str]]
    build: Callable[[str, int], ZooModel]
    families: Callable[[], list[list[str]]] | None = None
    """Names that are variants of each other, the smallest first."""


PACKAGES = {
    "torchvision": Package(torchvision_names, torchvision_model),
    "timm": Package(timm_names, timm_model, timm_families),
    "transformers": Package(
        zoo_transformers.architecture_names, zoo_transformers.build_architecture
    ),
}


# Roads: from a module to something that runs.

Call = Callable[[Sequence[Any]], Sequence[Any]]
"""Inputs as tensors of PyTorch -> outputs as arrays."""

CPU_TIME_FIELD = "compile_cpu_s"
"""What a compilation took of the processor, in lines of the export and ONNX frontends."""
RECORDED_FIELDS: dict[str, Any] = {}
"""Further fields of a model's result line, set by its frontend; a process measures one model."""
Engines = dict[str, Callable[[], Call]]
"""Function that prepares a model, by engine: "ekiden" and its peers."""


class Compiled:
    """Ekiden executable as a callable on the arrays of a model, whose kernels may still be
    compiling in the background.
    """

    def __init__(self, executable: Any, names: Sequence[str] | None = None) -> None:  # noqa: ANN401
        self._executable = executable
        self._names = names

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the executable."""
        used_inputs = (
            inputs
            if self._names is None
            else _remaining_inputs(self._executable, self._names, inputs)
        )
        return _to_arrays(self._executable(*used_inputs))

    def save(self, path: Path) -> None:
        """Write the artifact."""
        self._executable.save(path)

    def wait(self, seconds: float) -> None:
        """Wait until every kernel has its specialized code."""
        self._executable.wait(seconds)


def _compile_ekiden(model: Any) -> Any:  # noqa: ANN401
    """Return an executable, recording the CPU time of its compilation, workers included, and its
    slowest phase.
    """
    import ekiden
    from ekiden.ir.timings import Timings
    from ekiden.ir.transform import PassContext

    timings = Timings()
    with PassContext(instruments=[timings]):
        executable = ekiden.compile(model, tier=_compile_tier())
    own: dict[str, float] = {}
    for row in timings.rows():
        own[row.path[-1]] = own.get(row.path[-1], 0.0) + row.own_cpu_seconds
    name = max(own, key=lambda phase: own[phase])
    RECORDED_FIELDS.update({CPU_TIME_FIELD: round(timings.cpu, 2)}, slowest_pass=name,
                slowest_pass_s=round(own[name], 2))  # fmt: skip
    return executable


def _torch_export_engines(model: ZooModel, is_dynamic: bool, folder: Path) -> Engines:
    """Return the engines on the torch.export frontend."""
    import torch

    examples, shapes = _example_inputs(
        model, is_dynamic
    )  # exported here, so that its errors are PyTorch's
    program = torch.export.export(model.module, examples, dynamic_shapes=shapes, strict=False)

    def make_ekiden() -> Call:
        return Compiled(_compile_ekiden(program))

    return {"ekiden": make_ekiden}


def _compile_tier() -> str:
    return os.environ.get("ZOO_TIER", "full")


def _example_inputs(model: ZooModel, is_dynamic: bool) -> tuple[tuple[Any, ...], Any]:
    """Return an exporter's example inputs and dynamic shapes; a size of 1 would be specialized as a
    constant.
    """
    from torch.export import Dim

    if not is_dynamic:
        return tuple(model.inputs.values()), None
    called = [model.extensible_axes(name) for name in model.inputs]
    sizes = {n: Dim(n, min=1, max=64) for axes in called for n in axes.values()}
    shapes = tuple({a: sizes[n] for a, n in axes.items()} for axes in called)
    is_variadic = hasattr(model.module, "inner")
    return tuple(_enlarge_inputs(model, {"batch": 1})), (shapes,) if is_variadic else shapes


def _enlarge_inputs(model: ZooModel, by: Mapping[str, int]) -> list[Any]:
    """Return the inputs with the named axes enlarged by repeating their contents."""
    import torch

    inputs = []
    for name, value in model.inputs.items():
        for axis, size in model.extensible_axes(name).items():
            if more := by.get(size, 0):
                value = torch.cat([value, value.narrow(axis, 0, more)], axis)
        inputs.append(value)
    return inputs


def _torch_compile_engines(model: ZooModel, is_dynamic: bool, folder: Path) -> Engines:
    import torch

    from ekiden.frontend.torch.backend import counters

    def compile_with_backend(backend: str) -> Call:
        """Return the module compiled by a backend."""
        torch._dynamo.reset()  # graphs of another backend count against the limit of recompilations
        compiled_module = torch.compile(model.module, backend=backend, dynamic=is_dynamic or None)
        call: Call = lambda inputs: _to_arrays(compiled_module(*inputs))  # noqa: E731
        call(list(model.inputs.values()))
        return call

    def of_ekiden() -> Call:
        call = compile_with_backend("ekiden")
        breaks = torch._dynamo.utils.counters["graph_break"]
        RECORDED_FIELDS.update(graphs=counters["compiled"], breaks=sum(breaks.values()))
        if counters["eager"]:
            raise RuntimeError(f"{counters['eager']} graphs of {counters.total()} run eagerly")
        return call

    peers: Engines = {}
    if os.environ.get("ZOO_INDUCTOR"):
        peers["inductor"] = lambda: compile_with_backend("inductor")
    return {**peers, "ekiden": of_ekiden}


def _make_onnx_frontend(uses_dynamo: bool) -> Callable[[ZooModel, bool, Path], Engines]:
    def onnx_engines(model: ZooModel, is_dynamic: bool, folder: Path) -> Engines:
        """Return the engines for an ONNX export."""
        import numpy as np
        import torch

        path, names = folder / "model.onnx", list(model.inputs)
        options: dict[str, Any] = {"dynamo": uses_dynamo}
        examples, shapes = _example_inputs(model, is_dynamic)
        if is_dynamic and uses_dynamo:
            options["dynamic_shapes"] = shapes
        elif is_dynamic:
            options["dynamic_axes"] = {name: dict(model.extensible_axes(name)) for name in names}
        torch.onnx.export(model.module, examples, str(path), input_names=names, **options)

        def make_ekiden() -> Call:
            compiled = Compiled(_compile_ekiden(path), names)
            if "ZOO_KEEP" in os.environ:
                compiled.save(folder / ARTIFACT)
                np.savez(folder / INPUTS, **dict(zip(names, _to_arrays(examples), strict=True)))
            return compiled

        return {"onnxruntime": lambda: _make_onnxruntime_call(path, names), "ekiden": make_ekiden}

    return onnx_engines


def _onnx_engines_with_fallback(model: ZooModel, is_dynamic: bool, folder: Path) -> Engines:
    """Return the engines on the fast tracing ONNX exporter, or on the dynamo exporter if its file
    is invalid.
    """
    import onnx

    _register_diff_symbolic()
    try:
        engines = _make_onnx_frontend(uses_dynamo=False)(model, is_dynamic, folder)
        onnx.checker.check_model(folder / "model.onnx", full_check=True)
        _check_onnx_shapes(folder / "model.onnx")
        return engines
    except Exception as error:  # the exporter's, of any kind
        print(f"exporter of TorchScript: {_first_line(error)}", file=sys.stderr)
        engines = _make_onnx_frontend(uses_dynamo=True)(model, is_dynamic, folder)
        onnx.checker.check_model(folder / "model.onnx")  # raises where it reads what nothing makes
        return engines


def _register_diff_symbolic() -> None:
    """Register an ONNX symbolic for `diff`, which attention masks use: the tracing exporter lacks
    one, and the other takes minutes on unrolled steps.
    """
    from torch.onnx import register_custom_op_symbolic, symbolic_helper

    @symbolic_helper.parse_args("v", "i", "i", "v", "v")
    def diff(g: Any, x: Any, times: int, dim: int, before: Any, after: Any) -> Any:  # noqa: ANN401
        """Export repeated differences along an axis."""
        present = [v for v in (before, x, after) if not symbolic_helper._is_none(v)]
        sequence = present[0] if len(present) == 1 else g.op("Concat", *present, axis_i=dim)
        for _ in range(times):
            later = symbolic_helper._slice_helper(g, sequence, [dim], [1], [sys.maxsize])
            earlier = symbolic_helper._slice_helper(g, sequence, [dim], [0], [-1])
            sequence = g.op("Sub", later, earlier)
        return sequence

    register_custom_op_symbolic("aten::diff", diff, 9)


def _check_onnx_shapes(path: Path) -> None:
    """Raise ONNX Runtime's error for a file with inconsistent shapes."""
    try:
        _make_onnxruntime_call(path, [])
    except Exception as error:  # of any kind: what it has no kernel for is a file all the same
        if "ShapeInferenceError" in str(error):
            raise


def _remaining_inputs(executable: Any, names: Sequence[str], inputs: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """Return the inputs that remain after export."""
    by_name = dict(zip(names, inputs, strict=True))
    return [by_name[model_input.name] for model_input in executable.inputs]


ARTIFACT, INPUTS = "model.eki", "inputs.npz"
"""What is kept of a model beside model.onnx."""


def _make_onnxruntime_call(path: Path, names: Sequence[str]) -> Call:
    """Return a call of an ONNX Runtime session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    input_names = {i.name for i in session.get_inputs()}
    return lambda inputs: session.run(
        None, {n: i.numpy() for n, i in zip(names, inputs, strict=True) if n in input_names}
    )


FRONTENDS: dict[str, Callable[[ZooModel, bool, Path], Engines]] = {
    "export": _torch_export_engines,
    "compile": _torch_compile_engines,
    "onnx": _make_onnx_frontend(uses_dynamo=True),
    "onnx-script": _make_onnx_frontend(uses_dynamo=False),
    "onnx-either": _onnx_engines_with_fallback,
}


def _to_arrays(outputs: Any) -> list[Any]:  # noqa: ANN401
    """Convert outputs to arrays."""
    output_list = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    return [leaf.numpy() for leaf in _iter_tensors(output_list)]


def _iter_tensors(outputs: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the tensors of outputs."""
    from torch.utils._pytree import tree_leaves

    yield from (leaf for leaf in tree_leaves(list(outputs)) if hasattr(leaf, "numpy"))


# One model.

NOT_MEASURED = ("large", "not built", "not exported")
"""States of models that did not come to Ekiden."""
STAGES = {
    "building": "not built",
    "exporting": "not exported",
    "running ONNX Runtime": "out of time",
    "compiling": "out of time",
    "running": "out of time",
}
"""What a process is at, and the state of a model whose time is over there."""
CURRENT_STAGE = multiprocessing.get_context("fork").RawValue("i", 0)
"""Which of them, as a process that ends another sees it."""


def _enter_stage(stage: str) -> None:
    CURRENT_STAGE.value = list(STAGES).index(stage)


MAX_RELATIVE_ERROR = 1e-3
"""Of the largest number that a model gives, how much may be different."""


def measure_model(
    package: str,
    name: str,
    frontend: str,
    sizes: str,
    rounds: int,
    max_parameters: int = MAX_PARAMETERS,
    wait: int = 0,
) -> dict[str, Any]:
    """Return the outcome of a model on a frontend, as a line of the table."""
    import torch

    _enter_stage("building")
    torch.manual_seed(WEIGHT_SEED)
    torch.set_num_threads(1)
    line: dict[str, Any] = {"package": package, "name": name, "frontend": frontend, "sizes": sizes}
    try:
        model = PACKAGES[package].build(name, max_parameters)
        model.module.eval()
        with torch.no_grad():
            _randomize_zero_weights(model.module)
            expected = _to_arrays(model.module(*model.inputs.values()))
    except TooLargeError as error:
        return {**line, "state": "large", "why": str(error)}
    except Exception as error:
        return {**line, "state": "not built", "why": _first_line(error)}
    line["parameters"] = sum(p.numel() for p in model.module.parameters())
    with _model_folder(f"{package}-{name}") as folder, torch.no_grad():
        started = time.perf_counter()
        _enter_stage("exporting")
        try:
            engines = FRONTENDS[frontend](model, sizes == "dynamic", folder)
        except Exception as error:
            return {**line, "state": "not exported", "why": _first_line(error)}
        line["export_s"] = round(time.perf_counter() - started, 2)
        ran = _run_engines(model, engines, expected, sizes == "dynamic", rounds, wait)
        return {**line, **ran, **RECORDED_FIELDS}


def _randomize_zero_weights(module: Any) -> None:  # noqa: ANN401
    """Randomize weights that are 0 before training, since errors in what they multiply would stay
    hidden.
    """
    for weight in module.parameters():
        if weight.is_floating_point() and not weight.any():
            weight.normal_(std=0.1)


@contextmanager
def _model_folder(name: str) -> Iterator[Path]:
    """Yield a folder for a model's files, kept if `--keep` says so."""
    if keep_dir := os.environ.get("ZOO_KEEP"):
        folder = Path(keep_dir, name)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)


def _run_engines(
    model: ZooModel,
    engines: Engines,
    expected: Sequence[Any],
    is_dynamic: bool,
    rounds: int,
    wait: int = 0,
) -> dict[str, Any]:
    """Return the outcomes of the engines; a peer's failures are reported under its name."""
    line: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    inputs = list(model.inputs.values())
    for name, make in engines.items():
        started = time.perf_counter()
        _enter_stage("compiling" if name == "ekiden" else "running ONNX Runtime")
        try:
            calls[name] = make()
            if name != "ekiden":
                line[name] = _max_relative_error(calls[name](inputs), expected)
        except Exception as error:
            if name == "ekiden":
                kind = type(error).__module__
                state = "refused" if kind.startswith("ekiden") else "failed"
                return {**line, "state": state, "why": _first_line(error)}
            line[name] = _first_line(error)
            calls.pop(name, None)
        else:
            key = "compile_s" if name == "ekiden" else f"compile_{name}_s"
            line[key] = round(time.perf_counter() - started, 2)
    _enter_stage("running")
    try:
        line.update(_compare_with_torch(model, calls, expected, is_dynamic))
        if why := _wait_for_compiled_kernels(line, calls["ekiden"], wait):
            return {**line, "state": "refused", "why": why}
        if wait:
            again = _compare_with_torch(model, calls, expected, is_dynamic)
            line["error"] = max(line["error"], again["error"])
        line.update(_time_engines(model, calls, rounds))
    except Exception as error:
        return {**line, "state": "failed", "why": _first_line(error)}
    return {**line, "state": _classify_mismatch(line["error"], calls, model, expected)}


def _wait_for_compiled_kernels(line: dict[str, Any], call: Call, seconds: int) -> str:
    """Return why kernels are still generic after the time allowed for specialized code; "" if they
    do not.
    """
    if not seconds or not isinstance(call, Compiled):
        return ""
    started = time.perf_counter()
    try:
        call.wait(seconds)
    except TimeoutError as error:
        line["kernels"] = str(error)
    except Exception as error:
        return f"kernels stay general: {_first_line(error)}"
    else:
        line["kernels_s"] = round(time.perf_counter() - started, 2)
    return ""


NOT_COMPARABLE = ("exported differently", "unstable")
"""States of models whose difference from PyTorch says nothing of Ekiden."""


def _classify_mismatch(
    error: float, calls: Mapping[str, Call], model: ZooModel, expected: Sequence[Any]
) -> str:
    """Classify a difference from PyTorch. It is the exporter's if ONNX Runtime gives the same
    result as Ekiden for the file, or the model's if PyTorch itself varies as much, or chooses
    among equal numbers and ONNX Runtime also chooses differently.
    """
    if error < MAX_RELATIVE_ERROR:
        return "agrees"
    inputs = list(model.inputs.values())
    peer = calls.get("onnxruntime")
    theirs = None if peer is None else peer(inputs)
    if (
        theirs is not None
        and _max_relative_error(calls["ekiden"](inputs), theirs) < MAX_RELATIVE_ERROR
    ):
        return "exported differently"
    is_alone = theirs is not None and _max_relative_error(theirs, expected) < MAX_RELATIVE_ERROR
    is_open = _is_unstable(model, expected) or (not is_alone and has_ties(model))
    return "unstable" if is_open else "differs"


INPUT_PERTURBATION = 3e-7
"""By how much of itself an input is changed where a model is asked whether it bears roundings:
twice what one makes of a number in float32, up or down at random."""


def _is_unstable(model: ZooModel, expected: Sequence[Any]) -> bool:
    """Return whether PyTorch's results change by more than the tolerance under a perturbation of
    rounding size, or from run to run.
    """
    import torch

    torch.manual_seed(WEIGHT_SEED)
    signs = [torch.randint(0, 2, v.shape) * 2 - 1 for v in model.inputs.values()]  # a common factor
    pairs = zip(model.inputs.values(), signs, strict=True)  # goes through norms and keeps orders
    perturbed = [
        v * (1 + INPUT_PERTURBATION * sign) if v.is_floating_point() else v for v, sign in pairs
    ]
    return (
        not _max_relative_error(_to_arrays(model.module(*perturbed)), expected) < MAX_RELATIVE_ERROR
    )


def _first_line(error: Exception) -> str:
    lines = [text for text in str(error).splitlines() if text.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:4])}"[:700]


def _compare_with_torch(
    model: ZooModel, calls: Mapping[str, Call], expected: Sequence[Any], is_dynamic: bool
) -> dict[str, Any]:
    """Return the largest difference from PyTorch, relative to its results' magnitude."""
    inputs = list(model.inputs.values())
    figures = {"error": _max_relative_error(calls["ekiden"](inputs), expected)}
    if is_dynamic:
        by = {"batch": 1, "length": 5, "decoder_length": 3}
        for one_of in by, {**by, "batch": 0}:
            extended = _enlarge_inputs(model, one_of)
            error = _max_relative_error(
                calls["ekiden"](extended), _to_arrays(model.module(*extended))
            )
            figures["error"] = max(figures["error"], error)
    return figures


def _max_relative_error(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest relative difference of outputs."""
    import numpy as np

    if len(actual) != len(expected) or any(
        f.shape != w.shape for f, w in zip(actual, expected, strict=True)
    ):
        return math.inf
    worst = 0.0
    for mine, theirs in zip(actual, expected, strict=True):
        a, b = mine.astype(np.float64), theirs.astype(np.float64)
        if not a.size or np.array_equal(a, b, equal_nan=True):
            continue
        # Relative to the largest finite element of the output.
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=np.finfo(np.float32).tiny))
        with np.errstate(invalid="ignore"):
            difference = np.where(a == b, 0, np.abs(a - b))
        both = np.isnan(a) & np.isnan(b)
        difference = np.where(both, 0, difference)
        worst = max(worst, float(np.nan_to_num(difference, nan=math.inf).max()) / scale)
    return worst


def _time_engines(model: ZooModel, calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Return the other engines' times relative to Ekiden's: medians of thread CPU time, measured
    alternately.
    """
    every: dict[str, Call] = {**calls, "eager": lambda inputs: model.module(*inputs)}
    return _measure_interleaved(every, list(model.inputs.values()), rounds)


def _measure_interleaved(
    every: Mapping[str, Call], inputs: Sequence[Any], rounds: int
) -> dict[str, float]:
    """Measure calls in turns, and return their medians relative to Ekiden's."""
    spent: dict[str, list[float]] = {name: [] for name in every}
    for round_index in range(rounds + 1):
        for name, call in every.items():
            started = time.thread_time()
            call(inputs)
            # The first round warms up.
            if round_index:
                spent[name].append(time.thread_time() - started)
    medians = {name: statistics.median(times) for name, times in spent.items() if times}
    return {
        f"over_{name}": round(took / medians["ekiden"], 3)
        for name, took in medians.items()
        if name != "ekiden"
    }


# All of them.


def run_missing(options: argparse.Namespace) -> None:
    """Append a result for each model, frontend and kind of sizes that has none."""
    os.environ.update(_SUBPROCESS_ENVIRONMENT, ZOO_TIER=options.tier)
    if options.keep:
        os.environ["ZOO_KEEP"] = str(options.keep)
    _preload_modules(options.packages)
    have = {_line_key(line): line for line in _read_lines(options.out)}
    for package in options.packages:
        for frontend, sizes in itertools.product(options.frontends, options.sizes):
            tested = 0
            for name in _shuffle_names(package, options):
                if options.sample and tested >= options.sample:
                    break
                key = (package, name, frontend, sizes)
                line = have.get(key) or _append_line(_run_in_subprocess(key, options), options.out)
                tested += line["state"] not in NOT_MEASURED


def _append_line(line: dict[str, Any], out: Path) -> dict[str, Any]:
    """Append a line to the file, and print it."""
    with open(out, "a") as file:
        file.write(json.dumps(line) + "\n")
    details = line.get("why", line.get("error", ""))
    print(*_line_key(line), line["state"], details, flush=True)
    return line


_FORKS = multiprocessing.get_context("fork")
_SUBPROCESS_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "EKIDEN_NUM_THREADS": "1"}
"""What processes see."""


def _preload_modules(packages: Sequence[str]) -> None:
    """Import the modules that every measured process needs, which take most of its start-up
    time.
    """
    for module in _PRELOADED_MODULES:
        importlib.import_module(module)
    for package in packages:
        PACKAGES[package].names()
    threads = os.listdir("/proc/self/task")
    # Forking with other threads may copy locks that nobody releases.
    assert len(threads) == 1, f"what is forked must have one thread, it has {len(threads)}"


_PRELOADED_MODULES = (
    "ekiden.backend.kernels", "ekiden.backend.vm", "ekiden.codegen.llvm", "ekiden.compiler",
    "ekiden.frontend.onnx.importer", "ekiden.frontend.torch.export", "onnx", "torch.onnx",
)  # fmt: skip


def _shuffle_names(package: str, options: argparse.Namespace) -> list[str]:
    """Return the model names in random order."""
    if options.names:
        return list(options.names)
    draw = random.Random(options.seed)  # a smaller sample is the begin of a larger one
    families = PACKAGES[package].families
    if options.smallest and families is not None:
        drawn = families()
        draw.shuffle(drawn)
        rounds = itertools.zip_longest(*drawn)
        return [name for family_round in rounds for name in family_round if name is not None]
    names = sorted(PACKAGES[package].names())
    draw.shuffle(names)
    return names


def _line_key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[k] for k in ("package", "name", "frontend", "sizes"))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(text) for text in path.read_text().splitlines()]


def _run_in_subprocess(
    key: tuple[str, str, str, str], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the result from a separate process, which is killed with everything it started."""
    line = dict(zip(("package", "name", "frontend", "sizes"), key, strict=True))
    with TemporaryDirectory() as folder:
        limits = (options.turns, options.parameters, options.wait)
        process_args = (key, limits, options.gigabytes, Path(folder))
        process = _FORKS.Process(target=_subprocess_main, args=process_args)
        process.start()
        process.join(options.seconds)
        if process.exitcode is None:
            _kill_group(process)
            return {**line, **_timeout_outcome(options.seconds)}
        answer = Path(folder, "line.json")
        if not answer.is_file():
            error_text = Path(folder, "errors.txt").read_text(errors="replace").strip()
            why = error_text.rpartition("\n")[2] or f"ended with {process.exitcode}"
            return {**line, "state": "crashed", "why": f"{process.exitcode}: {why[:700]}"}
        result_line: dict[str, Any] = json.loads(answer.read_text())
        return result_line


def _subprocess_main(
    key: tuple[str, str, str, str], limits: tuple[int, int, int], gigabytes: int, folder: Path
) -> None:
    """Write the result of one model to a file, under resource limits and in a process group of its
    own.
    """
    # A session of its own, so that killing the group ends the compile processes too.
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))
    with open(folder / "errors.txt", "w") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    line = measure_model(*key, *limits)
    (folder / "line.json").write_text(json.dumps({**line, "tier": _compile_tier()}))
    os.killpg(0, signal.SIGKILL)  # kernels that are still being compiled for a quick start


def _timeout_outcome(seconds: float) -> dict[str, str]:
    """Return the outcome of a process killed for its time; only what happened after handing over to
    Ekiden counts against it.
    """
    stage = list(STAGES)[CURRENT_STAGE.value]
    return {"state": STAGES[stage], "why": f"{seconds} s over, {stage}"}


def _kill_group(process: BaseProcess) -> None:
    assert process.pid is not None, "it was started"
    os.killpg(process.pid, signal.SIGKILL)
    process.join()


# The table.


def format_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Format the lines as Markdown."""
    heads = ("package", "frontend", "sizes", "drawn", "models", "agree", "own kernels",
             "of ONNX Runtime's", "over eager", "over Inductor", "over ONNX Runtime",
             "compile, median s of the processor")  # fmt: skip
    rows = [f"| {' | '.join(heads)} |", "|---|---|---|" + "--:|" * (len(heads) - 3)]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["package"], line["frontend"], line["sizes"]), []).append(line)
    for key, group in sorted(groups.items()):
        tested = [e for e in group if e["state"] not in (*NOT_MEASURED, *NOT_COMPARABLE)]
        good = [entry for entry in tested if entry["state"] == "agrees"]
        times = [
            timed_entry[CPU_TIME_FIELD] for timed_entry in good if CPU_TIME_FIELD in timed_entry
        ]
        theirs = [
            peer_entry for peer_entry in tested if isinstance(peer_entry.get("onnxruntime"), float)
        ]
        both = [common_entry for common_entry in theirs if common_entry["state"] == "agrees"]
        own = [
            own_entry
            for own_entry in good
            if own_entry.get("tier") == "full" or "kernels_s" in own_entry
        ]
        cells = [*key, len(group), len(tested),
                 f"{len(good)} ({len(good) / max(len(tested), 1):.1%})", len(own),
                 f"{len(both)} of {len(theirs)}" if theirs else "",
                 _geometric_mean(good, "over_eager"), _geometric_mean(good, "over_inductor"),
                 _geometric_mean(good, "over_onnxruntime"),
                 f"{statistics.median(times):.1f}" if times else ""]  # fmt: skip
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    slow = sorted((e for e in lines if CPU_TIME_FIELD in e), key=lambda e: -e[CPU_TIME_FIELD])[:10]
    rows += ["", "Slowest to compile, seconds of the processor:"]
    rows += [
        f"- {e['name']}, {e['frontend']}: {e[CPU_TIME_FIELD]}{_slowest_phase(e)}" for e in slow
    ]
    failures = [e for e in lines if e["state"] not in ("agrees", "large")]
    rows += ["", "| model | frontend | state | why |", "|---|---|---|---|"] if failures else []
    for failure in failures:
        why = str(failure.get("why", failure.get("error", ""))).replace("|", "/")
        rows.append(
            f"| {failure['name']} | {failure['frontend']} {failure['sizes']} | {failure['state']} "
            f"| {why} |"
        )
    return "\n".join(rows)


def _slowest_phase(line: Mapping[str, Any]) -> str:
    """Return the phase in which a compilation spent most of its time."""
    return f", of which {line['slowest_pass']} {line['slowest_pass_s']} s"


# What was kept.


def time_kept_models(folder: Path, rounds: int) -> None:
    """Print ONNX Runtime's time relative to Ekiden's for each kept model, and the mean."""
    import numpy as np
    import torch

    import ekiden

    lines = []
    for model_dir in sorted(folder.iterdir()):
        if not (model_dir / ARTIFACT).is_file():
            continue
        stored = np.load(model_dir / INPUTS)
        names, inputs = list(stored), [torch.from_numpy(stored[name]) for name in stored]
        executable = ekiden.load(model_dir / ARTIFACT, num_threads=1)
        try:
            peer = _make_onnxruntime_call(model_dir / "model.onnx", names)
            line = _measure_interleaved(
                {"ekiden": Compiled(executable, names), "onnxruntime": peer}, inputs, rounds
            )
        except Exception as error:
            print(f"{model_dir.name:48} {_first_line(error)}", flush=True)
            continue
        lines.append(line)
        print(f"{model_dir.name:48} {line['over_onnxruntime']:6.2f}", flush=True)
    print(f"geometric mean of {len(lines)}: {_geometric_mean(lines, 'over_onnxruntime')}")


def _geometric_mean(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the geometric mean of a ratio."""
    values = [line[name] for line in lines if line.get(name)]
    return f"{math.exp(statistics.fmean(map(math.log, values))):.2f}" if values else ""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("names")
    listing.add_argument("package", choices=PACKAGES)
    running = commands.add_parser("run")
    running.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=PACKAGES)
    running.add_argument("--frontends", nargs="+", default=["export", "onnx"], choices=FRONTENDS)
    running.add_argument("--sizes", nargs="+", default=["static"], choices=["static", "dynamic"])
    running.add_argument("--names", nargs="+", help="these models of one package alone")
    running.add_argument(
        "--sample", type=int, default=0, help="draw until so many come to Ekiden; 0 for all names"
    )
    running.add_argument("--seed", type=int, default=WEIGHT_SEED)
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
    running.add_argument("--parameters", type=int, default=MAX_PARAMETERS, help="at most")
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
        run_missing(options)
    elif options.command == "time":
        time_kept_models(options.folder, options.turns)
    else:
        print(format_table(_read_lines(options.file)))


if __name__ == "__main__":
    main()
