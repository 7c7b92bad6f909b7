"""Printed programs after each primitive."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.prim import maximum
from ekiden.tir import PrimFunc, Schedule
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower

pytestmark = pytest.mark.quick


def rows() -> PrimFunc:
    """max(0, row sums) of a (4, 6) array."""
    a = te.placeholder((4, 6), name="a")
    k = te.reduce_axis((0, 6), "k")
    s = te.compute((4,), lambda i: te.sum(a[i, k], k), name="s")
    r = te.compute((4,), lambda i: maximum(s[i], 0.0), name="r")
    return te.create_prim_func([a, r])


def meaning(a: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """What `rows` computes."""
    return np.maximum(a.sum(1), 0)


def body(func: PrimFunc) -> str:
    """The loops of a function's text, without what is read and written."""
    lines = str(func).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("    for "))
    kept = [x for x in lines[start:] if "T.reads" not in x and "T.writes" not in x]
    return textwrap.dedent("\n".join(kept)).strip()


Step = Callable[[Schedule], object]
R_BLOCK = """
for i in range(4):
    with T.block("r"):
        i_1 = T.axis.spatial(4, i)
        r[i_1] = T.max(s[i_1], 0.0)
"""
CASES: dict[str, tuple[Step, str]] = {}


def case(text: str) -> Callable[[Step], Step]:
    """A step and the text after it."""

    def add(step: Step) -> Step:
        CASES[step.__name__] = (step, textwrap.dedent(text).strip())
        return step

    return add


