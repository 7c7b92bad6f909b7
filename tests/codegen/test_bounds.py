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
from ekiden.ir.prim import PrimExpr, const
from ekiden.kernels.micro_kernels.register_tiles import (
    RegisterTile,
    emit_register_tile,
)
from ekiden.relay.testing import mlp
from ekiden.runtime.errors import BoundsError, CompileError, InternalError
from ekiden.script import tir as T
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import BufferStore, PrimFunc, Stmt
from ekiden.tir.tensor_intrin.micro import SumLoop
from ekiden.tir.transform import lower

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
def test_access_outside_of_a_buffer_is_an_error(func: PrimFunc, target: str) -> None:
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
def test_bounds_check_covers_each_lane(func: PrimFunc, target: str) -> None:
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
def test_masked_off_accesses_are_not_checked(target: str) -> None:
    run = _built(guarded, target)
    data, out = np.arange(16, dtype="float32"), np.zeros(16, "float32")
    places = np.arange(16)
    places[5] = 99
    run(data, places, out)
    wanted = data.copy()
    wanted[5] = -1
    np.testing.assert_array_equal(out, wanted)


def _of_vectors(value: int, index: int) -> PrimFunc:
    """A store of `value` lanes at an index of `index`."""
    out = Buffer("B", (const(16),), "float32")
    place = ramp(const(0), 1, index) if index > 1 else const(0)
    return PrimFunc((out,), BufferStore(out, broadcast(const(1.0), value), (place,)), {}, "f")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("value", "index"), [(8, 1), (8, 4), (4, 8)])
def test_no_access_is_wider_than_its_index(target: str, value: int, index: int) -> None:
    """The check looks at the lanes of the index: what it would not see is not built."""
    _built(_of_vectors(8, 8), target)
    message = f"the store to 'B' is of float32x{value} at an index of {index} lanes"
    with pytest.raises(InternalError, match=message):
        _built(_of_vectors(value, index), target)


def _tile(columns: int, width: int, valid: int) -> PrimFunc:
    """Two rows of a register tile of 8 lanes that stores `valid` columns of `columns`, from a panel
    of `width`."""
    a, b, out = (
        Buffer(n, (const(h), const(w)), "float32")
        for n, h, w in (("A", 2, 3), ("B", 3, width), ("C", 2, columns))
    )

    def store(row: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
        return BufferStore(out, value, (ramp(row * columns + column, 1, 8),), mask)

    loop = SumLoop(const(3), const(1), const(width))
    shape = RegisterTile(2, 1, 8, valid)
    body = emit_register_tile(shape, [loop], a, [const(0), const(3)], b, const(0), store)
    return PrimFunc((a, b, out), body, {"tir.tiled": 1}, "f")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("columns", "width", "valid", "outside"), [(5, 8, 5, ""), (5, 8, 8, "C"), (5, 6, 5, "B")]
)
def test_register_tile_is_checked(
    target: str, columns: int, width: int, valid: int, outside: str
) -> None:
    """What it loads and what it stores: a mask too wide, a panel too narrow for its vectors."""
    run = _built(lower(_tile(columns, width, valid)), target)
    a, b = np.ones((2, 3), np.float32), np.ones((3, width), np.float32)
    out = np.zeros((2, columns), np.float32)
    if not outside:
        run(a, b, out)
        np.testing.assert_array_equal(out, a @ b[:, :columns])
        return
    with pytest.raises(BoundsError, match=f"access of buffer '{outside}' at index"):
        run(a, b, out)


def _model() -> tuple[ekiden.IRModule, dict[str, Array]]:
    module, params = mlp.get_workload(2)
    return module, {n: np.asarray(v.numpy()) for n, v in params.items()}


@pytest.mark.slow
def test_whole_model_is_checked() -> None:
    module, params = _model()
    plain, checked = (ekiden.compile(module, bounds=b) for b in ("", "check"))
    assert "-bounds=check" in str(checked.raw.metadata["target"])
    assert "-bounds" not in str(plain.raw.metadata["target"])
    data = np.random.default_rng(0).random((2, 1, 28, 28), dtype=np.float32)
    found = [np.asarray(e(data, **params)) for e in (plain, checked)]
    np.testing.assert_array_equal(*found)


def test_option_is_part_of_the_key_and_of_the_text() -> None:
    plain, checked = Target.host(), Target.parse("llvm -bounds=check")
    assert checked.bounds == "check" and Target.parse(str(checked)) == checked
    assert kernel_key(shifted, plain) != kernel_key(shifted, checked)
    with pytest.raises(CompileError) as error:
        ekiden.compile(_model()[0], bounds="all")
    assert str(error.value) == "compile: bounds must be '' or 'check', got 'all'"
    with pytest.raises(CompileError, match=r"-bounds=all: only '' or 'check' can be had"):
        build(shifted, "llvm -bounds=all", cache=NO_CACHE)


@pytest.mark.slow
def test_command_line_has_it(tmp_path: object) -> None:
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
