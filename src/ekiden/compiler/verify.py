"""`verify()`: compare a compiled model with ONNX Runtime or ONNX's reference evaluator."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from importlib import import_module
from math import inf, isfinite
from typing import Any

import numpy as np
import onnx

from ekiden.compiler.compile import compile
from ekiden.compiler.remote_model import RemoteModel
from ekiden.compiler.sample_inputs import random_inputs
from ekiden.frontend.onnx.load import read_model, topological_order
from ekiden.frontend.onnx.node import describe_node
from ekiden.ir.op import Array
from ekiden.quantization.calibrate import expose_outputs
from ekiden.quantization.sensitivity import signal_to_noise_db
from ekiden.runtime.errors import InputError, RunError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.executable.loading import load
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.profile.html import table_html
from ekiden.target import TargetLike

__all__ = ["REFERENCE_ENGINES", "Comparison", "ComparisonTolerance", "Verification", "verify"]

REFERENCE_ENGINES = ("onnxruntime", "onnx")

Evaluate = Callable[[onnx.ModelProto, Mapping[str, Array]], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class ComparisonTolerance:
    """Tolerance of an elementwise comparison: atol + rtol * |expected| + of_range * max |expected|,
    or a minimum `snr` (dB) for quantised models.
    """

    rtol: float = 1e-4
    atol: float = 1e-6
    of_range: float = 1e-5
    snr: float = 20.0
    """Minimum signal-to-noise ratio (dB) relative to another model, which replaces the other
    tolerances.
    """


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of one tensor between two engines: the node that computes it, and the error."""

    node: str
    tensor: str
    agrees: bool
    error: float
    """Largest difference relative to the tolerance; infinite for different shapes."""
    detail: str
    snr: float | None = None
    """Signal-to-noise ratio (dB) relative to another model; infinite if equal."""

    def __str__(self) -> str:
        mark = "ok     " if self.agrees else "DIFFERS"
        return f"{mark} {self.tensor}  ({self.node})  {self.detail}"


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of a verification: true where all tensors agree."""

    model: str
    against: str
    tensors: tuple[Comparison, ...]

    @property
    def first_difference(self) -> Comparison | None:
        """Return the first differing tensor, in model order."""
        return next((comparison for comparison in self.tensors if not comparison.agrees), None)

    def __bool__(self) -> bool:
        return self.first_difference is None

    def json(self) -> str:
        """Return the result as one JSON object."""
        first = self.first_difference
        document = {
            "model": self.model,
            "against": self.against,
            "agrees": first is None,
            "first_difference": None if first is None else asdict(first),
            "tensors": [asdict(comparison) for comparison in self.tensors],
        }
        return json.dumps(document, indent=1)

    def _summary(self) -> str:
        first = self.first_difference
        if first is None:
            return f"{self.model} agrees with {self.against} in {len(self.tensors)} tensors"
        who = f"first in {first.tensor!r}, made by {first.node}"
        return f"{self.model} differs from {self.against}; {who}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.tensors), self._summary()])

    def _repr_html_(self) -> str:
        if any(t.snr is not None for t in self.tensors):
            return f"{self._snr_bars()}<p>{escape(self._summary())}</p>"
        rows = [("ok" if t.agrees else "DIFFERS", t.tensor, t.node, t.detail) for t in self.tensors]
        return table_html(("", "tensor", "node", "difference"), rows, self._summary())

    def _snr_bars(self) -> str:
        """Return a bar for each tensor, as long as its signal-to-noise ratio."""
        highest = max(
            [t.snr for t in self.tensors if t.snr is not None and isfinite(t.snr)] or [1.0]
        )
        rows = []
        for comparison in self.tensors:
            snr = comparison.snr if comparison.snr is not None else 0.0
            width = 300.0 * min(max(snr / highest, 0.0), 1.0) if highest > 0 else 0.0
            colour = "#3f9142" if comparison.agrees else "#c04040"
            bar = f"<div style='background:{colour};height:0.8em;width:{width:.0f}px'></div>"
            text = f"<td>{escape(comparison.tensor)}</td><td>{bar}</td><td>{snr:.1f} dB</td>"
            rows.append(f"<tr>{text}</tr>")
        return f"<table>{''.join(rows)}</table>"


def verify(
    model: PathName | bytes | onnx.ModelProto,
    executable: Executable | RemoteModel | PathName | bytes | None = None,
    *,
    target: TargetLike | None = None,
    inputs: Mapping[str, Array] | None = None,
    dims: Mapping[str, int] | None = None,
    against: str | None = None,
    layers: bool = False,
    tolerance: ComparisonTolerance | None = None,
) -> Verification:
    """Verify an ONNX model compiled by Ekiden against another engine's results.

    `executable` is what was compiled of it before, or the file of it, or one in a session
    (`driver.remote.RemoteExecutable`); else the model is compiled, for `target` or this machine.
    `inputs` are arrays by name, random numbers for the others, of sizes that `dims` gives to
    symbols. `against` "onnxruntime", where it is installed the default, or "onnx", the reference.
    `layers` compares the result of every node, which compiles the model with all of them as
    outputs. `against` may also be another model of ONNX with the same inputs, the one of floats
    that this was made of: both are compiled, and tensors of one name compared by their signal to
    noise ratio. Raises InputError for what cannot be combined, RunError where the engine fails, and
    what compiling and running raise.
    """
    if not isinstance(model, (str, os.PathLike, bytes, onnx.ModelProto)):
        expected = "verify: expected a model of ONNX (a path, bytes, an onnx.ModelProto)"
        raise InputError(f"{expected}, got {type(model).__name__}")
    proto, label, _ = read_model(model)
    makers = {o: describe_node(n) for n in proto.graph.node for o in n.output if o}
    if target is not None and executable is not None:
        raise InputError("verify: an artifact already has its targets: omit the target")
    if layers and executable is not None:
        raise InputError("verify: layers are outputs of their own, which an artifact does not have")
    if against is not None and against not in REFERENCE_ENGINES:
        if executable is not None:
            raise InputError(
                "verify: only models can be compared with another model, not artifacts"
            )
        feeder = partial(random_inputs, dims=dims or {}, arrays=inputs or {})
        return _compare_layers(proto, label, against, target, feeder, layers, tolerance)
    if layers:
        proto = with_all_outputs(proto, label)
    engine = against or next(e for e in REFERENCE_ENGINES if importlib.util.find_spec(e))
    evaluate = _reference_evaluator(engine)
    compiled = compile(proto, target=target) if executable is None else _load_executable(executable)
    _check_same(compiled, proto, label)
    feed = random_inputs(compiled, dims or {}, inputs or {})
    result = compiled(**feed)
    results = [t.numpy() if hasattr(t, "numpy") else t for t in _as_outputs(result)]
    names = [o.name for o in proto.graph.output]
    rows = zip(names, results, evaluate(proto, feed), strict=True)
    chosen = tolerance or ComparisonTolerance()
    compared = (compare(makers.get(n, "input"), n, f, w, chosen) for n, f, w in rows)
    return Verification(label, engine, tuple(compared))


def _compare_layers(
    proto: onnx.ModelProto,
    label: str,
    against: str,
    target: TargetLike | None,
    feeder: Callable[[Executable], dict[str, Any]],
    layers: bool,
    tolerance: ComparisonTolerance | None,
) -> Verification:
    """Compare two models layer by layer, over the tensor names that both have."""
    second, other_label, _ = read_model(against)
    min_snr = (tolerance or ComparisonTolerance()).snr
    makers = {o: describe_node(n) for n in proto.graph.node for o in n.output if o}
    names = [o.name for o in proto.graph.output]
    if names != [o.name for o in second.graph.output]:
        raise InputError(f"verify: {label} and {other_label} have other outputs")
    if layers:
        second_tensors = {o for n in second.graph.node for o in n.output}
        names = [name for name in makers if name in second_tensors]
    runs = [
        compile(expose_outputs(proto_model, names), target=target)
        for proto_model in (proto, second)
    ]
    feed = feeder(runs[1])
    actual, expected = ([np.asarray(v) for v in _as_outputs(run(**feed))] for run in runs)
    rows = []
    for name, our_value, their_value in zip(names, actual, expected, strict=True):
        node = makers.get(name, "input")
        if our_value.shape != their_value.shape:
            text = f"expected {list(their_value.shape)}, got {list(our_value.shape)}"
            rows.append(Comparison(node, name, False, inf, text))
            continue
        ratio = signal_to_noise_db(their_value, our_value)
        rows.append(Comparison(node, name, ratio >= min_snr, 0.0, f"{ratio:.1f} dB", ratio))
    return Verification(label, other_label, tuple(rows))


def _load_executable(
    source: Executable | RemoteModel | PathName | bytes,
) -> Executable | RemoteModel:
    return source if isinstance(source, (Executable, RemoteModel)) else load(source)


def _as_outputs(result: object) -> Iterable[object]:
    return result if isinstance(result, tuple) else (result,)


def _check_same(compiled: Executable | RemoteModel, proto: onnx.ModelProto, label: str) -> None:
    """Raise InputError if an executable was not compiled from this model."""
    weights = {w.name for w in proto.graph.initializer}
    ports = ([i.name for i in proto.graph.input if i.name not in weights], proto.graph.output)
    expected_names = [*ports[0], *(o.name for o in ports[1])]
    names = [i.name for i in (*compiled.inputs, *compiled.outputs)]
    if names != expected_names:
        expected_text = f"inputs and outputs {', '.join(map(repr, expected_names))}"
        raise InputError(
            f"verify: {label} has {expected_text}, the artifact {', '.join(map(repr, names))}"
        )


def with_all_outputs(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """Add every node result of the main graph to the model's outputs, in order."""
    nodes = topological_order(model.graph, label)
    names = dict.fromkeys(o for n in nodes if n.op_type != "Constant" for o in n.output if o)
    return expose_outputs(model, names)


