"""OwnResults: results get memory of their own if the module requests it."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.relay.transform.memory.unalias_results import OWNS_RESULTS_ATTR
from long_runs import share

PROGRAMS = {
    "an input": "def @main(%x: Tensor[(3), float32]) { %x }",
    "one tensor twice": "def @main(%x: Tensor[(3), float32]) { let %y = exp(%x); (%y, %y) }",
    "views": """def @main(%x: Tensor[(3), float32]) {
        let %y = exp(%x); (%y, reshape(%y, newshape=[3, 1]), reshape(%x, newshape=[1, 3])) }""",
    "a choice": """def @main(%x: Tensor[(3), float32]) {
        if (less(max(%x), 9f)) { %x } else { exp(%x) } }""",
    "a constant": """def @main(%x: Tensor[(3), float32]) {
        (add(ones(shape=[3]), ones(shape=[3])), %x) }""",
}  # fmt: skip


@share(3)
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_can_be_written(name: str, executor: str) -> None:
    module = relay.parse('#[version = "0.0.5"]\n' + PROGRAMS[name])
    exe = ekiden.compile(module.with_attr(OWNS_RESULTS_ATTR, True), executor=executor)
    x = np.array([0.0, 1.0, 2.0], np.float32)
    first: list[np.ndarray] = []
    for _ in range(2):
        actual = exe(x)
        results = [t.numpy() for t in (actual if isinstance(actual, tuple) else (actual,))]
        copies = [result.copy() for result in results]
        first = first or copies
        for at, result in enumerate(results):
            result[...] = 50 + at
            assert x.tolist() == [0, 1, 2]
            assert all(
                (r == c).all() for r, c in zip(results[at + 1 :], copies[at + 1 :], strict=True)
            )
        assert all((a == b).all() for a, b in zip(first, copies, strict=True))


def test_own_results_is_opt_in() -> None:
    module = relay.parse('#[version = "0.0.5"]\n' + PROGRAMS["an input"])
    assert "own $" not in ekiden.compile(module).bytecode
