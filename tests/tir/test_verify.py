"""Verification of ill-formed programs, and its messages."""

from __future__ import annotations

import pytest

from ekiden import tir
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Add, And, Cast, Intrinsic, Not, Select, SizeVar, Var, const
from ekiden.runtime.errors import VerifyError
from ekiden.tir import (
    Allocate,
    AssertStmt,
    Block,
    BlockRealize,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    Prefetch,
    PrimFunc,
    Ramp,
    SeqStmt,
    Stmt,
    verify,
)

A, B = Buffer("A", (const(16),)), Buffer("B", (const(16),))
I, J = Var("i"), Var("j")  # noqa: E741
N = SizeVar("n")
ZERO, ONE = const(0), const(1.0)


def program(body: Stmt, *params: Buffer, outputs: int = 0) -> PrimFunc:
    attrs: dict[str, object] = {"global_symbol": "f"}
    return PrimFunc(params or (A, B), body, attrs | ({"num_outputs": outputs} if outputs else {}))


def loop(var: Var, extent: int, body: Stmt, kind: ForKind = ForKind.SERIAL) -> For:
    return For(var, ZERO, const(extent), kind, body)


def block(value: object, body: Stmt, extent: int = 16) -> BlockRealize:
    vi = Var("vi")
    iters = (IterVar(vi, const(extent), IterKind.SPATIAL),)
    return BlockRealize((value,), const(True), Block("C", iters, body))  # type: ignore[arg-type]


COPY = BufferStore(B, A[I], (I,))
PARALLEL, VECTORIZED = ForKind.PARALLEL, ForKind.VECTORIZED
LOCAL = Buffer("t", (const(4),), "float32", "local")
WIDE = Buffer("W", (const(8), const(8)))
NS = Buffer("S", (N,))
IN_J = loop(J, 4, BufferStore(B, ONE, (I * 2 + J,)), ForKind.SERIAL)

