"""ChangeBatch: types for another batch size, and programs without one."""

import pytest

from ekiden import IRModule, relay
from ekiden.relay.transform import ChangeBatch, InferType
from ekiden.runtime.errors import CompileError, TypeInferenceError

X = relay.var("x", shape=(2, 1, 3))
Y = relay.var("y", shape=(1, 3))


def module(body: relay.Expr) -> IRModule:
    return InferType()(IRModule.from_expr(relay.Function([X, Y], body)))


def test_all_types_follow() -> None:
    mod = module(relay.nn.relu(X) + Y)
    changed = ChangeBatch({X: 1, Y: 0}, 5)(mod)["main"].checked_type  # type: ignore[attr-defined]
    assert [k.concrete_shape for k in changed.arg_types] == [(2, 5, 3), (5, 3)]
    assert changed.ret_type.concrete_shape == (2, 5, 3)
    assert ChangeBatch({X: 1})(mod)["main"].checked_type.ret_type.concrete_shape == (2, 16, 3)  # type: ignore[attr-defined]


def test_batch_size_in_attributes_is_an_error() -> None:
    with pytest.raises(TypeInferenceError, match="reshape"):
        ChangeBatch({X: 1}, 5)(module(relay.reshape(X, (2, 3))))


def test_only_axes_of_parameters_change() -> None:
    with pytest.raises(CompileError, match="no function has the parameter"):
        ChangeBatch({relay.var("z", shape=(1,)): 0})(module(X))
    with pytest.raises(CompileError, match=r"%x: a tensor with axis 3, got Tensor\[\(2, 1, 3\)"):
        ChangeBatch({X: 3})(module(X))
