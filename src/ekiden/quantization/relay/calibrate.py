"""Calibration: choose quantization steps from the annotated values' data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.quantization.range_calibration import RANGE_METHODS, Histogram
from ekiden.quantization.relay.annotate import SIMULATED_QUANTIZE
from ekiden.quantization.relay.config import CALIBRATE_MODES, QAnnotateKind, QConfig
from ekiden.relay.expr import Call, Constant, Function, Tuple, const
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order, rewrite_graph
from ekiden.runtime.errors import InputError

__all__ = ["WEIGHT_RANGES", "collect_float_values", "set_quantization_steps"]

ModelFunction = Callable[[Mapping[str, object]], Sequence[Array]]
"""Inputs by name to the outputs in order."""
CalibrationSamples = Sequence[Mapping[str, object]]


def _power_of_two_range(weight: Array) -> float:
    largest = float(np.abs(weight).max(initial=0.0))
    return float(2.0 ** np.ceil(np.log2(largest))) if largest > 0.0 else 1.0


def _max_abs_range(weight: Array) -> float:
    return float(np.abs(weight).max(initial=0.0)) or 1.0


WEIGHT_RANGES: Mapping[str, Callable[[Array], float]] = {
    "power2": _power_of_two_range,
    "max": _max_abs_range,
}
"""By the field `weight_scale`: from a weight to what its integers reach."""


def quantize_calls(main: Function) -> list[Call]:
    """Return the simulated quantizations, in order."""
    calls = (e for e in evaluation_order(main.body) if isinstance(e, Call))
    return [call for call in calls if op_name_of(call) == SIMULATED_QUANTIZE]


def _strip_simulated_quantize(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    """Replace a simulated quantization by its float operand, for observing float values."""
    return new.args[0] if isinstance(new, Call) and op_name_of(new) == SIMULATED_QUANTIZE else new


def collect_float_values(
    module: IRModule, chunk: int = -1
) -> Iterator[tuple[list[Call], IRModule]]:
    """Yield the non-weight quantizations, at most `chunk` at a time, with a module whose `main`
    returns their float operands.
    """
    main = module["main"]
    assert isinstance(main, Function)
    calls = [call for call in quantize_calls(main) if _annotate_kind(call) != QAnnotateKind.WEIGHT]
    step = len(calls) if chunk == -1 else chunk
    for position in range(0, len(calls), max(step, 1)):
        some = calls[position : position + step]
        body = rewrite_graph(
            Tuple(tuple(quantize_call.args[0] for quantize_call in some)), _strip_simulated_quantize
        )
        yield some, InferType()(module.with_function("main", Function(main.params, body)))


def _annotate_kind(quantize_call: Call) -> int:
    """Return the QAnnotateKind of a simulated quantization."""
    return int(getattr(quantize_call.attrs, "kind"))  # noqa: B009 - of AnnotatedQuantizeAttrs


def calibrate_input_ranges(
    module: IRModule,
    config: QConfig,
    data: CalibrationSamples,
    compile: Callable[[IRModule], ModelFunction],
) -> dict[Call, float]:
    """Return the magnitude that the integers of each input cover, found in the data by the
    configured method. Raises InputError for data that produce values which are not finite.
    """
    method = RANGE_METHODS[CALIBRATE_MODES[config.calibrate_mode]]
    reach_of: dict[Call, float] = {}
    for calls, program in collect_float_values(module, config.calibrate_chunk_by):
        run = compile(program)
        ends = [(np.inf, -np.inf)] * len(calls)
        for sample in data:
            values = run(sample)
            for index, value in enumerate(values):
                if not np.isfinite(value).all():
                    raise InputError("relay.quantize: the data give values that are not finite")
                low, high = float(value.min()), float(value.max())
                ends[index] = min(low, ends[index][0]), max(high, ends[index][1])
        histograms = [Histogram(*bounds) for bounds in ends]
        for sample in data:
            for histogram, value in zip(histograms, run(sample), strict=True):
                histogram.add(value)
        for call, histogram in zip(calls, histograms, strict=True):
            low, high = method.find_range(histogram)
            reach_of[call] = max(abs(low), abs(high)) or 1.0
    return reach_of


def set_quantization_steps(
    module: IRModule, config: QConfig, inputs: Mapping[Call, float]
) -> IRModule:
    """Return the module with all quantization steps set: of weights from their values, of inputs
    from `inputs` or else the global scale.
    """
    main = module["main"]
    assert isinstance(main, Function)
    weights = WEIGHT_RANGES[config.weight_scale]
    steps: dict[RelayExpr, float] = {}
    for call in quantize_calls(main):
        if _annotate_kind(call) == QAnnotateKind.WEIGHT:
            assert isinstance(call.args[0], Constant)
            reach = weights(call.args[0].data)
        else:
            reach = inputs.get(call, config.global_scale)
        steps[call] = reach / 2 ** (config.get_nbit_by_kind(_annotate_kind(call)) - 1)

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Set the step of one simulated quantization."""
        if old not in steps or not isinstance(new, Call):
            return new
        data, _, low, high = new.args
        return Call(new.op, (data, const(np.float32(steps[old])), low, high), new.attrs)

    stepped = Function(main.params, rewrite_graph(main.body, rewrite))
    return InferType()(module.with_function("main", stepped))
