"""Architectures of installed packages with seeded random weights, against PyTorch and ONNX Runtime.

    python benchmarks/zoo.py run --packages timm transformers --roads export onnx --sample 60
    python benchmarks/zoo.py table zoo.jsonl

`run` draws a sample of each package's own list of names, builds each in a process of its own with
limits of time and memory, takes it the given roads, and appends a line of JSON for each to a file;
what has a line is not run again, so that it can be interrupted. The processes are forks of one that
has the packages imported. `table` writes what the lines say: how many ran and agree, also of those
that ONNX Runtime runs, speed as ratios of medians taken in turns in one process, compile times, and
the reasons of those that did not.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
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
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SEED = 17
MOST_PARAMETERS = 40_000_000
"""Larger ones are left out, unless asked for."""


@dataclass(frozen=True)
class Model:
    """A module, its inputs by name, and which of them have a batch as their first axis."""

    module: Any
    inputs: Mapping[str, Any]


# Packages: a row each.


def _torchvision_names() -> list[str]:
    models = _torchvision().models
    return [str(name) for name in models.list_models()]


def _torchvision() -> Any:  # noqa: ANN401
    """The package. Its wheel of PyPI has no operators for PyTorch's build for CPUs, and cannot be
    imported: there they are declared and computed by PyTorch's own, so that detectors can be built.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        pass
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    _KEPT.append(library)
    for schema in _DETECTION:
        library.define(schema)
    package = importlib.import_module("torchvision")
    aligned = importlib.import_module("torchvision.ops.roi_align")
    vars(package.extension)["_has_ops"] = vars(aligned)["_has_ops"] = _has_operators
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", aligned._roi_align, "CPU")
    return package


_DETECTION = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)


def _has_operators() -> bool:
    return True  # TorchScript reads this: a lambda would not do


def _nms(boxes: Any, scores: Any, threshold: float) -> Any:  # noqa: ANN401
    """Of boxes that overlap by more than a share, the one with the best score."""
    import torch

    overlap = _torchvision().ops.box_iou
    left, kept = torch.argsort(scores, descending=True, stable=True), []
    while left.numel():
        best, left = left[:1], left[1:]
        kept.append(best)
        left = left[overlap(boxes[best], boxes[left])[0] <= threshold]
    return torch.cat([left, *kept])


_KEPT: list[object] = []
"""Declarations of operators end with the object that made them."""


_OF_VIDEOS = ("mc3", "mvit", "r2plus1d", "r3d", "s3d", "swin3d")


def _torchvision_model(name: str) -> Model:
    import torch

    models = _torchvision().models
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        options["weights_backbone"] = None
    module = models.get_model(name, **options)
    extent = 299 if name == "inception_v3" else 224
    if name.split("_")[0] in _OF_VIDEOS:
        extent = 224 if "mvit" in name else 112
        return Model(module, {"x": torch.randn(1, 3, 16, extent, extent)})
    return Model(module, {"x": torch.randn(1, 3, extent, extent)})


def _timm_names() -> list[str]:
    _torchvision()
    import timm

    return list(timm.list_models())


def _timm_model(name: str) -> Model:
    import torch

    _torchvision()
    import timm

    module = timm.create_model(name, pretrained=False)
    extents = module.pretrained_cfg["input_size"]
    return Model(module, {"x": torch.randn(1, *extents)})


def _transformers_names() -> list[str]:
    _torchvision()
    import transformers.modeling_utils  # noqa: F401
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


_SMALL: Mapping[str, int] = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 64,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "intermediate_size": 128, "d_ff": 128, "n_inner": 128, "ffn_dim": 128,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "d_kv": 16, "head_dim": 16,
    "vocab_size": 512, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_intermediate_size": 64, "max_position_embeddings": 128, "n_positions": 128,
    "embedding_size": 64,
}  # fmt: skip
"""What configurations call their sizes -> small ones."""


def _small_config(kind: Any) -> Any:  # noqa: ANN401
    """A configuration of a class with small sizes, as far as it has them in numbers."""
    plain = kind()
    sizes = {n: v for n, v in _SMALL.items() if isinstance(getattr(plain, n, None), int)}
    heads = getattr(plain, "num_key_value_heads", None)
    if isinstance(heads, int):
        sizes["num_key_value_heads"] = 4 if heads == plain.num_attention_heads else 2
    for unknown in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(getattr(plain, unknown, None), int):
            sizes[unknown] = min(getattr(plain, unknown), 3)
    return kind(**sizes)


