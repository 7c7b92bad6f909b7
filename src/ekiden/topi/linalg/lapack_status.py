"""Run-time check of a decomposition's LAPACK status (`info`)."""

from __future__ import annotations

from ekiden import te
from ekiden.te import Tensor
from ekiden.te.range_checks import RANGE_CHECKS_ATTR_KEY


def checked(data: Tensor, info: Tensor, subject: str, problem: str) -> Tensor:
    """Return `data` after a run-time check of its LAPACK status `info`, which raises LinAlgError
    with `subject`, the index and `problem`.
    """
    check = te.info_check(subject, info, problem)
    return te.compute(
        data.shape, lambda *i: data[i], "checked", "injective", {RANGE_CHECKS_ATTR_KEY: (check,)}
    )
