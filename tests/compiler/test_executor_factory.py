"""`relay.build`: an executor factory whose module may import others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ekiden import build, relay, te
from ekiden.ir import IRModule
from ekiden.relay.backend.executor_factory import ExecutorFactoryModule
from ekiden.runtime import Module, load_module, tensor
from ekiden.runtime.errors import ExportError

DATA = np.arange(8, dtype="float32").reshape(2, 4)


@pytest.fixture
def factory() -> ExecutorFactoryModule:
    x = relay.var("x", shape=(2, 4))
    return relay.build(IRModule.from_expr(relay.Function([x], relay.nn.relu(x))), "llvm")


@pytest.fixture
def operator() -> Module:
    a = te.placeholder((2, 4), name="a")
    b = te.compute((2, 4), lambda i, j: a[i, j] + 1.0, name="b")
    return build(te.create_prim_func([a, b]), target="llvm", name="add_one")


def test_factory_returns_the_same_module(factory: ExecutorFactoryModule) -> None:
    assert factory.get_lib() is factory.get_lib()


def test_imported_module_is_exported(
    factory: ExecutorFactoryModule, operator: Module, tmp_path: Path
) -> None:
    factory.get_lib().import_module(operator)
    factory.export_library(tmp_path / "all.so")
    loaded = load_module(tmp_path / "all.so")
    assert np.array_equal(loaded["main"](DATA).numpy(), np.maximum(DATA, 0))
    result = tensor(np.zeros_like(DATA))
    loaded.get_function("add_one", True)(tensor(DATA), result)
    assert np.array_equal(result.numpy(), DATA + 1)


def test_artifact_of_a_module_that_imports_others_is_refused(
    factory: ExecutorFactoryModule, operator: Module, tmp_path: Path
) -> None:
    factory.save(tmp_path / "alone.eki")
    factory.get_lib().import_module(operator)
    with pytest.raises(ExportError, match=r"all\.eki': the module imports others"):
        factory.save(tmp_path / "all.eki")
    assert not (tmp_path / "all.eki").exists()
