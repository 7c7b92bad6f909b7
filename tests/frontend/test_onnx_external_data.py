"""Weights in files beside a model's: they stay there, and what says something else than where plain
bytes are is what the package onnx makes of it."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden.frontend.onnx import external_data
from ekiden.frontend.onnx.importer import import_onnx
from ekiden.frontend.onnx.load import read_model
from ekiden.frontend.onnx.tensor import to_array
from ekiden.frontend.onnx.weight_registry import WeightRegistry
from ekiden.relay.expr import Constant, Function
from ekiden.relay.visitor import post_order
from ekiden.runtime.artifact import mapped_files
from ekiden.runtime.errors import ImportModelError

FLOAT = TensorProto.FLOAT
LARGE = 400_000
"""Elements of a weight whose file is mapped."""


def numbers(size: int, kind: str = "float32") -> np.ndarray:
    return (np.random.default_rng(size).standard_normal(size) * 50).astype(kind)


def lies_at(tensor: TensorProto, **message: object) -> None:
    """Let a tensor say where its bytes are."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in message.items():
        tensor.external_data.add(key=key, value=str(value))


def chain(*weights: TensorProto) -> onnx.ModelProto:
    """x plus the sum of each weight."""
    nodes = [helper.make_node("ReduceSum", [w.name], [f"s{i}"]) for i, w in enumerate(weights)]
    nodes += [
        helper.make_node("Add", [f"m{i}" if i else "x", f"s{i}"], [f"m{i + 1}"])
        for i in range(len(weights))
    ]
    x = helper.make_tensor_value_info("x", FLOAT, [1])
    y = helper.make_tensor_value_info(f"m{len(weights)}", FLOAT, [1])
    graph = helper.make_graph(nodes, "g", [x], [y], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(folder: Path, *sizes: int) -> Path:
    """A model of weights of so many elements, one behind the other in w.bin."""
    weights = [numpy_helper.from_array(numbers(n), f"w{i}") for i, n in enumerate(sizes)]
    with open(folder / "w.bin", "wb") as file:
        for weight in weights:
            raw = weight.raw_data
            lies_at(weight, location="w.bin", offset=file.tell(), length=len(raw))
            file.write(raw)
    (folder / "model.onnx").write_bytes(chain(*weights).SerializeToString())
    return folder / "model.onnx"


def changed(path: Path, **message: object) -> None:
    """Let the first weight of a saved model say another place."""
    model = onnx.load(path, load_external_data=False)
    del model.graph.initializer[0].external_data[:]
    lies_at(model.graph.initializer[0], **message)
    path.write_bytes(model.SerializeToString())


def constants(module: ekiden.IRModule) -> list[np.ndarray]:
    main = module["main"]
    assert isinstance(main, Function)
    return [e.data for e in post_order(main, into_functions=True) if isinstance(e, Constant)]


def largest(module: ekiden.IRModule) -> np.ndarray:
    return max(constants(module), key=lambda a: a.size)


def is_in_a_file(array: np.ndarray) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview) and base.readonly and base.nbytes == array.nbytes


def test_weights_stay_in_their_file(tmp_path: Path) -> None:
    path = saved(tmp_path, 10, LARGE, 5000)
    with mapped_files.allow_mapped_borrowing() as files:
        module = import_onnx(str(path)).to_module()
    assert is_in_a_file(largest(module)) and len(files.files) == 1
    for size in (LARGE, 5000):
        result = next(a for a in constants(module) if a.size == size)
        np.testing.assert_array_equal(result, numbers(size))


def test_embedded_and_external_weights_mix(tmp_path: Path) -> None:
    """Those are out of its message too, and none of what the package onnx is asked to read."""
    path = saved(tmp_path, LARGE, 10)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(numbers(8000), "w1"))
    path.write_bytes(model.SerializeToString())
    assert np.array_equal(largest(import_onnx(path).to_module()), numbers(LARGE))
    expected = sum(numbers(n).sum() for n in (LARGE, 8000))
    actual = ekiden.compile(path)(np.zeros(1, np.float32)).numpy()
    np.testing.assert_allclose(actual, [expected], rtol=1e-3)


