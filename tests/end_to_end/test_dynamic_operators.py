"""Operators with data-dependent output shapes: compiled, interpreted, and in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.op import OPS
from ekiden.relay import op
from ekiden.relay.op.dynamic import DynamicAttrs, call_dynamic
from ekiden.runtime.errors import InputError
from long_runs import share


def numbers(*shape: int) -> np.ndarray:
    """float32, none equal to another."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 37 % 101).reshape(shape) / 8).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    """int64"""
    return np.array(values, np.int64)


def scalar(value: object, dtype: str = "int32") -> np.ndarray:
    """A tensor of rank 0."""
    return np.array(value, dtype)


@dataclass(frozen=True)
class Case:
    """A call on variables, and runs: arguments and the result."""

    name: str
    call: Callable[..., relay.Expr]
    meaning: Callable[..., object]
    runs: Sequence[tuple[np.ndarray, ...]]


def _slice(x: np.ndarray, b: np.ndarray, e: np.ndarray, s: np.ndarray) -> np.ndarray:
    return x[tuple(slice(*t) for t in zip(b.tolist(), e.tolist(), s.tolist(), strict=True))]


def _top(x: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-x, 1, kind="stable")[:, : int(k) if k >= 1 else None]
    return np.take_along_axis(x, order, 1), order.astype(np.int32)


def _padded(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.pad(x, w, constant_values=v.item())


X = numbers(4, 6)
CASES = [
    Case(
        "dyn.reshape",
        lambda x, s: op.reshape(x, s),
        lambda x, s: x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(s)]),
        [(X, ints(2, -1)), (X, ints(0, 6)), (X, ints(24, 1)), (numbers(0, 6), ints(0, 3)),
         (numbers(0, 6), ints(-1, 6)), (X, ints(-1, 0))],
    ),
    Case(
        "dyn.expand_dims",
        lambda x, a: op.expand_dims(x, a),
        lambda x, a: np.expand_dims(x, int(a)),
        [(X, scalar(0)), (X, scalar(1)), (X, scalar(2)), (X, scalar(-1))],
    ),
    Case(
        "dyn.squeeze",
        lambda x, a: op.squeeze(x, a),
        lambda x, a: np.squeeze(x, tuple(a)),
        [(numbers(1, 3, 1, 2), ints(0, 2)), (numbers(1, 3, 2, 1), ints(-1, 0)),
         (numbers(4, 1, 1, 2), ints(1, 2))],
    ),
    Case(
        "dyn.full",
        lambda v, s: op.full(v, s),
        lambda v, s: np.full(s, v),
        [(scalar(2.5, "float32"), ints(2, 3)), (scalar(1.5, "float32"), ints(0, 3))],
    ),
    Case("dyn.zeros", lambda s: op.zeros(s, "int32"), lambda s: np.zeros(s, np.int32),
         [(ints(2, 3),), (ints(5, 0),)]),
    Case("dyn.ones", lambda s: op.ones(s, "float32"), lambda s: np.ones(s, np.float32),
         [(ints(3),), (ints(0),), (ints(1000),)]),
    Case(
        "dyn.arange",
        lambda a, b, c: op.arange(a, b, c, dtype="int32"),
        lambda a, b, c: np.arange(a, b, c, dtype=np.int32),
        [(scalar(1), scalar(10), scalar(3)), (scalar(10), scalar(-3), scalar(-4)),
         (scalar(3), scalar(3), scalar(1)), (scalar(5), scalar(0), scalar(2))],
    ),
    Case(
        "dyn.arange",
        lambda b: op.arange(0.5, b, 0.25, dtype="float32"),
        lambda b: np.arange(0.5, b, 0.25, dtype=np.float32),
        [(scalar(2.1, "float32"),), (scalar(0.5, "float32"),), (scalar(3.0, "float32"),)],
    ),
    Case(
        "dyn.broadcast_to",
        lambda x, s: op.broadcast_to(x, s),
        lambda x, s: np.broadcast_to(x, tuple(s)),
        [(numbers(1, 3), ints(2, 5, 3)), (numbers(4, 1), ints(1, 4, 1)),
         (numbers(1, 1), ints(2, 0, 7))],
    ),
    Case(
        "dyn.tile",
        lambda x, s: op.tile(x, s),
        lambda x, s: np.tile(x, tuple(s)),
        [(X, ints(2, 1, 3)), (X, ints(0, 1, 1)), (numbers(0, 2), ints(1, 2, 2))],
    ),
    Case(
        "dyn.nn.pad",
        lambda x, w, v: op.nn.pad(x, w, v),
        _padded,
        [(X, ints(1, 2, 0, 3).reshape(2, 2), scalar(7, "float32")),
         (numbers(0, 2), ints(1, 0, 0, 0).reshape(2, 2), scalar(7, "float32"))],
    ),
    *(
        Case(
            "dyn.nn.pad",
            lambda x, w, v: op.nn.pad(x, w, v),
            _padded,
            [(X.astype(dtype), ints(1, 2, 0, 3).reshape(2, 2), scalar(7, "float32"))],
        )
        for dtype in ("float64", "int8")
    ),
    Case(
        "dyn.nn.pad",
        lambda x, w: op.nn.pad(x, w, pad_mode="reflect"),
        lambda x, w: np.pad(x, w, mode="reflect"),
        [(X, ints(1, 2, 0, 3).reshape(2, 2)), (X, ints(0, 0, 0, 0).reshape(2, 2))],
    ),
    Case(
        "dyn.nn.pad",
        lambda x, w: op.nn.pad(x, w, pad_mode="wrap"),
        lambda x, w: np.pad(x, w, mode="wrap"),
        [(X, ints(1, 2, 0, 3).reshape(2, 2)), (X, ints(0, 0, 0, 0).reshape(2, 2))],
    ),
    Case(
        "dyn.strided_slice",
        lambda x, b, e, s: op.strided_slice(x, b, e, s),
        _slice,
        [(X, ints(1, 0), ints(4, 5), ints(1, 2)), (X, ints(-1, -2), ints(-4, 0), ints(-1, -1)),
         (X, ints(3, 9), ints(2, 9), ints(1, 1)), (X, ints(-99, 0), ints(99, -1), ints(3, 1))],
    ),
    Case(
        "dyn.strided_slice",
        lambda x, b, e: op.strided_slice(x, b, e, axes=(1,)),
        lambda x, b, e: x[:, int(b[0]) : int(e[0])],
        [(X, ints(1), ints(4)), (X, ints(2), ints(-1)), (X, ints(4), ints(4))],
    ),
    Case(
        "dyn.strided_slice",
        lambda x, b, e: op.strided_slice(x, b, e, slice_mode="size"),
        lambda x, b, e: x[b[0] : b[0] + e[0], b[1] : None if e[1] < 0 else b[1] + e[1]],
        [(X, ints(1, 1), ints(2, -1)), (X, ints(0, 2), ints(0, 3))],
    ),
    Case(  # lists that are shorter than the others
        "dyn.strided_slice",
        lambda x, b, s: op.strided_slice(x, b, (3,), s),
        lambda x, b, s: x[b[0] : 3 : s[0], :: s[1]],
        [(X, ints(1), ints(1, 2)), (X, ints(-4), ints(2, -1))],
    ),
    Case(
        "dyn.strided_slice",
        lambda x, b, e: op.strided_slice(x, b, e, slice_mode="size"),
        lambda x, b, e: x[b[0] : None if e[0] < 0 else 4 + b[0] + e[0], b[1] :],
        [(X, ints(-3, 1), ints(2)), (X, ints(-2, 0), ints(9)), (X, ints(-1, 5), ints(-1))],
    ),
    Case(
        "dyn.one_hot",
        lambda i, d: op.one_hot(i, relay.const(3.0), relay.const(1.0), d, 0),
        lambda i, d: np.where(np.arange(d)[:, None] == i, 3, 1).astype(np.float32),
        [(ints(0, 2, 5), scalar(4)), (ints(1, 1, 9), scalar(0))],
    ),
    Case(
        "dyn.image.resize2d",
        lambda x, s: op.image.resize2d(
            x, s, method="nearest_neighbor", coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        lambda x, s: x[:, :, np.arange(s[0]) * 2 // s[0]][..., np.arange(s[1]) * 3 // s[1]],
        [(numbers(1, 2, 2, 3), ints(4, 6)), (numbers(1, 2, 2, 3), ints(2, 3)),
         (numbers(1, 2, 2, 3), ints(1, 9))],
    ),
    Case(
        "dyn.image.resize3d",
        lambda x, d, h, w: op.nn.upsampling3d(
            x, d, h, w, coordinate_transformation_mode="asymmetric"
        ),
        lambda x, d, h, w: x.repeat(int(d), 2).repeat(int(h), 3).repeat(int(w), 4),
        [tuple(np.float32(f) if f is not x else f for f in (x, *factors))
         for x, *factors in ((numbers(1, 2, 2, 3, 2), 2, 1, 3), (numbers(1, 1, 1, 2, 4), 1, 4, 1))],
    ),
    Case("dyn.topk", lambda x, k: op.topk(x, k), _top,
         [(X, scalar(2)), (X, scalar(6)), (X, scalar(0)), (numbers(0, 3), scalar(1))]),
    Case("argwhere", lambda x: op.argwhere(x), lambda x: np.argwhere(x).astype(np.int32),
         [(X > 5,), (X > 500,), (numbers(0, 3) > 0,)]),
    Case("argwhere", lambda x: op.argwhere(x), lambda x: np.argwhere(x).astype(np.int32),
         [(X,), (numbers(1, 1),)]),
    Case("argwhere", lambda x: op.argwhere(x), lambda x: np.argwhere(x).astype(np.int32),
         [(numbers(3, 2, 4) > 5,), (numbers(3, 0, 4) > 5,)]),
]  # fmt: skip
CASES += [
    Case(
        "dyn.nn.pad",
        lambda x, w: op.nn.pad(x, w, 3),
        lambda x, w: np.pad(x, w, constant_values=3),
        [(X.astype(dtype), ints(1, 2, 0, 3).reshape(2, 2))],
    )
    for dtype in ("float64", "int8", "uint8")
]
"""A value is converted to the dtype of the data."""


def _densely(places: np.ndarray, values: np.ndarray, shape: np.ndarray) -> np.ndarray:
    result = np.zeros(shape, values.dtype)
    result[tuple(places.T)] = values
    return result


CASES.append(
    Case(
        "dyn.sparse_to_dense",
        lambda i, v, s: op.sparse_to_dense(i, s, v),
        _densely,
        [(np.array(at), numbers(2), ints(*shape))
         for at, shape in (([[0, 1], [2, 3]], (3, 4)), ([[1, 0], [0, 0]], (2, 1)))],
    )
)  # fmt: skip
NOTHING = relay.const(np.zeros(0, "float32"))
CASES.append(
    Case(
        "dyn.extents",
        lambda s: call_dynamic("extents", NOTHING, s, attrs=DynamicAttrs()),
        lambda s: np.zeros((0, *s), "float32"),
        [(ints(2, 3),), (ints(0, 5),)],
    )
)


def parameters(arrays: Sequence[np.ndarray], names: str) -> list[relay.Var]:
    """Vectors of the shape keep their length; other tensors have unknown dimensions."""
    return [
        relay.var(
            n,
            shape=[d if a.dtype == np.int64 else relay.Any() for d in a.shape],
            dtype=str(a.dtype),
        )
        for n, a in zip(names, arrays, strict=False)
    ]


def leaves(value: object) -> list[object]:
    """The tensors of a result."""
    return list(value) if isinstance(value, tuple) else [value]


@share(4)
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
@pytest.mark.parametrize("is_used", [False, True], ids=["result", "used"])
def test_data_dependent_shapes_match_numpy(case: Case, is_used: bool) -> None:
    params = parameters(case.runs[0], "abcdefg")
    call = case.call(*params)
    if is_used and case.name != "dyn.topk":
        call = op.add(call, call)
    module = ekiden.IRModule.from_expr(relay.Function(params, call))
    executable = ekiden.compile(module)
    interpreted = relay.create_executor("debug", module).evaluate()
    for run in case.runs:
        expected = [w + w if len(leaves(call)) == 1 and is_used and case.name != "dyn.topk" else w
                  for w in leaves(case.meaning(*run))]  # fmt: skip
        for actual in (executable(*run), interpreted(*run)):
            for result, want in zip(leaves(actual), expected, strict=True):
                assert result.shape == want.shape and result.dtype == want.dtype
                np.testing.assert_allclose(result.numpy(), want, rtol=1e-6)


def test_every_operator_whose_shape_is_data_has_a_case() -> None:
    dependent = {n for n, d in OPS.items() if d.dims is not None or d.padded is not None}
    assert dependent == {c.name for c in CASES}


@pytest.mark.parametrize(
    "name, bad, message",
    [
        (
            "dyn.reshape",
            (X, ints(5, 5)),
            "elements; that of the data is 24, that of the new shape is 25",
        ),
        (
            "dyn.reshape",
            (X, ints(-2, -12)),
            "dyn.reshape.*: a dimension of the result is negative; it is -2",
        ),
        ("dyn.reshape", (numbers(0, 3), ints(0, -1)), None),
        (
            "dyn.reshape",
            (numbers(0, 4), ints(-1, -1)),
            "dyn.reshape.*: -1 may stand once; the number of them is 2",
        ),
        ("dyn.expand_dims", (X, scalar(3)), "axis is out of range; it is 3, the rank is 2"),
        (
            "dyn.squeeze",
            (numbers(1, 3, 1, 2), ints(0, 1)),
            "dimension 1 of data is dropped and not 1; it is 3",
        ),
        ("dyn.full", (scalar(1, "float32"), ints(2, -3)), "dyn.full.*: a dimension"),
        ("dyn.arange", (scalar(1), scalar(4), scalar(0)), "dyn.arange.*: step is 0"),
        (
            "dyn.broadcast_to",
            (numbers(2, 3), ints(1, 4, 3)),
            "not broadcast to the shape; it is 2, the shape there is 4",
        ),
        ("dyn.reshape", (X, ints(-3, -8)), "a dimension of the result is negative; it is -3"),
        ("dyn.strided_slice", (X, ints(0, 0), ints(1, 1), ints(0, 1)), "a stride is 0"),
        (
            "dyn.topk",
            (X, scalar(7)),
            "k is larger than the extent of the axis; k is 7, the extent is 6",
        ),
    ],
)
def test_mismatched_dynamic_shapes_are_refused(
    name: str, bad: tuple[np.ndarray, ...], message: str | None
) -> None:
    case = next(c for c in CASES if c.name == name)
    params = parameters(case.runs[0], "abcdefg")
    function = relay.Function(params, case.call(*params))
    executable = ekiden.compile(ekiden.IRModule.from_expr(function))
    if message is not None:
        with pytest.raises(InputError, match=message):
            executable(*bad)
    executable(*case.runs[0])


def test_constants_give_known_shapes() -> None:
    x = relay.var("x", shape=(relay.Any(), 6))
    three = relay.const(np.array([3, -1], np.int64))
    shape = op.add(three, relay.const(np.array([0, 0], np.int64)))
    body = op.nn.relu(op.reshape(x, shape))
    executable = ekiden.compile(ekiden.IRModule.from_expr(relay.Function([x], body)))
    assert "shape_func_main__stage1" not in executable.disassemble()
    np.testing.assert_array_equal(executable(X).numpy(), X.reshape(3, -1))


def test_shapes_made_from_shapes_and_data() -> None:
    x = relay.var("x", shape=(relay.Any(), 6))
    rows = op.argwhere(op.greater(x, relay.const(5.0)))
    picked = op.take(x, op.strided_slice(rows, (0, 0), (2**31, 1)), axis=0)
    flat = op.reshape(picked, op.concatenate((op.shape_of(rows, "int64"),
                                              relay.const(ints(-1))), 0))  # fmt: skip
    function = relay.Function([x], op.sum(flat, axis=0))
    executable = ekiden.compile(ekiden.IRModule.from_expr(function))
    for limit in (0, 3, 100):
        data = X + limit - 3
        places = np.argwhere(data > 5)
        expected = data[places[:, :1]].reshape(*places.shape, -1).sum(0) if len(places) else None
        if expected is not None:
            np.testing.assert_allclose(executable(data).numpy(), expected, rtol=1e-5)


def test_kernels_of_sizes_have_names_of_their_own() -> None:
    """Of a function "f" and its second stage, and of a function "f_1"."""

    def function() -> relay.Function:
        x = relay.var("x", shape=(relay.Any(),))
        places = relay.var("places")
        result = op.argwhere(op.greater(x, relay.const(0.0)))
        whole = op.cast(op.add(places, op.multiply(places, places)), "float32")
        return relay.Function([x], relay.Let(places, result, op.sum(whole, axis=1)))

    first, second = relay.GlobalVar("f"), relay.GlobalVar("f_1")
    x = relay.var("x", shape=(relay.Any(),))
    both = relay.Tuple([relay.Call(first, [x]), relay.Call(second, [x])])
    functions = {"main": relay.Function([x], both), first: function(), second: function()}
    executable = ekiden.compile(ekiden.IRModule(functions))
    for item in executable(np.array([1, -1, 2], np.float32)):
        np.testing.assert_array_equal(item.numpy(), np.array([0, 6], np.float32))
