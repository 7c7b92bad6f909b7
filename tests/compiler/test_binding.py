"""Output buffers of the caller, bound runs, and copies of executables."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import ekiden
from ekiden import frontend, relay, runtime
from ekiden.ir.instrument import DumpIR
from ekiden.runtime.debug.debugger import Stepper
from ekiden.runtime.errors import InputError, LoadError
from ekiden.runtime.executable.outputs import write_results
from onnx_files import arguments, expected, model

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def exe(artifact: Path) -> ekiden.Executable:
    return ekiden.load(artifact)


@pytest.fixture(scope="module")
def two() -> ekiden.Executable:
    return ekiden.compile(
        relay.parse("def @main(%x: Tensor[(n, 4), float32]) { (nn.relu(%x), negative(%x)) }")
    )


def test_result_is_written_to_an_array(exe: ekiden.Executable) -> None:
    argument = arguments(2)
    whole = np.zeros((4, 4), np.float32)
    for out in (np.empty((2, 4), np.float32), whole[::2], runtime.empty((2, 4))):
        assert exe(**argument, out=out) is out
        result = out.numpy() if isinstance(out, runtime.Tensor) else out
        np.testing.assert_allclose(result, expected(**argument), rtol=1e-5, atol=1e-6)
    assert not whole[1::2].any()


@pytest.mark.slow
def test_result_is_written_to_a_tensor_of_torch(exe: ekiden.Executable) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    argument, out = arguments(2), torch.zeros(4, 2).T
    exe(**argument, out=out)
    np.testing.assert_allclose(out.numpy(), expected(**argument), rtol=1e-5, atol=1e-6)


def test_output_may_alias_an_argument(two: ekiden.Executable) -> None:
    x = np.array([[1, -2, 3, -4]], np.float32)
    two(x, out=(None, x))
    assert x.tolist() == [[-1, 2, -3, 4]]


def _address(value: object) -> int:
    array = value.numpy() if isinstance(value, runtime.Tensor) else value
    assert isinstance(array, np.ndarray)
    return int(array.ctypes.data)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where results stood before they were written to their places."""
    actual: list[int] = []

    def write(infos: object, result: object, places: object, out: object) -> object:
        many = result if isinstance(result, tuple) else (result,)
        actual[:] = [_address(item) for item in many]
        return write_results(infos, result, places, out)  # type: ignore[arg-type]

    monkeypatch.setattr("ekiden.runtime.executable.outputs.write_results", write)
    return actual


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_kernels_write_into_output_buffers(executor: str, dtype: str, sources: list[int]) -> None:
    text = f"def @main(%x: Tensor[(n, 5), {dtype}])"
    exe = ekiden.compile(
        relay.parse(
            f"{text} {{ (maximum(%x, negative(%x)), reshape(negative(%x), newshape=[5, -1])) }}"
        ),
        executor=executor,  # type: ignore[arg-type]  # each is one
    )
    for rows in (3, 1, 70):
        x = np.random.default_rng(rows).normal(0, 9, (rows, 5)).astype(dtype)
        first, second = np.zeros((rows, 5), dtype), runtime.empty((5, rows), dtype)
        for run in (lambda x=x, o=(first, second): exe(x, out=o), exe.bind(x, out=[first, second])):
            run()
            assert sources == [_address(first), _address(second)]
            np.testing.assert_array_equal(first, abs(x))
            np.testing.assert_array_equal(second.numpy(), -x.reshape(5, rows))
            second.copy_from(np.zeros((5, rows), dtype))
        exe(x, out=(None, second))
        assert sources[1] == _address(second) and sources[0] != _address(first)
        later = [item.numpy() for item in exe(x)]  # nothing of that is left
        assert _address(first) != _address(later[0]) and (later[0] == abs(x)).all()


@pytest.mark.slow
def test_outputs_are_not_written_before_inputs_are_read(sources: list[int]) -> None:
    """A softmax reads its rows more than once."""
    exe = ekiden.compile(
        relay.parse("def @main(%x: Tensor[(4, n), float32]) { reverse(nn.softmax(%x), axis=[1]) }")
    )
    memory = np.random.default_rng(0).normal(size=64).astype("float32")
    x = memory[:28].reshape(4, 7)
    expected_value = exe(x.copy()).numpy()
    for start, direct in ((0, False), (27, False), (28, True), (9, False)):
        memory[:28] = np.random.default_rng(0).normal(size=64).astype("float32")[:28]
        out = memory[start : start + 28].reshape(4, 7)
        exe(x, out=out)
        np.testing.assert_array_equal(out, expected_value)
        assert (sources == [_address(out)]) == direct