def _reference_evaluator(engine: str) -> Evaluate:
    if importlib.util.find_spec(engine) is None:
        raise InputError(f"verify: {engine} is not installed: pip install {engine}")
    return _evaluate_with_onnxruntime if engine == "onnxruntime" else _evaluate_with_reference


def _evaluate_with_onnxruntime(
    model: onnx.ModelProto, feed: Mapping[str, Array]
) -> Sequence[Array]:
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


def _evaluate_with_reference(model: onnx.ModelProto, feed: Mapping[str, Array]) -> Sequence[Array]:
    reference = import_module("onnx.reference")
    try:
        return list(reference.ReferenceEvaluator(model).run(None, dict(feed)))
    except Exception as error:  # whatever an operator's NumPy raises
        reason = str(error).partition("\n")[0]
        raise RunError(f"verify: ONNX's reference cannot run the model: {reason}") from error


def compare(
    node: str, name: str, actual: object, reference: object, tolerance: ComparisonTolerance
) -> Comparison:
    """Compare two results within atol + rtol * |expected| + of_range * max |expected|."""
    ours, theirs = np.asarray(actual), np.asarray(reference)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        actual_type, expected = (
            f"{ours.dtype}{list(ours.shape)}",
            f"{theirs.dtype}{list(theirs.shape)}",
        )
        return Comparison(
            node, name, False, float("inf"), f"expected {expected}, got {actual_type}"
        )
    if ours.dtype.kind not in "fc" and str(ours.dtype) != "bfloat16":
        different = int((ours != theirs).sum())
        text = f"{different} of {ours.size} elements differ" if different else ""
        return Comparison(node, name, not different, float(different), text)
    x, y = ours.astype(np.float64), theirs.astype(np.float64)
    # Infinities must be equal and NaNs must coincide; only finite values have a tolerance.
    fits = (x == y) | (np.isfinite(x) & np.isfinite(y)) | (np.isnan(x) & np.isnan(y))
    x, y = x[np.isfinite(y) & fits], y[np.isfinite(y) & fits]
    # The tiny term avoids 0 / 0 where a tensor is all zeros and atol is 0.
    limit = tolerance.atol + tolerance.rtol * np.abs(y) + 1e-30
    limit = limit + tolerance.of_range * np.abs(y).max(initial=0.0)
    apart = np.abs(x - y)
    error = float((apart / limit).max(initial=0.0)) if fits.all() else float("inf")
    text = f"largest difference {apart.max(initial=0.0):.3g}"
    return Comparison(node, name, error <= 1.0, error, text)
