"""Executables: calls, saving and loading, errors of wrong arguments."""

import json
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

import ekiden
import ekiden.frontend.onnx
from ekiden.frontend.registry import accepted_models
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.ir.type import tensor_type
from ekiden.relay import op
from ekiden.relay.expr import Function, var
from ekiden.runtime.artifact.metadata import TensorInfo
from onnx_files import arguments, expected, model

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def exe(artifact: Path) -> ekiden.Executable:
    return ekiden.load(artifact)


def test_inputs_and_outputs_are_described(exe: ekiden.Executable) -> None:
    assert exe.inputs == (
        TensorInfo("x", ("n", 3), "float32"),
        TensorInfo("b", ("n", 1), "float32"),
    )
    assert exe.outputs == (TensorInfo("y", ("n", 4), "float32"),)
    assert repr(exe) == "Executable((x: float32[n, 3], b: float32[n, 1]) -> (y: float32[n, 4]))"


@pytest.mark.parametrize("n", [0, 1, 2, 17])
def test_dynamic_shapes_run(exe: ekiden.Executable, n: int) -> None:
    feed = arguments(n)
    np.testing.assert_allclose(exe(**feed).numpy(), expected(**feed), rtol=1e-5, atol=1e-6)


def test_arguments_by_position_and_name(exe: ekiden.Executable) -> None:
    x, b = arguments(2).values()
    first = exe(x, b).numpy()
    assert (exe(x, b=b).numpy() == first).all() and (exe(b=b, x=x).numpy() == first).all()


def test_strided_arguments_and_tensors_are_taken(exe: ekiden.Executable) -> None:
    x, b = arguments(4).values()
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    assert (exe(wide, ekiden.tensor(b)).numpy() == exe(x, b).numpy()).all()


SHAPE = (2, 3)
WRONG = [
    ({"y": 0}, "run: no input is named 'y'; there are 'x', 'b'"),
    ({"b": None}, "run: input 'b' is missing; there are 'x', 'b'"),
    ({"x": np.zeros(SHAPE)}, "input 'x': expected Tensor[(n, 3), float32], got (2, 3) float64"),
    (
        {"x": np.zeros(SHAPE, np.int32)},
        "input 'x': expected Tensor[(n, 3), float32], got (2, 3) int32",
    ),
    (
        {"x": np.zeros((2, 3, 1), np.float32)},
        "input 'x': expected Tensor[(n, 3), float32], got (2, 3, 1) float32",
    ),
    (
        {"x": np.zeros((), np.float32)},
        "input 'x': expected Tensor[(n, 3), float32], got () float32",
    ),
    (
        {"x": np.zeros((2, 4), np.float32)},
        "input 'x': expected Tensor[(n, 3), float32], got (2, 4) float32",
    ),
    (
        {"x": np.zeros((2, 0), np.float32)},
        "input 'x': expected Tensor[(n, 3), float32], got (2, 0) float32",
    ),
    (
        {"b": np.zeros((5, 1), np.float32)},
        "input 'b': expected Tensor[(n, 1), float32] with n = 2 as in input 'x', "
        "got (5, 1) float32",
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m[:40] for _, m in WRONG])
def test_wrong_argument_is_refused(
    exe: ekiden.Executable, change: dict[str, object], message: str
) -> None:
    feed: dict[str, object] = {**arguments(2), **change}
    feed = {name: value for name, value in feed.items() if value is not None}
    with pytest.raises(ekiden.InputError) as caught:
        exe(**feed)
    assert str(caught.value) == message


def test_wrong_number_of_arguments_is_refused(exe: ekiden.Executable) -> None:
    with pytest.raises(ekiden.InputError) as caught:
        exe(arguments(2)["x"])
    assert str(caught.value) == "run: expected 2 inputs ('x', 'b'), got 1"


def test_argument_given_twice_is_refused(exe: ekiden.Executable) -> None:
    x, b = arguments(2).values()
    with pytest.raises(ekiden.InputError) as caught:
        exe(x, b, x=x)
    assert str(caught.value) == "run: input 'x' is given twice"


def test_argument_that_is_no_array_is_refused(exe: ekiden.Executable) -> None:
    with pytest.raises(ekiden.InputError, match="input 'x': expected an array of float32, got str"):
        exe(x="text", b=arguments(2)["b"])


def test_inputs_by_name_in_one_argument(exe: ekiden.Executable) -> None:
    with pytest.raises(ekiden.InputError) as caught:
        exe(arguments(2), arguments(2)["b"])
    assert str(caught.value) == (
        "input 'x': expected an array of float32, got dict; inputs by name are keywords: "
        "executable(**inputs)"
    )


def test_executable_runs_after_a_refused_call(exe: ekiden.Executable) -> None:
    feed = arguments(3)
    with pytest.raises(ekiden.InputError):
        exe(x=feed["x"], b=feed["b"][:2])
    np.testing.assert_allclose(exe(**feed).numpy(), expected(**feed), rtol=1e-5, atol=1e-6)


def limited() -> ekiden.Executable:
    n = SizeVar("n", upper=8)
    x = var("x", tensor_type((n, 2)))
    return ekiden.compile(IRModule({"main": Function((x,), op.tanh(x), None)}))


def test_dimension_above_its_limit_is_refused() -> None:
    exe = limited()
    assert exe(np.zeros((8, 2), np.float32)).shape == (8, 2)
    with pytest.raises(ekiden.InputError) as caught:
        exe(np.zeros((9, 2), np.float32))
    expected_value = (
        "input 'x': expected Tensor[(n, 2), float32] with n at most 8, got (9, 2) float32"
    )
    assert str(caught.value) == expected_value


