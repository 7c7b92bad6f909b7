"""Equal constants of a program are stored once."""

import numpy as np
import pytest

from ekiden import relay
from ekiden.backend.vm.constant_pool import ConstantPool
from ekiden.backend.vm.write_executable import write_executable
from ekiden.runtime.artifact.container_format import unpack_constants_section

pytestmark = pytest.mark.quick


def test_equal_arrays_share_a_constant() -> None:
    pool = ConstantPool()
    big = np.arange(1000, dtype=np.float32)
    other = big.copy()
    other[501] += 1  # not among the bytes that are looked at first
    assert [pool.intern(x) for x in (big, big.copy(), other, big)] == [0, 0, 1, 0]
    assert len(pool.arrays) == 2
    assert [pool.intern(big, 1), pool.intern(big.copy(), 1), pool.intern(big)] == [2, 2, 0]
    assert pool.devices == [0, 0, 1]


def test_arrays_of_different_type_are_distinct_constants() -> None:
    pool = ConstantPool()
    zeros = np.zeros(4, np.int32)
    inputs = [zeros, zeros.reshape(2, 2), zeros.astype(np.float32), -zeros.astype(np.float32)]
    assert [pool.intern(x) for x in inputs] == [0, 1, 2, 3]
    nan = np.array(np.nan, np.float32)
    assert pool.intern(nan) == pool.intern(nan.copy()) == 4
    assert pool.intern(np.zeros((0, 3), np.float32)) == 5


def test_constant_deduplication_ignores_strides() -> None:
    pool = ConstantPool()
    rows = np.arange(600, dtype=np.int64).reshape(20, 30)
    assert pool.intern(rows) == pool.intern(np.asfortranarray(rows))
    assert pool.intern(np.arange(0)) == 1


def test_shared_weights_are_stored_once() -> None:
    x = relay.var("x", shape=(2, 64))
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    body = x
    for _ in range(4):
        body = relay.nn.relu(relay.nn.dense(body, relay.const(weight.copy())))
    exe = relay.vm.compile(relay.Function([x], body))
    sizes = [c.nbytes for c in exe.raw.constants if c is not None]
    assert sizes.count(weight.nbytes) == 1


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_arrays_of_any_strides_are_written_as_c_has_them(
    monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", jobs)
    large = np.arange(3 * 512 * 520, dtype="float32").reshape(3, 512, 520)
    large[0, 0, :2] = np.array([0x7F800001, 0x80000000], "uint32").view("float32")  # a NaN, -0
    arrays = [
        large.transpose(0, 2, 1),
        large.transpose(2, 1, 0)[::-1],
        large[0, ::3, ::-2].astype("bool"),
        np.broadcast_to(np.float16(3), (5, 7)),
        np.arange(6, dtype=">i4").reshape(2, 3).T,
        np.zeros((0, 3), "int64").T,
        np.float64(2.5),
    ]
    result = unpack_constants_section(write_executable([], arrays, [], b"", {}))
    for array, constant in zip(arrays, result, strict=True):
        assert constant.shape == array.shape and constant.data is not None
        little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
        assert bytes(constant.data) == little.tobytes()