def _transformers_model(name: str) -> Model:
    import torch

    _torchvision()
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = _small_config(CONFIG_MAPPING[name])
    config.use_cache = False
    module = AutoModel.from_config(config)
    inputs: dict[str, Any] = {}
    main = module.main_input_name
    if main == "pixel_values":
        extent = getattr(config, "image_size", 224)
        extent = extent if isinstance(extent, int) else extent[0]
        inputs[main] = torch.randn(1, getattr(config, "num_channels", 3), extent, extent)
    elif main in ("input_values", "input_features"):
        bins = getattr(config, "num_mel_bins", 80)
        inputs[main] = torch.randn(*((1, 8000) if main == "input_values" else (1, bins, 3000)))
    else:
        inputs[main] = torch.randint(4, 500, (1, 16))
    if getattr(config, "is_encoder_decoder", False) and main != "pixel_values":
        inputs["decoder_input_ids"] = torch.randint(4, 500, (1, 8))
    return Model(_of_tensors(module, list(inputs)), inputs)


def _of_tensors(module: Any, names: Sequence[str]) -> Any:  # noqa: ANN401
    """A module whose inputs stand in places and whose results are tensors."""
    import torch
    from torch.utils._pytree import tree_leaves

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *given: Any) -> tuple[Any, ...]:  # noqa: ANN401
            found = self.inner(**dict(zip(names, given, strict=True)), return_dict=False)
            return tuple(v for v in tree_leaves(found) if isinstance(v, torch.Tensor))

    return Plain()


@dataclass(frozen=True)
class Package:
    """A package: its names, and how a model of one is built."""

    names: Callable[[], list[str]]
    build: Callable[[str], Model]


PACKAGES = {
    "torchvision": Package(_torchvision_names, _torchvision_model),
    "timm": Package(_timm_names, _timm_model),
    "transformers": Package(_transformers_names, _transformers_model),
}


# Roads: from a module to something that runs.

Call = Callable[[Sequence[Any]], Sequence[Any]]
"""Inputs as tensors of PyTorch -> outputs as arrays."""

SAID: dict[str, Any] = {}
"""What a road says of a model beside, for its line; a process has one model."""
Engines = dict[str, Callable[[], Call]]
"""What makes a model ready, by engine: "ekiden" and its peers."""


def _dims(model: Model) -> tuple[Any, ...]:
    from torch.export import Dim

    batch = Dim("batch", min=1, max=64)
    return tuple({0: batch} for _ in model.inputs)


def _export(model: Model, is_dynamic: bool, folder: Path) -> Engines:
    import ekiden

    shapes = _dims(model) if is_dynamic else None
    given = tuple(model.inputs.values())
    if is_dynamic:  # an example of 1 would be taken for a constant
        given = tuple(_wider(v) for v in given)
    specs = (shapes,) if shapes is not None and hasattr(model.module, "inner") else shapes

    def made() -> Call:
        executable = ekiden.compile(model.module, given, dynamic_shapes=specs, tier=_tier())
        return lambda inputs: _arrays(executable(*inputs))

    return {"ekiden": made}


def _tier() -> str:
    return os.environ.get("ZOO_TIER", "full")


def _wider(value: Any) -> Any:  # noqa: ANN401
    import torch

    return torch.cat([value, value])


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
        import torch

        import ekiden

        path, names = folder / "model.onnx", list(model.inputs)
        options: dict[str, Any] = {"dynamo": uses_dynamo}
        if is_dynamic and not uses_dynamo:
            options["dynamic_axes"] = {name: {0: "batch"} for name in names}
        given = tuple(model.inputs.values())
        if is_dynamic and uses_dynamo:
            given, shapes = tuple(_wider(v) for v in given), _dims(model)
            options["dynamic_shapes"] = (shapes,) if hasattr(model.module, "inner") else shapes
        torch.onnx.export(model.module, given, str(path), input_names=names, **options)

        def made() -> Call:
            executable = ekiden.compile(path, tier=_tier())
            return lambda inputs: _arrays(executable(*_kept(executable, names, inputs)))

        return {"onnxruntime": lambda: _onnx_runtime(path, names), "ekiden": made}

    return road


def _onnx_either(model: Model, is_dynamic: bool, folder: Path) -> Engines:
    """By the exporter that traces, which is fast, else by the other."""
    try:
        return _onnx(uses_dynamo=False)(model, is_dynamic, folder)
    except Exception as error:  # the exporter's, of any kind
        print(f"exporter of TorchScript: {_first(error)}", file=sys.stderr)
        return _onnx(uses_dynamo=True)(model, is_dynamic, folder)


