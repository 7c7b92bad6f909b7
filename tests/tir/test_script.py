"""TVMScript: printed programs parse back, and handwritten ones are understood."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay, te, tir
from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Add, PrimExpr, Var, const, fold_binary
from ekiden.ir.structural import structural_equal
from ekiden.runtime.errors import ParseError
from ekiden.script import ir as I
from ekiden.script import tir as T
from ekiden.tir import Buffer, BufferStore, For, ForKind, PrimFunc, interpreter
from ekiden.tir.printer import print_with_lines
from ekiden.tir.transform import lower

HEADER = "# from ekiden.script import tir as T\n\n"


def parsed(text: str) -> PrimFunc:
    result = tir.parse(text)
    assert isinstance(result, PrimFunc)
    return result


def one_line(text: str) -> str:
    """Long lines are broken in other places than the printer would."""
    return " ".join(text.split()).replace("( ", "(").replace(", )", ")")


# What the language has, in the form in which it is printed.
TEXTS = {
    "blocks": """
@T.prim_func
def matmul(
    A: T.Buffer((128, 64), "float32"),
    B: T.Buffer((64, 32), "float32"),
    C: T.Buffer((128, 32), "float32"),
):
    T.func_attr({"num_outputs": 1})
    for i, j, k in T.grid(128, 32, 64):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            T.reads(A[vi, vk], B[vk, vj])
            T.writes(C[vi, vj])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""",
    "bindings": """
@T.prim_func
def f(A: T.Buffer((100,), "float32"), B: T.Buffer((100,), "float32")):
    for i_0, i_1 in T.grid(7, 16):
        with T.block("B"):
            vi = T.axis.spatial(100, i_0 * 16 + i_1)
            T.where(i_0 * 16 + i_1 < 100)
            T.reads(A[vi])
            T.writes(B[vi])
            T.block_attr({"tiles": (7, 16), "note": 'a"b', "inner": {"x": None, "y": (1,)}})
            B[vi] = A[vi]
""",
    "inner regions": """
@T.prim_func
def f(A: T.Buffer((32, 16), "float32"), B: T.Buffer((32, 16), "float32")):
    for i in range(8):
        with T.block("outer"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi * 4:vi * 4 + 4, 0:16])
            T.writes(B[vi * 4:vi * 4 + 4, 0:16])
            for j, k in T.grid(4, 16):
                with T.block("B"):
                    vj = T.axis.spatial(32, vi * 4 + j)
                    vk = T.axis.spatial(16, k)
                    T.reads(A[vj, vk])
                    T.writes(B[vj, vk])
                    B[vj, vk] = A[vj, vk]
""",
    "loops": """
@T.prim_func
def f(A: T.Buffer((64, 8), "float32")):
    for i in T.parallel(64, annotations={"grain": 4}):
        for j in T.vectorized(8):
            A[i, j] = 1.0
    for i in T.unroll(2):
        for j in range(3, 8):
            A[i, j] = 2.0
    for i in T.thread_binding(64, thread="blockIdx.x"):
        for j in T.serial(8, annotations={"pragma": "x"}):
            for k in T.serial(j, extent=8 - j):
                A[i, k] = 3.0
""",
    "symbols": """
@T.prim_func
def f(A_handle: T.handle, B: T.Buffer((4,), "float32")):
    T.func_attr({"tir.tiled": 1})
    n = T.int64(is_size_var=True)
    m = T.int64(is_size_var=True, upper=512)
    A = T.match_buffer(A_handle, (n, m * 4), "float32", scope="shared",
        strides=(m * 8, 1), elem_offset=m)
    for i in range(n):
        A[i, m - 1] = B[i % 4] * A[i, 0]
""",
    "statements": """
@T.prim_func
def f(A: T.Buffer((16,), "float32"), N: T.Buffer((), "int32")):
    assert N[()] > 3, "too few"
    assert N[()] < 9, ("ValueError", "too many")
    assert N[()] < 8, ("RunError", "{} is still too many, of {}", N[()], 8)
    total = T.alloc_buffer((1,), "float32", scope="register")
    total[0] = 0.0
    for i in range(16):
        x: T.float32 = A[i] * 2.0
        T.prefetch(A[i + 4], 2)
        if x > 0.0 and not A[i] == 3.0:
            total[0] = total[0] + x
        else:
            pass
    with T.LetStmt(total[0] / 4.0) as mean:
        A[0] = mean
    with T.alloc_buffer((2, 2), "int32", scope="local") as tile:
        tile[0, 1] = T.Cast("int32", A[2])
    T.evaluate(7)
    A[1] = T.float32("inf")
