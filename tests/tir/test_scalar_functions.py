"""TVM's scalar functions of `tir`, compiled, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.runtime.errors import CompileError
from ekiden.tir import stmt_functor

UNARY = {
    "exp2": np.exp2, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "atanh": np.arctanh, "exp10": lambda x: 10.0**x,
}  # fmt: skip


def evaluate(function: Callable[..., tir.PrimExpr], *arrays: np.ndarray) -> np.ndarray:
    """A function of elements, in vectors of 16 and one by one."""
    ins = [te.placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(arrays)]
    out = te.compute(arrays[0].shape, lambda i: function(*(x[i] for x in ins)), name="out")
    actual = []
    for is_vector in (True, False):
        s = te.create_schedule(out.op)
        if is_vector:
            s[out].vectorize(out.op.axis[0])
        result = ekiden.nd.array(np.zeros(arrays[0].shape, out.dtype))
        module = ekiden.build(s, [*ins, out], "llvm", name="f")
        module["f"](*map(ekiden.nd.array, arrays), result)
        actual.append(result.numpy())
    np.testing.assert_array_equal(*actual)
    return actual[0]


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unary_functions_match_numpy(name: str, dtype: str) -> None:
    x = np.linspace(0.01, 0.99, 37).astype(dtype)
    eps = np.finfo(dtype).eps
    expected = UNARY[name](x.astype(np.longdouble))
    np.testing.assert_allclose(evaluate(getattr(tir, name), x), expected, rtol=32 * eps, atol=eps)


def test_binary_functions_match_numpy() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40)).astype("float32")
    y[:4] = [0, -0.0, np.inf, -np.inf]
    x[4:6] = 0
    for function, reference in ((tir.hypot, np.hypot), (tir.copysign, np.copysign)):
        np.testing.assert_allclose(evaluate(function, x, y), reference(x, y), rtol=1e-6)
    finite = np.where(np.isfinite(y), y, 1).astype("float32")
    np.testing.assert_allclose(
        evaluate(tir.atan2, x, finite), np.arctan2(x, finite), rtol=1e-5, atol=1e-6
    )
    scale = rng.integers(-5, 5, 40).astype("int32")
    np.testing.assert_allclose(evaluate(tir.ldexp, x, scale), np.ldexp(x, scale), rtol=1e-6)
    assert evaluate(tir.isfinite, y).tolist() == np.isfinite(y).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_nextafter_matches_numpy_to_the_bit(dtype: str) -> None:
    largest, smallest = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    ends = [0.0, 1.0, largest, np.inf, smallest, np.nan]
    ends += [-value for value in ends]
    x, y = (a.ravel().astype(dtype) for a in np.meshgrid(ends, ends))
    with np.errstate(over="ignore", under="ignore"):  # steps to infinity and to subnormals
        expected = np.nextafter(x, y)
    computed = evaluate(tir.nextafter, x, y)
    np.testing.assert_array_equal(computed, expected)
    numbers = ~np.isnan(expected) & (x != y)  # of equal zeros NumPy takes the first in float16
    assert (np.signbit(computed) == np.signbit(expected))[numbers].all()


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_bitwise_functions_match_numpy(dtype: str) -> None:
    low = 0 if dtype.startswith("u") else -(2**20)
    x = np.append(np.random.default_rng(1).integers(low, 200, 30), [0, 1]).astype(dtype)
    bits = 8 * x.itemsize
    whole = [int(v) % 2**bits for v in x]
    assert evaluate(tir.popcount, x).tolist() == [v.bit_count() for v in whole]
    assert evaluate(tir.clz, x).tolist() == [bits - v.bit_length() for v in whole]
    assert evaluate(tir.bitwise_not, x).tolist() == (~x).tolist()


def test_divisions_and_folding() -> None:
    x, y = np.array([7, -7, 7, -7], "int32"), np.array([2, 2, -2, -2], "int32")
    assert evaluate(tir.truncdiv, x, y).tolist() == [3, -3, -3, 3]
    assert evaluate(tir.truncmod, x, y).tolist() == [1, -1, 1, -1]
    assert evaluate(tir.Mod, x, y).tolist() == [1, -1, 1, -1]
    assert evaluate(tir.ceildiv, x, np.abs(y)).tolist() == [4, -3, 4, -3]
    assert int(tir.max(2, 3)) == 3 and int(tir.floormod(-1, 4)) == 3
    n = tir.Var("n", "int32")
    assert tir.min(n, 1).dtype == "int32" and tir.exp(tir.Var("x", "float16")).dtype == "float16"


def test_reinterpret_refuses_another_size() -> None:
    x = np.array([1.0, -2.0], "float32")
    assert evaluate(lambda v: tir.reinterpret("int32", v), x).tolist() == x.view("int32").tolist()
    with pytest.raises(TypeError, match="two sizes"):
        tir.reinterpret("int64", tir.Var("x", "float32"))


def test_buffers_by_declaration() -> None:
    buffer = tir.decl_buffer((4, 3), "int8", name="b", strides=[8, 1], scope="local")
    assert (buffer.name, buffer.dtype, buffer.scope) == ("b", "int8", "local")
    assert isinstance(tir.decl_buffer(8, offset_factor=4).elem_offset, tir.Var)
    with pytest.raises(TypeError, match="address of another"):
        tir.decl_buffer(8, data=buffer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="auto_broadcast"):
        tir.decl_buffer(8, buffer_type="auto_broadcast")


def test_vectors_and_places_of_buffers() -> None:
    n = tir.Var("n")
    a = tir.decl_buffer((n, 8), "float32", "a", elem_offset=100)
    assert ekiden.structural_equal(a.offset_of([2, 3]), n * 0 + (tir.const(100) + 16 + 3))
    strided = tir.decl_buffer((4, n), strides=[n + 1, 1])
    assert ekiden.structural_equal(strided.offset_of([1, 2]), n + 1 + 2)
    load = a.vload([1, 4], "float32x4")
    assert load.dtype == "float32x4" and load.indices[1].dtype == "int64x4"
    assert a.vload([1, 4]).dtype == "float32"
    store = a.vstore([0, 0], load + load)
    assert isinstance(store, tir.BufferStore) and "T.Ramp(0, 1, 4)" in store.astext()
    with pytest.raises(TypeError, match="holds float32, not int32"):
        a.vload([0, 0], "int32")


def test_visitors_and_mutators_work() -> None:
    a = tir.decl_buffer((8,), name="a")
    i, n = tir.Var("i"), tir.Var("n")
    store = tir.BufferStore(a, a[i] + 1.0, (i,))
    loop = tir.For(i, tir.const(0), n, tir.ForKind.SERIAL, store)
    seen: list[object] = []
    stmt_functor.post_order_visit(loop, seen.append)
    assert [type(s).__name__ for s in seen[-2:]] == ["BufferStore", "For"]
    assert sum(s is i for s in seen) == 1
    replaced = stmt_functor.substitute(loop, {n: 5})
    assert int(replaced.extent) == 5  # type: ignore[union-attr]

    def negate(node: object) -> tir.PrimExpr | None:
        return node - 1.0 if isinstance(node, tir.BufferLoad) else None

    changed = stmt_functor.ir_transform(loop, None, negate, ["tir.BufferLoad"])
    assert "a[i] - 1.0" in changed.astext()
    gone = stmt_functor.ir_transform(
        loop, lambda s: tir.Evaluate(n) if isinstance(s, tir.For) else None, None
    )
    assert isinstance(gone, tir.Evaluate)


def test_operators_on_bits() -> None:
    x, y = np.array([12, -7, 1], "int32"), np.array([1, 2, 3], "int32")
    assert (
        evaluate(lambda a, b: (a << b) ^ (a >> b), x, y).tolist() == ((x << y) ^ (x >> y)).tolist()
    )
    assert evaluate(lambda a, b: (a & 6) | b, x, y).tolist() == ((x & 6) | y).tolist()
    with pytest.raises(TypeError, match="integers of one dtype"):
        tir.Var("x", "float32") & 1


def test_passes_over_loop_programs() -> None:
    a = tir.decl_buffer((1,), "int32", "a")
    func = tir.PrimFunc((a,), tir.BufferStore(a, tir.const(1, "int32"), (tir.const(0),)))
    mod = ekiden.IRModule({"one": func, "two": func.with_attr("kept", 1)})

    @tir.transform.prim_func_pass(opt_level=0)
    class Mark:
        def transform_function(
            self, f: tir.PrimFunc, mod: ekiden.IRModule, ctx: object
        ) -> tir.PrimFunc:
            return f.with_attr("marked", 1)

    assert all(f.attr("marked") == 1 for f in Mark()(mod).functions.values())
    kept = tir.transform.Filter(lambda f: f.attr("kept") == 1)(mod)
    assert [g.name_hint for g in kept.functions] == ["two"]
    applied = tir.transform.Apply(lambda f: f.without_attr("kept"))(mod)
    assert applied["two"].attr("kept") is None
    bound = tir.transform.BindTarget(ekiden.target.Target("llvm"))(mod)
    assert str(bound["one"].attr("target")).startswith("llvm")
    assert func.buffer_map[func.params[0]] is a


def test_scalable_vectors_are_written_and_read() -> None:
    x, lanes = te.var("x"), tir.vscale() * 4
    result = tir.Ramp(x, 1, lanes) + 3
    assert result.dtype == "int64xvscalex4" and (result < 5).dtype == "boolxvscalex4"
    assert str(result) == "T.Ramp(x, 1, T.vscale() * 4) + T.Broadcast(3, T.vscale() * 4)"
    assert ekiden.ir.structural_equal(tir.Ramp(x, 1, 4 * tir.vscale()), tir.Ramp(x, 1, lanes))
    assert not ekiden.ir.structural_equal(tir.Ramp(x, 1, lanes), tir.Ramp(x, 1, tir.vscale() * 8))
    assert ekiden.ir.structural_equal(ekiden.ir.load_json(ekiden.ir.save_json(lanes)), lanes)
    for wrong in (tir.vscale(), tir.vscale() + 3):
        with pytest.raises(TypeError, match="expected a number or vscale\\(\\) times one"):
            tir.Broadcast(0, wrong)
    with pytest.raises(
        ekiden.CompileError, match="int64xvscalex4: the number is known where it runs"
    ):
        tir.broadcast(result, 4)
    text = """@T.prim_func