def test_overlapping_outputs_are_copied(two: ekiden.Executable, sources: list[int]) -> None:
    memory, x = np.zeros(12, np.float32), np.array([[1, -2, 3, -4]], np.float32)
    first, second = memory[:4].reshape(1, 4), memory[3:7].reshape(1, 4)
    two(x, out=(first, second))
    assert second.tolist() == [[-1, 2, -3, 4]] and memory[:3].tolist() == [1, 0, 3]
    assert _address(first) not in sources and _address(second) not in sources


@pytest.mark.parametrize("text", [
    "def @main(%x: Tensor[(n, 4), float32]) { %x }",
    "def @main(%x: Tensor[(n, 4), float32]) { if (less(sum(%x), 0f)) { negative(%x) }"
    " else { abs(%x) } }",
])  # fmt: skip
def test_results_without_a_kernel_are_copied(text: str, sources: list[int]) -> None:
    exe = ekiden.compile(relay.parse(text))
    x, out = np.full((2, 4), -1, np.float32), np.zeros((2, 4), np.float32)
    exe(x, out=out)
    assert sources != [_address(out)]
    np.testing.assert_array_equal(out, exe(x).numpy())


def test_several_results_by_position_or_name(two: ekiden.Executable) -> None:
    x = np.array([[1, -2, 3, -4]], np.float32)
    first, second = np.empty_like(x), np.empty_like(x)
    two(x, out=[first, second])
    assert first.tolist() == [[1, 0, 3, 0]] and second.tolist() == [[-1, 2, -3, 4]]
    second[:] = 0
    two(x, out={"output1": second})
    assert second.tolist() == [[-1, 2, -3, 4]]


READ_ONLY = np.zeros((2, 4), np.float32)
READ_ONLY.flags.writeable = False
WRONG = [
    (np.empty((2, 4)), "out 'y': expected dtype float32, got float64"),
    (np.empty((2, 5), np.float32), "out 'y': expected shape (n, 4), got (2, 5)"),
    (np.empty(8, np.float32), "out 'y': expected shape (n, 4), got (8,)"),
    (
        np.empty((3, 4), np.float32),
        "out 'y': expected shape (2, 4), as it is of this run, got (3, 4)",
    ),
    (READ_ONLY, "out 'y': expected a writable array, got a read-only one"),
    ("y", "out 'y': expected an array of float32 to write to, got str"),
    ([READ_ONLY, READ_ONLY], "out: expected 1 arrays ('y'), got 2"),
    ({"z": READ_ONLY}, "out: no output is named 'z'; there are 'y'"),
]


@pytest.mark.parametrize(("out", "message"), WRONG)
def test_unwritable_outputs_are_refused(out: object, message: str, exe: ekiden.Executable) -> None:
    with pytest.raises(InputError) as caught:
        exe(**arguments(2), out=out)
    assert str(caught.value) == message


def test_input_named_out_is_accepted() -> None:
    exe = ekiden.compile(relay.parse("def @main(%out: Tensor[(2), float32]) { negative(%out) }"))
    assert exe(out=np.ones(2, np.float32)).numpy().tolist() == [-1, -1]


def test_bound_run_uses_its_buffers(exe: ekiden.Executable) -> None:
    argument = arguments(2)
    out = np.empty((2, 4), np.float32)
    run = exe.bind(**argument, out=out)
    assert list(run.inputs) == ["x", "b"]
    for scale in (1, 3):
        argument["x"] *= scale
        assert run() is out
        np.testing.assert_allclose(out, expected(**argument), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError) as caught:
        exe.bind(np.zeros((3, 2), np.float32).T, argument["b"])
    assert str(caught.value) == (
        "bind: input 'x': expected a contiguous array, which each run can read where it stands"
    )