@case(
    """
    for i, k_0, k_1 in T.grid(4, 2, 4):
        with T.block("s"):
            i_1 = T.axis.spatial(4, i)
            k = T.axis.reduce(6, k_0 * 4 + k_1)
            T.where(k_0 * 4 + k_1 < 6)
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def split_by_predicate(s: Schedule) -> None:
    s.split(s.get_loops("s")[1], [None, 4])


@case(
    """
    for i in range(4):
        for k_0, k_1 in T.grid(1, 4):
            with T.block("s"):
                i_1 = T.axis.spatial(4, i)
                k = T.axis.reduce(6, k_0 * 4 + k_1)
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a[i_1, k]
        for k in range(2):
            with T.block("s_tail"):
                i_1 = T.axis.spatial(4, i)
                k_1 = T.axis.reduce(6, 4 + k)
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def split_into_exact_loops(s: Schedule) -> None:
    s.split(s.get_loops("s")[1], [None, 4], tail="loop")


@case(
    """
    for i, k in T.grid(1, 6):
        with T.block("s"):
            i_1 = T.axis.spatial(4, i)
            k_1 = T.axis.reduce(6, k)
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i, k in T.grid(3, 6):
        with T.block("s_1"):
            i_1 = T.axis.spatial(4, 1 + i)
            k_1 = T.axis.reduce(6, k)
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def partition(s: Schedule) -> None:
    s.partition(s.get_loops("s")[0], [1])


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                r[i_1] = 0.0
            r[i_1] = r[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(r[i_1], 0.0)
    """
)
def reuse_buffer(s: Schedule) -> None:
    s.reuse_buffer("s", 0)


@case(
    """
    for i in range(4):
        a_global = T.alloc_buffer((1, 6), "float32")
        for ax0, ax1 in T.grid(1, 6):
            with T.block("a_global"):
                v0, v1 = T.axis.remap("SS", [ax0, ax1])
                a_global[v0, v1] = a[i + v0, v1]
        for k in range(6):
            with T.block("s"):
                i_1, k_1 = T.axis.remap("SR", [i, k])
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a_global[i_1 - i, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def read_at(s: Schedule) -> None:
    s.read_at(s.get_loops("s")[0], "s", 0, "global")


@case(
    """
    for i, k_0, k_1 in T.grid(4, 1, 6):
        with T.block("s"):
            i_1, k = T.axis.remap("SR", [i, k_1])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def split_unit(s: Schedule) -> None:
    s.split(s.get_loops("s")[1], [1, 6], preserve_unit_iters=False)


@case(
    """
    for i_k_fused in range(24):
        with T.block("s"):
            i = T.axis.spatial(4, i_k_fused // 6)
            k = T.axis.reduce(6, i_k_fused % 6)
            with T.init():
                s[i] = 0.0
            s[i] = s[i] + a[i, k]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def fuse(s: Schedule) -> None:
    s.fuse(*s.get_loops("s"))


@case(
    """
    for k, i in T.grid(6, 4):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def reorder(s: Schedule) -> None:
    s.reorder(*s.get_loops("s")[::-1])


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            k_1, i_1 = T.axis.remap("RS", [k, i])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def reorder_block_iter_var(s: Schedule) -> None:
    s.reorder_block_iter_var("s", [1, 0])


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i, u in T.grid(4, 1):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def add_unit_loop(s: Schedule) -> None:
    s.add_unit_loop("r")


@case(
    """
    for i_0, k_0, i_1, k_1 in T.grid(2, 2, 2, 3):
        with T.block("s"):
            i = T.axis.spatial(4, i_0 * 2 + i_1)
            k = T.axis.reduce(6, k_0 * 3 + k_1)
            with T.init():
                s[i] = 0.0
            s[i] = s[i] + a[i, k]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def tile(s: Schedule) -> None:
    s.tile(*s.get_loops("s"), 2, 3)


@case(
    """
    for i in T.parallel(4, annotations={"grain": 2}):
        for k in range(6):
            with T.block("s"):
                i_1, k_1 = T.axis.remap("SR", [i, k])
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def parallel(s: Schedule) -> None:
    s.parallel(s.get_loops("s")[0], 2)


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in T.vectorized(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def vectorize(s: Schedule) -> None:
    s.vectorize(s.get_loops("r")[0])


@case(
    """
    for i in range(4):
        for k in T.unroll(6):
            with T.block("s"):
                i_1, k_1 = T.axis.remap("SR", [i, k])
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def unroll(s: Schedule) -> None:
    s.unroll(s.get_loops("s")[1])


@case(
    """
    for i in T.thread_binding(4, thread="threadIdx.x"):
        for k in range(6):
            with T.block("s"):
                i_1, k_1 = T.axis.remap("SR", [i, k])
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def bind(s: Schedule) -> None:
    s.bind(s.get_loops("s")[0], "threadIdx.x")


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def compute_inline(s: Schedule) -> None:
    s.compute_inline(s.cache_read("s", 0, "local"))


@case(
    """
    for i in range(4):
        for ax1 in range(6):
            with T.block("s"):
                i_1, k = T.axis.remap("SR", [i, ax1])
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a[i_1, k]
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def compute_at(s: Schedule) -> None:
    s.compute_at("s", s.get_loops("r")[0])


@case(
    """
    for i in range(4):
        for ax0, ax1 in T.grid(1, 6):
            with T.block("s"):
                i_1 = T.axis.spatial(4, i + ax0)
                k = T.axis.reduce(6, ax1)
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a[i_1, k]
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def compute_at_with_unit_loops(s: Schedule) -> None:
    s.compute_at("s", s.get_loops("r")[0], preserve_unit_loops=True)


@case(
    """
    for i in range(4):
        for k in range(6):
            with T.block("s"):
                i_1, k_1 = T.axis.remap("SR", [i, k])
                with T.init():
                    s[i_1] = 0.0
                s[i_1] = s[i_1] + a[i_1, k_1]
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def reverse_compute_at(s: Schedule) -> None:
    s.reverse_compute_at("r", s.get_loops("s")[0])


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def reverse_compute_inline(s: Schedule) -> None:
    s.reverse_compute_inline(s.cache_write("r", 0, "local"))


@case(
    """
    for ax0, ax1 in T.grid(4, 6):
        with T.block("a_local"):
            v0, v1 = T.axis.remap("SS", [ax0, ax1])
            a_local[v0, v1] = a[v0, v1]
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a_local[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def cache_read(s: Schedule) -> None:
    s.cache_read("s", 0, "local")


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s_local[i_1] = 0.0
            s_local[i_1] = s_local[i_1] + a[i_1, k_1]
    for ax0 in range(4):
        with T.block("s_local"):
            v0 = T.axis.spatial(4, ax0)
            s[v0] = s_local[v0]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def cache_write(s: Schedule) -> None:
    s.cache_write("s", 0, "local")


@case(
    """
    for ax0, ax1 in T.grid(4, 6):
        with T.block("a_reindex"):
            i, k = T.axis.remap("SS", [ax0, ax1])
            a_reindex[k, i] = a[i, k]
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a_reindex[k_1, i_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def reindex_cache_read(s: Schedule) -> None:
    s.reindex_cache_read("s", 0, "local", lambda i, k: (k, i))


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s_reindex[i_1 // 2, i_1 % 2] = 0.0
            s_reindex[i_1 // 2, i_1 % 2] = s_reindex[i_1 // 2, i_1 % 2] + a[i_1, k_1]
    for ax0 in range(4):
        with T.block("s_reindex"):
            i = T.axis.spatial(4, ax0)
            s[i] = s_reindex[i // 2, i % 2]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def reindex_cache_write(s: Schedule) -> None:
    s.reindex_cache_write("s", 0, "local", lambda i, k: (i // 2, i % 2))


@case(
    """
    for ax0, ax1 in T.grid(4, 6):
        with T.block("a_reindex"):
            i, k = T.axis.remap("SS", [ax0, ax1])
            a_reindex[i, k] = a[i, k]
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a_reindex[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def reindex(s: Schedule) -> None:
    s.reindex("s", ("read", 0))


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def set_scope(s: Schedule) -> None:
    s.set_scope("s", 0, "local")


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = T.Cast("float16", T.Cast("float32", s[i_1]) + a[i_1, k_1])
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(T.Cast("float32", s[i_1]), 0.0)
    """
)
def unsafe_set_dtype(s: Schedule) -> None:
    s.unsafe_set_dtype("s", 0, "float16")


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            T.block_attr({"buffer_dim_align": ((0, 0, 16, 1),)})
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def storage_align(s: Schedule) -> None:
    s.storage_align("s", 0, 0, 16, 1)


@case(
    """
    for i in range(4):
        with T.block("s_init"):
            i_init = T.axis.spatial(4, i)
            s[i_init] = 0.0
        for k in range(6):
            with T.block("s"):
                i_1, k_1 = T.axis.remap("SR", [i, k])
                s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def decompose_reduction(s: Schedule) -> None:
    s.decompose_reduction("s", s.get_loops("s")[1])


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def merge_reduction(s: Schedule) -> None:
    s.merge_reduction(s.decompose_reduction("s", s.get_loops("s")[0]), "s")


@case(
    """
    for i, k_0, k_1 in T.grid(4, 3, 2):
        with T.block("s_rf"):
            vk_1, i_1, vk_0 = T.axis.remap("SSR", [k_1, i, k_0])
            with T.init():
                s_rf[vk_1, i_1] = 0.0
            s_rf[vk_1, i_1] = s_rf[vk_1, i_1] + a[i_1, vk_0 * 2 + vk_1]
    for i, k_1 in T.grid(4, 2):
        with T.block("s"):
            vk_1, i_1 = T.axis.remap("RS", [k_1, i])
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + s_rf[vk_1, i_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def rfactor(s: Schedule) -> None:
    s.rfactor(s.split(s.get_loops("s")[1], [None, 2])[1], 0)


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            with T.init():
                s[i_1 // 3, i_1 % 3] = 0.0
            s[i_1 // 3, i_1 % 3] = s[i_1 // 3, i_1 % 3] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1 // 3, i_1 % 3], 0.0)
    """
)
def transform_layout(s: Schedule) -> None:
    s.transform_layout("s", ("write", 0), lambda i: (i // 3, i % 3))


@case(
    """
    for ax0, ax1 in T.grid(6, 4):
        with T.block("s"):
            v0, v1 = T.axis.remap("RS", [ax0, ax1])
            with T.init():
                s[v1] = 0.0
            s[v1] = s[v1] + a[v1, v0]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def transform_block_layout(s: Schedule) -> None:
    s.transform_block_layout("s", lambda i, k: (k, i))


@case(
    """
    for ax0, ax1 in T.grid(4, 8):
        with T.block("a_pad"):
            v0, v1 = T.axis.remap("SS", [ax0, ax1])
            a_pad[v0, v1] = T.if_then_else(v1 < 6, a[v0, v1], 0.0)
    for ax0, ax1 in T.grid(4, 8):
        with T.block("s"):
            i, k = T.axis.remap("SR", [ax0, ax1])
            with T.init():
                s[i] = 0.0
            s[i] = s[i] + a_pad[i, k]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def pad_einsum(s: Schedule) -> None:
    s.pad_einsum("s", [1, 4])


@case(
    """
    for i in range(4):
        with T.block("s_o"):
            io = T.axis.spatial(4, i)
            ko = T.axis.reduce(1, 0)
            with T.init():
                with T.block("s_init"):
                    i_init = T.axis.spatial(4, io)
                    s[i_init] = 0.0
            for k in range(6):
                with T.block("s"):
                    i_1 = T.axis.spatial(4, io)
                    k_1 = T.axis.reduce(6, k)
                    s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def blockize(s: Schedule) -> None:
    s.blockize(s.get_loops("s")[1])


@case(
    """
    for i, k in T.grid(4, 6):
        with T.block("s"):
            i_1, k_1 = T.axis.remap("SR", [i, k])
            T.block_attr({"note": (1, "x")})
            with T.init():
                s[i_1] = 0.0
            s[i_1] = s[i_1] + a[i_1, k_1]
    for i in range(4):
        with T.block("r"):
            i_1 = T.axis.spatial(4, i)
            r[i_1] = T.max(s[i_1], 0.0)
    """
)
def annotate(s: Schedule) -> None:
    s.annotate("s", "note", [1, "x"])


@pytest.mark.parametrize("name", CASES)
def test_text_after_a_step(name: str) -> None:
    step, expected = CASES[name]
    sch = Schedule(rows())
    step(sch)
    assert body(sch.func) == expected
    data = np.arange(-12, 12, dtype="float32").reshape(4, 6)
    out = np.full(4, 7, "float32")
    run_prim_func(tir.verify(lower(sch.func)), data, out)
    np.testing.assert_array_equal(out, meaning(data))


def test_every_step_has_a_text() -> None:
    """Those with a test of their own apart: below, in test_partition.py, test_more_steps.py,
    test_rolling_update.py."""
    others = {
        "cache_index",
        "cache_inplace",
        "allocate_at",
        "can_decompose_padding",
        "decompose_padding",
        "enter_postproc",
        "loop_partition",
        "merge",
        "partition_by_conditions",
        "rolling_buffer",
        "rolling_update",
        "set_axis_separator",
        "share_skipped",
        "skip_turns",
        "skip_zeros",
        "tensorize",
        "unannotate",
        "unsafe_hide_buffer_access",
        "work_on",
        "write_at",
    }
    steps = {k for k in Schedule.kinds if not k.startswith(("get_", "sample_"))} - others
    assert steps - {"split"} <= set(CASES)


def test_copy_by_a_map_is_done_or_refused_as_a_whole() -> None:
    sch = Schedule(rows())
    before = str(sch.func)
    for step, faulty in [
        (sch.reindex_cache_read, lambda i, k: (k * 2, 0)),
        (sch.reindex_cache_write, lambda i, k: (k,)),
        (sch.reindex_cache_read, lambda i: (i,)),
    ]:
        with pytest.raises(tir.ScheduleError, match="reindex_cache|share a place"):
            step("s", 0, "local", faulty)
        assert str(sch.func) == before
        assert {inst.kind for inst in sch.trace.insts} == {"get_block"}
