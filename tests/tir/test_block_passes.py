"""TVM's passes over blocks and loops, and calls in scripts."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.ir.op import register_op_attr
from ekiden.ir.prim import DeferredComparison, Select
from ekiden.ir.structural import structural_equal
from ekiden.runtime.errors import CompileError, ParseError, ScheduleError
from ekiden.tir import interpreter, transform
from ekiden.tir.expr import EqualOp

SUM = """
@T.prim_func
def f(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vk]
"""
INIT_LOWERED = """
@T.prim_func
def f(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            if vk == 0:
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vk]
"""
OPAQUE = """
@T.prim_func
def f(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("b"):
            if k == 0:
                B[i] = 0.0
            B[i] = B[i] + A[i, k]
"""
THREADS = """
@T.prim_func
def f(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4,), "float32")):
    for i in T.thread_binding(2, thread="blockIdx.x"):
        for j in T.thread_binding(2, thread="threadIdx.x"):
            B[i * 2 + j] = A[i, j]
        for k in T.thread_binding(2, thread="threadIdx.x"):
            B[i * 2 + k] = B[i * 2 + k] + A[i, k + 2]
"""
UNIFIED = """
@T.prim_func
def f(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4,), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(2, thread="threadIdx.x"):
            B[bx * 2 + tx] = A[bx, tx]
            B[bx * 2 + tx] = B[bx * 2 + tx] + A[bx, tx + 2]
"""
PARALLEL = """
@T.prim_func
def f(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4,), "float32")):
    for i in T.parallel(4):
        B[i] = A[i, 0]
