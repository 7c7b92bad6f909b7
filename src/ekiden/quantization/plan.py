"""Quantization recipes, and plans with a decision for each layer."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

from ekiden.quantization.range_calibration import RANGE_METHODS
from ekiden.quantization.weight_rounding import ROUNDING_METHODS
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.profile.html import table_html

__all__ = ["QUANT_KINDS", "LayerPlan", "QuantPlan", "Recipe"]


@dataclass(frozen=True, slots=True)
class QuantKind:
    """Quantization scheme of a layer."""

    name: str
    activation: str
    """Where the ranges of its inputs come from: "data", "run", or "" where they stay floats."""
    bits: tuple[int, ...]
    operators: tuple[str, ...]
    meaning: str


# fmt: off
_PRODUCT_OPERATORS = ("Conv", "Gemm", "MatMul")
QUANT_KINDS = {row.name: row for row in (
    #    name       activation  bits     operators           meaning
    QuantKind("static",  "data",     (8,),    _PRODUCT_OPERATORS,
              "ranges from calibration data"),
    QuantKind("dynamic", "run",      (8,),    ("Gemm", "MatMul"),
              "ranges from the inputs of each run"),
    QuantKind("weight",  "",         (8, 4),  _PRODUCT_OPERATORS,
              "weights alone; inputs stay floats"),
)}
# fmt: on


@dataclass(frozen=True, slots=True)
class Recipe:
    """Quantization request, the user's options of `quantize()`. Raises InputError for inconsistent
    options.
    """

    kind: str = "static"
    method: str = "minmax"
    """How the range of an input is chosen: a row of METHODS."""
    bits: int = 8
    """Of weights."""
    group: int = 0
    """Elements along the summed axis that share a scale; 0: all of a channel."""
    per_channel: bool = True
    """A scale for each channel of the result, or one for all of a weight."""
    smooth: float = 0.0
    """How much of the inputs' range goes over to the weights, 0 to 1 (SmoothQuant's alpha)."""
    rounding: str = "nearest"
    """To which integers weights are rounded: a row of ROUNDINGS."""
    awq: bool = False
    """Whether weights that multiply large inputs get finer steps, and the inputs are divided by as
    much (activation-aware: Lin and others, 2023); of the kind "weight"."""
    bias_correction: bool = False
    """Whether biases take back what rounding the weights shifts on average."""
    skip: tuple[str, ...] = ()
    """Layers left alone, by the name of the node or of its result."""
    least_snr: float = 10.0
    """Decibels: a layer whose own result is worse is left alone."""
    faster: bool = False
    """Whether a layer is left alone too that is not faster, as measured here."""
    gain: float = 1.0
    """How many times as fast as the floats all of it has to be then; else everything is left
    alone."""

    def __post_init__(self) -> None:
        """Raises InputError for unknown or inconsistent options."""
        kind = QUANT_KINDS.get(self.kind)
        if kind is None:
            raise InputError(
                f"quantize: no kind is named '{self.kind}'; there are {_format_names(QUANT_KINDS)}"
            )
        if self.method not in RANGE_METHODS:
            choices = _format_names(RANGE_METHODS)
            raise InputError(f"quantize: no method is named '{self.method}'; there are {choices}")
        if self.rounding not in ROUNDING_METHODS:
            choices = _format_names(ROUNDING_METHODS)
            raise InputError(
                f"quantize: no rounding is named '{self.rounding}'; there are {choices}"
            )
        if self.awq and self.kind != "weight":
            raise InputError("quantize: awq is of the kind 'weight'; others have smooth")
        if self.bits not in kind.bits:
            choices = " or ".join(map(str, kind.bits))
            raise InputError(f"quantize: '{self.kind}' is of {choices} bits, not {self.bits}")
        if self.group and self.kind != "weight":
            raise InputError("quantize: groups are of the kind 'weight'")
        if self.group < 0 or (self.group and (self.group < 16 or self.group & (self.group - 1))):
            raise InputError(f"quantize: a group has 16, 32, 64, ... elements, not {self.group}")
        if not 0.0 < self.gain < math.inf:
            raise InputError(f"quantize: gain is above 0, not {self.gain:g}")
        if self.gain != 1.0 and not self.faster:
            raise InputError("quantize: gain is for what has to be faster")
        if not 0.0 <= self.smooth <= 1.0:
            raise InputError(f"quantize: smooth is from 0 to 1, not {self.smooth:g}")
        if self.smooth and self.kind == "weight":
            raise InputError("quantize: smoothing is for inputs that become integers")

    @property
    def needs_data(self) -> bool:
        """Return whether calibration data are required."""
        return (
            QUANT_KINDS[self.kind].activation == "data" or bool(self.smooth) or self.bias_correction
            or self.needs_gram_matrices
        )  # fmt: skip

    @property
    def needs_gram_matrices(self) -> bool:
        """Return whether Gram matrices of the layers' inputs are required."""
        return self.awq or ROUNDING_METHODS[self.rounding].needs_data


