"""Search policies and cost models, which select a search of `ekiden.tune` and its initial
trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName
from ekiden.tune.cost_model import CostModel, NearestNeighbours
from ekiden.tune.records import Records
from ekiden.tune.search import Evolution, Random, Search

__all__ = [
    "EmptyPolicy",
    "PreloadCustomSketchRule",
    "PreloadMeasuredStates",
    "RandomModel",
    "SearchPolicy",
    "SketchPolicy",
    "XGBModel",
]


class RandomModel:
    """Cost model without predictions: candidates are sampled at random."""


class XGBModel:
    """Cost model that predicts by the nearest measured neighbours; XGBoost is not needed.
    `update_from_file` is done by a search itself where it preloads a log.
    """

    def __init__(
        self,
        verbose_eval: int = 25,
        num_warmup_sample: int = 100,
        seed: int | None = None,
        model_file: str | None = None,
        adaptive_training: bool = False,
    ) -> None:
        if model_file is not None:
            raise InputError("XGBModel: no model is read from a file; preload a log instead")
        self.logs: list[PathName] = []

    def update_from_file(self, file_name: PathName, n_lines: int | None = None) -> None:
        """Train on the trials of a log before any measurement."""
        Records.open(file_name)
        self.logs.append(file_name)

    def make(self) -> CostModel:
        """Return the cost model of `ekiden.tune`."""
        return NearestNeighbours()


class PreloadMeasuredStates:
    """Search callback that preloads a log, whose trials count as measured."""

    def __init__(self, filename: PathName) -> None:
        self.filename = filename


class PreloadCustomSketchRule:
    """Search callback of TVM for sketch rules over its loop states, which Ekiden does not have:
    `tune.rules.RULES` accepts rules, functions over a `tir.Schedule`.
    """

    PASS = 0
    APPLY = 1
    APPLY_AND_SKIP_REST = 2

    def __init__(
        self,
        meet_condition_func: Callable[..., int],
        apply_func: Callable[..., Any],
        rule_name: str = "CustomSketchRule",
    ) -> None:
        self.rule_name = rule_name


class SearchPolicy:
    """Search policy with the search that proposes candidates, and the logs whose trials count as
    measured.
    """

    search: Search = Evolution()

    def __init__(self, task: Any, init_search_callbacks: Sequence[object] | None = None) -> None:  # noqa: ANN401  a SearchTask
        self.search_task = task
        self.callbacks = list(init_search_callbacks or ())

    @property
    def preloaded(self) -> list[PathName]:
        """Return the logs whose trials count as measured. Raises InputError for a sketch rule over
        TVM's loop states.
        """
        for callback in self.callbacks:
            if isinstance(callback, PreloadCustomSketchRule):
                raise InputError(
                    f"SketchPolicy: the rule '{callback.rule_name}' is of TVM's loop states; "
                    "tune.rules.RULES takes functions over a tir.Schedule"
                )
        return [c.filename for c in self.callbacks if isinstance(c, PreloadMeasuredStates)]


class EmptyPolicy(SearchPolicy):
    """Policy that samples candidates at random."""

    search = Random()


class SketchPolicy(SearchPolicy):
    """Policy of evolutionary search over sketches (`tune.Evolution`) with a cost model.

    Args:
        task: The task.
        program_cost_model: `XGBModel()`, or `RandomModel()` for none.
        params: Numbers of TVM's evolution, which `tune.Evolution` has of its own.
        seed: Of random numbers.
        verbose: Whether progress is printed.
        init_search_callbacks: Logs that count, `PreloadMeasuredStates`.
    """

    def __init__(
        self,
        task: Any,  # noqa: ANN401  a SearchTask
        program_cost_model: XGBModel | RandomModel | None = None,
        params: object = None,
        seed: int | None = None,
        verbose: int = 1,
        init_search_callbacks: Sequence[object] | None = None,
    ) -> None:
        super().__init__(task, init_search_callbacks)
        self.seed = seed or 0
        if isinstance(program_cost_model, XGBModel):
            self.search = Evolution(model=program_cost_model.make)
            self.callbacks += map(PreloadMeasuredStates, program_cost_model.logs)
