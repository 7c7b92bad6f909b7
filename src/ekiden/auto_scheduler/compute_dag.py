"""Compute DAGs: a computation as the list of its stages."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.auto_scheduler.workload_registry import workload_key_to_tensors
from ekiden.ir.structural import structural_digest
from ekiden.runtime.errors import InputError
from ekiden.te.prim_func import create_prim_func
from ekiden.te.schedule import Schedule
from ekiden.te.tensor import Tensor
from ekiden.tune.task import program_flops

__all__ = ["ComputeDAG"]


class ComputeDAG:
    """Compute DAG: the tensors of a computation and its loop program.

    Args:
        compute_or_sche: The tensors, inputs first and results last; or the key of a workload.

    Raises:
        InputError: Anything else.
    """

    def __init__(self, compute_or_sche: Sequence[Tensor] | Schedule | str) -> None:
        if isinstance(compute_or_sche, str):
            compute_or_sche = workload_key_to_tensors(compute_or_sche)
        if isinstance(compute_or_sche, Schedule):
            raise InputError("ComputeDAG: tensors expected: a schedule has no order of arguments")
        self.tensors = list(compute_or_sche)
        if not self.tensors or not all(isinstance(t, Tensor) for t in self.tensors):
            raise InputError(f"ComputeDAG: tensors expected, got {compute_or_sche!r}")
        self.prim_func = create_prim_func(self.tensors)

    @property
    def flop_ct(self) -> int:
        """Return the number of arithmetic operations of one execution."""
        return program_flops(self.prim_func)

    def workload_key(self) -> str:
        """Return the digest of the computation."""
        return f'["{structural_digest(self.prim_func)}"]'

    def __str__(self) -> str:
        return str(self.prim_func)
