"""Shape functions of user operators, from data and from shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

from ekiden import IRModule, relay, te, tir
from ekiden.ir.op import OPS
from ekiden.runtime.errors import CompileError, InputError
from ekiden.te.hybrid import script

NUMBERS = count()
OPEN = relay.TensorType((relay.Any(),), "float32")


@pytest.fixture(autouse=True)
def _operators_of_a_test() -> Iterator[None]:
    """Operators of a program's own go with the test: others ask something of all that there are."""
    there = {*OPS}
    yield
    for name in OPS.keys() - there:
        del OPS[name]


def declare(args: int, compute: Callable[..., Any], result: relay.TensorType = OPEN) -> str:
    name = f"tests.own_{next(NUMBERS)}"
    output = relay.op.op.register(name, "An operator.")
    output.set_num_inputs(args)
    for n in range(args):
        output.add_argument(f"x{n}", "Tensor", "An argument.")
    output.add_type_rel(name, lambda types, attrs: result)
    relay.op.register_compute(name, compute)
    return name


def compiled(name: str, *args: relay.Var) -> Callable[..., Any]:
    call = relay.nn.relu(relay.Call(relay.op.get(name), args))
    return relay.create_executor("vm", mod=IRModule.from_expr(call)).evaluate()


@script
def _twice(n):  # noqa: ANN001, ANN202
    out = output_tensor((2,), "int64")  # noqa: F821
    out[0] = int64(n[0]) * int64(2)  # noqa: F821
    if n[0] > int64(5):  # noqa: F821
        out[0] = int64(5)  # noqa: F821
    for i in const_range(1):  # noqa: F821
        out[i + 1] = int64(3)  # noqa: F821
    return out


def test_shape_from_data() -> None:
    name = declare(
        1,
        lambda attrs, inputs, out: [
            te.compute(out.shape, lambda i, j: (inputs[0][0] + i * 3 + j).astype("float32"))
        ],
        relay.TensorType((relay.Any(), 3), "float32"),
    )
    seen = []

    @relay.op.register_shape_func(name, True)
    def shape(attrs: object, inputs: Sequence[te.Tensor], ranks: Sequence[int]) -> list[te.Tensor]:
        seen.append((attrs, list(ranks)))
        return [_twice(inputs[0])]

    run = compiled(name, relay.var("n", shape=(1,), dtype="int64"))
    for n, rows in ((2, 4), (0, 0), (9, 5)):
        expected = n + np.arange(rows * 3, dtype="float32").reshape(rows, 3)
        np.testing.assert_array_equal(run(np.array([n])).numpy(), expected)
    with pytest.raises(InputError, match=f"{name}: a dimension is negative; it is -2"):
        run(np.array([-1]))
    assert set(map(str, seen)) == {"(None, [2])"}


def test_shape_from_shapes() -> None:
    name = declare(
        2,
        lambda attrs, inputs, out: [te.compute(out.shape, lambda i: inputs[0][i] + inputs[1][i])],
    )
    relay.op.register_shape_func(
        name,
        False,
        lambda attrs, inputs, ranks: [
            te.compute((1,), lambda i: tir.min(inputs[0][i], inputs[1][i]))
        ],
    )
    run = compiled(name, *(relay.var(n, shape=(relay.Any(),)) for n in "ab"))
    result = run(np.ones(3, "float32"), np.ones(5, "float32"))
    np.testing.assert_array_equal(result.numpy(), [2, 2, 2])


def _sum(attrs: object, inputs: Sequence[te.Tensor], ranks: Sequence[int]) -> list[te.Tensor]:
    k = te.reduce_axis((0, 2), "k")
    return [te.compute((1,), lambda i: te.sum(inputs[0][k], axis=k))]


def _two(attrs: object, inputs: Sequence[te.Tensor], ranks: Sequence[int]) -> list[te.Tensor]:
    return [inputs[0], inputs[0]]


@pytest.mark.parametrize(
    ("shape_func", "message"),
    [(_sum, "may not reduce"), (_two, "gives 2 shapes for 1 results")],
)
def test_non_expressible_shape_functions_are_refused(shape_func: Any, message: str) -> None:  # noqa: ANN401
    name = declare(1, lambda attrs, inputs, out: [te.compute(out.shape, lambda i: inputs[0][i])])
    relay.op.register_shape_func(name, True, shape_func)
    with pytest.raises(CompileError, match=message):
        compiled(name, relay.var("n", shape=(2,), dtype="int64"))


def test_operators_of_ekiden_keep_theirs() -> None:
    with pytest.raises(ValueError, match="operator 'nn.relu' is Ekiden's"):
        relay.op.register_shape_func("nn.relu", False, _sum)
    with pytest.raises(KeyError, match="no operator 'tests.none'"):
        relay.op.register_shape_func("tests.none", False, _sum)
