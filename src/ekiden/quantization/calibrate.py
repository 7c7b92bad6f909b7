"""Activation statistics on calibration data, in two passes: bounds first, then histograms.

A histogram needs its ends before it counts, and widening one later would move what it has counted;
so the first run finds the least and the greatest value of each tensor, the second counts between
them. What is kept is the size of a histogram, not of the data. Values that are not finite are
refused by the tensor's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field

import numpy as np
import onnx

from ekiden.ir.op import Array
from ekiden.quantization.range_calibration import Histogram
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "Feeds",
    "ModelCompiler",
    "TensorStats",
    "collect_stats",
    "iter_tensor_values",
    "parse_calibration_data",
]

MAX_CALIBRATION_BATCH = 32
"""The most samples of a run, where the model takes any number."""
Feeds = Sequence[Mapping[str, Array]]
"""Inputs of runs, by name."""
ModelCompiler = Callable[[onnx.ModelProto], Callable[[Mapping[str, Array]], Sequence[Array]]]
"""From a model to what runs it: inputs by name to outputs in order."""


@dataclass(slots=True)
class TensorStats:
    """Statistics of a tensor over the calibration data."""

    histogram: Histogram
    max_abs: Array
    """Of each channel, by magnitude."""
    mean: Array
    """Of each channel."""
    sample: Array
    """The tensor of the first run."""
    gram_matrices: dict[str, Array] = field(default_factory=dict)
    """Sums of products of what layers take of it, by their names: see `grams`."""


def parse_calibration_data(model: onnx.ModelProto, data: object) -> list[dict[str, Array]]:
    """Convert calibration data, arrays by input name or an iterable of them, to one feed dictionary
    per run. Accepts one mapping of arrays by name per run; or a single mapping with samples along
    the first axis, split into runs of the model's own batch size, or of at most
    MAX_CALIBRATION_BATCH; or a single array if the model has one input. Raises InputError if names
    or ranks do not match the model's.
    """
    # Before IR version 4, initializers were listed among the graph inputs.
    weights = {weight.name for weight in model.graph.initializer}
    ports = {i.name: i for i in model.graph.input if i.name not in weights}
    if isinstance(data, np.ndarray) and len(ports) == 1:
        data = {next(iter(ports)): data}
    if isinstance(data, Mapping):
        return _split_batches(ports, _validate_feed(ports, data))
    if not isinstance(data, Iterable):
        raise InputError("calibrate: arrays by the names of the inputs expected")
    feeds = [_validate_feed(ports, run) for run in data]
    if not feeds:
        raise InputError("calibrate: there are no data")
    return feeds


def _split_batches(
    ports: Mapping[str, onnx.ValueInfoProto], arrays: dict[str, Array]
) -> list[dict[str, Array]]:
    """Split arrays along their first dimension into batches; a single run if the first dimensions
    differ.
    """
    sizes = {array.shape[:1] for array in arrays.values()}
    if len(sizes) != 1 or sizes == {()}:
        return [arrays]
    fixed = {_batch_dim(ports[name]) for name in arrays}
    count = next(iter(sizes))[0]
    if len(fixed) != 1:
        return [arrays]
    step = next(iter(fixed)) or min(count, MAX_CALIBRATION_BATCH)
    # A fixed batch dimension admits no shorter last batch; a dynamic one does.
    if count % step and next(iter(fixed)):
        raise InputError(f"calibrate: the model takes {step} samples a run, there are {count}")
    return [
        {name: array[position : position + step] for name, array in arrays.items()}
        for position in range(0, count, step)
    ]


def _batch_dim(port: onnx.ValueInfoProto) -> int:
    """Return the first dimension of an input; 0 if it is dynamic, which some exporters
    write as -1.
    """
    dims = port.type.tensor_type.shape.dim
    return max(0, int(dims[0].dim_value)) if dims else 0


def _validate_feed(ports: Mapping[str, onnx.ValueInfoProto], run: object) -> dict[str, Array]:
    """Validate and convert the inputs of one run. Raises InputError."""
    expected = ", ".join(f"'{name}'" for name in ports)
    if not isinstance(run, Mapping) or set(run) != set(ports):
        actual = ", ".join(f"'{name}'" for name in run) if isinstance(run, Mapping) else type(run)
        raise InputError(f"calibrate: the model's inputs are {expected}, the data have {actual}")
    arrays = {name: np.asarray(value) for name, value in run.items()}
    for name, array in arrays.items():
        rank = len(ports[name].type.tensor_type.shape.dim)
        if ports[name].type.tensor_type.HasField("shape") and array.ndim != rank:
            raise InputError(f"calibrate: '{name}' has {rank} dimensions, the data {array.ndim}")
        if array.size == 0:
            raise InputError(f"calibrate: '{name}' has no elements")
    return arrays


def expose_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return a copy of the model whose outputs are the named tensors."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return copy


def collect_stats(
    model: onnx.ModelProto, tensors: Mapping[str, int], feeds: Feeds, compile: ModelCompiler
) -> dict[str, TensorStats]:
    """Collect the statistics of tensors over all calibration runs.

    Args:
        model: The float model.
        tensors: The channel axis of each tensor, by name.
        feeds: The inputs of each run.
        compile: Compiles a model to a function of its inputs.

    Raises InputError for values that are not finite, and what compiling and running raise.
    """
    inputs = {i.name for i in model.graph.input}
    computed = [name for name in tensors if name not in inputs]
    run = compile(expose_outputs(model, computed)) if computed else None
    stats: dict[str, TensorStats] = {}
    counts: dict[str, int] = {}
    # Two passes: histogram bounds must be known before values are counted.
    for values in _iter_run_values(run, computed, tensors, feeds):
        for name, value in values.items():
            _update_stats(stats, counts, name, value, tensors[name])
    for values in _iter_run_values(run, computed, tensors, feeds):
        for name, value in values.items():
            stats[name].histogram.add(value)
    return stats


def iter_tensor_values(
    model: onnx.ModelProto, names: Set[str], feeds: Feeds, compile: ModelCompiler
) -> Iterator[dict[str, Array]]:
    """Yield the named tensors of a model for each run."""
    inputs = {i.name for i in model.graph.input}
    computed = [name for name in sorted(names) if name not in inputs]
    run = compile(expose_outputs(model, computed)) if computed else None
    yield from _iter_run_values(run, computed, sorted(names), feeds)


def _iter_run_values(
    run: Callable[[Mapping[str, Array]], Sequence[Array]] | None,
    computed: Sequence[str],
    tensors: Iterable[str],
    feeds: Feeds,
) -> Iterator[dict[str, Array]]:
    """Yield the values of `tensors` for each feed, taken from the feed or computed by the model."""
    for feed in feeds:
        inputs = {name: feed[name] for name in tensors if name in feed}
        yield inputs | (dict(zip(computed, run(feed), strict=True)) if run is not None else {})


def _update_stats(
    stats: dict[str, TensorStats], counts: dict[str, int], name: str, value: Array, axis: int
) -> None:
    """Update the channel maxima, means and bounds of a tensor with the values of one run. Raises
    InputError for values that are not finite.
    """
    if not np.isfinite(value).all():
        raise InputError(f"calibrate: '{name}' has values that are not finite")
    # float64: sums over millions of float32 elements would lose digits.
    flat = np.moveaxis(value, axis, -1).reshape(-1, value.shape[axis]).astype(np.float64)
    largest, total = np.abs(flat).max(axis=0), flat.sum(axis=0)
    low, high = float(value.min()), float(value.max())
    before = stats.get(name)
    if before is None:
        stats[name] = TensorStats(Histogram(low, high), largest, total / len(flat), value)
        counts[name] = len(flat)
        return
    before.histogram.low, before.histogram.high = (
        min(before.histogram.low, low),
        max(before.histogram.high, high),
    )
    before.max_abs = np.maximum(before.max_abs, largest)
    count = counts[name]
    # Running weighted mean: runs may have different numbers of samples.
    before.mean = (before.mean * count + total) / (count + len(flat))
    counts[name] = count + len(flat)