# fmt: off
REJECTED = {
    # definitions
    "undefined variable": (COPY, "variable 'i' is used before it is defined"),
    "defined twice": (
        loop(I, 2, loop(I, 2, COPY)),
        "line 5 in loop 'i': variable 'i' is defined twice"),
    "allocated twice": (
        Allocate(A, BufferStore(A, ONE, (ZERO,))),
        "line 5: buffer 'A' is defined twice"),
    "not allocated": (
        BufferStore(Buffer("C", (const(1),)), ONE, (ZERO,)),
        "line 5: buffer 'C' is not allocated"),
    "not allocated, loaded": (
        BufferStore(A, Buffer("C", (const(1),))[0], (ZERO,)),
        "line 5: buffer 'C' is not allocated"),
    "not allocated, prefetched": (
        Prefetch(Buffer("C", (const(1),)), (ZERO,)),
        "line 5: buffer 'C' is not allocated"),
    # forms
    "nested sequence": (
        SeqStmt((SeqStmt((COPY, COPY)), COPY)),
        ": a sequence must have two statements or more, none a sequence"),
    "block values": (
        BlockRealize((), const(True), Block("C", (IterVar(I, const(4), IterKind.SPATIAL),), COPY)),
        "line 5: block 'C' has 1 iterators, 0 values"),
    "ranks": (
        BufferStore(WIDE, ONE, (ZERO, ZERO, ZERO)),
        "line 5: buffer 'W' has 2 axes, the store to it 3 indices"),
    "rank of a load": (
        BufferStore(A, BufferLoad(WIDE, (ZERO, ZERO, ZERO), "float32"), (ZERO,)),
        "line 5: buffer 'W' has 2 axes, the load of it 3 indices"),
    # types
    "stored lanes": (
        BufferStore(B, ONE, (Ramp(ZERO, const(1), 4, "int64x4"),)),
        "line 5: buffer 'B' has elements of float32x4, the store to it float32"),
    "loaded dtype": (
        BufferStore(B, Cast(BufferLoad(A, (ZERO,), "int32"), "float32"), (ZERO,)),
        "line 5: buffer 'A' has elements of float32, the load of it int32"),
    "index dtype": (
        BufferStore(B, ONE, (A[0],)),
        "line 5: buffer 'B': an index must be an integer, got float32"),
    "operands": (
        BufferStore(B, Add(A[0], const(1), "float32"), (ZERO,)),
        "line 5: operands of '+' differ: float32 and int64"),
    "result": (
        BufferStore(B, Cast(Add(A[0], A[1], "float64"), "float32"), (ZERO,)),
        "line 5: '+' of float32 is no float64"),
    "and": (
        AssertStmt(And(A[0], A[1], "bool"), "x"),
        "line 5: 'and' takes bools, got float32"),
    "not": (AssertStmt(Not(A[0]), "x"), "line 5: 'not' takes a bool, got float32"),
    "select": (
        BufferStore(B, Select(A[0] < 1.0, A[0], const(1), "float32"), (ZERO,)),
        "line 5: sides of a select must be float32, got int64"),
    "guard": (
        BufferStore(B, Intrinsic("if_then_else", (A[0], ONE, ONE), "float32"), (ZERO,)),
        "line 5: the condition of if_then_else must be bool, got float32"),
    "cast": (
        BufferStore(B, Cast(Broadcast(ONE, 4, "float32x4"), "float32"), (ZERO,)),
        "line 5: a cast must keep the lanes, got float32x4 to float32"),
    "ramp": (
        BufferStore(B, Broadcast(ONE, 4, "float32x8"), (Ramp(ZERO, const(1), 8, "int64x8"),)),
        "line 5: lanes disagree in T.Broadcast(1.0, 4)"),
    "intrinsic": (
        BufferStore(B, Intrinsic("foo", (ONE,), "float32"), (ZERO,)),
        "line 5: there is no intrinsic 'foo'"),
    "arity": (
        BufferStore(B, Intrinsic("exp", (ONE, ONE), "float32"), (ZERO,)),
        "line 5: 'exp' takes 1 arguments, got 2"),
    "condition": (
        IfThenElse(A[0], COPY),
        "line 5: a condition must be bool, got float32"),
    "assertion": (AssertStmt(A[0], "x"), "line 5: a condition must be bool, got float32"),
    "let": (
        LetStmt(Var("x", "int32"), A[0], COPY),
        "line 5: 'x' is int32, its value float32"),
    "loop dtype": (
        For(Var("k", "int32"), ZERO, const(4), ForKind.SERIAL, COPY),
        "line 5: loop 'k' must run over integers of one dtype, got int32 from int64, int64 long"),
    "mask": (
        BufferStore(B, ONE, (ZERO,), ONE),
        "line 5: the predicate of a store must be bool, got float32"),
    "iterator dtype": (
        loop(I, 4, block(I.astype("int32"), COPY)),
        "line 6 in loop 'i': block 'C': iterator 'vi' is int64, its value int32"),
    "block predicate": (
        BlockRealize((), ONE, Block("C", (), BufferStore(B, ONE, (ZERO,)))),
        "line 5: block 'C': its predicate must be bool, got float32"),
    "a loop's variable in a block": (
        loop(I, 16, loop(J, 4, block(J, BufferStore(B, ONE, (I,)), 4))),
        "line 10 in block 'C': block 'C' uses the variable 'i' of a loop outside of it, to which"
        " an iterator of the block must be bound"),
    # scopes
    "scope": (
        Allocate(Buffer("t", (const(4),), "float32", "somewhere"), COPY),
        "line 5: buffer 't' is in 'somewhere'; scopes are "
        "global, local, register, shared, shared.dyn, warp, wmma.matrix_a, "
        "wmma.matrix_b, wmma.accumulator"),
    # bounds
    "above": (
        loop(I, 16, BufferStore(B, A[I + 1], (I,))),
        "line 6 in loop 'i': buffer 'A': index i + 1 of axis 0 reaches 1..16, "
        "the axis has 16 elements"),
    "below": (
        loop(I, 16, BufferStore(B, ONE, (I - 1,))),
        "line 6 in loop 'i': buffer 'B': index i - 1 of axis 0 reaches -1..14, "
        "the axis has 16 elements"),
    "vector": (
        BufferStore(B, Broadcast(ONE, 8, "float32x8"), (Ramp(const(9), const(1), 8, "int64x8"),)),
        "line 5: buffer 'B': index T.Ramp(9, 1, 8) of axis 0 reaches 9..16, "
        "the axis has 16 elements"),
    "symbolic": (
        loop(I, 16, For(J, ZERO, N, ForKind.SERIAL, BufferStore(NS, ONE, (J + 1,)))),
        "line 8 in loop 'j': buffer 'S': index j + 1 of axis 0 reaches 1..n, "
        "the axis has n elements"),
    "block": (
        loop(I, 17, block(I, BufferStore(B, ONE, (const(16),)))),
        "line 10 in block 'C': buffer 'B': index 16 of axis 0 reaches 16..16, "
        "the axis has 16 elements"),
    # reads before writes
    "read first": (
        Allocate(LOCAL, BufferStore(B, LOCAL[0], (ZERO,))),
        "line 6: buffer 't' is read before anything is written to it"),
    "accumulated": (
        Allocate(LOCAL, loop(I, 4, BufferStore(LOCAL, LOCAL[I] + 1.0, (I,)))),
        "line 7 in loop 'i': buffer 't' is read before anything is written to it"),
    # races
    "one element": (
        loop(I, 16, BufferStore(B, A[I], (ZERO,)), PARALLEL),
        "line 5 in loop 'i': every step of the parallel loop 'i' stores to the same B[0]"),
    "a reduction": (
        loop(I, 16, BufferStore(B, B[0] + A[I], (ZERO,)), VECTORIZED),
        "line 5 in loop 'i': every step of the vectorized loop 'i' stores to the same B[0]"),
    "neighbours": (
        loop(I, 15, tir.seq(COPY, BufferStore(B, ONE, (I + 1,))), PARALLEL),
        "line 5 in loop 'i': a step of the parallel loop 'i' stores to B[i + 1], "
        "to which another step stores"),
    "read by a neighbour": (
        loop(I, 15, BufferStore(B, B[I + 1], (I,)), PARALLEL),
        "line 5 in loop 'i': a step of the parallel loop 'i' reads B[i + 1], "
        "to which another step stores"),
    "tiles overlap": (
        loop(I, 7, IN_J, PARALLEL),
        "line 5 in loop 'i': steps of the parallel loop 'i' store to the same B[i * 2 + j]: "
        "'j' reaches into the next"),
    "through a block": (
        loop(I, 16, loop(J, 4, block(J, BufferStore(B, ONE, (const(3),)), 4)), PARALLEL),
        "line 5 in loop 'i': every step of the parallel loop 'i' stores to the same B[3]"),
}
LOWERED = {
    "block left": (
        loop(I, 16, block(I, BufferStore(B, ONE, (ZERO,)))),
        "line 6 in loop 'i': block 'C' is left in a lowered program"),
    "vectorized left": (
        loop(I, 16, COPY, VECTORIZED),
        "line 5: loop 'i' is still vectorized in a lowered program"),
    "unrolled left": (
        loop(I, 16, COPY, ForKind.UNROLLED),
        "line 5: loop 'i' is still unrolled in a lowered program"),
}
# fmt: on