@pytest.mark.parametrize("kind", ["float16", "float64", "int8", "uint64", "bool"])
def test_external_data_of_every_element_type(kind: str, tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(numbers(5000, kind), "w")
    (tmp_path / "w.bin").write_bytes(bytes(7) + tensor.raw_data)
    lies_at(tensor, location="w.bin", offset=7)
    (tmp_path / "model.onnx").write_bytes(chain(tensor).SerializeToString())
    weights = WeightRegistry()
    model, _, files = read_model(tmp_path / "model.onnx", weights)
    with weights.activate():
        np.testing.assert_array_equal(to_array(model.graph.initializer[0]), numbers(5000, kind))
    assert files == ("w.bin",)


def test_floats_that_numpy_has_not_are_read_by_the_package(tmp_path: Path) -> None:
    raw = numbers(5000, "float16").tobytes()
    tensor = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[5000])
    (tmp_path / "w.bin").write_bytes(raw)
    lies_at(tensor, location="w.bin")
    inside = numpy_helper.from_array(numbers(8000), "inside")
    (tmp_path / "model.onnx").write_bytes(chain(tensor, inside).SerializeToString())
    weights = WeightRegistry()
    model, _, _ = read_model(tmp_path / "model.onnx", weights)
    assert model.graph.initializer[0].raw_data == raw
    assert to_array(model.graph.initializer[0]).tobytes() == raw


@pytest.mark.parametrize("where", ["branch", "function"])
def test_attribute_tensors_may_be_external(where: str, tmp_path: Path) -> None:
    held = numpy_helper.from_array(numbers(5000), "held")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(held.raw_data)
    lies_at(held, location="sub/w.bin", length=20_000)
    body = [
        helper.make_node("Constant", [], ["c"], value=held),
        helper.make_node("ReduceSum", ["c"], ["s"]),
        helper.make_node("Add", ["x", "s"], ["m"]),
    ]
    model = chain(numpy_helper.from_array(numbers(10), "w0"))
    if where == "function":
        opset = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("own", "F", ["x"], ["m"], body, opset))
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.graph.node.insert(0, helper.make_node("F", ["x"], ["x2"], domain="own"))
    else:
        out = [helper.make_tensor_value_info("m", FLOAT, [1])]
        graph = helper.make_graph(body, "b", [], out)
        yes = numpy_helper.from_array(np.array(True), "yes")
        model.graph.initializer.append(yes)
        output = helper.make_node("If", ["yes"], ["x2"], then_branch=graph, else_branch=graph)
        model.graph.node.insert(0, output)
    model.graph.node[2].input[0] = "x2"
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    result = ekiden.compile(tmp_path / "model.onnx")(np.ones(1, np.float32)).numpy()
    np.testing.assert_allclose(result, [1 + numbers(5000).sum() + numbers(10).sum()], rtol=1e-3)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"location": "none.bin"}, "'w0' lies in the file 'none.bin', which must be in the folder"),
        ({"location": "w.bin", "length": 4 * LARGE + 1}, "exceeds available data"),
        ({"location": "w.bin", "offset": 4 * LARGE + 1}, "exceeds file size"),
        ({"location": "w.bin", "offset": 1 << 70}, "exceeds file size"),
        ({"location": "w.bin", "offset": -4}, "must be non-negative"),
        ({"location": "w.bin", "offset": "four"}, "invalid literal for int"),
        ({"location": "w.bin", "length": 8}, "initializer 'w0' is broken: cannot reshape"),
        ({"location": "w.bin", "offset": 1}, "exceeds available data"),
        ({"location": "../w.bin"}, "cannot read the weights stored beside it: .*'../w.bin'"),
        ({"location": "/etc/hostname"}, "cannot read the weights stored beside it: .*absolute"),
        ({"location": "link.bin"}, "cannot read the weights stored beside it: .*symbolic link"),
        ({"location": "hard.bin"}, "cannot read the weights stored beside it: .*hard links"),
        ({"location": "folder/w.bin"}, "cannot read the weights stored beside it"),
        ({"location": "."}, "cannot read the weights stored beside it"),
        ({"location": ""}, "cannot read the weights stored beside it"),
    ],
)  # fmt: skip
def test_unsafe_external_locations_are_refused(
    said: dict[str, object], wanted: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = saved(folder, LARGE)
    (tmp_path / "w.bin").write_bytes(bytes(4 * LARGE))
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "folder").symlink_to("..")
    (folder / "other.bin").write_bytes(bytes(4 * LARGE))
    os.link(folder / "other.bin", folder / "hard.bin")
    changed(path, **said)
    with pytest.raises(ImportModelError, match=wanted):
        import_onnx(path)


