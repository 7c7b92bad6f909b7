"""Agreement of arbitrary ONNX files with ONNX Runtime: how many agree, and how the others fail.

    python benchmarks/onnx_files.py FOLDER [--sample 1000] [--seed 0] [--limit 60] [--jobs 1]
    python benchmarks/onnx_files.py --one MODEL.onnx

Every `.onnx` file below the folder, or a sample drawn with the seed, is compiled and run in a
process of its own that is ended after `--limit` seconds. Inputs come from `test_data_set_0` beside
the model, else are drawn from the declared types: symbolic dimensions by name, small numbers,
words. A model counts that ONNX Runtime runs on one of a few draws:

    agree      dtypes, shapes and values are ONNX Runtime's, up to rounding
    wrong      they are not
    refused    an error of Ekiden's own classes
    raw        any other exception, or the process died
    timeout    it did not end in time

Models that draw random numbers are compared by dtypes and shapes. Prints a line for each model that
does not agree, and the counts; the exit status is 1 where one is wrong, raw or never ends.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime

import ekiden
from ekiden.runtime.errors import EkidenError, InternalError

Array: TypeAlias = np.ndarray[Any, Any]
Feed: TypeAlias = dict[str, object]

RANDOM_OPERATORS = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike "
    "Sampling".split()
) | {"Dropout in training"}
"""Operators whose results differ from engine to engine."""
OUTCOMES = ("agree", "wrong", "refused", "raw", "timeout")
SYMBOLIC_EXTENTS = (2, 1, 4, 8, 16, 32, 64, 224)
"""Extents of a symbolic dimension in the draws, tried in this order."""
SEEDS_PER_EXTENT = 2
MAX_INPUT_ELEMENTS = 1 << 24
SAMPLE_STRINGS = ("a", "bc", "def", "1", "2.5", "")
RELATIVE_TOLERANCES = {np.dtype(np.float16): 2e-2, np.dtype(np.float64): 1e-6}
DEFAULT_RELATIVE_TOLERANCE = 2e-3
"""Tolerances of differences, of the largest absolute value that ONNX Runtime gives."""


# One model, in its own process.


def compare_model(path: Path) -> tuple[str, str]:
    """Return the outcome of a model, one of OUTCOMES or "skipped" if ONNX Runtime fails too, and
    its reason.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
        session = _onnxruntime_session(path)
    except Exception as error:
        return "skipped", _first_error_line(error)
    reason = "no inputs could be drawn"
    for feed in _iter_feeds(path, model, session):
        try:
            expected = session.run(None, feed)
        except Exception as error:
            reason = _first_error_line(error)
            continue
        return _compare_feed(path, model, feed, session, expected)
    return "skipped", reason


def _onnxruntime_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _compare_feed(
    path: Path,
    model: onnx.ModelProto,
    feed: Feed,
    session: onnxruntime.InferenceSession,
    expected: Sequence[object],
) -> tuple[str, str]:
    """Compare Ekiden with ONNX Runtime's outputs for one feed."""
    try:
        program = ekiden.compile(str(path), num_threads=1)
        inputs = {i.name: feed[i.name] for i in program.inputs if i.name in feed}
        result = program(**inputs)
    except InternalError as error:
        return "raw", f"{type(error).__name__}: {_first_error_line(error)}"
    except EkidenError as error:
        return "refused", f"{type(error).__name__}: {_first_error_line(error)}"
    except Exception as error:
        return "raw", f"{type(error).__name__}: {_first_error_line(error)}"
    results: list[object] = list(result) if isinstance(result, tuple) else [result]
    if len(expected) == 1 and len(results) != 1:
        results = [results]
    if len(results) != len(expected):
        return "wrong", f"{len(results)} outputs for {len(expected)}"
    by_value = not RANDOM_OPERATORS.intersection(_operator_names(model))
    for output, a, b in zip(session.get_outputs(), expected, results, strict=True):
        difference = _describe_difference(a, _to_python_value(b), by_value)
        if difference:
            return "wrong", f"output {output.name!r}: {difference}"
    return "agree", ""


