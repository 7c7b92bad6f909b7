"""Code that compares every access of a buffer with its extent: an option of both generators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import ekiden
from ekiden.cli import main
from ekiden.codegen.build import build
from ekiden.codegen.cache import KernelCache, kernel_key
from ekiden.ir.op import Array
from ekiden.relay.testing import mlp
from ekiden.runtime.errors import BoundsError, CompileError
from ekiden.script import tir as T
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

pytestmark = pytest.mark.quick
TARGETS = ("llvm -bounds=check", "c -bounds=check")
NO_CACHE = KernelCache(None)


@T.prim_func
def shifted(
    A: T.Buffer((16,), "float32"), N: T.Buffer((), "int64"), B: T.Buffer((16,), "float32")
) -> None:
    for i in T.parallel(16):
        B[i] = A[i + N[()]]


@T.prim_func
def shifted_vector(
    A: T.Buffer((16,), "float32"), N: T.Buffer((), "int64"), B: T.Buffer((16,), "float32")
) -> None:
    for j in T.vectorized(16):
        B[j] = A[j + N[()]]


@T.prim_func
def gathered(
    A: T.Buffer((16,), "float32"), N: T.Buffer((16,), "int64"), B: T.Buffer((16,), "float32")
) -> None:
    for j in T.vectorized(16):
        B[j] = A[N[j]]


@T.prim_func
def scattered(
    A: T.Buffer((16,), "float32"), N: T.Buffer((16,), "int64"), B: T.Buffer((16,), "float32")
) -> None:
    for j in T.serial(16):
        B[N[j]] = A[j]


@T.prim_func
def guarded(
    A: T.Buffer((16,), "float32"), N: T.Buffer((16,), "int64"), B: T.Buffer((16,), "float32")
) -> None:
    for j in T.vectorized(16):
        B[j] = T.if_then_else(N[j] < T.int64(16), A[N[j]], T.float32(-1))


@T.prim_func
def scratch(a: T.handle, N: T.Buffer((), "int64"), B: T.Buffer((16,), "float32")) -> None:
    n = T.int64(is_size_var=True)
    A = T.match_buffer(a, (n,), "float32")
    held = T.alloc_buffer((n,), "float32")
    for i in range(n):
        held[i] = A[i]
    for i in range(16):
        B[i] = held[i + N[()]]


def _built(func: PrimFunc, target: str) -> Callable[..., object]:
    return build(func, target, name="f", cache=NO_CACHE)["f"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("func", [shifted, shifted_vector, scratch], ids=lambda f: f.name)
def test_an_access_outside_of_a_buffer_is_an_error(func: PrimFunc, target: str) -> None:
    run = _built(func, target)
    data, out = np.arange(16, dtype="float32"), np.zeros(16, "float32")
    run(data, np.array(0), out)
    np.testing.assert_array_equal(out, data)
    name = "held" if func is scratch else "A"
    for by, at in ((1, 16), (-1, -1), (100, 100)):
        with pytest.raises(BoundsError) as error:
            run(data, np.array(by), out)
        text = f"kernel 'f': access of buffer '{name}' at index {at} of 16 elements"
        assert str(error.value) == text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("func", [gathered, scattered], ids=lambda f: f.name)
def test_each_lane_is_looked_at(func: PrimFunc, target: str) -> None:
    run = _built(func, target)
    data, out = np.arange(16, dtype="float32"), np.zeros(16, "float32")
    places = np.arange(16)[::-1].copy()
    run(data, places, out)
    np.testing.assert_array_equal(out, data[::-1])
    places[5] = 16
    with pytest.raises(BoundsError) as error:
        run(data, places, out)
    name = "A" if func is gathered else "B"
    assert str(error.value) == f"kernel 'f': access of buffer '{name}' at index 16 of 16 elements"


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_not_read_is_not_looked_at(target: str) -> None:
    run = _built(guarded, target)
    data, out = np.arange(16, dtype="float32"), np.zeros(16, "float32")
    places = np.arange(16)
    places[5] = 99
    run(data, places, out)
    wanted = data.copy()
    wanted[5] = -1
    np.testing.assert_array_equal(out, wanted)


def _model() -> tuple[ekiden.IRModule, dict[str, Array]]:
    module, params = mlp.get_workload(2)
    return module, {n: np.asarray(v.numpy()) for n, v in params.items()}


def test_a_whole_model_is_checked() -> None:
    module, params = _model()
    plain, checked = (ekiden.compile(module, bounds=b) for b in ("", "check"))
    assert "-bounds=check" in str(checked.raw.metadata["target"])
    assert "-bounds" not in str(plain.raw.metadata["target"])
    data = np.random.default_rng(0).random((2, 1, 28, 28), dtype=np.float32)
    found = [np.asarray(e(data, **params)) for e in (plain, checked)]
    np.testing.assert_array_equal(*found)


def test_the_option_is_part_of_the_key_and_of_the_text() -> None:
    plain, checked = Target.host(), Target.parse("llvm -bounds=check")
    assert checked.bounds == "check" and Target.parse(str(checked)) == checked
    assert kernel_key(shifted, plain) != kernel_key(shifted, checked)
    with pytest.raises(CompileError) as error:
        ekiden.compile(_model()[0], bounds="all")
    assert str(error.value) == "compile: bounds must be '' or 'check', got 'all'"
    with pytest.raises(CompileError, match=r"-bounds=all: only '' or 'check' can be had"):
        build(shifted, "llvm -bounds=all", cache=NO_CACHE)


def test_the_command_line_has_it(tmp_path: object) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, f"{tmp_path}/m.onnx")
    arguments = ["compile", f"{tmp_path}/m.onnx", "-o", f"{tmp_path}/m.eki", "--bounds", "check"]
    assert main(arguments) == 0
    exe = ekiden.load(f"{tmp_path}/m.eki")
    assert "-bounds=check" in str(exe.raw.metadata["target"])
    np.testing.assert_allclose(np.asarray(exe(np.zeros(3, "float32"))), np.ones(3))
