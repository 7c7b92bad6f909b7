"""What `test_oclgrind.py` runs below oclgrind: families of kernels, or one program that is wrong.

oclgrind --data-races python oclgrind_programs.py TARGET NAME...
"""

from __future__ import annotations

import sys

import numpy as np
from test_gpu_kernel_families import PRODUCTS, check

import ekiden
from ekiden.ir.prim import Var, cast, const
from ekiden.kernels.gpu.launch import thread_loop
from ekiden.runtime import device, get_global_func
from ekiden.target import Target
from ekiden.te.prim_func import wrap_in_allocations
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, IfThenElse, PrimFunc, Stmt, seq
from ekiden.tir.transform.thread_sync import STORAGE_SYNC

THREADS = 8
OUT = Buffer("out", (const(THREADS),), "float32")
SHARED = Buffer("parts", (const(THREADS),), "float32", "shared")
ME = Var("thread")


def _written(buffer: Buffer, index: object) -> Stmt:
    assert isinstance(index, (Var, type(ME + 1)))
    return BufferStore(buffer, const(1.0), (index,))


def _next() -> Stmt:
    """The neighbour's part."""
    return BufferStore(OUT, BufferLoad(SHARED, ((ME + 1) % THREADS,), "float32"), (ME,))


WRONG: dict[str, Stmt] = {
    "access": _written(OUT, ME + 1),
    "race": BufferStore(OUT, cast(ME, "float32"), (const(0),)),
    "divergence": seq(IfThenElse(ME < 4, STORAGE_SYNC), _written(OUT, ME)),
    "nothing": seq(_written(SHARED, ME), STORAGE_SYNC, _next()),
    "awaited": seq(_written(SHARED, ME), _next()),  # lowering puts a barrier between
}
"""What oclgrind must see: controls of the test."""


def run_wrong(name: str, target: Target) -> None:
    """One of them."""
    threads = wrap_in_allocations(thread_loop(ME, THREADS, "threadIdx.x", WRONG[name]), [SHARED])
    func = PrimFunc(
        (OUT,), thread_loop(Var("block"), 1, "blockIdx.x", threads), {"global_symbol": "f"}
    )
    there = ekiden.runtime.nd.array(np.zeros(THREADS, "float32"), device("opencl"))
    ekiden.build(func, target)["f"](there)
    device("opencl").sync()


def main(text: str, *names: str) -> None:
    """Run everything that is named; a product with memory of the block where there are warps."""
    target = Target(text)
    print(get_global_func("ek.device.attribute")(device("opencl"), 0))
    for name in names:
        if name in WRONG:
            run_wrong(name, target)
            continue
        shared = int(target.thread_warp_size > 1) if name in PRODUCTS else None
        check(name, target, shared if target.lanes("float32") == 1 else None)
        print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