def _operator_names(model: onnx.ModelProto) -> set[str]:
    names, graphs = set(), [model.graph]
    nodes = [n for f in model.functions for n in f.node]
    while graphs or nodes:
        nodes += graphs.pop().node if graphs else []
        while nodes:
            node = nodes.pop()
            # Input 2 of Dropout is training_mode (opset 12 on).
            is_training = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] != ""
            names.add("Dropout in training" if is_training else node.op_type)
            graphs.extend(a.g for a in node.attribute if a.HasField("g"))
    return names


def _to_python_value(value: object) -> object:
    """Convert an output to NumPy arrays, lists and dictionaries."""
    if hasattr(value, "numpy"):
        return value.numpy()
    if isinstance(value, (list, tuple)):
        return [_to_python_value(v) for v in value]
    return value


def _describe_difference(expected: object, value: object, by_value: bool) -> str:
    """Describe how an output differs from ONNX Runtime's; empty if they agree."""
    if expected is None:
        return "" if value is None else "ONNX Runtime has nothing"
    if isinstance(expected, Mapping):
        return "" if _maps_equal(expected, value) else f"{value!r} for {expected!r}"[:200]
    if isinstance(expected, (list, tuple)):
        items = list(value) if isinstance(value, (list, tuple)) else []
        if len(items) != len(expected):
            return f"{len(items)} elements for {len(expected)}"
        pairs = zip(expected, items, strict=True)
        return next((d for a, b in pairs if (d := _describe_difference(a, b, by_value))), "")
    a, b = np.asarray(expected), np.asarray(value)
    if a.shape != b.shape:
        return f"shape {b.shape} for {a.shape}"
    if a.dtype.kind in "OUS":
        return "" if a.astype(str).tolist() == b.astype(str).tolist() else "other strings"
    if a.dtype != b.dtype:
        return f"{b.dtype} for {a.dtype}"
    return _describe_array_difference(a, b) if by_value else ""


def _maps_equal(expected: Mapping[object, object], value: object) -> bool:
    if not isinstance(value, Mapping) or set(expected) != set(value):
        return False
    pairs = ((np.asarray(expected[k]), np.asarray(value[k])) for k in expected)
    return all(np.allclose(a, b, 1e-3, 1e-5) for a, b in pairs)


def _describe_array_difference(a: Array, b: Array) -> str:
    """Describe how two arrays differ; empty if they agree."""
    if a.dtype.kind in "iub":
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
        limit = 1.0 if a.dtype.itemsize == 1 and a.dtype.kind != "b" else 0.0  # quantised ties
        return "" if not apart.size or apart.max() <= limit else f"integers differ by {apart.max()}"
    if a.dtype.kind == "f":  # ONNX Runtime masks by the lowest number where ONNX says -inf
        a, b = (np.where(values == np.finfo(a.dtype).min, -np.inf, values) for values in (a, b))
    x, y = a.astype(np.complex128), b.astype(np.complex128)
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return "NaN in other places"
    finite = np.isfinite(x)
    if (
        not np.array_equal(finite, np.isfinite(y))
        or (x[~finite & ~np.isnan(x)] != y[~finite & ~np.isnan(x)]).any()
    ):
        return "infinite in other places"
    size = np.abs(x[finite]).max(initial=0.0)
    apart = np.abs(x[finite] - y[finite]).max(initial=0.0)
    limit = RELATIVE_TOLERANCES.get(a.dtype, DEFAULT_RELATIVE_TOLERANCE) * size + 1e-6
    return "" if apart <= limit else f"values differ by {apart:.3g} of {size:.3g}"


# Inputs.


def _iter_feeds(
    path: Path, model: onnx.ModelProto, session: onnxruntime.InferenceSession
) -> Iterator[Feed]:
    """Yield feeds: stored ones first, then random ones of rising extents."""
    names = [i.name for i in session.get_inputs()]
    stored = _load_stored_feed(path, model, names)
    if stored is not None:
        yield stored
    initial = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in initial]
    for extent in SYMBOLIC_EXTENTS:
        for seed in range(SEEDS_PER_EXTENT):
            try:
                yield {
                    i.name: _random_input(i.type, extent, np.random.default_rng(seed))
                    for i in inputs
                }
            except (KeyError, ValueError, TypeError):
                return


