"""Comparison of a model's predicted memory with the linked sizes and the stack measured on
a board.
"""

from __future__ import annotations

from numpy import typing as npt  # the package first: another thread may be importing it

from ekiden.compiler.export.micro import MicroProgram
from ekiden.micro.footprint import Footprint, footprint
from ekiden.micro.project import GeneratedProject, Sizes
from ekiden.micro.session import Session
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Predicted, linked and measured memory of a model."""

    predicted: Footprint
    linked: Sizes
    stack: int
    """What a run took of the board's."""

    def lines(self) -> list[str]:
        """Return the comparison as text, one row per kind of memory."""
        predicted, linked = self.predicted, self.linked
        rows = (
            ("code", predicted.code, linked.model_code),
            ("constants", predicted.constants, linked.model_constants),
            ("memory", predicted.workspace, linked.model_workspace),
            ("stack", predicted.stack, self.stack),
            ("RAM", predicted.ram, linked.model_workspace + self.stack),
        )
        return [f"{'bytes':10}{'predicted':>10}{'board':>10}"] + [
            f"{name:10}{before:10}{after:10}" for name, before, after in rows
        ]


def memory_report(
    program: MicroProgram, project: GeneratedProject, *inputs: npt.ArrayLike
) -> MemoryReport:
    """Return the memory report of a program whose project is built, running it on the board with
    these inputs. Raises ExportError if it cannot be compiled or is not built, InputError if the
    machine cannot measure its stack, as the host.
    """
    with Session(project.open_transport()) as session:
        executor = session.create_aot_executor()
        for number, value in enumerate(inputs):
            executor.set_input(number, value)
        return MemoryReport(footprint(program), project.sizes(), executor.measure_stack())


__all__ = ["MemoryReport", "memory_report"]
