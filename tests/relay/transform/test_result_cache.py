"""The constant-evaluation cache over compilations: hits, eviction, staleness."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.relay import op
from ekiden.relay.op.nn import conv2d
from ekiden.relay.transform.graph import constant_evaluation_cache, fold_constant
from ekiden.relay.transform.graph.constant_evaluation_cache import cache_results, cached_evaluation

pytestmark = pytest.mark.quick
ROWS = 256


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    with mock.patch.object(
        constant_evaluation_cache, "_CACHE", constant_evaluation_cache._EvaluationCache()
    ):
        yield


class Doubled:
    """Counts how often it computes."""

    def __init__(self) -> None:
        self.times = 0

    def of(self, *arrays: np.ndarray) -> np.ndarray:
        def make() -> np.ndarray:
            self.times += 1
            return np.asarray(sum(arrays) * 2.0)

        result = cached_evaluation("double", arrays, make)
        assert isinstance(result, np.ndarray)
        return result


def large(value: float = 1.0) -> np.ndarray:
    return np.full((ROWS, ROWS), value, "float32")


def test_repeated_constants_are_cached_while_alive() -> None:
    double, array = Doubled(), large()
    for _ in range(4):
        with cache_results():
            assert (double.of(array) == 2.0).all()
    assert double.times == 2
    with cache_results():
        double.of(array, np.array([3.0]))  # small ones count by what they hold
        double.of(array, np.array([3.0]))
        double.of(array, np.array([3.0]))
    assert double.times == 4
    assert len(constant_evaluation_cache._CACHE.entries) == 2
    del array
    gc.collect()
    assert not constant_evaluation_cache._CACHE.entries


def test_modified_arrays_are_recomputed() -> None:
    double, array = Doubled(), large()
    for value in (1.0, 1.0, 1.0, 5.0, 5.0, 7.0):
        array[:] = value
        with cache_results():
            assert (double.of(array) == 2 * value).all()


def test_cache_is_empty_outside_of_compilations_and_above_its_limit() -> None:
    double, array, other = Doubled(), large(), large(3.0)
    for _ in range(3):
        double.of(array)
    assert double.times == 3
    with mock.patch.object(constant_evaluation_cache, "MAX_CACHE_BYTES", array.nbytes):
        for _ in range(3):
            with cache_results():
                double.of(array)
                double.of(other)  # has no room beside what this compilation took
        assert double.times == 3 + 2 + 3
        for _ in range(3):  # now nobody takes the first
            with cache_results():
                double.of(other)
        assert double.times == 8 + 1


def test_view_of_an_array_does_not_keep_it() -> None:
    array = large()
    for _ in range(3):
        with cache_results():
            cached_evaluation("turned", [array], lambda: array.T)
    assert all(entry.value is None for entry in constant_evaluation_cache._CACHE.entries.values())


def edited(weight: relay.Constant, activation: str) -> relay.Function:
    """A convolution that is scaled, then something else with each edit."""
    x = relay.var("x", shape=(1, 32, 14, 14))
    y = conv2d(x, weight, padding=(1, 1), channels=64, kernel_size=(3, 3))
    y = op.multiply(y, relay.const(np.linspace(1, 2, 64, dtype="float32").reshape(64, 1, 1)))
    return relay.Function((x,), getattr(op, activation)(y))


@pytest.mark.slow
def test_edits_of_a_model_pack_its_weights_once_more_and_give_what_they_should() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 32, 3, 3)).astype("float32")
    constant, x = relay.const(weight.copy()), np.ones((1, 32, 14, 14), "float32")
    evaluated: list[str] = []
    evaluate = fold_constant._evaluate

    def watch(call: relay.Call) -> object:
        evaluated.append(str(call.op))
        return evaluate(call)

    def run(of: relay.Constant, activation: str) -> np.ndarray:
        return np.asarray(ekiden.compile(edited(of, activation))(x))

    with mock.patch.object(fold_constant, "_evaluate", watch):
        run(constant, "tanh")
        first = len(evaluated)
        run(constant, "exp")
        evaluated.clear()
        result = run(constant, "sigmoid")
        assert len(evaluated) < first
        constant.data[:] *= 2  # what nobody should do
        doubled = run(constant, "sigmoid")
    np.testing.assert_array_equal(result, run(relay.const(weight), "sigmoid"))
    np.testing.assert_array_equal(doubled, run(relay.const(2 * weight), "sigmoid"))
