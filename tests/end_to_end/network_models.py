"""Real models for tests: those that the `onnx` package ships without weights, with seeded ones, and
those of the benchmark cache.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ekiden
from onnx_runtime import run_onnx_runtime

Array = np.ndarray[Any, Any]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MANIFEST = Path(__file__).resolve().parents[3] / "shared" / "models" / "models.json"
CACHE = Path(os.environ.get("EKIDEN_BENCH_CACHE", Path.home() / ".cache" / "ekiden-bench"))
POSITIVE = ("scale", "variance")


def light_model(name: str, seed: int = 0) -> onnx.ModelProto:
    """`light_NAME` of the onnx package with random weights instead of constant ones."""
    path = LIGHT / f"light_{name}.onnx"
    if not path.is_file():
        pytest.skip(f"the installed onnx package has no {path.name}")
    model = onnx.load(path)
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    roles = _roles(graph)
    rng = np.random.default_rng(seed)
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or not _is_float(node):
            kept.append(node)
            continue
        weight = _weight(rng, tuple(shapes[node.input[0]]), roles.get(node.output[0], "weight"))
        graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    inputs = [i for i in graph.input if i.name not in shapes]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    return model


def _is_float(node: onnx.NodeProto) -> bool:
    return all(a.t.data_type == onnx.TensorProto.FLOAT for a in node.attribute)


def _roles(graph: onnx.GraphProto) -> dict[str, str]:
    """What each small weight is to its node: a bias, a scale or a variance."""
    roles: dict[str, str] = {}
    origin = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Unsqueeze"}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            roles |= zip(node.input[1:], ("scale", "bias", "bias", "variance"), strict=True)
        elif node.op_type in ("Conv", "Gemm") and len(node.input) > 2:
            roles[node.input[2]] = "bias"
        elif node.op_type in ("Mul", "Add"):
            role = "scale" if node.op_type == "Mul" else "bias"
            roles |= {origin[i]: role for i in node.input if i in origin}
    return roles


def _weight(rng: np.random.Generator, shape: tuple[int, ...], role: str) -> Array:
    """Of a size that keeps the activations of a deep network in range."""
    if role in POSITIVE:
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    deviation = 0.02 if role == "bias" or len(shape) < 2 else (2 / inputs) ** 0.5
    return rng.normal(0, deviation, shape).astype(np.float32)


@dataclass(frozen=True)
class Entry:
    """A model of the manifest that is in the cache."""

    path: Path
    specs: list[dict[str, Any]]
    cases: list[dict[str, Any]]

    def feed(self, case: dict[str, Any], seed: int = 0) -> dict[str, Array]:
        """Plausible inputs of one case."""
        return {
            s["name"]: _input(s, case["dims"], np.random.default_rng([seed, i]))
            for i, s in enumerate(self.specs)
        }


def _input(spec: dict[str, Any], dims: dict[str, int], rng: np.random.Generator) -> Array:
    shape = [dims[d] if isinstance(d, str) else d for d in spec["shape"]]
    kind, *numbers = spec["gen"]
    numbers = [dims.get(n, n) if isinstance(n, str) else n for n in numbers]
    if kind in ("randint", "tokens"):
        result = rng.integers(numbers[0], numbers[1], shape)
    elif kind == "const":
        result = np.full(shape, numbers[0])
    else:
        result = rng.uniform(-1, 1, shape)
    return result.astype(spec["dtype"])


_compiled: dict[str, ekiden.Executable] = {}


def compiled_light(name: str) -> ekiden.Executable:
    """`light_model(name)`, compiled once for all tests."""
    if name not in _compiled:
        _compiled[name] = ekiden.compile(light_model(name))
    return _compiled[name]


def compiled_entry(entry: Entry) -> ekiden.Executable:
    """A model of the cache, compiled once for all tests."""
    key = str(entry.path)
    if key not in _compiled:
        _compiled[key] = ekiden.compile(entry.path)
    return _compiled[key]


@cache
def _manifest() -> dict[str, Any]:
    return {e["id"]: e for e in json.loads(MANIFEST.read_text())} if MANIFEST.is_file() else {}


def cached_model(name: str) -> Entry:
    """A model of the manifest; the test is skipped where it has not been fetched."""
    entry = _manifest().get(name)
    if entry is None:
        pytest.skip(f"no model manifest at {MANIFEST}")
    path = CACHE / entry["out"]
    if not path.is_file():
        pytest.skip(f"{path} is not there; fetch it with shared/models/fetch_models.py")
    return Entry(path, entry["input_specs"], entry["cases"])


def reference(model: onnx.ModelProto | Path, feed: dict[str, Array]) -> list[Array]:
    """What ONNX Runtime gives."""
    return run_onnx_runtime(model, feed, threads=2)
