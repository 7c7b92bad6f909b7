"""What tests of schedules compare: programs without their symbols, replays of traces."""

from __future__ import annotations

import pytest

from ekiden import tir
from ekiden.ir.structural import structural_equal
from ekiden.script import from_source
from ekiden.tir.schedule.testing import (
    assert_structural_equal_ignore_global_symbol,
    verify_trace_roundtrip,
)

pytestmark = pytest.mark.quick

TEXT = """
@T.prim_func
def {name}(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32", scope="")):
    for i, j in T.grid(8, 8):
        with T.block("{block}"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + {what}
"""


def _program(name: str = "main", block: str = "B", what: str = "T.float32(1)") -> tir.PrimFunc:
    result = from_source(TEXT.format(name=name, block=block, what=what), check_well_formed=False)
    assert isinstance(result, tir.PrimFunc)
    return result


def test_symbols_do_not_count() -> None:
    assert not structural_equal(_program(), _program("other"))
    assert_structural_equal_ignore_global_symbol(_program(), _program("other"))
    with pytest.raises(ValueError, match="the two differ at body"):
        assert_structural_equal_ignore_global_symbol(_program(), _program(what="T.float32(2)"))


def test_name_of_a_block_means_nothing() -> None:
    assert structural_equal(_program(), _program(block="C"))


def test_empty_scope_is_the_global_one() -> None:
    assert [b.scope for b in _program().params] == ["global", "global"]


def test_trace_replays_from_both_its_forms() -> None:
    schedule = tir.Schedule(_program())
    i, j = schedule.get_loops(schedule.get_block("B"))
    schedule.split(i, [2, None])
    schedule.vectorize(j)
    result = verify_trace_roundtrip(schedule, _program())
    assert structural_equal(result.mod, schedule.mod) and result is not schedule
    with pytest.raises(ValueError, match="structural equality"):
        verify_trace_roundtrip(schedule, _program(what="T.float32(3)"), text_format="json")
