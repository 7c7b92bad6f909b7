"""AutoTVM's tuners, searches of `ekiden.tune` over numbered configurations."""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.autotvm.tuner.tuner import (
        DropletTuner,
        GATuner,
        GridSearchTuner,
        RandomTuner,
        Tuner,
        XGBTuner,
    )

__all__ = ["DropletTuner", "GATuner", "GridSearchTuner", "RandomTuner", "Tuner", "XGBTuner"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__, {"tuner": "DropletTuner GATuner GridSearchTuner RandomTuner Tuner XGBTuner"}
    )