def _first(exe: ekiden.Executable, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    return exe(x, b).numpy()


def test_executables_are_pickled(exe: ekiden.Executable) -> None:
    argument = arguments(2)
    again = pickle.loads(pickle.dumps(exe))
    assert repr(again) == repr(exe)
    assert (again(**argument).numpy() == exe(**argument).numpy()).all()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert (pool.apply(_first, (exe, *argument.values())) == exe(**argument).numpy()).all()


def test_executables_are_copied(exe: ekiden.Executable, tmp_path: Path) -> None:
    argument = arguments(2)
    held = copy.deepcopy({"model": exe})["model"]
    assert held is not exe and (held(**argument).numpy() == exe(**argument).numpy()).all()
    waiting = ekiden.compile(model())
    waiting.move_late_bound_consts(tmp_path / "weights")
    other = copy.deepcopy(waiting)
    other.load_late_bound_consts(tmp_path / "weights")
    missing_constants = runtime.late_bound.unbound_constants
    assert missing_constants(waiting.raw) and not missing_constants(other.raw)
    factory = relay.build(relay.parse("def @main(%x: Tensor[(2), float32]) { negative(%x) }"))
    assert type(pickle.loads(pickle.dumps(factory))) is type(factory)


class Named:
    """A path of another library."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def test_executables_load_and_save_path_likes(artifact: Path, tmp_path: Path) -> None:
    argument, data = arguments(2), artifact.read_bytes()
    with open(artifact, "rb") as opened:
        sources = [data, bytearray(data), memoryview(data), io.BytesIO(data), opened]
        for source in [*sources, str(artifact), Named(artifact)]:
            result = ekiden.load(source)(**argument)
            np.testing.assert_allclose(result.numpy(), expected(**argument), rtol=1e-5, atol=1e-6)
    exe, buffer = ekiden.load(data), io.BytesIO()
    exe.save(buffer)
    assert buffer.getvalue() == data
    exe.save(Named(tmp_path / "named.eki"))
    assert (tmp_path / "named.eki").read_bytes() == data


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_library_is_loaded_too(exe: ekiden.Executable, tmp_path: Path) -> None:
    exe.export_library(tmp_path / "model.so")
    argument = arguments(2)
    assert (ekiden.load(tmp_path / "model.so")(**argument).numpy() == exe(**argument).numpy()).all()


def test_unloadable_files_are_refused(tmp_path: Path) -> None:
    path, no = tmp_path / "model.onnx", tmp_path / "no"
    onnx.save(model(), path)
    advice = "it is a model, not an artifact: compile it by ekiden.compile"
    for source, error, message in (
        (path, LoadError, f"load '{path}': {advice}"),
        (no, FileNotFoundError, f"load '{no}': no such file or directory"),
        (tmp_path, IsADirectoryError, f"load '{tmp_path}': is a directory"),
        (io.StringIO("x"), TypeError, "load: expected a path, bytes or a file open for bytes, got "
         "StringIO open for text"),
        (3, TypeError, "load: expected a path, bytes or a file open for bytes, got int"),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            ekiden.load(source)  # type: ignore[arg-type]
        assert str(caught.value) == message


@pytest.mark.slow
def test_path_like_objects_are_accepted(artifact: Path, tmp_path: Path) -> None:
    def at(name: str) -> Named:
        return Named(tmp_path / name)

    onnx.save(model(), tmp_path / "m.onnx")
    exe = ekiden.compile(at("m.onnx"))
    assert ekiden.verify(at("m.onnx"), Named(artifact))
    assert frontend.onnx.from_onnx(at("m.onnx")) and frontend.onnx.survey(at("m.onnx"))
    ekiden.export(at("m.onnx"), at("m.eki"))
    assert "main" in runtime.load_module(at("m.eki"))
    assert runtime.Executable.load(at("m.eki")).globals == exe.globals
    runtime.save_params(at("p"), {"a": np.zeros(2)})
    assert list(runtime.load_params(at("p"))) == ["a"]
    exe.move_late_bound_consts(at("w"))
    exe.load_late_bound_consts(at("w"))
    stepper = Stepper(exe.raw)
    stepper.start("main", *arguments(2).values())
    stepper.save_state(at("state"))
    stepper.load_state(at("state"))
    with ekiden.transform.PassContext(instruments=[DumpIR(at("passes"))]):
        ekiden.compile(at("m.onnx"))
    assert len(list((tmp_path / "passes").iterdir())) > 3
