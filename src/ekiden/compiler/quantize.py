"""`quantize()`: post-training quantisation of an ONNX model, by calibration data and measured
accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from ekiden.compiler.compile import compile
from ekiden.frontend.onnx.load import ModelSource, read_model
from ekiden.ir.op import Array
from ekiden.quantization.calibrate import Feeds, TensorStats, collect_stats, parse_calibration_data
from ekiden.quantization.gram_matrix import accumulate_gram_matrices
from ekiden.quantization.plan import QuantPlan, Recipe
from ekiden.quantization.qdq_rewrite import apply_smoothing, insert_quantization, upgrade_opset
from ekiden.quantization.quantizable_layers import Layer, find_layers
from ekiden.quantization.sensitivity import initial_plan, refine_plan, time_whole_model
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName, write_path_or_stream
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Quantized", "quantize"]

ProgramRunner = Callable[[Mapping[str, Array]], Sequence[Array]]
"""Function (inputs by name) -> outputs in order."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """Quantised ONNX model and the plan that led to it."""

    model: onnx.ModelProto
    """ONNX model with QuantizeLinear and DequantizeLinear nodes."""
    plan: QuantPlan

    def save(self, path: PathName) -> None:
        """Write the ONNX model."""
        data = self.model.SerializeToString()
        write_path_or_stream(path, lambda file: file.write(data))

    def __str__(self) -> str:
        return str(self.plan)

    def _repr_html_(self) -> str:
        return self.plan._repr_html_()


def quantize(
    model: ModelSource,
    calibrate: object = None,
    *,
    plan: QuantPlan | None = None,
    accuracy: Callable[[ProgramRunner], float] | None = None,
    budget: float = 0.0,
    **recipe: object,
) -> Quantized:
    """Quantise the matrix products and convolutions of an ONNX model to integers.

    Args:
        model: the model.
        calibrate: arrays by name with samples along the first axis, or a list of such mappings,
            one for each run.
        plan: an earlier plan, which is then followed as it is.
        accuracy: given a function that runs a model, returns its accuracy, larger for better.
            The layers with the lowest signal-to-noise ratio are left in float, one more each time,
            until no more than `budget` is lost.
        budget: the accuracy that may be lost.
        recipe: fields of `Recipe`: kind, method, bits, group, per_channel, smooth, rounding, awq,
            bias_correction, skip, least_snr, faster, gain.

    Returns:
        The quantised model and its plan.

    Raises:
        InputError: for arguments that do not fit; and what importing, compiling and running raise.
    """
    proto, label, _ = read_model(model)
    requested = Recipe(**recipe) if plan is None else plan.recipe  # type: ignore[arg-type]  # checked
    if plan is not None and recipe:
        raise InputError("quantize: a plan already contains its recipe: give one of them")
    if calibrate is None and (requested.needs_data or requested.faster):
        raise InputError(f"quantize: '{requested.kind}' as asked for needs calibration data")
    feeds = [] if calibrate is None else parse_calibration_data(proto, calibrate)
    proto = upgrade_opset(proto, requested)
    layers = _quantizable_layers(proto, label, requested)
    observations = _observe_inputs(proto, layers, feeds, requested)
    if requested.smooth or requested.awq:
        proto = apply_smoothing(proto, layers, observations, requested)
        layers = _quantizable_layers(proto, label, requested)
        observations = _observe_inputs(proto, layers, feeds, requested)
    if plan is None:
        plan = initial_plan(layers, requested)
        plan = refine_plan(proto, layers, plan, observations, feeds, _compile_runner)
        if plan and requested.faster:
            rewritten = insert_quantization(proto, layers, plan, observations)
            plan = time_whole_model(proto, rewritten, plan, feeds, _compile_runner)
    else:
        _check_plan(plan, layers)
    rewritten = insert_quantization(proto, layers, plan, observations)
    if accuracy is None:
        return Quantized(rewritten, plan)
    return _meet_accuracy_budget(proto, layers, plan, observations, accuracy, budget)


def _quantizable_layers(proto: onnx.ModelProto, label: str, recipe: Recipe) -> list[Layer]:
    layers = find_layers(proto, label)
    names = {layer.name for layer in layers} | {result_layer.result_name for result_layer in layers}
    if unknown := [name for name in recipe.skip if name not in names]:
        layer_names = ", ".join(f"'{listed_layer.name}'" for listed_layer in layers) or "none"
        raise InputError(f"quantize: no layer is named '{unknown[0]}'; there are {layer_names}")
    return layers


def _check_plan(plan: QuantPlan, layers: Sequence[Layer]) -> None:
    names = {layer.name for layer in layers}
    if unknown := [entry.layer for entry in plan.layers if entry.layer not in names]:
        raise InputError(f"quantize: the plan has a layer '{unknown[0]}', the model has not")


def _observe_inputs(
    proto: onnx.ModelProto, layers: Sequence[Layer], feeds: Feeds, recipe: Recipe
) -> dict[str, TensorStats]:
    """Run the model on calibration data, and return the layers' input statistics that the recipe
    needs.
    """
    if not feeds:
        return {}
    observations = collect_stats(proto, _multiplied_tensors(layers), feeds, _compile_runner)
    if recipe.needs_gram_matrices:
        accumulate_gram_matrices(proto, layers, feeds, _compile_runner, observations)
    return observations


def _multiplied_tensors(layers: Sequence[Layer]) -> dict[str, int]:
    """Return the tensors that layers multiply, with their channel axes."""
    return {layer.data_name: 1 if layer.node.op_type == "Conv" else -1 for layer in layers}


def _compile_runner(model: onnx.ModelProto) -> ProgramRunner:
    executable = compile(model)

    def run_model(feed: Mapping[str, Array]) -> list[Array]:
        """Run the model and return the outputs in the model's order, as NumPy arrays of
        their own.
        """
        outputs = executable(**feed)
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        return [np.asarray(value.numpy()) for value in values]

    return run_model


def _meet_accuracy_budget(
    proto: onnx.ModelProto,
    layers: Sequence[Layer],
    plan: QuantPlan,
    observations: Mapping[str, TensorStats],
    accuracy: Callable[[ProgramRunner], float],
    budget: float,
) -> Quantized:
    """Return the plan that keeps as few layers in float as the accuracy budget allows, worst
    signal-to-noise ratio first.
    """
    required = accuracy(_compile_runner(proto)) - budget
    while True:
        rewritten = insert_quantization(proto, layers, plan, observations)
        measured = accuracy(_compile_runner(rewritten))
        quantized_layers = [entry for entry in plan.layers if entry.kind != "float"]
        if measured >= required or not quantized_layers:
            return Quantized(rewritten, plan)
        worst = min(quantized_layers, key=lambda layer: np.inf if layer.snr is None else layer.snr)
        why = f"accuracy {measured:.4g}, {required:.4g} wanted"
        plan = plan.exclude_layer(worst.layer, why)
