"""Reference implementations that interpret the operator's own loop program, for operators without a
NumPy counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.ir.attrs import Attrs
from ekiden.ir.op import Array
from ekiden.tir.interpreter_limits import StepBudget
from ekiden.tir.stmt import PrimFunc

if TYPE_CHECKING:
    from ekiden.tir import interpreter
else:
    interpreter = LazyModule("ekiden.tir.interpreter")


class LoopProgram(NamedTuple):
    """Lowered function with its output arrays, and whether they are fields of a tuple.

    func is None where nothing is to be written.
    """

    func: PrimFunc | None
    outputs: tuple[Array, ...]
    is_tuple: bool


@dataclass(frozen=True)
class InterpretedReference:
    """Reference implementation (attributes, *arrays) that interprets a loop program.

    The result shows what is computed, not that it is right: tests compare it with another
    implementation.
    """

    build_program: Callable[[Attrs | None, Sequence[Array]], LoopProgram]

    def __call__(
        self,
        attrs: Attrs | None,
        *arrays: Any,  # noqa: ANN401
    ) -> Array | tuple[Array, ...]:
        """Run the program without a limit; return the results."""
        return self.run_within_budget(None, attrs, *arrays)

    def run_within_budget(
        self,
        budget: StepBudget | None,
        attrs: Attrs | None,
        *arrays: Any,  # noqa: ANN401
    ) -> Array | tuple[Array, ...]:
        """Run the program within a budget of steps; return the results. Raises StepLimitError where
        they take more steps than a budget.
        """
        func, outputs, is_tuple = self.build_program(attrs, arrays)
        if func is not None:
            # Copies: the program may write its parameters, and arguments are the caller's.
            inputs = (np.array(a, order="C") for a in arrays)
            interpreter.run_prim_func(func, *inputs, *outputs, budget=budget)
        return outputs if is_tuple else outputs[0]


__all__ = ["InterpretedReference", "LoopProgram"]
