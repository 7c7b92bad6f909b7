"""MetaSchedule's API: tuning of loop programs and Relay programs, databases, PyTorch modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ekiden as tvm
from ekiden import meta_schedule as ms
from ekiden import relay, te
from ekiden.runtime.errors import InputError


def product(size: int) -> tvm.tir.PrimFunc:
    a, b = te.placeholder((size, size), name="A"), te.placeholder((size, size), name="B")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c])


def check(func: tvm.tir.PrimFunc, size: int) -> None:
    x, y = np.random.default_rng(0).random((2, size, size), "float32")
    out = tvm.nd.array(np.zeros((size, size), "float32"))
    tvm.build(func, "llvm")[func.name](tvm.nd.array(x), tvm.nd.array(y), out)
    np.testing.assert_allclose(out.numpy(), x @ y, rtol=1e-4)


def test_loop_program_is_tuned_into_a_folder(tmp_path: Path) -> None:
    func = product(32)
    database = ms.tune_tir(func, "llvm", tmp_path / "logs", max_trials_global=2)
    assert len(database) >= 2 and len(ms.JSONDatabase(tmp_path / "logs")) == len(database)
    schedule = ms.compile_tir(database, func, "llvm")
    if schedule is not None:
        check(schedule.mod["main"], 32)
    assert ms.compile_tir(ms.Database(), func, "llvm") is None


def test_relay_program_is_tuned_and_compiled(tmp_path: Path) -> None:
    x, w = relay.var("x", shape=(8, 64)), relay.const(np.ones((64, 64), "float32"))
    module = tvm.IRModule.from_expr(relay.Function((x,), relay.nn.dense(x, w)))
    database = ms.tune_relay(module, None, "llvm", tmp_path, max_trials_global=1)
    lib = ms.compile_relay(database, module, "llvm")
    result = lib(np.ones((8, 64), "float32"))
    np.testing.assert_array_equal(result.numpy(), np.full((8, 64), 64))


def test_one_loop_program_is_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one loop program expected, got a module of 0 functions"):
        ms.tune_tir(tvm.IRModule({}), "llvm", tmp_path, 1)


def test_loop_program_is_a_pytorch_module() -> None:
    torch = pytest.importorskip("torch")
    from ekiden.contrib.torch import as_torch

    module = as_torch(product(16))
    x, y = torch.rand(16, 16), torch.rand(16, 16)
    out = torch.zeros(16, 16)
    assert module(x, y, out) is out
    np.testing.assert_allclose(out.numpy(), (x @ y).numpy(), rtol=1e-4)
    module.tune(max_trials_global=1)
    out = torch.zeros(16, 16)
    module(x, y, out)
    np.testing.assert_allclose(out.numpy(), (x @ y).numpy(), rtol=1e-4)
    assert "prim_func" in module.script()
    transformed = as_torch(product)(8)
    assert transformed.func.params[0].shape[0] == 8
