"""Access regions of statements, in terms of outer variables."""

from __future__ import annotations

import pytest

from ekiden.ir.prim import IntImm, Var, const
from ekiden.tir.access_regions import bounding_region, buffer_accesses
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, For, ForKind

pytestmark = pytest.mark.quick


def test_loops_that_begin_where_others_are_leave_no_variable_behind() -> None:
    """for i in range(4): for j in range(i * 2, i * 2 + 2): b[j] = a[j + 3]"""
    i, j = Var("i"), Var("j")
    a, b = (Buffer(name, (const(16),), "float32") for name in "ab")
    store = BufferStore(b, BufferLoad(a, (j + 3,), "float32"), (j,))
    inner = For(j, i * 2, const(2), ForKind.SERIAL, store)
    outer = For(i, const(0), const(4), ForKind.SERIAL, inner)
    (result,) = bounding_region(a, buffer_accesses(outer, a), ())
    assert isinstance(result.min, IntImm) and isinstance(result.extent, IntImm)
    assert (result.min.value, result.extent.value) == (3, 8)
