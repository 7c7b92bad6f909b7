"""Sensitivity analysis: the error of each quantized layer on calibration data, and its run time on
this machine.

One program has each layer in both forms side by side, on the inputs that the model of floats gives
it: an error counts where it is made, not again in every layer behind. What all of them do together
is for the whole model's evaluation to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx

from ekiden.ir.op import Array
from ekiden.quantization.calibrate import Feeds, ModelCompiler, TensorStats
from ekiden.quantization.plan import QUANT_KINDS, LayerPlan, QuantPlan, Recipe
from ekiden.quantization.qdq_rewrite import (
    add_quantized_copies,
    insert_quantization,
    single_layer_model,
)
from ekiden.quantization.quantizable_layers import Layer
from ekiden.runtime.profile.timing import min_times_interleaved

__all__ = ["initial_plan", "refine_plan", "signal_to_noise_db", "time_whole_model"]

MIN_LAYER_TIMING_S = 0.02
"""Seconds that the runs of a layer take with each, at least, to be timed."""
MAX_TIMING_BATCH = 64
"""The most of a layer's inputs to time it on."""


def signal_to_noise_db(expected: Array, actual: Array) -> float:
    """Return the signal-to-noise ratio of `actual` in decibels; infinite if it is exact."""
    x, y = expected.astype(np.float64), actual.astype(np.float64)
    return decibels(float((x**2).sum()), float(((x - y) ** 2).sum()))


def decibels(signal: float, noise: float) -> float:
    """Return 10 log10(signal / noise)."""
    if noise == 0.0:
        return math.inf
    return -math.inf if signal == 0.0 else 10.0 * math.log10(signal / noise)


def initial_plan(layers: Sequence[Layer], recipe: Recipe) -> QuantPlan:
    """Return the plan before any measurement: the requested kind for every layer that
    supports it.
    """
    kind = QUANT_KINDS[recipe.kind]
    rows = []
    for layer in layers:
        operator = layer.node.op_type
        row = LayerPlan(layer.name, operator, recipe.kind, bits=recipe.bits, group=recipe.group)
        size = layer.weight.shape[layer.reduction_axis]
        if layer.name in recipe.skip or layer.result_name in recipe.skip:
            row = row.keep_float("asked for")
        elif not np.isfinite(layer.weight).all():
            row = row.keep_float("its weight has values that are not finite")
        elif operator not in kind.operators:
            row = row.keep_float(f"no {operator} of the kind '{recipe.kind}'")
        elif recipe.group and operator == "Conv":
            row = row.keep_float("no groups in a Conv")
        elif recipe.group and recipe.bits == 8 and size % recipe.group:
            row = row.keep_float(f"{recipe.group} does not divide {size}")
        rows.append(row)
    return QuantPlan(recipe, tuple(rows))


def refine_plan(
    model: onnx.ModelProto,
    layers: Sequence[Layer],
    plan: QuantPlan,
    stats: Mapping[str, TensorStats],
    feeds: Feeds,
    compile: ModelCompiler,
) -> QuantPlan:
    """Return the plan with measured errors and times; layers above the error limit, or not faster
    where that is required, stay in floats.
    """
    ratios = _measure_layer_snr(model, layers, plan, stats, feeds, compile) if feeds else {}
    by_name = {layer.name: layer for layer in layers}
    rows = []
    for row in plan.layers:
        if row.kind != "float":
            row = replace(row, snr=ratios.get(row.layer))
            # A layer that fails the error check is not worth timing.
            if row.snr is not None and row.snr < plan.recipe.least_snr:
                row = row.keep_float(f"below {plan.recipe.least_snr:g} dB")
            elif plan.recipe.faster:
                row = _time_layer(by_name[row.layer], row, plan.recipe, stats, compile)
        rows.append(row)
    return QuantPlan(plan.recipe, tuple(rows))


def _measure_layer_snr(
    model: onnx.ModelProto,
    layers: Sequence[Layer],
    plan: QuantPlan,
    stats: Mapping[str, TensorStats],
    feeds: Feeds,
    compile: ModelCompiler,
) -> dict[str, float]:
    """Return the signal-to-noise ratio in decibels of each layer's result, given unquantized
    inputs.
    """
    compared_model, rows = add_quantized_copies(model, layers, plan, stats)
    if not rows:
        return {}
    run = compile(compared_model)
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for feed in feeds:
        outputs = run(feed)
        for index, (name, *_) in enumerate(rows):
            x, y = (output.astype(np.float64) for output in outputs[2 * index : 2 * index + 2])
            signal[name] = signal.get(name, 0.0) + float((x**2).sum())
            noise[name] = noise.get(name, 0.0) + float(((x - y) ** 2).sum())
    return {name: decibels(signal[name], noise[name]) for name, *_ in rows}


def time_whole_model(
    model: onnx.ModelProto,
    quantised_model: onnx.ModelProto,
    plan: QuantPlan,
    feeds: Feeds,
    compile: ModelCompiler,
) -> QuantPlan:
    """Return the plan with the run times of both whole models, since layers faster by themselves
    may add quantization and repacking around them.
    """
    runs = [partial(compile(candidate), feeds[0]) for candidate in (model, quantised_model)]
    before, after = min_times_interleaved(runs, MIN_LAYER_TIMING_S)
    return plan.with_model_times(before * 1e6, after * 1e6)


def _time_layer(
    layer: Layer,
    row: LayerPlan,
    recipe: Recipe,
    stats: Mapping[str, TensorStats],
    compile: ModelCompiler,
) -> LayerPlan:
    """Time one layer by itself in both versions, including the quantization of its input."""
    data = stats[layer.data_name].sample[:MAX_TIMING_BATCH]
    floats = single_layer_model(layer, data)
    plan = QuantPlan(recipe, (row,))
    runs = [
        compile(candidate)
        for candidate in (floats, insert_quantization(floats, [layer], plan, stats))
    ]
    feed = {layer.data_name: data}
    before, after = min_times_interleaved([partial(run, feed) for run in runs], MIN_LAYER_TIMING_S)
    timed_row = replace(row, float_us=before * 1e6, quantised_us=after * 1e6)
    return timed_row if after < before else timed_row.keep_float("not faster")