def _kept(made: Any, names: Sequence[str], inputs: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """The inputs that the exporter left."""
    given = dict(zip(names, inputs, strict=True))
    return [given[each.name] for each in made.inputs]


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

CLOSE = 1e-3
"""Of the largest number that a model gives, how much may be different."""


def one(
    package: str, name: str, road: str, sizes: str, turns: int, most: int = MOST_PARAMETERS
) -> dict[str, Any]:
    """What came of a model on a road: a line of the table."""
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    line: dict[str, Any] = {"package": package, "name": name, "road": road, "sizes": sizes}
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in PACKAGES[package].build(name).module.parameters())
    except Exception:  # not every module can be made without memory
        count = 0
    if count > most:
        return {**line, "state": "large", "why": f"{count:,} parameters"}
    try:
        model = PACKAGES[package].build(name)
        model.module.eval()
        with torch.no_grad():
            wanted = _arrays(model.module(*model.inputs.values()))
    except Exception as error:
        return {**line, "state": "not built", "why": _first(error)}
    line["parameters"] = sum(p.numel() for p in model.module.parameters())
    with TemporaryDirectory() as folder, torch.no_grad():
        started = time.perf_counter()
        try:
            engines = ROADS[road](model, sizes == "dynamic", Path(folder))
        except Exception as error:
            return {**line, "state": "not exported", "why": _first(error)}
        line["export_s"] = round(time.perf_counter() - started, 2)
        return {**line, **_ran(model, engines, wanted, sizes == "dynamic", turns), **SAID}


def _ran(
    model: Model, engines: Engines, wanted: Sequence[Any], is_dynamic: bool, turns: int
) -> dict[str, Any]:
    """What came of the engines. Limits of a peer are its own, and said under its name."""
    line: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    inputs = list(model.inputs.values())
    for name, make in engines.items():
        started = time.perf_counter()
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
    try:
        line.update(_compared(model, calls, wanted, is_dynamic))
        line.update(_timed(model, calls, turns))
    except Exception as error:
        return {**line, "state": "failed", "why": _first(error)}
    return {**line, "state": _state(line["error"], calls, inputs)}


def _state(error: float, calls: Mapping[str, Call], inputs: Sequence[Any]) -> str:
    """What a difference from PyTorch is: the exporter's, where ONNX Runtime gives what Ekiden gives
    of the same file.
    """
    if error < CLOSE:
        return "agrees"
    peer = calls.get("onnxruntime")
    if peer is not None and _error(calls["ekiden"](inputs), peer(inputs)) < CLOSE:
        return "exported differently"
    return "differs"


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
        wide = [_wider(v) for v in inputs]
        found["error"] = max(
            found["error"], _error(calls["ekiden"](wide), _arrays(model.module(*wide)))
        )
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
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=1e-6))
        with np.errstate(invalid="ignore"):
            difference = np.where(a == b, 0, np.abs(a - b))
        both = np.isnan(a) & np.isnan(b)
        difference = np.where(both, 0, difference)
        worst = max(worst, float(np.nan_to_num(difference, nan=math.inf).max()) / scale)
    return worst


def _timed(model: Model, calls: Mapping[str, Call], turns: int) -> dict[str, float]:
    """How much longer each other takes, of medians taken in turns, in time of this thread."""
    inputs = list(model.inputs.values())
    every: dict[str, Call] = {**calls, "eager": lambda given: model.module(*given)}
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
    _prepare(options.packages)
    have = {_key(line) for line in _lines(options.out)}
    for package in options.packages:
        for name in _sample(package, options):
            for road in options.roads:
                for sizes in options.sizes:
                    if (package, name, road, sizes) in have:
                        continue
                    line = _apart((package, name, road, sizes), options)
                    with open(options.out, "a") as file:
                        file.write(json.dumps(line) + "\n")
                    said = line.get("why", line.get("error", ""))
                    print(package, name, road, sizes, line["state"], said, flush=True)


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
    "ekiden.backend.kernels", "ekiden.backend.vm", "ekiden.codegen.llvm", "ekiden.driver",
    "ekiden.frontend.onnx.importer", "ekiden.frontend.torch.export", "onnx", "torch.onnx",
)  # fmt: skip


