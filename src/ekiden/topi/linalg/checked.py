"""What fails where a decomposition was not possible."""

from __future__ import annotations

from ekiden import te
from ekiden.te import Tensor
from ekiden.te.range_check import CHECKS


def checked(data: Tensor, info: Tensor, subject: str, problem: str) -> Tensor:
    """`data`, where all elements of `info` are 0; elsewhere a run fails with a LinAlgError of
    the words `subject`, the element, its place, `problem`.
    """
    check = te.info_check(subject, info, problem)
    return te.compute(data.shape, lambda *i: data[i], "checked", "injective", {CHECKS: (check,)})
