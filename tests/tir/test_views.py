"""Buffer views: regions, addresses, thread axes; text, lowering, rejections."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import tir
from ekiden.ir.structural import structural_equal
from ekiden.runtime.errors import CompileError, ParseError
from ekiden.tir import interpreter

HEAD = """
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
"""
A = np.arange(64, dtype="float32").reshape(8, 8)

# name -> (body, what B is in the end)
PROGRAMS: dict[str, tuple[str, object]] = {
    "part": (
        """
    for i, j in T.grid(2, 8):
        with T.block("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            s0 = T.int64()
            s1 = T.int64()
            off = T.int64()
            P = T.match_buffer(A[vi * 4:vi * 4 + 4, vj], (4, 1), strides=[s0, s1], elem_offset=off)
            Q = T.match_buffer(B[vi * 4:vi * 4 + 4, vj], (4, 1))
            for k in range(4):
                Q[k, 0] = P[k, 0] * 2.0 + T.cast(off * 1000 + s0, "float32")
""",
        A * 2 + (np.arange(8) // 4 * 32)[:, None] * 1000 + np.arange(8) * 1000 + 8,
    ),
    "row of a part": (
        """
    for i in range(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            P = T.match_buffer(A[2:6, 0:8], (4, 8))
            R = T.match_buffer(P[1, 0:8], (8,))
            with T.match_buffer(B[vi, 0:8], (8,)) as Q:
                for j in T.vectorized(8):
                    Q[j] = R[j]
            B[vi, 0] = 1.0
""",
        np.concatenate([np.ones((8, 1)), np.tile(A[3, 1:], (8, 1))], axis=1),
    ),
    "addresses": (
        """
    F = T.Buffer((64,), data=A.data)
    data = T.allocate([64], "float32", "global")
    W = T.decl_buffer((8, 8), data=data)
    V = T.decl_buffer((64,), "float32", data=data)
    for i in range(64):
        V[i] = F[i] + 1.0
    for i, j in T.grid(8, 8):
        B[j, i] = W[i, j]
""",
        A.T + 1,
    ),
    "strided": (
        """
    for i in range(8):
        D = T.decl_buffer((8,), "float32", data=A.data, strides=(9,))
        for j in range(8):
            B[i, j] = D[j]
""",
        np.tile(np.diag(A), (8, 1)),
    ),
    "threads": (
        """
    tx = T.env_thread("threadIdx.x")
    bx = T.launch_thread("blockIdx.x", 8)
    T.launch_thread(tx, 8)
    B[bx, tx] = A[tx, bx]
""",
        A.T,
    ),
    "threads by with": (
        """
    with T.launch_thread("blockIdx.x", 8) as bx:
        for tx in T.thread_binding(0, 8, "threadIdx.x"):
            B[bx, tx] = A[bx, tx]
""",
        A,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_views_mean_their_part(name: str) -> None:
    body, expected = PROGRAMS[name]
    func = tir.parse(HEAD + body)
    assert isinstance(func, tir.PrimFunc)
    tir.verify(func, lowered=False)
    again = tir.parse(func.script())
    assert isinstance(again, tir.PrimFunc) and structural_equal(func, again)
    assert structural_equal(ekiden.ir.load_json(ekiden.ir.save_json(func)), func)
    lowered = tir.transform.lower(func)
    tir.verify(lowered)
    actual = np.zeros_like(A)
    interpreter.run_prim_func(lowered, A, actual)
    np.testing.assert_array_equal(actual, expected)
    for target in ("llvm", "c"):
        result = np.zeros_like(A)
        ekiden.build(func, target=target)(A, result)
        np.testing.assert_array_equal(result, expected)


def test_lowering_leaves_the_source_alone() -> None:
    body, _ = PROGRAMS["row of a part"]
    func = tir.parse(HEAD + body)
    assert isinstance(func, tir.PrimFunc)
    result = tir.transform.LowerMatchBuffer()(ekiden.IRModule({"f": func}))["f"]
    assert isinstance(result, tir.PrimFunc)
    text = result.script()
    assert "match_buffer" not in text and "B[vi, j] = A[3, j]" in text.replace("0 + ", "")
    schedule = tir.Schedule(func)
    (loop,) = schedule.get_loops(schedule.get_block("b"))
    schedule.split(loop, [2, None])


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_address_that_is_a_parameter_is_its_buffer(target: str) -> None:
    func = tir.parse("""
@T.prim_func
def f(p: T.handle("float32"), B: T.Buffer((4,), "float32")):
    A = T.decl_buffer((2, 2), "float32", data=p)
    flat = T.Buffer((4,), "float32", p)
    for i in range(4):
        B[i] = flat[i] + A[i // 2, i % 2]
""")
    assert isinstance(func, tir.PrimFunc) and [b.name for b in func.buffers] == ["A", "B"]
    x, y = np.arange(4, dtype="float32").reshape(2, 2), np.zeros(4, "float32")
    ekiden.build(func, target=target)(x, y)
    np.testing.assert_array_equal(y, x.reshape(-1) * 2)


REFUSED = [
    ("    P = T.match_buffer(A[0:2, 0:4], (4,))\n", "a region of 2 axes has no 1 axes"),
    ("    P = T.match_buffer()\n", "T.match_buffer takes a parameter or a region"),
    ("    P = T.decl_buffer((8,), data=3)\n", "expected the address of a buffer: A.data"),
    ("    T.launch_thread(3, 8)\n", 'expected T.launch_thread("threadIdx.x", extent)'),
    ("    with T.match_buffer(A[0, 0:8], (8,)):\n        pass\n", "needs 'as name'"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED)
def test_invalid_views_are_refused(body: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        tir.parse(HEAD + body)
    assert message in str(caught.value)


def test_elements_of_another_dtype_are_refused() -> None:
    func = tir.parse(HEAD + '    P = T.decl_buffer((256,), "int8", data=A.data)\n    P[0] = 1\n')
    assert isinstance(func, tir.PrimFunc)
    with pytest.raises(CompileError, match="'P': elements of int8 cannot lie in 'A', which holds"):
        ekiden.lower(func)