def f(a: T.Buffer((64,), "float32")):
    a[T.Ramp(0, 1, T.vscale() * 4)] = T.Broadcast(1.0, T.vscale() * 4)
"""
    again = tir.parse(text)
    assert again.body.value.dtype == "float32xvscalex4"
    assert ekiden.ir.structural_equal(tir.parse(again.script()), again)
    with pytest.raises(ekiden.CompileError, match="the number is known where it runs"):
        ekiden.build(again, target="llvm")


def test_operands_are_brought_to_one_dtype_as_tvm_does() -> None:
    x, f = te.var("x", "int32"), te.var("f", "float32")
    assert str(f * x) == str(x.astype("float32") * f).replace(
        'T.Cast("float32", x) * f', 'f * T.Cast("float32", x)'
    )
    assert te.var("b", "uint1").dtype == "bool" and x.astype("uint1x2").dtype == "boolx2"
    with pytest.raises(TypeError, match="must have one dtype, got float32 and float64"):
        f + te.var("d", "float64")
    result = tir.call_intrin("int32", "tir.shift_left", x, 3)
    assert result.op == "left_shift" and tir.op.call_intrin is tir.call_intrin
    assert x.astype("float32x4").type_key == "tir.Broadcast"


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (256, "uint8"), (-1, "uint8"), (128, "int8"), (-129, "int8"), (2**31, "int32"),
        (2**64, "uint64"), (-1, "uint64"), (8, "int4"), (65505.0, "float16"), (3.5e38, "float32"),
    ],
)  # fmt: skip
def test_constant_is_a_number_of_its_dtype(number: float, dtype: str) -> None:
    with pytest.raises(ekiden.EkidenError, match=f"const {number}.*{dtype}".replace("+", ".")):
        tir.const(number, dtype)


def test_numbers_fold_as_machines_compute() -> None:
    one = tir.const(1, "uint8")
    assert int(tir.const(255, "uint8") + one) == 0 and int(tir.const(0, "uint8") - one) == 255
    assert int(tir.const(2**31 - 1, "int32") + tir.const(1, "int32")) == -(2**31)
    # sizes are int64: they do not begin anew, so that what is too large is found to be
    assert int(tir.const(-(2**63), "int64") - tir.const(1, "int64")) == -(2**63) - 1
    assert int(tir.const(7, "int4") * tir.const(3, "int4")) == 5
    assert tir.const(float("inf"), "float16").value == float("inf")
    assert tir.max(1, 5, 2, 4) == 5 and tir.min(*range(3, 9)) == 3


def test_halves_of_a_vector() -> None:
    data = tir.decl_buffer((8,), "int8", name="data")
    argument = tir.Var("given", "int8x8")
    out = tir.decl_buffer((8,), "int8", name="out")
    halves = [tir.vectorhigh("int8x4", argument), tir.vectorlow("int8x4", argument)]
    turned = tir.BufferStore(out, tir.vectorcombine("int8x8", *halves), (tir.Ramp(0, 1, 8),))
    body = tir.LetStmt(argument, data.vload(0, "int8x8"), turned)
    func = tir.PrimFunc((data, out), body, {"global_symbol": "turned"})
    assert str(tir.parse(str(func))) == str(func)
    result = ekiden.nd.array(np.zeros(8, "int8"))
    ekiden.build(func, target="llvm")["turned"](ekiden.nd.array(np.arange(8, dtype="int8")), result)
    assert result.numpy().tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    unnamed = func.with_fields(body=tir.BufferStore(out, turned.value, (tir.Ramp(0, 1, 8),)))
    whole = {argument: data.vload(0, "int8x8")}
    unnamed = unnamed.with_fields(body=stmt_functor.substitute(unnamed.body, whole))
    with pytest.raises(CompileError, match="name the vectors first"):
        ekiden.build(unnamed, target="c")
    with pytest.raises(TypeError, match="int8x2 is not half of a vector of int8x8"):
        tir.vectorlow("int8x2", argument)
    with pytest.raises(TypeError, match="two halves of int8x8 expected"):
        tir.vectorcombine("int8x8", argument, argument)


def test_operator_of_a_call_has_its_name_in_the_registry() -> None:
    x = tir.Var("x", "int32")
    for result, name in [
        (tir.exp(x.astype("float32")), "tir.exp"),
        (tir.shift_left(x, x), "tir.shift_left"),
        (tir.ptx_mma("float32", "m8n8k4", "row", "col"), "tir.ptx_mma"),
        (tir.Call("int32", "tir.likely", [x]), "tir.likely"),
        (tir.address_of(tir.decl_buffer((4,))[x]), "tir.address_of"),
        (tir.decl_buffer((4,)).access_ptr("r"), "tir.tvm_access_ptr"),
    ]:
        assert result.op.name == name
        assert result.op.same_as(ekiden.ir.Op.get(name))
        assert not result.op.same_as(ekiden.ir.Op.get("tir.abs"))
        again = ekiden.ir.load_json(ekiden.ir.save_json(result))
        assert again.op.name == name


def test_values_are_looked_at_while_a_program_runs() -> None:
    seen: list[tuple[float, ...]] = []

    @ekiden.register_func("test.look")
    def look(*values: float) -> float | None:
        seen.append(values)
        return -1.0 if values[0] == 2 else None

    x = te.placeholder((4,), "float32", "x")
    y = te.compute((4,), lambda i: tir.trace([i, x[i]], "test.look") + 1.0, name="y")
    f = ekiden.build(te.create_schedule(y.op), [x, y], "llvm", name="f")
    result = ekiden.nd.array(np.zeros(4, "float32"))
    f["f"](ekiden.nd.array(np.array([0.5, 1.5, 2.5, 3.5], "float32")), result)
    assert seen == [(0, 0.5), (1, 1.5), (2, 2.5), (3, 3.5)]
    assert result.numpy().tolist() == [1.5, 2.5, 0.0, 4.5]
    with pytest.raises(ValueError, match="trace: a list of values expected"):
        tir.trace(x[0])  # type: ignore[arg-type]


def test_name_in_an_expression_is_its_value() -> None:
    x, y = tir.Var("x", "int32"), tir.Var("y", "int32")
    assert str(tir.Let(x, y * 10, x + 1)) == "y * 10 + 1"
    with pytest.raises(TypeError, match="Let: x is int32, its value float32"):
        tir.Let(x, tir.const(1.0, "float32"), x)


FRACTIONS: dict[str, tuple[Callable[[tir.PrimExpr], tir.PrimExpr], Callable[[float], float]]] = {
    "product": (lambda x: 1 - x * 0.25, lambda x: 1 - x * 0.25),
    "quotient": (lambda x: x / 2.0, lambda x: x / 2),
    "largest": (lambda x: te.max(x, 2.5), lambda x: max(x, 2.5)),
    "root": (lambda x: tir.power(x, 0.5), lambda x: x**0.5),
    "compared": (lambda x: te.if_then_else(x < 2.5, 0.5, x), lambda x: 0.5 if x < 2.5 else x),
    "chosen": (lambda x: te.if_then_else(x < 2, x, 0), lambda x: x if x < 2 else 0),
    "wider": (
        lambda x: te.if_then_else(x < 2, x, x.astype("float32") / 2),
        lambda x: x if x < 2 else x / 2,
    ),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in FRACTIONS
        for dtype in ("int8", "int64", "uint16", "float64")
        if (name, dtype) != ("wider", "float64")  # floats of two widths are refused
    ],
)
def test_fractions_beside_integers_are_not_cut_off(name: str, dtype: str) -> None:
    """`x * 0.25` of integers was x * 0."""
    function, reference = FRACTIONS[name]
    data = te.placeholder((4,), dtype, name="data")
    tensor = te.compute((4,), lambda i: function(data[i]), name="made")
    run = ekiden.build(te.create_schedule(tensor.op), [data, tensor], "llvm")
    numbers, out = np.arange(4).astype(dtype), ekiden.nd.array(np.zeros(4, tensor.dtype))
    run(ekiden.nd.array(numbers), out)
    expected = [reference(float(x)) for x in numbers]
    np.testing.assert_allclose(out.numpy(), np.array(expected, tensor.dtype), rtol=1e-6)


def test_fractions_beside_what_they_cannot_meet_are_refused() -> None:
    i, flag = te.var("i", "int32"), te.var("flag", "bool")
    for make in (
        lambda: tir.Select(i < 2, i, 0.5),
        lambda: i << 1.5,
        lambda: tir.Add(i, 0.5),
        lambda: flag * 0.5,
        lambda: te.if_then_else(i < 2, flag, 0.5),
    ):
        with pytest.raises(TypeError, match="one dtype"):
            make()


def test_bounds_of_a_loop_may_be_numbers() -> None:
    i = tir.Var("i", "int32")
    loop = tir.For(i, 0, 8, tir.ForKind.VECTORIZED, tir.Evaluate(i))
    assert isinstance(loop.extent, tir.IntImm) and loop.extent.dtype == "int32"
    result: list[object] = []
    stmt_functor.post_order_visit(loop, result.append)
    assert loop.extent in result
