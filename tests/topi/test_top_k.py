"""Top-k without sorting, and full sorts of every dtype."""

import numpy as np
import pytest

from ekiden import te, topi
from ekiden.ir.prim import IntImm, SizeVar, const
from ekiden.topi.sort_keys import prefers_selection
from long_runs import alike
from topi_cases import Array, Case, case, check, every_backend, integers, normal

DTYPES = ("float32", "float64", "float16", "uint8", "int32", "uint32", "int64", "uint64")


def first(x: Array, k: int, axis: int, ascending: bool) -> tuple[Array, Array]:
    """Values and positions: stable, not-a-number as the largest."""
    rows = np.moveaxis(x, axis, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    order = [sorted(range(len(r)), key=lambda i, r=r: key(r[i], ascending)) for r in flat]
    result = np.array(order, "int64").reshape(rows.shape)[..., :k]
    values = np.take_along_axis(rows, result, -1)
    return np.moveaxis(values, -1, axis), np.moveaxis(result, -1, axis)


def key(value: object, ascending: bool) -> tuple[bool, object]:
    """What orders a value: negated where the largest come first."""
    is_nan = value != value
    number = 0 if is_nan else value.item()  # type: ignore[attr-defined]
    return (is_nan == ascending if is_nan else not ascending, number if ascending else -number)


def top(x: Array, k: int, axis: int = -1, ascending: bool = False) -> Case:
    """A case of topk."""
    expected = first(x, k, axis, ascending)
    return case("topk", x, k=k, axis=axis, is_ascend=ascending, expected=expected)


def special() -> Array:
    """Zeros of both signs, infinities and not-a-numbers among ties."""
    x = np.round(normal(3, 150) * 2)
    x[0, ::7], x[1, 3::11], x[2, 80:] = np.nan, -np.nan, np.nan
    x[:, 5], x[:, 90], x[1, 20:40:2], x[1, 21:40:2] = np.inf, -np.inf, -0.0, 0.0
    return x


def cases() -> list[Case]:
    """Rows shorter than a block, of whole blocks, and with a rest."""
    result = [top(integers(0, 100, 2, 130, dtype=d), 5, ascending=d[0] == "u") for d in DTYPES]
    result += [top(normal(2, n), k) for n, k in ((2, 1), (63, 1), (64, 4), (145, 17), (260, 40))]
    result += [top(special(), 20, ascending=u) for u in (False, True)]
    result += [top(normal(100, 3), 4, 0), top(normal(2, 70, 3), 2, 1, True), top(normal(0, 70), 2)]
    extreme = np.array([[-(2**63), 2**63 - 1, 0, 5] * 20], "int64")
    result += [top(extreme, 30, ascending=u) for u in (False, True)]
    result += [top(np.full((1, 90), 2**64 - 1, "uint64"), 3), top(np.ones((2, 99), "float32"), 7)]
    # in the worst order every element is among those kept
    result.append(top(np.arange(200, dtype="float32")[None], 3))
    return result


CASES = cases()


@alike(3)
@every_backend
def test_top_k_matches_python(backend: str) -> None:
    check(CASES, backend)


SORTS = [
    case("sort", normal(2, 37, dtype=dtype), axis=1, expected=lambda x: np.sort(x, 1))
    for dtype in (*DTYPES, "bool")
]


@pytest.mark.parametrize("backend", ["llvm", "plain"])
def test_every_dtype_sorts(backend: str) -> None:
    check(SORTS, backend)


@pytest.mark.parametrize(
    ("count", "size", "chosen"),
    [
        (10, 30522, True),
        (100, 8400, True),
        (4000, 8400, False),
        (3, 4, False),
        (0, 4, False),
        (2, 400, True),
    ],
)
def test_few_are_selected_and_many_sorted(count: int, size: int, chosen: bool) -> None:
    result = prefers_selection(const(count), const(size))
    assert isinstance(result, IntImm) and bool(result.value) is chosen


def test_top_k_algorithm_is_chosen_at_run_time() -> None:
    x = te.placeholder((3, SizeVar("n")))
    text = str(te.create_prim_func([x, *topi.topk(x, SizeVar("k"))]).body)
    assert "k <= 256" in text and "k * 8 <= n" in text