""",
    "expressions": """
@T.prim_func
def f(
    A: T.Buffer((16,), "float32"),
    J: T.Buffer((16,), "int32"),
    B: T.Buffer((16,), "bool"),
    H: T.Buffer((16,), "float16"),
):
    for i in range(16):
        A[i] = T.Select(i < 3 or B[i], T.exp(A[i]),
            T.max(A[i], 0.0) - T.min(A[i], T.float32("-inf")))
        A[i] = T.if_then_else(i > 0, A[i - 1], 0.5)
        J[i] = T.truncdiv(J[i], T.int32(3)) + J[i] // 3 % 2 - (J[i] - (1 - J[i]))
        J[i] = T.left_shift(J[i], T.int32(2)) * -1
        B[i] = (A[i] < 1.0) == (J[i] != 4)
        B[i] = True
        H[i] = H[i] * 2.0 + T.Cast("float16", A[i]) / (H[i] * H[i])
        A[i] = T.fma(A[i], 2.0, 1.0)
        J[T.Add(1, 2)] = T.Sub(T.int32(1), T.int32(2))
        B[i] = T.isnan(A[i])
        J[0] = 2147483647
""",
    "vectors": """
@T.prim_func
def f(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(4):
        B[T.Ramp(i * 16, 1, 16)] = A[T.Ramp(i * 16, 1, 16)] * T.Broadcast(2.0, 16)
        B.vstore([T.Ramp(0, 1, 8)], T.Broadcast(A[0], 8),
            predicate=T.Ramp(0, 1, 8) < T.Broadcast(5, 8))
        B[0] = T.VectorReduce("sum", A[T.Ramp(0, 2, 8)])
""",
    "private": """
@T.prim_func(private=True)
def main(A: T.Buffer((1,), "float32")):
    A[0] = 1.0
""",
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_every_construct_comes_back(name: str) -> None:
    func = parsed(TEXTS[name])
    text = func.script()
    assert structural_equal(parsed(text), func)
    assert parsed(text).script() == text
    assert one_line(text.removeprefix(HEADER)) == one_line(TEXTS[name])


@T.prim_func
def product(
    A: T.Buffer((4, 8), "float32"), B: T.Buffer((8, 3), "float32"), C: T.Buffer((4, 3), "float32")
) -> None:
    """Read as it stands here."""
    for i, j, k in T.grid(4, 3, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] += A[vi, vk] * B[vk, vj]


def test_decorated_function_is_the_program() -> None:
    assert isinstance(product, PrimFunc)
    assert product.name == "product"
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 8)).astype("float32"), rng.normal(size=(8, 3)).astype("float32")
    out = np.empty((4, 3), "float32")
    interpreter.run_prim_func(lower(product), a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)


def test_script_equals_te_program() -> None:
    a, b = te.placeholder((4, 8), name="A"), te.placeholder((8, 3), name="B")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((4, 3), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    result = te.create_prim_func([a, b, c], "product")
    assert structural_equal(product.with_fields(attrs=result.attrs), result)


def test_names_around_the_function_are_seen() -> None:
    size, scale, twice = 16, 3.0, True

    @T.prim_func
    def scaled(A: T.Buffer((size,), "float32"), B: T.Buffer((size,), "float32")) -> None:
        for i in range(size // 2):
            if twice:
                B[i] = A[i] * scale * 2.0
            else:
                B[i] = A[i]

    assert "B[i] = A[i] * 3.0 * 2.0" in scaled.script()
    assert "for i in range(8):" in scaled.script()


def test_program_written_for_tvm() -> None:
    """Handles, match_buffer with options, T.int32 sizes, a root block, regions as lists."""
    func = parsed("""
from tvm.script import tir as T

@T.prim_func
def main(a: T.handle, b: T.handle) -> None:
    T.func_attr({"global_symbol": "main", "tir.noalias": T.bool(True)})
    n = T.int64()
    A = T.match_buffer(a, [n, 128], dtype="float32", align=64, offset_factor=1)
    B = T.match_buffer(b, (n, 128), "float32")
    with T.block("root"):
        T.reads()
        T.writes()
        C = T.alloc_buffer([n, 128], dtype="float32")
        for i, j in T.grid(n, 128):
            with T.block("C"):
                vi = T.axis.S(n, i)
                vj = T.axis.S(128, j)
                T.reads([A[vi, vj]])
                T.writes([C[vi, vj]])
                C[vi, vj] = A[vi, vj] + T.float32(1)
        for i in T.serial(n):
            for j in T.serial(0, 128):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = T.max(C[vi, vj], T.float32(0))
""")
    assert func.attrs == {"global_symbol": "main", "tir.noalias": True}
    array = np.random.default_rng(0).normal(size=(5, 128)).astype("float32")
    out = np.empty_like(array)
    interpreter.run_prim_func(lower(func), array, out)
    np.testing.assert_array_equal(out, np.maximum(array + 1, 0))


def test_extreme_constants_round_trip() -> None:
    func = parsed("""
@T.prim_func
def f(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "int32")):
    A[0] = T.min_value("float32")
    A[1] = T.infinity("float32")
    B[0] = T.max_value("int32")
    B[1] = T.shift_left(B[0], T.int32(2))
    A[2] = T.power(A[0], 2.0)
