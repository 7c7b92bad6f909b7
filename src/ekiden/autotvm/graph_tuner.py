"""Graph tuners, which choose one record per kernel of a network, with TVM's interface.

Compiling chooses the layouts of a network as a whole, whatever is tuned, so that no search of
layouts stands here: a graph tuner gives the best records of the kernels it is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName
from ekiden.target import Target, TargetLike
from ekiden.tune.records import Records

__all__ = ["BaseGraphTuner", "DPTuner", "PBQPTuner"]

LOG = logging.getLogger("autotvm")


class BaseGraphTuner:
    """Base class of graph tuners.

    Args:
        graph: The network.
        input_shapes: Shapes of its inputs by name.
        records: A log of the network's kernels.
        target_ops: The operators that were tuned.
        target: The target.
    """

    def __init__(
        self,
        graph: IRModule | BaseFunc,
        input_shapes: Mapping[str, Sequence[int]],
        records: PathName,
        target_ops: Sequence[object],
        target: TargetLike,
    ) -> None:
        self.graph, self.input_shapes = graph, dict(input_shapes)
        self.records, self.target_ops = Records.open(records), list(target_ops)
        self.target = Target(target)
        self._chosen: Records | None = None

    def benchmark_layout_transform(self, **options: object) -> None:
        """Warn that layout transforms are not measured, because compilation plans them."""
        LOG.info("graph tuner: layouts are chosen when the network is compiled")

    def run(self, **options: object) -> None:
        """Select the best record of each kernel."""
        self._chosen = Records(list(self.records.best().values()))

    def get_optimal_records(self) -> Records:
        """Return the selected records. Raises InputError before `run`."""
        if self._chosen is None:
            raise InputError("graph tuner: run() comes first")
        return self._chosen

    def write_opt_sch2record_file(self, record_file: PathName = "graph_opt_schedule.log") -> None:
        """Write the selected records in the format that `autotvm.apply_graph_best` and
        `apply_history_best` read. Raises InputError before `run`.
        """
        self.get_optimal_records().write(record_file)


class DPTuner(BaseGraphTuner):
    """Graph tuner under TVM's name for dynamic programming."""


class PBQPTuner(BaseGraphTuner):
    """Graph tuner under TVM's name for partitioned Boolean quadratic programs."""
