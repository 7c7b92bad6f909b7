"""Schedules: steps that transform a PrimFunc of blocks and keep its meaning, and their traces."""

from typing import TYPE_CHECKING

from ekiden.runtime.late import names_in

if TYPE_CHECKING:
    from ekiden.tir.schedule.names import *  # noqa: F403
else:
    __getattr__, __dir__ = names_in("ekiden.tir.schedule.names")