def _load_stored_feed(path: Path, model: onnx.ModelProto, names: Sequence[str]) -> Feed | None:
    folder = path.parent / "test_data_set_0"
    types = {i.name: i.type for i in model.graph.input}
    feed: Feed = {}
    for index, name in enumerate(names):
        file = folder / f"input_{index}.pb"
        if not file.is_file():
            return None
        try:
            feed[name] = _parse_tensor_proto(file.read_bytes(), types[name])
        except Exception:
            return None
    return feed or None


def _parse_tensor_proto(data: bytes, kind: onnx.TypeProto) -> object:
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _random_input(kind: onnx.TypeProto, extent: int, rng: np.random.Generator) -> object:
    """Return a random input of an ONNX type; raise KeyError or ValueError if there is none."""
    if kind.HasField("optional_type"):
        return _random_input(kind.optional_type.elem_type, extent, rng)
    if kind.HasField("sequence_type"):
        return [_random_input(kind.sequence_type.elem_type, extent, rng) for _ in range(2)]
    tensor = kind.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else extent for d in tensor.shape.dim]
    shape = [extent if d <= 0 else d for d in shape]
    if np.prod(shape, dtype=float) > MAX_INPUT_ELEMENTS:
        raise ValueError("too large to draw")
    if tensor.elem_type == onnx.TensorProto.STRING:
        return rng.choice(np.array(SAMPLE_STRINGS, object), shape)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(0, 2 if dtype.itemsize > 1 else 100, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


# All models.


def _send_outcome(path: str, results: Connection) -> None:
    """Compare a model in its own process, and send the outcome."""
    warnings.simplefilter("ignore")
    results.send(compare_model(Path(path)))


def compare_in_subprocess(path: Path, limit: float) -> tuple[str, str]:
    """Return the outcome from a forked process; the fork server has imported both engines but holds
    no sessions or threads.
    """
    receiver, sender = FORK_SERVER.Pipe(duplex=False)
    child = FORK_SERVER.Process(target=_send_outcome, args=(str(path), sender))
    child.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            return "timeout", f"not done in {limit:g} s"
        result: tuple[str, str] = receiver.recv()
        return result
    except EOFError:
        child.join()
        return "raw", f"the process ended with {child.exitcode}"
    finally:
        child.kill()
        child.join()


FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(
    ["onnxruntime", "onnx", "ekiden", "ekiden.frontend.onnx.importer"]
)


def _first_error_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def main() -> int:
    """Print the outcomes of the models; return 1 if any is wrong, raw or timed out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--one", type=Path, help="one model, in this process")
    parser.add_argument("--sample", type=int, help="as many, drawn at random; all otherwise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one model")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.one is not None:
        print(json.dumps(compare_model(options.one)), flush=True)
        return 0
    if options.folder is None:
        parser.error("the folder of the models is missing")
    paths = sorted(p for p in options.folder.rglob("*.onnx") if p.is_file())
    if options.sample is not None and options.sample < len(paths):
        paths = sorted(random.Random(options.seed).sample(paths, options.sample))
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(compare_in_subprocess, p, options.limit): p for p in paths}
        for done in as_completed(waiting):
            path, (word, reason) = waiting[done], done.result()
            counts[word] += 1
            if word not in ("agree", "skipped"):
                print(f"{word:8} {path.relative_to(options.folder)}: {reason}", flush=True)
    run = sum(counts[v] for v in OUTCOMES)
    share = 100 * counts["agree"] / run if run else 0.0
    print(f"{len(paths)} models, of which ONNX Runtime runs {run}; {share:.1f} % agree")
    print(", ".join(f"{v} {counts[v]}" for v in (*OUTCOMES, "skipped")))
    return int(any(counts[v] for v in ("wrong", "raw", "timeout")))


if __name__ == "__main__":
    sys.exit(main())
