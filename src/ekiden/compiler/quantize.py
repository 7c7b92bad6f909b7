"""quantize(): a model of floats made small, by calibration data and measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from ekiden.compiler.compile import compile
from ekiden.frontend.onnx.load import Source, read_model
from ekiden.ir.op import Array
from ekiden.quantization.calibrate import Feeds, Observed, observe, read_feeds
from ekiden.quantization.grams import add_grams
from ekiden.quantization.judge import first_plan, judged, timed_whole
from ekiden.quantization.layers import Layer, find_layers
from ekiden.quantization.plan import QuantPlan, Recipe
from ekiden.quantization.rewrite import rewrite, smoothed, upgraded
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName, write_to
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Quantized", "quantize"]

Runner = Callable[[Mapping[str, Array]], Sequence[Array]]
"""Inputs by name to outputs in order."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A model that was made small, and the decisions behind it."""

    model: onnx.ModelProto
    """With QuantizeLinear and DequantizeLinear: for `ekiden.compile`, and for ONNX Runtime."""
    plan: QuantPlan

    def save(self, path: PathName) -> None:
        """Write the model of ONNX."""
        data = self.model.SerializeToString()
        write_to(path, lambda file: file.write(data))

    def __str__(self) -> str:
        return str(self.plan)

    def _repr_html_(self) -> str:
        return self.plan._repr_html_()


def quantize(
    model: Source,
    calibrate: object = None,
    *,
    plan: QuantPlan | None = None,
    accuracy: Callable[[Runner], float] | None = None,
    budget: float = 0.0,
    **recipe: object,
) -> Quantized:
    """A model of ONNX with its products in integers.

    `calibrate` has arrays by name with samples along the first axis, or a list of such mappings,
    one for each run; `recipe` are the fields of `Recipe`: kind, method, bits, group,
    per_channel, smooth, rounding, awq, bias_correction, skip, least_snr, faster, gain. `plan` is
    one that was made before, which is then followed as it is. `accuracy` is given what runs a
    model and says how good it is, larger for better: layers with the worst results are left alone,
    one more each time, until no more than `budget` is lost.

    Raises InputError for what does not fit, and what importing, compiling and running raise.
    """
    proto, label, _ = read_model(model)
    asked = Recipe(**recipe) if plan is None else plan.recipe  # type: ignore[arg-type]  # checked
    if plan is not None and recipe:
        raise InputError("quantize: a plan has its recipe: give one of both")
    if calibrate is None and (asked.needs_data or asked.faster):
        raise InputError(f"quantize: '{asked.kind}' as asked for needs calibration data")
    feeds = [] if calibrate is None else read_feeds(proto, calibrate)
    proto = upgraded(proto, asked)
    layers = _layers(proto, label, asked)
    seen = _observed(proto, layers, feeds, asked)
    if asked.smooth or asked.awq:
        proto = smoothed(proto, layers, seen, asked)
        layers = _layers(proto, label, asked)
        seen = _observed(proto, layers, feeds, asked)
    if plan is None:
        plan = first_plan(layers, asked)
        plan = judged(proto, layers, plan, seen, feeds, _compile)
        if plan and asked.faster:
            made = rewrite(proto, layers, plan, seen)
            plan = timed_whole(proto, made, plan, feeds, _compile)
    else:
        _check_plan(plan, layers)
    made = rewrite(proto, layers, plan, seen)
    if accuracy is None:
        return Quantized(made, plan)
    return _within(proto, layers, plan, seen, accuracy, budget)


def _layers(proto: onnx.ModelProto, label: str, recipe: Recipe) -> list[Layer]:
    found = find_layers(proto, label)
    names = {each.name for each in found} | {each.result for each in found}
    if unknown := [name for name in recipe.skip if name not in names]:
        there = ", ".join(f"'{each.name}'" for each in found) or "none"
        raise InputError(f"quantize: no layer is named '{unknown[0]}'; there are {there}")
    return found


def _check_plan(plan: QuantPlan, layers: Sequence[Layer]) -> None:
    names = {each.name for each in layers}
    if unknown := [each.layer for each in plan.layers if each.layer not in names]:
        raise InputError(f"quantize: the plan has a layer '{unknown[0]}', the model has not")


def _observed(
    proto: onnx.ModelProto, layers: Sequence[Layer], feeds: Feeds, recipe: Recipe
) -> dict[str, Observed]:
    """What calibration data show of the layers' inputs, as far as the recipe asks."""
    if not feeds:
        return {}
    seen = observe(proto, _tensors(layers), feeds, _compile)
    if recipe.needs_grams:
        add_grams(proto, layers, feeds, _compile, seen)
    return seen


def _tensors(layers: Sequence[Layer]) -> dict[str, int]:
    """What layers multiply, and the axis of its channels."""
    return {each.data: 1 if each.node.op_type == "Conv" else -1 for each in layers}


def _compile(model: onnx.ModelProto) -> Runner:
    executable = compile(model)

    def run(feed: Mapping[str, Array]) -> list[Array]:
        """Outputs in the model's order, as NumPy arrays of their own."""
        found = executable(**feed)
        values = found if isinstance(found, tuple) else (found,)
        return [np.asarray(value.numpy()) for value in values]

    return run


def _within(
    proto: onnx.ModelProto,
    layers: Sequence[Layer],
    plan: QuantPlan,
    seen: Mapping[str, Observed],
    accuracy: Callable[[Runner], float],
    budget: float,
) -> Quantized:
    """The plan with as few layers left alone as the budget allows, the worst first."""
    wanted = accuracy(_compile(proto)) - budget
    while True:
        made = rewrite(proto, layers, plan, seen)
        got = accuracy(_compile(made))
        left = [each for each in plan.layers if each.kind != "float"]
        if got >= wanted or not left:
            return Quantized(made, plan)
        worst = min(left, key=lambda each: np.inf if each.snr is None else each.snr)
        why = f"accuracy {got:.4g}, {wanted:.4g} wanted"
        plan = plan.without(worst.layer, why)
