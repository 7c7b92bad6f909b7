"""`ekiden verify MODEL`: the compiled model against ONNX Runtime or ONNX's reference evaluator.

Exit codes: 0 they agree, 1 the model cannot be read, compiled or run, 2 wrong usage, 3 they differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module

import numpy as np
import onnx

import ekiden
from ekiden.driver.commands.options import add_dims, not_negative, random_inputs, read_arrays
from ekiden.frontend.onnx.load import read_model, sorted_nodes
from ekiden.frontend.onnx.node import describe
from ekiden.ir.op import Array
from ekiden.runtime.errors import InputError, RunError

DIFFERS = 3
ENGINES = ("onnxruntime", "onnx")

Evaluate = Callable[[onnx.ModelProto, Mapping[str, Array]], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor of the model: who makes it, and how far the two results are apart."""

    node: str
    tensor: str
    agrees: bool
    error: float
    """The largest difference as a multiple of what is tolerated; infinite where shapes differ."""
    detail: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("file", help="an ONNX model")
    parser.add_argument("--against", choices=ENGINES, help="what to compare with")
    parser.add_argument("--layers", action="store_true", help="compare the result of every node")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=array.npy", help="else random"
    )
    add_dims(parser)
    parser.add_argument("--rtol", type=not_negative, default=1e-4, help="relative tolerance (1e-4)")
    parser.add_argument("--atol", type=not_negative, default=1e-6, help="absolute tolerance (1e-6)")
    parser.add_argument(
        "--of-range",
        type=not_negative,
        default=1e-5,
        help="tolerance as a share of the largest (1e-5)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Compare; name the first node that differs."""
    model, label, _ = read_model(options.file)
    makers = {o: describe(n) for n in model.graph.node for o in n.output if o}
    if options.layers:
        model = with_all_outputs(model, label)
    engine = options.against or next(e for e in ENGINES if importlib.util.find_spec(e))
    executable = ekiden.compile(model)
    feed = random_inputs(executable, options.dim, read_arrays(options.input))
    result = executable(**feed)
    tensors = result if isinstance(result, tuple) else (result,)
    found: list[object] = [t.numpy() if hasattr(t, "numpy") else t for t in tensors]
    wanted = _evaluator(engine)(model, feed)
    names = [o.name for o in model.graph.output]
    compared = [
        compare(makers.get(n, "input"), n, f, w, options)
        for n, f, w in zip(names, found, wanted, strict=True)
    ]
    first = next((c for c in compared if not c.agrees), None)
    if options.json:
        print(json.dumps(_as_json(label, engine, compared, first), indent=1))
    else:
        _print(label, engine, compared, first)
    return 0 if first is None else DIFFERS


def with_all_outputs(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """The model with the result of every node of its main graph as an output, in order."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes = sorted_nodes(model.graph, label)
    names = dict.fromkeys(o for n in nodes if n.op_type != "Constant" for o in n.output if o)
    del made.graph.output[:]
    made.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return made


def _evaluator(engine: str) -> Evaluate:
    if importlib.util.find_spec(engine) is None:
        raise InputError(f"verify: {engine} is not installed: pip install {engine}")
    return _by_onnxruntime if engine == "onnxruntime" else _by_reference


def _by_onnxruntime(model: onnx.ModelProto, feed: Mapping[str, Array]) -> Sequence[Array]:
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # else products of bytes saturate in 16 bits where a processor has no VNNI
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, dict(feed)))
    except Exception as error:  # its errors have no common class
        reason = str(error).partition("\n")[0]
        raise RunError(f"verify: ONNX Runtime cannot run the model: {reason}") from error


def _by_reference(model: onnx.ModelProto, feed: Mapping[str, Array]) -> Sequence[Array]:
    reference = import_module("onnx.reference")
    try:
        return list(reference.ReferenceEvaluator(model).run(None, dict(feed)))
    except Exception as error:  # whatever an operator's NumPy raises
        reason = str(error).partition("\n")[0]
        raise RunError(f"verify: ONNX's reference cannot run the model: {reason}") from error


def compare(
    node: str, name: str, found: object, wanted: object, options: argparse.Namespace
) -> Comparison:
    """One result against another, within atol + rtol * |wanted| + of_range * max |wanted|."""
    ours, theirs = np.asarray(found), np.asarray(wanted)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        got, expected = f"{ours.dtype}{list(ours.shape)}", f"{theirs.dtype}{list(theirs.shape)}"
        return Comparison(node, name, False, float("inf"), f"expected {expected}, got {got}")
    if ours.dtype.kind not in "fc" and str(ours.dtype) != "bfloat16":
        different = int((ours != theirs).sum())
        text = f"{different} of {ours.size} elements differ" if different else ""
        return Comparison(node, name, not different, float(different), text)
    x, y = ours.astype(np.float64), theirs.astype(np.float64)
    fits = (np.isfinite(x) == np.isfinite(y)) & ((x == y) | np.isfinite(x) | np.isnan(x))
    x, y = x[np.isfinite(y) & fits], y[np.isfinite(y) & fits]
    limit = options.atol + options.rtol * np.abs(y) + 1e-30
    limit = limit + options.of_range * np.abs(y).max(initial=0.0)
    apart = np.abs(x - y)
    error = float((apart / limit).max(initial=0.0)) if fits.all() else float("inf")
    text = f"largest difference {apart.max(initial=0.0):.3g}"
    return Comparison(node, name, error <= 1.0, error, text)


def _as_json(
    label: str, engine: str, compared: Sequence[Comparison], first: Comparison | None
) -> dict[str, object]:
    return {
        "model": label,
        "against": engine,
        "agrees": first is None,
        "first_difference": None if first is None else asdict(first),
        "tensors": [asdict(c) for c in compared],
    }


def _print(
    label: str, engine: str, compared: Sequence[Comparison], first: Comparison | None
) -> None:
    for each in compared:
        mark = "ok     " if each.agrees else "DIFFERS"
        print(f"{mark} {each.tensor}  ({each.node})  {each.detail}")
    if first is None:
        print(f"{label} agrees with {engine} in {len(compared)} tensors")
    else:
        print(f"{label} differs from {engine}; first in {first.tensor!r}, made by {first.node}")