""")
    assert "A[0] = -3.4028234663852886e+38" in func.script()
    assert "B[0] = 2147483647" in func.script()


def test_slices_are_vectors() -> None:
    func = parsed("""
@T.prim_func
def f(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(4):
        B[i * 16:i * 16 + 16] = A[i * 16:i * 16 + 16] * T.Broadcast(2.0, 16)
""")
    assert "B[T.Ramp(i * 16, 1, 16)] = A[T.Ramp(i * 16, 1, 16)]" in func.script()


def test_module_scripts_parse() -> None:
    @I.ir_module
    class Module:
        @T.prim_func
        def one(A: T.Buffer((1,), "float32")) -> None:  # type: ignore[no-untyped-def]
            A[0] = 1.0

        @T.prim_func
        def two(A: T.Buffer((1,), "float32")) -> None:  # type: ignore[no-untyped-def]
            A[0] = 2.0

    assert isinstance(Module, IRModule)
    text = """
from ekiden.script import ir as I, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def one(A: T.Buffer((1,), "float32")):
        A[0] = 1.0

    @T.prim_func
    def two(A: T.Buffer((1,), "float32")):
        A[0] = 2.0
"""
    assert structural_equal(tir.parse(text), Module)


def test_module_of_both_languages() -> None:
    x = relay.var("x", shape=(2,))
    functions = {"main": relay.Function([x], relay.op.add(x, x)), "product": product}
    module = IRModule(functions, attrs={"runtime": "vm"})
    text = module.script()
    assert "def product(" in text and 'I.relay("""' in text
    back = tir.parse(text)
    assert structural_equal(back, module)


def test_relay_functions_of_a_script_call_its_loop_programs() -> None:
    x = te.placeholder((4,), name="x")
    twice = te.create_prim_func([x, te.compute((4,), lambda i: x[i] * 2.0)])
    var, name = relay.var("y", shape=(4,)), GlobalVar("twice")
    body = relay.nn.relu(relay.Call(name, [var]))
    module = IRModule({name: twice, "main": relay.Function([var], body)})
    back = tir.parse(module.script())
    assert isinstance(back, IRModule) and structural_equal(back, module)
    result = ekiden.compile(back)(np.float32([-1, 0, 1, 2]))
    assert result.numpy().tolist() == [0, 0, 2, 4]


@pytest.mark.parametrize("name", ["x.1", "class", "a b", 'a"""b', "1", "", "\\n", "größe"])
def test_loop_programs_of_any_name_print_and_parse(name: str) -> None:
    """As those that shapes of a variable `x.1` are computed by."""
    func = te.create_prim_func([x := te.placeholder((4,)), te.compute((4,), lambda i: x[i] + 1)])
    module = IRModule({name: func, "plain": func})
    assert structural_equal(tir.parse(module.script()), module)
    assert str(module) == module.script()


def test_name_in_the_module_and_the_symbol_may_differ() -> None:
    again = parsed(product.script())
    module = IRModule({"other": product, "private": again.with_fields(attrs=None)})
    back = tir.parse(module.script())
    assert structural_equal(back, module)


def test_statements_have_source_spans() -> None:
    text, lines = print_with_lines(product)
    at = {type(s).__name__: text.split("\n")[line - 1].strip() for s, line in lines.items()}
    assert at["For"] == "for i, j, k in T.grid(4, 3, 8):"
    assert at["Block"] == 'with T.block("C"):'
    assert at["BufferStore"].startswith("C[vi, vj] = ")


# fmt: off
HEAD = '@T.prim_func\ndef f(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):\n'
REJECTED = [
    # the body of f, and the message without its source line
    ("    A[0] = x", "script:3:12: undefined name 'x'"),
    ("    A[0, 1] = 1.0", "script:3:5: buffer 'A' has 1 axes, got 2 indices"),
    ("    A[0] = T.foo(1)", "script:3:12: T has no 'foo'"),
    ("    A[0] = 'a'", "script:3:12: expected a scalar expression, got str 'a'"),
    ("    A[0] = A", "script:3:12: expected a scalar expression, got the buffer 'A'"),
    ("    A[0] = A[0] + T.int32(1)",
     "script:3:12: operands of '+' must have one dtype, got float32 and int32"),
    ("    for i in range(4):\n        A[i + 0.5] = 1.0",
     "script:4:11: expected int64, got the number 0.5"),
    ("    for i in range(4):\n        A[i / 2] = 1.0",
     "script:4:11: '/' of integers: write '//' (rounds down) or T.truncdiv"),
    ("    for i in [1, 2]:\n        A[i] = 1.0",
     "script:3:14: expected range(...), T.grid(...), T.serial(...), ..."),
    ("    for i, j in T.grid(4):\n        A[i] = 1.0",
     "script:3:5: T.grid has 1 extents for 2 variables"),
    ("    del a", "script:3:5: a prim_func has no such statement: delete"),
    ("    return A", "script:3:5: a prim_func has no such statement: return"),
    ("    with open('x'):\n        pass",
     "script:3:5: expected T.block, T.init, T.LetStmt or T.alloc_buffer"),
    ("    T.where(True)", "script:3:5: T.where stands in a block"),
    ("    with T.init():\n        pass", "script:3:5: T.init stands in a block"),
    ("    A[0] = T.exp(1.0, 2.0)", "script:3:12: T.exp takes 1 arguments, got 2"),
    ("    x = T.grid(4)", "script:3:5: T.grid gives no value"),
    ("    A[0] = T.grid(4)", "script:3:12: T.grid makes no expression"),
    ("    A[0] = (1.0", "script:3:12: '(' was never closed"),
    ("    x: int = 1", "script:3:8: expected a dtype such as T.int64, got <class 'int'>"),
    ("    A[0] = B[0](1)", "script:3:12: the expression 'B[0]' cannot be called"),
    ("    for i in range(16):\n        with T.block('b'):\n"
     "            vi = T.axis.remap('X', [i])\n            A[vi] = B[vi]",
     "script:5:13: an axis is S (spatial), R (reduce) or O (opaque), not 'X'"),
]
WARNED = [
    ("    for i in range(16):\n        with T.block('b'):\n            vi = T.axis.spatial(16, i)\n"
     "            T.reads(B[vi])\n            A[vi] = B[vi] + A[vi]",
     "script:6: block 'b' reads buffer 'A', which T.reads does not name"),
    ("    for i in range(15):\n        with T.block('b'):\n            vi = T.axis.spatial(15, i)\n"
     "            T.reads(B[vi])\n            A[vi] = B[vi + 1]",
     "script:6: block 'b' reads elements of 'B' outside the region that T.reads gives "
     "(read past its bounds)"),
]
# fmt: on


@pytest.mark.parametrize(("body", "message"), WARNED)
def test_regions_that_are_too_small_are_warned_of(body: str, message: str) -> None:
    with pytest.warns(UserWarning) as seen:
        result = tir.parse(HEAD + body + "\n")
    assert str(seen[0].message) == message
    assert isinstance(result, tir.PrimFunc) and "T.reads(B[" in result.script()


def test_axes_may_begin_anywhere() -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((32,), "int64")):
    for i in range(4):
        with T.block("a"):
            v = T.axis.S((8, 12), i + 8)
            A[v] = v
    for i in range(20, 24):
        with T.block("b"):
            v = T.axis.remap("S", [i])
            A[v] = v