def _format_names(table: dict[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in table)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Decision for one layer, with its reason."""

    layer: str
    """The name of the node, or of its result where it has none."""
    operator: str
    kind: str
    """A row of KINDS, or "float" for a layer that is left alone."""
    reason: str = ""
    snr: float | None = None
    """Of its own result on calibration data, in decibels; None: not measured."""
    float_us: float | None = None
    """The time of the layer by itself, in microseconds; None: not measured."""
    quantised_us: float | None = None
    bits: int = 8
    group: int = 0

    def keep_float(self, why: str) -> LayerPlan:
        """Return the decision to leave the layer in floating point, with its reason."""
        return replace(self, kind="float", reason=why)


@dataclass(frozen=True, slots=True)
class QuantPlan:
    """Decisions for a model's layers, in order. True if any layer is quantized."""

    recipe: Recipe
    layers: tuple[LayerPlan, ...]
    float_us: float | None = None
    """The time of the whole model, in microseconds; None: not measured."""
    quantised_us: float | None = None

    def __bool__(self) -> bool:
        """Return whether any layer is quantized."""
        return any(row.kind != "float" for row in self.layers)

    def __getitem__(self, layer: str) -> LayerPlan:
        """Return the decision for a layer by name. Raises InputError if there is none."""
        by_name = {row.layer: row for row in self.layers}
        if layer not in by_name:
            raise InputError(f"no layer is named '{layer}'; there are {_format_names(by_name)}")
        return by_name[layer]

    def exclude_layer(self, layer: str, why: str) -> QuantPlan:
        """Return the plan with one more layer left in floating point."""
        rows = (row.keep_float(why) if row.layer == layer else row for row in self.layers)
        return QuantPlan(self.recipe, tuple(rows))

    def with_model_times(self, float_us: float, quantised_us: float) -> QuantPlan:
        """Return the plan with the latencies of the float and the quantised model, in
        microseconds; if the speed-up is below `gain`, all layers stay in floats.
        """
        rows, gain = self.layers, float_us / quantised_us
        if gain < self.recipe.gain:
            why = f"the model is {gain:.2f} times as fast, {self.recipe.gain:g} is required"
            rows = tuple(row if row.kind == "float" else row.keep_float(why) for row in rows)
        return QuantPlan(self.recipe, rows, float_us, quantised_us)

    def json(self) -> str:
        """Serialize the plan as one JSON object."""
        rows = [asdict(row) for row in self.layers]
        totals = {"float_us": self.float_us, "quantised_us": self.quantised_us}
        return json.dumps({"recipe": asdict(self.recipe), "layers": rows, **totals}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> QuantPlan:
        """Parse the output of `json`, possibly edited. Raises InputError if it is invalid."""
        try:
            values = json.loads(text)
            recipe = Recipe(**{**values["recipe"], "skip": tuple(values["recipe"].get("skip", ()))})
            layers = tuple(LayerPlan(**row) for row in values["layers"])
            times = (values.get("float_us"), values.get("quantised_us"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"read a plan of quantisation: {error}") from None
        if unknown := [row.kind for row in layers if row.kind not in (*QUANT_KINDS, "float")]:
            raise InputError(f"read a plan of quantisation: no kind is named '{unknown[0]}'")
        return cls(recipe, layers, *times)

    def _table_rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the printed table, one row per layer."""
        return [
            (
                row.layer,
                row.operator,
                row.kind,
                _format_number(row.snr),
                _format_number(row.float_us),
                _format_number(row.quantised_us),
                row.reason,
            )
            for row in self.layers
        ]

    def __str__(self) -> str:
        """Format the plan as a table."""
        rows = [_PLAN_COLUMN_NAMES, *self._table_rows()]
        widths = [
            max(len(row[position]) for row in rows) for position in range(len(_PLAN_COLUMN_NAMES))
        ]
        lines = ("  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) for row in rows)
        count = sum(row_plan.kind != "float" for row_plan in self.layers)
        last = f"{count} of {len(self.layers)} layers quantised"
        if self.float_us and self.quantised_us:
            last += (
                f"; the whole {self.float_us:.1f} us as floats, {self.quantised_us:.1f} quantised"
            )
        return "\n".join([*(line.rstrip() for line in lines), last])

    def _repr_html_(self) -> str:
        return table_html(_PLAN_COLUMN_NAMES, self._table_rows(), "")


_PLAN_COLUMN_NAMES = ("layer", "operator", "kind", "snr dB", "float us", "quantised us", "why")


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
