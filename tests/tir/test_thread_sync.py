"""Barriers where threads of a block read other threads' writes."""

from __future__ import annotations

import pytest

from ekiden import tir
from ekiden.runtime.errors import CompileError
from ekiden.tir.transform import ThreadSync
from ekiden.tir.transform.thread_sync import thread_sync

HEAD = """@T.prim_func
def f(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32"), n: T.int64):
    s = T.alloc_buffer((8,), "float32", scope="shared")
    for t in T.thread_binding(8, thread="threadIdx.x"):
"""
WAIT = 'T.tvm_storage_sync("shared")'


def synced(body: str) -> list[str]:
    """The lines of a body after the pass, without what makes them loops over threads."""
    func = tir.parse(HEAD + body)
    assert isinstance(func, tir.PrimFunc)
    text = str(thread_sync(func).script())
    return [line.strip() for line in text.partition("threadIdx.x")[2].splitlines()[1:] if line]


def test_barrier_stands_between_a_write_and_reads() -> None:
    assert synced("""
        s[t] = a[0, t]
        b[0, t] = s[7 - t]
""") == ["s[t] = a[0, t]", WAIT, "b[0, t] = s[7 - t]"]


def test_step_waits_for_the_one_before() -> None:
    assert synced("""
        for k in range(4):
            s[t] = a[k, t]
            b[k, t] = s[7 - t]
""")[1:] == [WAIT, "s[t] = a[k, t]", WAIT, "b[k, t] = s[7 - t]"]


def test_step_waits_where_it_writes_what_the_one_before_read() -> None:
    assert synced("""
        for k in range(4):
            b[k, t] = a[k, t]
            s[t] = a[k, t]
            b[k, t] = s[7 - t]
""")[1:] == ["b[k, t] = a[k, t]", WAIT, "s[t] = a[k, t]", WAIT, "b[k, t] = s[7 - t]"]


def test_outer_loops_do_not_wait_where_each_turn_of_an_inner_one_does() -> None:
    assert synced("""
        s[t] = a[0, t]
        for i in range(4):
            for k in range(4):
                s[t] = a[k, t]
                b[k, t] = s[7 - t]
        s[t] = a[1, t]
""")[1:] == [
        "for i, k in T.grid(4, 4):",
        WAIT,
        "s[t] = a[k, t]",
        WAIT,
        "b[k, t] = s[7 - t]",
        WAIT,
        "s[t] = a[1, t]",
    ]


def test_what_is_before_a_loop_is_waited_for_outside() -> None:
    assert synced("""
        s[t] = a[0, t]
        for k in range(4):
            b[k, t] = s[7 - t]
""") == ["s[t] = a[0, t]", WAIT, "for k in range(4):", "b[k, t] = s[7 - t]"]


def test_loop_that_may_not_run_is_no_barrier() -> None:
    body = """
        s[t] = a[0, t]
        for k in range({}):
            T.tvm_storage_sync("shared")
            b[k, t] = a[k, t]
        b[0, t] = s[7 - t]
"""
    assert [synced(body.format(n)).count(WAIT) for n in ("4", "n")] == [1, 2]


def test_nest_is_walked_once() -> None:
    """With two visits of each body this would not end."""
    depth = 60
    loops = "".join(f"{' ' * (8 + n)}for i{n} in range(2):\n" for n in range(depth))
    inside = " " * (8 + depth)
    lines = synced(f"\n{loops}{inside}s[t] = a[0, t]\n{inside}b[0, t] = s[7 - t]\n")
    assert lines[1:] == [WAIT, "s[t] = a[0, t]", WAIT, "b[0, t] = s[7 - t]"]


def test_barriers_that_are_there_suffice() -> None:
    body = """
        for k in range(4):
            s[t] = a[k, t]
            T.tvm_storage_sync("shared")
            b[k, t] = s[7 - t]
            T.tvm_storage_sync("shared")
"""
    assert synced(body).count(WAIT) == 2


def test_repeated_reads_need_no_barrier() -> None:
    assert (
        synced("""
        s[t] = a[0, t]
        b[0, t] = s[7 - t]
        b[1, t] = s[6 - t % 7]
""").count(WAIT)
        == 1
    )


def test_both_sides_of_a_condition_count() -> None:
    assert synced("""
        if n > 1:
            s[t] = a[0, t]
        else:
            s[t] = a[1, t]
        b[0, t] = s[7 - t]
""")[-2:] == [WAIT, "b[0, t] = s[7 - t]"]


def test_divergent_barriers_are_refused() -> None:
    message = "kernel 'f': threads would have to wait for each other between uses of 's' where not"
    with pytest.raises(CompileError, match=message):
        synced("""
        if t < 4:
            s[t] = a[0, t]
            b[0, t] = s[3 - t]
""")


def test_thread_sync_refuses_other_memory_scopes() -> None:
    with pytest.raises(ValueError, match="'shared' expected, got 'global'"):
        ThreadSync("global")