"""
    func = tir.parse(text)
    assert isinstance(func, tir.PrimFunc)
    a = np.zeros(32, "int64")
    interpreter.run_prim_func(lower(func), a)
    expected = [i if 8 <= i < 12 or 20 <= i < 24 else 0 for i in range(32)]
    np.testing.assert_array_equal(a, expected)
    again = tir.parse(func.script())
    assert structural_equal(again, func)


@pytest.mark.parametrize(("body", "message"), REJECTED)
def test_parse_errors_point_at_the_source(body: str, message: str) -> None:
    with pytest.raises(ParseError) as raised:
        tir.parse(HEAD + body + "\n")
    text = str(raised.value).split("\n")
    assert text[0] == message
    line, column = map(int, message.split(":")[1:3])
    assert text[1] == (HEAD + body).split("\n")[line - 1]
    assert text[2] == " " * (column - 1) + "^"


def test_parameters_are_checked() -> None:
    with pytest.raises(ParseError, match="parameter 'A' needs a type"):
        tir.parse("@T.prim_func\ndef f(A):\n    pass\n")
    with pytest.raises(ParseError, match="the text defines no function"):
        tir.parse("")


def test_decorator_tells_the_line_of_the_file() -> None:
    with pytest.raises(ParseError, match=r"test_script\.py:\d+:20: undefined name 'nothing'"):

        @T.prim_func
        def wrong(A: T.Buffer((1,), "float32")) -> None:
            A[0] = nothing  # noqa: F821


def test_script_forms_are_refused_outside_scripts() -> None:
    with pytest.raises(TypeError, match="T.grid has a meaning only inside"):
        T.grid(1, 2)


def chain(length: int) -> PrimFunc:
    """A sum of many terms, leaning to the right (brackets) in one place and to the left in one."""
    a = Buffer("A", (const(4),))
    i = Var("i")
    left: PrimExpr = a[i]
    right: PrimExpr = a[i]
    for _ in range(length):
        left = fold_binary(Add, left, a[0])
        right = fold_binary(Add, a[0], right)
    store = BufferStore(a, fold_binary(Add, left, right), (i,))
    return PrimFunc((a,), For(i, const(0), const(4), ForKind.SERIAL, store), {"global_symbol": "f"})


def test_expressions_of_any_depth_print_and_parse() -> None:
    func = chain(3_000)
    assert structural_equal(parsed(func.script()), func)


def test_shared_parts_are_written_once() -> None:
    a = Buffer("A", (const(4),))
    value: PrimExpr = a[0]
    for _ in range(40):
        value = value * value + a[1]
    func = PrimFunc((a,), BufferStore(a, value, (const(0),)), None)
    text = func.script()
    assert len(text) < 10_000 and "T.meta_var(" in text
    assert structural_equal(parsed(text), func)


def test_part_that_statements_share_is_named_once() -> None:
    a = Buffer("A", (const(4),))
    long: PrimExpr = a[0]
    for n in range(40):
        long = long + a[n % 4]
    twice = BufferStore(a, long * long, (const(0),))
    func = PrimFunc((a,), tir.seq(twice, twice, BufferStore(a, long, (const(1),))), None)
    assert func.script().count("T.meta_var(") == 1
    assert structural_equal(parsed(func.script()), func)


def test_one_variable_bound_twice_is_two_in_the_text() -> None:
    a = Buffer("A", (const(4),))
    i = Var("i")
    loop = For(i, const(0), const(4), ForKind.SERIAL, BufferStore(a, const(1.0), (i,)))
    func = PrimFunc((a,), tir.seq(loop, loop), {"global_symbol": "f"})
    apart = tir.distinct(func)
    assert apart is not func and tir.distinct(apart) is apart
    assert structural_equal(func, apart)
    assert structural_equal(parsed(func.script()), func)


def test_store_converts_to_the_dtype_of_its_buffer() -> None:
    @T.prim_func
    def converted(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "int64")) -> None:
        for i in range(2):
            A[i] = B[i]
        A[T.Ramp(2, 1, 2)] = T.Broadcast(7, 2)

    a = ekiden.nd.array(np.zeros(4, "float32"))
    ekiden.build(converted, target="llvm")(a, ekiden.nd.array(np.array([3, 5, 0, 0])))
    assert a.numpy().tolist() == [3.0, 5.0, 7.0, 7.0]
    buffer = tir.decl_buffer((4,), "float32", name="A")
    with pytest.raises(TypeError, match="a store to 'A': it holds float32, not int64"):
        tir.BufferStore(buffer, tir.const(1, "int64"), (tir.const(0, "int64"),))


def test_scalable_loops_become_scalable_vectors() -> None:
    @T.prim_func
    def doubled(A: T.Buffer((25,), "float32"), B: T.Buffer((25,), "float32")) -> None:
        for i in T.vectorized(T.vscale() * 4):
            B[i] = A[i] * T.float32(2) + T.Cast("float32", i)

    module = ekiden.IRModule({"doubled": doubled})
    result = tir.transform.VectorizeLoop()(module)["doubled"]
    lanes = "T.vscale() * 4"
    index = f"T.Ramp(0, 1, {lanes})"
    value = f'A[{index}] * T.Broadcast(2.0, {lanes}) + T.Cast("float32xvscalex4", {index})'
    assert f"B[{index}] = {value}" in str(result)
    with pytest.raises(ekiden.CompileError, match="the number is known where it runs"):
        ekiden.build(doubled, target="llvm")


def test_notes_around_statements_are_kept_and_not_compiled() -> None:
    text = """@T.prim_func