def test_limits_are_saved(tmp_path: Path) -> None:
    limited().save(tmp_path / "limited.eki")
    with pytest.raises(ekiden.InputError, match="at most 8"):
        ekiden.load(tmp_path / "limited.eki")(np.zeros((9, 2), np.float32))


def test_constraint_of_the_module_is_checked() -> None:
    n = SizeVar("n")
    x = var("x", tensor_type((n, 2)))
    constraint = ((n % 4).equal(0), "Resize 'up'")
    module = IRModule(
        {"main": Function((x,), op.tanh(x), None)}, attrs={"constraints": (constraint,)}
    )
    exe = ekiden.compile(module)
    assert exe(np.zeros((4, 2), np.float32)).shape == (4, 2)
    with pytest.raises(ekiden.InputError) as caught:
        exe(np.zeros((5, 2), np.float32))
    assert str(caught.value) == "run: Resize 'up' needs floormod(n, 4) == 0; n is 5"


def test_saved_bytes_are_reproducible(artifact: Path, tmp_path: Path) -> None:
    ekiden.load(artifact).save(tmp_path / "again.eki")
    ekiden.compile(model()).save(tmp_path / "new.eki")
    data = artifact.read_bytes()
    assert (tmp_path / "again.eki").read_bytes() == data
    assert (tmp_path / "new.eki").read_bytes() == data


@pytest.mark.parametrize("kind", ["str", "path", "bytes", "proto", "module"])
def test_models_come_in_many_forms(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(model(), path)
    inputs = {
        "str": str(path),
        "path": path,
        "bytes": path.read_bytes(),
        "proto": model(),
        "module": ekiden.frontend.onnx.from_onnx(path),
    }
    feed = arguments(2)
    actual = ekiden.compile(inputs[kind])(**feed)
    np.testing.assert_allclose(actual.numpy(), expected(**feed), rtol=1e-5, atol=1e-6)


def test_unsupported_model_objects_are_refused() -> None:
    with pytest.raises(ekiden.CompileError) as caught:
        ekiden.compile(3)  # type: ignore[arg-type]
    assert str(caught.value) == f"compile: expected {accepted_models()}, got int"
    assert (
        "a path, bytes, an onnx.ModelProto" in accepted_models()
        and "ekiden.IRModule" in accepted_models()
    )


def test_module_without_main_is_refused() -> None:
    with pytest.raises(ekiden.CompileError, match="the module has no Relay function 'main'"):
        ekiden.compile(IRModule({}))


def test_shapes_can_be_fixed() -> None:
    exe = ekiden.compile(model(), shape={"x": (2, 3), "b": (2, 1)})
    assert [i.shape for i in exe.inputs] == [(2, 3), (2, 1)]
    with pytest.raises(ekiden.InputError):
        exe(**arguments(3))


def test_failed_save_leaves_no_file(
    exe: ekiden.Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "small.eki"
    target.write_bytes(b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        exe.save(target)
    assert [p.name for p in tmp_path.iterdir()] == ["small.eki"] and target.read_bytes() == b"old"


def test_saving_into_a_folder_that_is_not_there_is_refused(
    exe: ekiden.Executable, tmp_path: Path
) -> None:
    folder = tmp_path / "nowhere"
    with pytest.raises(FileNotFoundError) as caught:
        exe.save(folder / "small.eki")
    assert str(caught.value) == f"write '{folder / 'small.eki'}': no folder '{folder}'"


def test_every_truncation_is_refused(artifact: Path, tmp_path: Path) -> None:
    data = artifact.read_bytes()
    path = tmp_path / "short.eki"
    for size in [*range(0, 200), *range(200, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ekiden.LoadError):
            ekiden.load(path)


def test_every_corrupted_byte_of_a_sample_is_refused(artifact: Path, tmp_path: Path) -> None:
    data = artifact.read_bytes()
    path = tmp_path / "bad.eki"
    refused = 0
    places = range(0, len(data), 61)
    for at in places:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            ekiden.load(path)
        except ekiden.LoadError:
            refused += 1
    assert refused > 0.9 * len(places)  # the rest is padding between sections


def test_non_artifact_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    with pytest.raises(
        ekiden.LoadError, match="it is a model, not an artifact: compile it by ekiden.compile$"
    ):
        ekiden.load(path)
    (tmp_path / "text.eki").write_text("not an executable" * 4)
    with pytest.raises(ekiden.LoadError, match="not an Ekiden executable"):
        ekiden.load(tmp_path / "text.eki")
    with pytest.raises(OSError, match="nothing"):
        ekiden.load(tmp_path / "nothing")


def test_copies_run_in_threads(artifact: Path) -> None:
    feed = arguments(9)
    results: list[np.ndarray] = []

    def work() -> None:
        exe = ekiden.load(artifact)
        results.extend(exe(**feed).numpy() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80 and all((r == results[0]).all() for r in results)


def test_metadata_is_json(exe: ekiden.Executable) -> None:
    assert json.loads(json.dumps(exe.raw.metadata))["main"]["limits"] == {}


def test_disassembly_lists_bytecode(exe: ekiden.Executable) -> None:
    text = exe.disassemble()
    assert "main" in text and "fused_nn_contrib_dense_pack" in text


class Unshared:
    """An array that its library does not share."""

    dtype = "float32"

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("tensors with the negative bit are not exported")


def test_array_conversion_failure_gives_the_reason(exe: ekiden.Executable) -> None:
    expected_value = (
        "input 'x': expected an array of float32, got one of float32: tensors with the neg"
    )
    with pytest.raises(ekiden.InputError, match=expected_value):
        exe(Unshared(), np.zeros((1, 1), np.float32))
