"""LowerCrossThreadReduction: the program of a reduction bound to threads, and what it refuses."""

from __future__ import annotations

import pytest

from ekiden import tir
from ekiden.ir.compare import assert_structural_equal
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.script.parser import from_source
from ekiden.tir.transform import LowerCrossThreadReduction

pytestmark = pytest.mark.quick
ROWS = """
@T.prim_func
def main(A: T.Buffer((4, 48), "float32"), B: T.Buffer((4,), "float32")):
    T.func_attr({{"num_outputs": 1}})
    for i in T.thread_binding(4, thread="blockIdx.x"):
        {loops}
            with T.block("B"):
                vi = T.axis.spatial(4, i)
                vk = T.axis.reduce(48, {k})
                with T.init():
                    B[vi] = T.float32({init})
                B[vi] = B[vi] + A[vi, vk]
            {after}
"""


def lowered(
    loops: str = 'for k in T.thread_binding(48, thread="threadIdx.x"):',
    k: str = "k",
    init: int = 0,
    after: str = "",
) -> str:
    func = tir.parse(ROWS.format(loops=loops, k=k, init=init, after=after))
    assert isinstance(func, tir.PrimFunc)
    module = LowerCrossThreadReduction()(IRModule({"main": func}))
    assert_structural_equal(from_source(module.script()), module)
    return module.script()


def test_threads_combine_in_shared_memory_by_halves() -> None:
    text = lowered()
    assert 'parts_B = T.alloc_buffer((48,), "float32", scope="shared")' in text
    assert text.count("T.tvm_storage_sync") == 6  # 48 -> 24 -> 12 -> 6 -> 3 -> 2 -> 1
    assert "if k < 24:" in text and "if k < 1:" in text and "if k == 0:" in text
    assert "T.init" not in text


def test_serial_loops_of_the_sum_run_in_each_thread() -> None:
    loops = 'for o in range(3):\n         for k in T.thread_binding(16, thread="threadIdx.x"):'
    text = lowered(loops, "o * 16 + k")
    thread, serial = text.index("threadIdx.x"), text.index("for o in range(3)")
    assert thread < serial and text.count("T.tvm_storage_sync") == 4


def test_warps_of_the_target_shuffle() -> None:
    with Target("cuda -arch=sm_80"):
        text = lowered('for k in T.thread_binding(64, thread="threadIdx.x"):')
    # Five distances within a warp; then every warp combines what both have, behind one barrier.
    assert text.count("T.tvm_warp_shuffle_down") == 6
    assert text.count("T.tvm_storage_sync") == 1
    assert "parts_B = T.alloc_buffer((2,)" in text


def test_another_first_value_counts_once() -> None:
    text = lowered(init=5)
    assert "own_B[0] = 0.0" in text
    assert "5.0 + parts_B[0]" in text


@pytest.mark.parametrize(
    ("loops", "k", "after", "message"),
    [
        (
            'for k in T.thread_binding(48, thread="blockIdx.y"):', "k", "",
            "block 'B' reduces over threads: blocks of blockIdx.y do not wait",
        ),
        (
            'for k in T.thread_binding(48, thread="threadIdx.x"):', "k", "B[i] = A[i, 0]",
            "other statements follow it in the loop of threadIdx.x",
        ),
    ],
)  # fmt: skip
def test_invalid_cross_thread_reductions_are_refused(
    loops: str, k: str, after: str, message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        lowered(loops, k, after=after)


def test_threads_of_other_axes_in_the_kernel_must_be_around() -> None:
    func = tir.parse(
        """
@T.prim_func
def main(
    A: T.Buffer((4, 8), "float32"), B: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")
):
    for i in T.thread_binding(4, thread="blockIdx.x"):
        for k in T.thread_binding(8, thread="threadIdx.x"):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vk]
        for j in T.thread_binding(4, thread="threadIdx.y"):
            with T.block("C"):
                vj = T.axis.spatial(4, j)
                C[vj] = T.float32(1)
"""
    )
    assert isinstance(func, tir.PrimFunc)
    with pytest.raises(CompileError, match="the kernel has threads of threadIdx.y too"):
        LowerCrossThreadReduction()(IRModule({"main": func}))