"""


def parsed(text: str) -> tir.PrimFunc:
    """The function of a text."""
    result = tir.parse(text)
    assert isinstance(result, tir.PrimFunc)
    return result


# fmt: off
ROWS = [
    ("tir.LowerInitBlock",          SUM,          INIT_LOWERED),
    ("tir.ConvertBlocksToOpaque",   INIT_LOWERED, OPAQUE),
    ("tir.UnifyThreadBinding",      THREADS,      UNIFIED),
    ("tir.ConvertForLoopsToSerial", PARALLEL,     PARALLEL.replace("T.parallel", "range")),
    ("tir.ConvertSSA",              SUM,          SUM),
]
# fmt: on


@pytest.mark.parametrize(("name", "before", "after"), ROWS, ids=[row[0] for row in ROWS])
def test_block_pass_makes_expected_text(name: str, before: str, after: str) -> None:
    result = getattr(transform, name[4:])()(ekiden.IRModule({"f": parsed(before)}))["f"]
    result = result.with_attr("global_symbol", "f")
    assert structural_equal(result, parsed(after)), result
    a = np.arange(32, dtype="float32").reshape(4, 8)
    actual, expected = np.zeros(4, "float32"), np.zeros(4, "float32")
    interpreter.run_prim_func(transform.lower(result), a, actual)
    interpreter.run_prim_func(transform.lower(parsed(before)), a, expected)
    np.testing.assert_array_equal(actual, expected)


def test_block_passes_refuse_invalid_programs() -> None:
    with pytest.raises(ScheduleError, match="block 'b': its init must be lowered first"):
        transform.convert_blocks_to_opaque(parsed(SUM))
    other = THREADS.replace("k in T.thread_binding(2", "k in T.thread_binding(4")
    with pytest.raises(ScheduleError, match=r"threadIdx.x have the extents 2 and 4"):
        transform.unify_thread_binding(parsed(other))
    inner = THREADS.replace("for j in T.thread_binding(2", "for j in T.thread_binding(i + 1")
    inner = inner.replace('T.thread_binding(2, thread="blockIdx.x")', "range(4)")
    assert "thread" in transform.unify_thread_binding(parsed(inner)).script()


HEAD = """
@T.prim_func
def f(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32")):
"""
CALLS = [
    'T.call_extern("g", A.data, dtype="int32")',
    "T.tvm_fill_fragment(A.data, 16, 16, 16, 0, T.float32(0))",
    'T.call_packed("g", A.access_ptr("r", extent=128), T.address_of(B[1, 2]))',
    'T.call_packed("g", T.tvm_access_ptr(T.type_annotation("float32"), A.data, 16, 32, 3))',
    'T.tvm_call_packed("g", T.tvm_stack_make_array(A.data, T.tvm_stack_make_shape(16, 16), 0, 2,'
    " 0.0, 0))",
]


@pytest.mark.parametrize("call", CALLS)
def test_calls_print_and_come_back(call: str) -> None:
    func = parsed(HEAD + f"    T.evaluate({call})\n")
    assert structural_equal(parsed(func.script()), func)
    tir.verify(func, lowered=False)


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("call", CALLS[1:2])
def test_calls_that_no_generator_has(call: str, target: str) -> None:
    func = parsed(HEAD + f"    T.evaluate({call})\n")
    with pytest.raises(CompileError, match="no code generator has the call"):
        ekiden.build(func, target=target)


def test_addresses_of_something_else_are_refused() -> None:
    with pytest.raises(ParseError, match="holds float32"):
        parsed(HEAD + '    T.evaluate(T.tvm_access_ptr("int8", A.data, 0, 1, 1))\n')
    with pytest.raises(ParseError, match="has another shape or offset"):
        parsed(HEAD + "    T.evaluate(T.tvm_stack_make_array(A.data, (4,), 0, 1, 0.0, 0))\n")
    buffer = parsed(SUM).buffers[0]
    with pytest.raises(ValueError, match="a handle of single elements"):
        buffer.access_ptr("r", content_lanes=4)


@pytest.mark.parametrize("target", ["llvm", "c", "interpreter"])
def test_products_of_fixed_point_numbers(target: str) -> None:
    func = parsed("""
@T.prim_func
def f(X: T.Buffer((64,), "int32"), Y: T.Buffer((64,), "int32"), S: T.Buffer((64,), "int32"),
      O: T.Buffer((64,), "int32"), P: T.Buffer((64,), "int32")):
    for i in T.vectorized(64):
        O[i] = T.q_multiply_shift(X[i], Y[i], 31, S[i])
        P[i] = T.q_multiply_shift_per_axis(X[i], Y[i], 2, 3, 31, True, True)
""")
    rng = np.random.default_rng(0)
    x, y = rng.integers(-(2**28), 2**28, 64), rng.integers(0, 2**31 - 1, 64)
    s = rng.integers(-2, 6, 64)
    total = 31 + np.maximum(s, 0)
    first = ((x << np.maximum(-s, 0)) * y + (1 << (total - 1))) >> total
    second = ((x << 2) * y + (1 << 33)) >> 34
    inputs = [v.astype("int32") for v in (x, y, s)]
    result = [np.zeros(64, "int32"), np.zeros(64, "int32")]
    if target == "interpreter":
        interpreter.run_prim_func(transform.lower(func), *inputs, *result)
    else:
        ekiden.build(func, target=target)(*inputs, *result)
    np.testing.assert_array_equal(result[0], first.astype("int32"))
    np.testing.assert_array_equal(result[1], second.astype("int32"))


def test_index_expressions_widen() -> None:
    x, y, z = te.var("x"), te.var("y"), te.var("z", "int32")
    both = tir.Ramp(x, 1, 4) + y
    assert both.dtype == "int64x4" and (y * tir.Ramp(x, 1, 4)).dtype == "int64x4"
    assert Select(x > 0, x, z).dtype == "int64"
    with pytest.raises(TypeError, match="values must have one dtype, got int64 and float32"):
        Select(x > 0, x, te.var("w", "float32"))
    assert isinstance(x == y, EqualOp) and EqualOp is DeferredComparison


def test_anybody_may_name_an_intrinsic() -> None:
    register_op_attr("tir.of_somebody_else", "TCallEffectKind", 3)
    func = parsed(HEAD + '    T.evaluate(T.call_intrin("int32", "tir.of_somebody_else", A.data))\n')
    assert "of_somebody_else" in func.script()
    with pytest.raises(CompileError, match="no code generator has the call of_somebody_else"):
        ekiden.build(func, target="llvm")


def test_tag_scope_is_a_decorator() -> None:
    @te.tag_scope(tag="doubled")
    def double(a: te.Tensor) -> te.Tensor:
        result = te.compute(a.shape, lambda i: a[i] * 2.0)
        assert isinstance(result, te.Tensor)
        return result

    assert double(te.placeholder((4,))).op.tag == "doubled"


def test_conditions_of_the_surrounding_program_and_permissions() -> None:
    i = te.var("i")
    text = '@T.prim_func\ndef f(A: T.Buffer((4,), "int64")):\n    A[0] = T.Select(test, 1, 2)\n'
    func = tir.parse(text, {"test": i == 3})
    assert isinstance(func, tir.PrimFunc) and "i == 3" in func.script()
    assert "def other(" in func.script(name="other")
    options = {"tir.Simplify": {"transitively_prove_inequalities": True}}
    with ekiden.transform.PassContext(config=options):
        result = transform.Simplify()(ekiden.IRModule({"f": parsed(SUM)}))["f"]
    assert structural_equal(result.with_attr("global_symbol", "f"), parsed(SUM))
