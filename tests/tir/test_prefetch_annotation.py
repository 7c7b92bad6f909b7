"""The loop annotation `bring_ahead`, which prefetches."""

from __future__ import annotations

import pytest

from ekiden import te, tir
from ekiden.runtime.errors import CompileError
from ekiden.te import create_prim_func
from ekiden.tir.stmt import For, Prefetch
from ekiden.tir.transform.block_lowering import lower_blocks
from ekiden.tir.visitor import pre_order_stmts


def product(asked: object) -> tir.PrimFunc:
    """64x32 by 32x48, the annotation on the loop over the sum's steps, columns inside."""
    a, b = te.placeholder((64, 32), name="a"), te.placeholder((32, 48), name="b")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((64, 48), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = tir.Schedule(create_prim_func([a, b, c]))
    block = schedule.get_block("c")
    i, j, k_loop = schedule.get_loops(block)
    schedule.reorder(i, k_loop, j)
    schedule.annotate(k_loop, "bring_ahead", asked)
    schedule.decompose_reduction(block, k_loop)
    return schedule.func


def test_lines_of_what_is_read_some_steps_later() -> None:
    func = product([2, 4, 32])
    lowered = lower_blocks(func)
    result = [s for s in pre_order_stmts(lowered.body) if isinstance(s, Prefetch)]
    assert [(s.buffer.name, str(s.indices[0]), str(s.indices[1])) for s in result] == [
        ("b", "k + 4", "0"),
        ("b", "k + 4", "16"),
    ]
    assert not any(s.annotations for s in pre_order_stmts(lowered.body) if isinstance(s, For))


@pytest.mark.parametrize("asked", [[7, 4, 32], [2, 4], "b", [2, -1, 8], [2, "x", 8]])
def test_prefetch_of_unread_buffer_is_refused(asked: object) -> None:
    with pytest.raises(CompileError, match="bring_ahead"):
        lower_blocks(product(asked))