@pytest.mark.parametrize("name", REJECTED)
def test_ill_formed_program_is_rejected(name: str) -> None:
    body, message = REJECTED[name]
    params = {"symbolic": (NS,), "ranks": (WIDE,), "rank of a load": (A, WIDE)}.get(name, (A, B))
    with pytest.raises(VerifyError) as raised:
        verify(program(body, *params), lowered=False)
    text = str(raised.value)
    assert text.startswith("verify 'f'")
    assert text.endswith(message)


@pytest.mark.parametrize("name", LOWERED)
def test_unlowered_statements_are_rejected(name: str) -> None:
    body, message = LOWERED[name]
    with pytest.raises(VerifyError) as raised:
        verify(program(body))
    assert str(raised.value) == f"verify 'f' {message}"


def test_parameters_are_in_global_memory() -> None:
    with pytest.raises(VerifyError, match="parameter 't' must be in global memory, not local"):
        verify(program(BufferStore(LOCAL, ONE, (ZERO,)), LOCAL))


def test_outputs_have_no_value_at_first() -> None:
    body = loop(I, 16, BufferStore(B, B[I] + 1.0, (I,)))
    assert verify(program(body)) is not None
    with pytest.raises(VerifyError, match="buffer 'B' is read before anything is written to it"):
        verify(program(body, A, B, outputs=1))


