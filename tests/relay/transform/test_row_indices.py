"""Element gathers and scatters that exporters write, recognized as row gathers and scatters."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, program

import ekiden
from ekiden import relay
from ekiden.relay import op
from ekiden.relay.transform import InferType, SimplifyExpr
from ekiden.runtime.errors import IndexRangeError
from ekiden.topi.scattering import SCATTER_REDUCTIONS
from long_runs import share

PLACES = np.array([[4, 4, 4], [0, 0, 0], [-1, -1, -1], [4, 4, 4]])


@share(4)
@pytest.mark.parametrize(
    "dtype, mode",
    [
        (dtype, mode)
        for dtype in ("float32", "float64", "int8", "int64", "bool")
        for mode in (SCATTER_REDUCTIONS if dtype != "bool" else ("update", "min", "max"))
    ],
)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_constant_row_indices_become_take(dtype: str, mode: str, index: str) -> None:
    rng = np.random.default_rng(0)
    data, updates = (rng.integers(0, 2 if dtype == "bool" else 9, (n, 3)).astype(dtype)
                     for n in (5, 4))  # fmt: skip
    x, u = (
        relay.var(n, relay.tensor_type(a.shape, dtype)) for n, a in (("x", data), ("u", updates))
    )
    call = op.scatter_elements(x, relay.const(PLACES.astype(index)), u, 0, mode)
    before = InferType()(relay.IRModule.from_expr(relay.Function((x, u), call)))
    after = SimplifyExpr()(before)
    assert calls(after) == ["scatter_nd"]
    assert_same_meaning(before, after, [data, updates])
    made = ekiden.compile(before)(data, updates).numpy()  # type: ignore[union-attr]
    expected = relay.create_executor("debug", before).evaluate()(data, updates).numpy()
    np.testing.assert_array_equal(made, expected)


def test_non_row_indices_are_unchanged() -> None:
    x = relay.var("x", relay.tensor_type((5, 3)))
    other = PLACES.copy()
    other[2, 1] = 0
    for places, names in (
        (other, ["gather"]),
        (PLACES, ["take"]),
        (PLACES[:, :2], ["gather"]),
    ):
        function = relay.Function((x,), op.gather(x, 0, relay.const(places)))
        module = InferType()(relay.IRModule.from_expr(function))
        assert calls(SimplifyExpr()(module)) == names


def test_sizes_may_be_symbols() -> None:
    text = """def @main(%x: Tensor[(n, 8), float32], %i: Tensor[(e, 1), int64],
                        %u: Tensor[(e, 8), float32]) {
      scatter_elements(%x, broadcast_to(%i, shape=[e, 8]), %u, reduction="add") }"""
    module = program(text)
    assert calls(SimplifyExpr()(module)) == ["reshape", "scatter_nd"]
    run = ekiden.compile(module)
    rng = np.random.default_rng(0)
    for nodes, edges in ((1, 1), (7, 40), (3, 0)):
        data, places = rng.normal(size=(nodes, 8)).astype("f"), rng.integers(0, nodes, (edges, 1))
        updates = rng.normal(size=(edges, 8)).astype("f")
        expected = data.copy()
        np.add.at(expected, places[:, 0], updates)
        np.testing.assert_allclose(run(data, places, updates).numpy(), expected, rtol=1e-5)  # type: ignore[union-attr]
    with pytest.raises(IndexRangeError, match="index 3 at position"):
        run(data, np.full((2, 1), 3), np.ones((2, 8), "f"))