def noted(A: T.Buffer((4,), "float32"), n: T.int64):
    with T.attr(A, "pragma_near", 1):
        A[0] = 1.0
    T.attr("default", "pragma_unroll", "all")
    for i in range(2):
        T.attr(i, "pragma_step", n + 1)
        A[i + 1] = 2.0
"""
    noted = tir.parse(text)
    assert text in str(noted)
    again = tir.parse(str(noted))
    assert structural_equal(again, noted)
    assert isinstance(noted, PrimFunc)
    lowered = lower(noted)
    assert "T.attr" not in str(lowered)
    a = ekiden.nd.array(np.zeros(4, "float32"))
    ekiden.build(noted, target="llvm")(a, 7)
    assert a.numpy().tolist() == [1, 2, 2, 0]
    out = np.zeros(4, "float32")
    interpreter.run_prim_func(noted, out, 7)
    assert out.tolist() == [1, 2, 2, 0]
    ib = tir.ir_builder.create()
    buffer = tir.decl_buffer((4,), name="A")
    ib.scope_attr(buffer, "storage_scope", "local")
    ib.buffer_ptr(buffer)[0] = 1.0
    result = ib.get()
    assert isinstance(result, tir.AttrStmt)
    assert result.attr_key == "storage_scope"
    sch = tir.Schedule(tir.parse(str(noted)))
    assert sch.func is not None


def test_number_is_stored_in_the_dtype_of_the_buffer() -> None:
    store = tir.BufferStore(tir.decl_buffer((4,), "int8"), 3, (0,))  # type: ignore[arg-type]
    assert store.value.dtype == "int8"


def test_numbers_in_statements() -> None:
    x, buffer = Var("x", "int32"), tir.decl_buffer((4,), name="A")
    store = BufferStore(buffer, 1, (2,))  # type: ignore[arg-type]
    result = tir.LetStmt(x, 3, tir.seq(store, tir.Evaluate(0)))  # type: ignore[arg-type]
    assert result.value.dtype == "int32"
    assert "A[2] = 1.0" in str(result)


def test_module_of_loop_programs_is_shown_as_them(capsys: pytest.CaptureFixture[str]) -> None:
    module = IRModule({"product": product})
    assert str(module) == repr(module) == module.script(show_meta=False)
    assert "@I.ir_module" in str(module) and "@T.prim_func" in str(module)
    module.show()
    assert capsys.readouterr().out == f"{module.script()}\n"
    assert str(IRModule()) == IRModule().astext(show_meta_data=False)


def test_name_that_has_no_value_yet_is_told_of() -> None:
    with pytest.raises(ParseError, match="undefined name 'Later'"):

        @I.ir_module
        class Later:
            @T.prim_func
            def main(A: T.Buffer((1,), "float32")) -> None:  # type: ignore[no-untyped-def]
                Later.helper(A)  # type: ignore[attr-defined]

        raise AssertionError(Later)


def test_older_scripts_declare_buffers_by_buffer_decl() -> None:
    text = '@T.prim_func\ndef f(A: T.{}((4,), "int32")):\n    A[0] = 1\n'
    old, new = (tir.parse(text.format(form)) for form in ("buffer_decl", "Buffer"))
    assert structural_equal(old, new)
