"""Schedules: steps that transform a PrimFunc of blocks and keep its meaning, and their traces."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.tir.schedule.exported_names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="exported_names")