GUARDED = call_intrin("if_then_else", I > 0, A[I - 1], ONE)

ACCEPTED = {
    "guarded load": loop(I, 16, BufferStore(B, GUARDED, (I,))),
    "under a condition": loop(I, 16, IfThenElse(I < 15, BufferStore(B, A[I + 1], (I,)))),
    "dependent extents": loop(
        I, 32, For(J, ZERO, const(16) - I, ForKind.SERIAL, BufferStore(B, ONE, (I,)))
    ),
    "disjoint tiles": loop(
        I, 4, loop(J, 4, BufferStore(B, A[I * 4 + J], (I * 4 + J,))), PARALLEL
    ),
    "even and odd": loop(
        I, 8, tir.seq(BufferStore(B, ONE, (I * 2,)), BufferStore(B, ONE, (I * 2 + 1,))), PARALLEL
    ),
    "own workspace": loop(
        I,
        16,
        Allocate(LOCAL, tir.seq(BufferStore(LOCAL, ONE, (ZERO,)), BufferStore(B, LOCAL[0], (I,)))),
        PARALLEL,
    ),
    "a cache that lowering moves inside": Allocate(
        LOCAL,
        loop(
            I,
            16,
            tir.seq(BufferStore(LOCAL, ONE, (ZERO,)), BufferStore(B, LOCAL[0], (I,))),
            PARALLEL,
        ),
    ),
    "one step": loop(I, 1, BufferStore(B, A[I], (ZERO,)), PARALLEL),
    "no step": loop(I, 0, BufferStore(B, A[I + 99], (I,))),
    "read what others do not write": loop(I, 8, BufferStore(B, B[I + 8], (I,)), PARALLEL),
    "a range of its own": loop(
        I, 2, For(J, I * 8, const(8), ForKind.SERIAL, BufferStore(B, ONE, (J,))), PARALLEL
    ),
    "a block that is a part of its loop": loop(
        I, 16, BlockRealize((), const(True), Block("C", (), BufferStore(B, A[I], (I,))))
    ),
    "a loop inside of a block": loop(
        I, 4, block(I, loop(J, 4, BufferStore(B, ONE, (J,))), 4)
    ),
    "first step alone": loop(
        I, 16, IfThenElse(I < 1, BufferStore(B, ONE, (ZERO,))), PARALLEL
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_well_formed_program_is_accepted(name: str) -> None:
    func = program(ACCEPTED[name])
    assert verify(func, lowered=False) is func


def test_line_is_that_of_the_text() -> None:
    func = program(loop(I, 16, tir.seq(COPY, BufferStore(B, A[I + 1], (I,)))))
    with pytest.raises(VerifyError, match="line 7 in loop 'i'"):
        verify(func)
    assert func.script().split("\n")[6].strip() == "B[i] = A[i + 1]"


def test_verified_at_any_depth() -> None:
    body: Stmt = BufferStore(B, ONE, (ZERO,))
    for n in range(10_000):
        body = LetStmt(Var(f"x{n}"), const(n), body)
    func = program(body)
    assert verify(func) is func
