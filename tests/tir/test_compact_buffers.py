"""Buffer compaction: legal cases, and those that would change a program."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import tir
from ekiden.tir import interpreter
from ekiden.tir.transform import compact_buffers

HEAD = """@T.prim_func
def f(out: T.Buffer((4, 8), "float32"), at: T.Buffer((8,), "int64")):
"""


def compacted(body: str) -> tir.PrimFunc:
    """The function of a body after the pass; it computes the same."""
    func = tir.parse(HEAD + body)
    assert isinstance(func, tir.PrimFunc)
    output = compact_buffers(func)
    tir.verify(output, lowered=False)
    places = np.array([3, 1, 3, 1, 3, 1, 3, 1])
    result = []
    for item in (func, output):
        out = np.zeros((4, 8), "float32")
        interpreter.run_prim_func(item, out, places)
        result.append(out)
    np.testing.assert_array_equal(*result)
    return output


def test_intermediate_shrinks_to_what_is_touched() -> None:
    result = compacted("""
    for i in range(4):
        t = T.alloc_buffer((4, 8), "float32")
        for j in range(8):
            t[i, j] = T.Cast("float32", at[j])
        for j in range(8):
            out[i, j] = t[i, j] + 1.0
""")
    assert 't = T.alloc_buffer((1, 8), "float32")' in str(result)


def test_what_is_named_inside_is_seen_through() -> None:
    result = compacted("""
    t = T.alloc_buffer((4, 8), "float32")
    for i in range(4):
        for j in range(8):
            k: T.int64 = j % 4
            t[k, j] = 2.0
    for i, j in T.grid(4, 8):
        k: T.int64 = j % 4
        out[i, j] = t[k, j]
""")
    assert 't = T.alloc_buffer((4, 8), "float32")' in str(result)


@pytest.mark.parametrize("store", ["t[at[j]]", "t[j * 2 % 8]", "t[j // 2 * 2]"])
def test_intermediate_stays_where_a_step_leaves_a_part_of_it(store: str) -> None:
    result = compacted(f"""
    t = T.alloc_buffer((8,), "float32")
    for i in range(4):
        t[0] = T.Cast("float32", i)
        if i == 0:
            for j in range(8):
                t[j] = 7.0
        for j in range(8):
            {store} = T.Cast("float32", i)
        for j in range(8):
            out[i, j] = t[j]
""")
    assert isinstance(result.body, tir.Allocate)


def test_buffer_moves_into_a_loop_that_writes_it_under_the_condition_of_its_reads() -> None:
    result = compacted("""
    t = T.alloc_buffer((8,), "float32")
    for i in T.parallel(4):
        for j0, j1 in T.grid(2, 5):
            if j0 * 5 + j1 < 8 and i < 3:
                for k in range(8):
                    t[k] = T.Cast("float32", at[k])
            if i < 3 and j0 * 5 + j1 < 8:
                out[i, j0 * 5 + j1] = t[j0 * 5 + j1]
""")
    assert isinstance(result.body, tir.For)


@pytest.mark.parametrize(
    "condition",
    ["if i < 3:", "if j < 8 and at[j] < 2:", "if i >= 2:\n                pass\n            else:"],
)
def test_buffer_stays_where_its_reads_are_under_another_condition_than_its_writes(
    condition: str,
) -> None:
    result = compacted(f"""
    t = T.alloc_buffer((8,), "float32")
    for i in range(4):
        for j in range(8):
            {condition}
                for k in range(8):
                    t[k] = T.Cast("float32", at[k])
            if i >= 2:
                out[i, j] = t[j]
""")
    assert isinstance(result.body, tir.Allocate)


def test_buffer_stays_where_the_condition_of_its_reads_changes_meanwhile() -> None:
    result = compacted("""
    t = T.alloc_buffer((8,), "float32")
    for k in range(8):
        t[k] = T.Cast("float32", at[k])
    for i in range(4):
        for j in range(8):
            if at[j] < 2:
                t[j] = T.Cast("float32", i)
            at[j] = at[j] + 1
            if at[j] < 2:
                out[i, j] = t[j]
""")
    assert isinstance(result.body, tir.Allocate)


def test_threads_share_what_is_allocated_inside_their_loop() -> None:
    text = """@T.prim_func
def f(out: T.Buffer((2, 8), "float32")):
    for i in T.thread_binding(2, thread="blockIdx.x"):
        for j in T.thread_binding(8, thread="threadIdx.x"):
            t = T.alloc_buffer((2, 8), "float32", scope="shared")
            t[i, j] = 1.0
            out[i, j] = t[i, j]
"""
    func = tir.parse(text)
    assert isinstance(func, tir.PrimFunc)
    assert 't = T.alloc_buffer((1, 8), "float32", scope="shared")' in str(compact_buffers(func))


def test_buffer_never_grows() -> None:
    with pytest.raises(ValueError, match="a buffer never grows"):
        tir.transform.CompactBufferAllocation(is_strict=False)


def test_data_that_say_how_much_is_used_make_no_buffer_larger() -> None:
    """Of a number that is read its dtype alone is known: 8 GB would be room for each int32."""
    func = tir.parse("""@T.prim_func
def f(out_handle: T.handle, lengths: T.Buffer((1,), "int32")):
    n = T.int64(is_size_var=True)
    out = T.match_buffer(out_handle, (n,), "float32")
    t = T.alloc_buffer((n,), "float32")
    for i in range(T.Cast("int64", lengths[0])):
        t[i] = 2.0
    for i in range(T.Cast("int64", lengths[0])):
        out[i] = t[i]
""")
    assert isinstance(func, tir.PrimFunc)
    assert "t = T.alloc_buffer((n,), " in str(compact_buffers(func))


@pytest.mark.parametrize("read", ["(j + 1) % 8", "7 - j", "j + 1 - j // 7 * 8"])
def test_buffer_stays_where_a_step_reads_what_an_earlier_one_left(read: str) -> None:
    func = compacted(f"""
    t = T.alloc_buffer((8,), "float32")
    for i in range(4):
        for j in range(8):
            t[j] = T.float32(i * 8 + j)
            if i > 0:
                out[i, j] = t[{read}]
""")
    assert isinstance(func.body, tir.Allocate)


def test_buffer_moves_into_a_loop_whose_steps_read_what_they_stored() -> None:
    func = compacted("""
    t = T.alloc_buffer((8,), "float32")
    for i in range(4):
        for j in range(2):
            for k in range(4):
                t[j * 4 + k] = T.float32(i)
            for k in range(4):
                out[i, j * 4 + k] = t[j * 4 + 3 - k]
""")
    assert 't = T.alloc_buffer((4,), "float32")' in str(func)
