"""Run-time errors of failed decompositions."""

from __future__ import annotations

from ekiden import te
from ekiden.te import Tensor
from ekiden.te.range_checks import RANGE_CHECKS_ATTR_KEY


def checked(data: Tensor, info: Tensor, subject: str, problem: str) -> Tensor:
    """Return `data`, checked: a run fails with a LinAlgError of `subject`, the element, its
    position and `problem` unless all elements of `info` are 0.
    """
    check = te.info_check(subject, info, problem)
    return te.compute(
        data.shape, lambda *i: data[i], "checked", "injective", {RANGE_CHECKS_ATTR_KEY: (check,)}
    )
