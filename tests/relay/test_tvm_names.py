"""Helper functions of TVM's API."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay, te
from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.name_supply import GlobalVarSupply, NameSupply
from ekiden.ir.op import Array
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.qnn.op import canonicalizations, dequantize, quantize
from ekiden.topi.utils import get_const_int, get_const_tuple


def test_fresh_names_avoid_collisions() -> None:
    names = NameSupply("prefix")
    assert names.fresh_name("f") == "prefix_f" and names.fresh_name("f") == "prefix_f_1"
    names.reserve_name("g_1")
    assert names.contains_name("g_1") and not names.contains_name("g_1", add_prefix=False)
    assert [names.fresh_name("g") for _ in range(3)] == ["prefix_g", "prefix_g_2", "prefix_g_3"]


def test_fresh_global_vars_avoid_collisions() -> None:
    module = IRModule()
    module["f"] = relay.Function([], relay.const(1))
    supply = GlobalVarSupply(module)
    known = module.get_global_var("f")
    assert supply.unique_global_for("f") is known
    assert supply.fresh_global("f").name_hint == "f_1"
    with pytest.raises(ValueError, match="reserve global: @f is another variable already"):
        supply.reserve_global(GlobalVar("f"))


def test_constant_dimensions_convert_to_int() -> None:
    n = te.var("n", "int64")
    result = get_const_tuple((te.placeholder((3, 4)).shape[0], 5, n + 0, n))
    assert result[:2] == (3, 5) and result[2] is n and result[3] is n
    with pytest.raises(ValueError, match="get_const_int: n is not known"):
        get_const_int(n)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_integer_lookup_tables_match_functions(dtype: str) -> None:
    info = np.iinfo(dtype)
    numbers = np.arange(info.min, info.max + 1).astype(dtype)
    steps = relay.const(np.float32(0.05)), relay.const(np.int32(3))
    out = relay.const(np.float32(1 / 128)), relay.const(np.int32(-1))
    result = canonicalizations.create_integer_lookup_op(
        relay.const(numbers), np.tanh, *steps, *out, in_dtype=dtype, out_dtype="int8"
    )
    x = relay.var("x", shape=numbers.shape, dtype=dtype)
    plain = quantize(relay.tanh(dequantize(x, *steps)), *out)
    actual: Array = np.asarray(Interpreter().evaluate(relay.Function([], result)))
    expected = np.asarray(Interpreter().evaluate(relay.Function([x], plain), numbers))
    assert np.abs(actual.astype(int) - expected.astype(int)).max() <= 1  # tanh of NumPy and ours


def test_operators_between_integers_are_counted() -> None:
    x = relay.var("x", shape=(2, 4), dtype="int8")
    zero, one = relay.const(np.int32(0)), relay.const(np.float32(1))
    region = quantize(relay.nn.relu(relay.exp(dequantize(x, one, zero))), one, zero)
    body = relay.sigmoid(dequantize(region, one, zero))
    result = relay.analysis.list_fake_quantized_op_freqs(IRModule.from_expr(body))
    assert result == {"exp": 1, "nn.relu": 1}


def test_constants_of_the_dialect_fold() -> None:
    call = quantize(relay.const([1.0, 2.6]), relay.const(np.float32(1)), relay.const(np.int32(3)))
    folded = relay.transform.FoldConstant(fold_qnn=True)(IRModule.from_expr(call))["main"]
    assert isinstance(folded, relay.Function) and isinstance(folded.body, relay.Constant)
    assert folded.body.data.tolist() == [4, 6]
    kept = relay.transform.FoldConstant()(IRModule.from_expr(call))["main"]
    assert isinstance(kept, relay.Function) and isinstance(kept.body, relay.Call)


def test_operators_of_the_dialect_stand_beside_their_module() -> None:
    assert relay.qnn.requantize is relay.qnn.op.requantize is relay.qnn.op.qnn.requantize


def test_dtype_aliases() -> None:
    """TVM's "float" is float32: NumPy's would be float64."""
    one = relay.const(np.array([1, 2], np.int32))
    result = [
        (relay.cast(one, "float"), "float32"),
        (relay.ones((2,), "float"), "float32"),
        (relay.arange(relay.const(2), dtype="int"), "int32"),
        (relay.full(relay.const(1.0), (2,), "uint1"), "bool"),
    ]
    function = relay.Function([], relay.Tuple([e for e, _ in result]))
    folded = relay.transform.FoldConstant()(
        relay.transform.InferType()(IRModule.from_expr(function))
    )
    assert [f.data.dtype for f in folded["main"].body.fields] == [name for _, name in result]


@pytest.mark.quick
def test_packages_do_not_shadow_operators() -> None:
    """`relay.std` was the folder of the standard library, and no call of it ran."""
    names = (item for item in relay.op.__all__ if callable(getattr(relay.op, item)))
    assert [item for item in names if not callable(getattr(relay, item))] == []
    x = relay.var("x", shape=(2, 4))
    result = Interpreter().evaluate(
        relay.Function([x], relay.std(x, 1)), np.eye(2, 4, dtype="float32")
    )
    np.testing.assert_allclose(np.asarray(result), np.full(2, 3**0.5 / 4), rtol=1e-6)
