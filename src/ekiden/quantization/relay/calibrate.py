"""From what annotated values hold on data to the steps that they are rounded to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.quantization.ranges import METHODS, Histogram
from ekiden.quantization.relay.annotate import OPERATOR
from ekiden.quantization.relay.config import MODES, QAnnotateKind, QConfig
from ekiden.relay.expr import Call, Constant, Function, Tuple, const
from ekiden.relay.transform.graph.fold_scale_axis import op_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import evaluation_order, rewrite_graph
from ekiden.runtime.errors import InputError

__all__ = ["SCALES", "collect", "with_steps"]

Run = Callable[[Mapping[str, object]], Sequence[Array]]
"""Inputs by name to the outputs in order."""
Samples = Sequence[Mapping[str, object]]


def _power2(weight: Array) -> float:
    largest = float(np.abs(weight).max(initial=0.0))
    return float(2.0 ** np.ceil(np.log2(largest))) if largest > 0.0 else 1.0


def _largest(weight: Array) -> float:
    return float(np.abs(weight).max(initial=0.0)) or 1.0


SCALES: Mapping[str, Callable[[Array], float]] = {"power2": _power2, "max": _largest}
"""By the field `weight_scale`: from a weight to what its integers reach."""


def rounded(main: Function) -> list[Call]:
    """The places where a value is rounded, in order."""
    calls = (e for e in evaluation_order(main.body) if isinstance(e, Call))
    return [each for each in calls if op_of(each) == OPERATOR]


def _plain(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    """Without the rounding: what is observed is what the floats hold."""
    return new.args[0] if isinstance(new, Call) and op_of(new) == OPERATOR else new


def collect(module: IRModule, chunk: int = -1) -> Iterator[tuple[list[Call], IRModule]]:
    """Places where inputs are rounded, at most `chunk` at a time, and a module whose `main` gives
    the floats there."""
    main = module["main"]
    assert isinstance(main, Function)
    places = [each for each in rounded(main) if _kind(each) != QAnnotateKind.WEIGHT]
    step = len(places) if chunk == -1 else chunk
    for at in range(0, len(places), max(step, 1)):
        some = places[at : at + step]
        body = rewrite_graph(Tuple(tuple(each.args[0] for each in some)), _plain)
        yield some, InferType()(module.with_function("main", Function(main.params, body)))


def _kind(place: Call) -> int:
    return int(getattr(place.attrs, "kind"))  # noqa: B009 - of AnnotatedQuantizeAttrs


def ranges(
    module: IRModule, config: QConfig, data: Samples, compile: Callable[[IRModule], Run]
) -> dict[Call, float]:
    """What the integers of each input reach, by the method that the configuration names. Raises
    InputError for data that give values which are not finite."""
    method = METHODS[MODES[config.calibrate_mode]]
    found: dict[Call, float] = {}
    for places, program in collect(module, config.calibrate_chunk_by):
        run = compile(program)
        ends = [(np.inf, -np.inf)] * len(places)
        for sample in data:
            values = run(sample)
            for at, value in enumerate(values):
                if not np.isfinite(value).all():
                    raise InputError("relay.quantize: the data give values that are not finite")
                low, high = float(value.min()), float(value.max())
                ends[at] = min(low, ends[at][0]), max(high, ends[at][1])
        seen = [Histogram(*each) for each in ends]
        for sample in data:
            for each, value in zip(seen, run(sample), strict=True):
                each.add(value)
        for place, each in zip(places, seen, strict=True):
            low, high = method.find(each)
            found[place] = max(abs(low), abs(high)) or 1.0
    return found


def with_steps(module: IRModule, config: QConfig, inputs: Mapping[Call, float]) -> IRModule:
    """The module whose rounding has its steps: of weights by themselves, of inputs as given, or
    the configuration's one for all."""
    main = module["main"]
    assert isinstance(main, Function)
    weights = SCALES[config.weight_scale]
    steps: dict[RelayExpr, float] = {}
    for place in rounded(main):
        if _kind(place) == QAnnotateKind.WEIGHT:
            assert isinstance(place.args[0], Constant)
            reach = weights(place.args[0].data)
        else:
            reach = inputs.get(place, config.global_scale)
        steps[place] = reach / 2 ** (config.get_nbit_by_kind(_kind(place)) - 1)

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """A rounding with its step in the place of the one that stood there."""
        if old not in steps or not isinstance(new, Call):
            return new
        data, _, low, high = new.args
        return Call(new.op, (data, const(np.float32(steps[old])), low, high), new.attrs)

    made = Function(main.params, rewrite_graph(main.body, rewrite))
    return InferType()(module.with_function("main", made))
