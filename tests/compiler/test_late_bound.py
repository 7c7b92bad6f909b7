"""Late-bound constants: moved out of an executable, and set when it is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.relay import op
from ekiden.runtime.errors import LoadError

BIG = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
SMALL = np.arange(32, dtype=np.float32)
X = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)


def model() -> ekiden.Executable:
    """x @ BIG.T + SMALL, its constants as results too"""
    x = relay.var("x", relay.tensor_type((3, 16)))
    big, small = relay.const(BIG), relay.const(SMALL)
    body = relay.Tuple((op.add(op.nn.dense(x, big), small), big, small))
    return ekiden.compile(relay.IRModule.from_expr(relay.Function((x,), body, None)))


def results(exe: ekiden.Executable) -> list[bytes]:
    result = exe(X)
    assert isinstance(result, tuple)
    return [t.numpy().tobytes() for t in result]


def test_moved_constants_come_back_from_a_file(tmp_path: Path) -> None:
    exe = model()
    expected = results(exe)
    whole = exe.raw.to_bytes()
    exe.move_late_bound_consts(tmp_path / "weights", byte_limit=1000)
    exe.save(tmp_path / "code.eki")
    assert len(whole) - (tmp_path / "code.eki").stat().st_size >= BIG.nbytes
    loaded = ekiden.load(tmp_path / "code.eki")
    loaded.load_late_bound_consts(tmp_path / "weights")
    assert results(loaded) == expected
    loaded.save(tmp_path / "whole.eki")
    assert (tmp_path / "whole.eki").read_bytes() == whole


def test_module_takes_its_constants_without_the_compiler(tmp_path: Path) -> None:
    exe = model()
    expected = results(exe)
    exe.move_late_bound_consts(tmp_path / "weights", byte_limit=1000)
    exe.mod.export_library(tmp_path / "net.so")
    values = {n: t.numpy() for n, t in runtime.load_params(tmp_path / "weights").items()}

    def ran(program: object) -> list[bytes]:
        actual = runtime.vm.VirtualMachine(program, ekiden.cpu()).invoke("main", X)
        return [t.numpy().tobytes() for t in actual]  # type: ignore[attr-defined]

    for name, argument in (("", str(tmp_path / "weights")), ("_from_map", values)):
        loaded = runtime.load_module(tmp_path / "net.so")
        with pytest.raises(LoadError, match="late-bound constants are missing"):
            ran(loaded)
        loaded[f"load_late_bound_consts{name}"](argument)
        assert ran(loaded) == expected
    again = runtime.vm.Executable(runtime.load_module(tmp_path / "net.so"))
    again.load_late_bound_consts(tmp_path / "weights")
    assert ran(again) == expected
    with pytest.raises(TypeError, match="Executable: expected a module, got int"):
        runtime.vm.Executable(3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="no function named 'load_something'"):
        loaded["load_something"]


def test_late_binding_limit_selects_large_constants() -> None:
    exe = model()
    sizes = {f"const_{i}": c.nbytes for i, c in enumerate(exe.raw.constants)}
    assert model().get_late_bound_consts(0).keys() == sizes.keys()
    large = exe.get_late_bound_consts(BIG.nbytes)
    assert large.keys() == {name for name, size in sizes.items() if size >= BIG.nbytes}
    assert all(large[name].nbytes == sizes[name] for name in large)


def test_file_without_constants_is_the_same_each_time() -> None:
    first, second = model(), model()
    first.get_late_bound_consts(1000)
    second.get_late_bound_consts(1000)
    assert first.raw.to_bytes() == second.raw.to_bytes()


def test_run_before_the_constants_is_an_error() -> None:
    exe = model()
    moved = exe.get_late_bound_consts(0)
    with pytest.raises(LoadError, match="constants are missing, the first is const_0"):
        exe(X)
    with pytest.raises(LoadError, match="late-bound constants are missing"):
        runtime.VirtualMachine(exe.raw)
    assert exe.raw.constants == [None] * len(moved)
    exe.load_late_bound_consts_from_map(moved)
    assert results(exe) == results(model())


def test_late_bound_weights_can_be_exchanged() -> None:
    exe = model()
    moved = exe.get_late_bound_consts(0)
    exe.load_late_bound_consts_from_map({n: t.numpy() * 2 for n, t in moved.items()})
    result = exe(X)
    np.testing.assert_allclose(result[0].numpy(), 2 * (X @ BIG.T + SMALL), rtol=1e-4, atol=1e-4)


def test_constants_may_be_unaligned_or_strided() -> None:
    exe = model()
    moved = exe.get_late_bound_consts(0)
    strided = {n: np.repeat(t.numpy(), 2, axis=0)[::2] for n, t in moved.items()}
    exe.load_late_bound_consts_from_map(strided)
    assert results(exe) == results(model())


def test_constant_names_must_match() -> None:
    exe = model()
    moved = exe.get_late_bound_consts(0)
    first, *others = moved
    with pytest.raises(LoadError, match=f"missing: {first}"):
        exe.load_late_bound_consts_from_map({n: moved[n] for n in others})
    with pytest.raises(LoadError, match="has no late-bound constant 'bias'"):
        exe.load_late_bound_consts_from_map({**moved, "bias": SMALL})
    with pytest.raises(LoadError, match="already moved out"):
        exe.get_late_bound_consts(0)
    wrong = {n: np.zeros((2, 2), np.float32) for n in moved}
    with pytest.raises(ValueError, match="its shape and dtype expected"):
        exe.load_late_bound_consts_from_map(wrong)
    exe.load_late_bound_consts_from_map(moved)
    with pytest.raises(LoadError, match=f"has no late-bound constant '{first}'"):
        exe.load_late_bound_consts_from_map(moved)


def test_bytes_of_a_file_without_constants_can_be_cut_anywhere() -> None:
    exe = model()
    exe.get_late_bound_consts(0)
    data = exe.raw.to_bytes()
    for end in range(0, len(data), 101):
        with pytest.raises(LoadError):
            runtime.Executable.from_bytes(data[:end])


def test_number_of_threads_stays_when_constants_are_moved() -> None:
    exe = model()
    exe.num_threads = 3
    exe.get_late_bound_consts(byte_limit=1000)
    assert exe.num_threads == 3