def _sample(package: str, options: argparse.Namespace) -> list[str]:
    if options.names:
        return list(options.names)
    names = sorted(PACKAGES[package].names())
    random.Random(options.seed).shuffle(names)  # a smaller sample is the begin of a larger one
    return names[: options.sample or None]


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
        given = (asked, options.turns, options.parameters, options.gigabytes, Path(folder))
        process = _FORKS.Process(target=_in_process, args=given)
        process.start()
        process.join(options.seconds)
        if process.exitcode is None:
            _end(process)
            return {**line, "state": "out of time", "why": f"{options.seconds} s"}
        answer = Path(folder, "line.json")
        if not answer.is_file():
            said = Path(folder, "errors.txt").read_text(errors="replace").strip()
            why = said.rpartition("\n")[2] or f"ended with {process.exitcode}"
            return {**line, "state": "crashed", "why": f"{process.exitcode}: {why[:700]}"}
        made: dict[str, Any] = json.loads(answer.read_text())
        return made


def _in_process(
    asked: tuple[str, str, str, str], turns: int, most: int, gigabytes: int, folder: Path
) -> None:
    """Write the line of a model to a file, within limits. Its group of processes is its own."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))
    with open(folder / "errors.txt", "w") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    line = one(*asked, turns, most)
    (folder / "line.json").write_text(json.dumps({**line, "tier": _tier()}))
    os.killpg(0, signal.SIGKILL)  # kernels that are still being compiled for a quick start


def _end(process: BaseProcess) -> None:
    assert process.pid is not None, "it was started"
    os.killpg(process.pid, signal.SIGKILL)
    process.join()


# The table.

NOT_OURS = ("large", "not built", "not exported", "exported differently")
"""States of models that Ekiden was not asked about."""


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """What lines say, as Markdown."""
    heads = ("package", "road", "sizes", "models", "agree", "of ONNX Runtime's", "over eager",
             "over ONNX Runtime", "compile, median s")  # fmt: skip
    rows = [f"| {' | '.join(heads)} |", "|---|---|---|--:|--:|--:|--:|--:|--:|"]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["package"], line["road"], line["sizes"]), []).append(line)
    for key, group in sorted(groups.items()):
        asked = [each for each in group if each["state"] not in NOT_OURS]
        good = [each for each in asked if each["state"] == "agrees"]
        times = [each["compile_s"] for each in good]
        theirs = [each for each in asked if isinstance(each.get("onnxruntime"), float)]
        both = [each for each in theirs if each["state"] == "agrees"]
        cells = [*key, len(asked), f"{len(good)} ({len(good) / max(len(asked), 1):.1%})",
                 f"{len(both)} of {len(theirs)}" if theirs else "",
                 _mean(good, "over_eager"), _mean(good, "over_onnxruntime"),
                 f"{statistics.median(times):.1f}" if times else ""]  # fmt: skip
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    slow = sorted((e for e in lines if "compile_s" in e), key=lambda e: -e["compile_s"])[:10]
    rows += ["", "Slowest to compile:"]
    rows += [f"- {e['name']}, {e['road']}: {e['compile_s']} s" for e in slow]
    left = [e for e in lines if e["state"] not in ("agrees", "large")]
    rows += ["", "| model | road | state | why |", "|---|---|---|---|"] if left else []
    for each in left:
        why = str(each.get("why", each.get("error", ""))).replace("|", "/")
        rows.append(
            f"| {each['name']} | {each['road']} {each['sizes']} | {each['state']} | {why} |"
        )
    return "\n".join(rows)


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
    running.add_argument("--sample", type=int, default=0, help="how many names of each; 0 for all")
    running.add_argument("--seed", type=int, default=SEED)
    running.add_argument(
        "--tier", default="full", choices=["full", "quick"],
        help="general kernels take a tenth of the time: what runs and agrees, not how fast",
    )  # fmt: skip
    running.add_argument("--turns", type=int, default=5)
    running.add_argument("--parameters", type=int, default=MOST_PARAMETERS, help="at most")
    running.add_argument("--seconds", type=int, default=600)
    running.add_argument("--gigabytes", type=int, default=16)
    running.add_argument("--out", type=Path, default=Path("zoo.jsonl"))
    writing = commands.add_parser("table")
    writing.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.command == "names":
        print("\n".join(PACKAGES[options.package].names()))
    elif options.command == "run":
        run(options)
    else:
        print(table(_lines(options.file)))


if __name__ == "__main__":
    main()