def test_external_data_outside_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "w.bin").write_bytes(b"1")
    (tmp_path / "linked").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    os.link(tmp_path / "a" / "b" / "w.bin", tmp_path / "hard")
    for folder in (tmp_path, tmp_path / "linked"):
        location = "b/w.bin" if folder.name == "linked" else "a/b/w.bin"
        assert external_data.open_beneath(str(folder), location) is None, "it has two names"
    (tmp_path / "hard").unlink()
    for folder, location in (
        (tmp_path, "a/b/w.bin"), (tmp_path, "a/.//b/w.bin"), (tmp_path / "linked", "b/w.bin"),
    ):  # fmt: skip
        handle = external_data.open_beneath(str(folder), location)
        assert handle is not None and os.read(handle, 9) == b"1"
        os.close(handle)
    for location in (
        "linked/b/w.bin",
        "a/../a/b/w.bin",
        "a/b",
        "a/b/",
        "pipe",
        "a\0",
        "none",
        "",
        "..",
        "/etc/hosts",
    ):
        assert external_data.open_beneath(str(tmp_path), location) is None
    assert external_data.open_beneath(str(tmp_path / "none"), "w.bin") is None


def test_imported_module_is_independent_of_its_files(tmp_path: Path) -> None:
    module = import_onnx(saved(tmp_path, LARGE)).to_module()
    os.truncate(tmp_path / "w.bin", 0)
    assert largest(module).flags.aligned
    np.testing.assert_array_equal(largest(module), numbers(LARGE))


def test_file_truncated_during_import_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path, LARGE)
    with mapped_files.allow_mapped_borrowing() as files:
        module = import_onnx(path).to_module()
    files.check_unchanged("compile")
    os.truncate(tmp_path / "w.bin", 8192)
    assert largest(module)[-1] == 0, "zeros, and no signal that ends the process"
    with pytest.raises(ImportModelError, match=r"compile: the file .*w\.bin' was changed while"):
        files.check_unchanged("compile")


@pytest.mark.parametrize("how", [os.unlink, lambda path: os.truncate(path, 100_000)])
def test_compiled_model_is_independent_of_its_file(
    how: Callable[[Path], object], tmp_path: Path
) -> None:
    exe = ekiden.compile(saved(tmp_path, 5000, LARGE), tier="quick")
    how(tmp_path / "w.bin")
    expected = [1 + numbers(5000).sum() + numbers(LARGE).sum()]
    for _ in range(2):
        np.testing.assert_allclose(exe(np.ones(1, np.float32)).numpy(), expected, rtol=1e-3)
        try:
            exe.wait(60)
        except ImportModelError as error:
            assert "was changed while weights were read from it" in str(error)


def test_small_files_and_many_are_read(tmp_path: Path) -> None:
    """A file of each weight, as some exporters write them: none stays open."""
    weights = [numpy_helper.from_array(numbers(5000 + n), f"w{n}") for n in range(40)]
    for weight in weights:
        (tmp_path / weight.name).write_bytes(weight.raw_data)
        lies_at(weight, location=weight.name)
    (tmp_path / "model.onnx").write_bytes(chain(*weights).SerializeToString())
    with mapped_files.allow_mapped_borrowing() as files:
        module = import_onnx(tmp_path / "model.onnx").to_module()
    assert not files.files
    np.testing.assert_array_equal(largest(module), numbers(5039))
