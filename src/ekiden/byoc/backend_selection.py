"""Engine selection: measure each region in the engine and in Ekiden's own kernels on this machine,
and keep the faster.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekiden.byoc.backend import inline_regions, installed_backends, partition_for_engine
from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import EkidenError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.profile.timing import min_times_interleaved

__all__ = ["Choice", "choose"]

_LOGGER = logging.getLogger("ekiden")
MIN_REGION_TIMING_S = 0.05
"""Seconds that the runs of a region take with each, at least."""
MAX_KEPT_TIME_RATIO = 0.95
"""An engine's time is at most this share of Ekiden's: what is no faster for sure is left alone."""
DYNAMIC_DIM_SIZE = 1
"""A size that is not known."""

ModelFunction = Callable[[Sequence[Array]], object]


@dataclass(frozen=True, slots=True)
class Choice:
    """Measured run times of a region in an engine and in Ekiden's kernels, in seconds."""

    region: str
    operators: str
    engine: str
    its: float
    own: float

    @property
    def kept(self) -> bool:
        """Return whether the region stays with the engine."""
        return self.its < MAX_KEPT_TIME_RATIO * self.own

    def __str__(self) -> str:
        times = f"{self.engine} {self.its * 1e6:.1f} us, Ekiden {self.own * 1e6:.1f} us"
        return f"{self.operators}: {times}: {self.engine if self.kept else 'Ekiden'}"


def choose(
    module: IRModule, compile: Callable[[IRModule], ModelFunction]
) -> tuple[IRModule, list[Choice]]:
    """Return the module with the regions that an engine runs faster than Ekiden, and every
    measurement. Inputs are random, with 1 for unknown sizes. Installed engines are tried in
    registration order, each on what the previous ones left. `compile` turns a module into a
    function. The logger "ekiden" reports the measurements.
    """
    choices: list[Choice] = []
    for engine in installed_backends():
        try:
            partitioned = partition_for_engine(module, engine, forgives=True)
        except EkidenError as error:  # of an engine's patterns
            _LOGGER.warning("byoc: the engine '%s' is left out: %s", engine, error)
            continue
        slower: set[GlobalVar] = set()
        for name, region in partitioned.functions.items():
            if not isinstance(region, Function) or region.attr("Compiler") != engine:
                continue
            choice = _time_region(name, region, engine, compile)
            if choice is None or not choice.kept:
                slower.add(name)
            if choice is not None:
                _LOGGER.info("byoc: %s", choice)
                choices.append(choice)
        module = inline_regions(partitioned, slower)
    return module, choices


def _time_region(
    name: GlobalVar, region: Function, engine: str, compile: Callable[[IRModule], ModelFunction]
) -> Choice | None:
    """Measure a region in both implementations; None, with a logged warning, if it does not run by
    itself.
    """
    feed = _random_inputs(region)
    # Fresh parameters: a Var may be bound by one function only.
    params = tuple(param.with_fields() for param in region.params)
    engine_module = IRModule(
        {name: region, GlobalVar("main"): Function(params, Call(name, params))}
    )
    inlined_module = inline_regions(engine_module, {name})
    try:
        runs = [compile(candidate) for candidate in (engine_module, inlined_module)]
        engine_seconds, ekiden_seconds = min_times_interleaved(
            [partial(run, feed) for run in runs], MIN_REGION_TIMING_S
        )
    except EkidenError as error:
        _LOGGER.warning("byoc: '%s' stays with Ekiden: %s", name.name_hint, error)
        return None
    return Choice(name.name_hint, _count_operators(region), engine, engine_seconds, ekiden_seconds)


def _count_operators(region: Function) -> str:
    """Return the operator counts of a region as text, such as `nn.dense x 2, nn.relu`."""
    names = [op_name_of(expr) for expr in post_order(region.body, into_functions=True)]
    counts = Counter(filter(None, names))
    return ", ".join(name if n == 1 else f"{name} x {n}" for name, n in sorted(counts.items()))


def _random_inputs(region: Function) -> list[Array]:
    """Return random arrays for the parameters of a region."""
    rng = np.random.default_rng(0)
    arrays = []
    for param in region.params:
        kind = param.checked_type
        assert isinstance(kind, TensorType), "regions have tensors as parameters"
        shape = [dim.value if isinstance(dim, IntImm) else DYNAMIC_DIM_SIZE for dim in kind.shape]
        arrays.append(rng.random(shape).astype(to_numpy(kind.dtype)))
    return arrays
