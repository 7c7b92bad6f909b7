"""Large weights that bypass protobuf's parser, and broken files."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden.frontend.onnx import weight_stripping
from ekiden.frontend.onnx.importer import import_onnx
from ekiden.frontend.onnx.tensor import to_array
from ekiden.frontend.onnx.weight_registry import WeightRegistry
from ekiden.relay.expr import Constant, Function
from ekiden.relay.visitor import post_order
from ekiden.runtime.artifact import mapped_files
from ekiden.runtime.errors import ImportModelError

FLOAT = TensorProto.FLOAT


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def model(*sizes: int) -> onnx.ModelProto:
    """x * w0 + w1 ..., weights of so many elements; the last stands in a node, and one in a branch
    inside a node."""
    weights = [numpy_helper.from_array(numbers(n, 1), f"w{i}") for i, n in enumerate(sizes)]
    held = numpy_helper.from_array(numbers(1, 5000) + 1, "held")
    branches = [
        helper.make_graph(
            [
                helper.make_node("Constant", [], [f"{n}_c"], value=held),
                helper.make_node("Mul", ["x", f"{n}_c"], [n]),
            ],
            n,
            [],
            [helper.make_tensor_value_info(n, FLOAT, None)],
        )
        for n in ("yes", "no")
    ]
    nodes = [
        helper.make_node("If", ["cond"], ["m0"], then_branch=branches[0], else_branch=branches[1])
    ]
    nodes += [helper.make_node("ReduceSum", [w.name], [f"s{i}"]) for i, w in enumerate(weights)]
    nodes += [helper.make_node("Add", [f"m{i}", f"s{i}"], [f"m{i + 1}"]) for i in range(len(sizes))]
    inputs = [
        helper.make_tensor_value_info("x", FLOAT, [1, 5000]),
        helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info(f"m{len(sizes)}", FLOAT, [1, 5000])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def parsed(data: bytes) -> tuple[onnx.ModelProto, WeightRegistry]:
    weights = WeightRegistry()
    return onnx.ModelProto.FromString(weights.strip_weights(data)), weights


def test_large_weights_bypass_protobuf_unchanged() -> None:
    whole = model(10, 5000, 400_000)
    data = whole.SerializeToString()
    rest, weights = parsed(data)
    assert rest.ByteSize() < 5000 < 1_600_000 < len(data)
    with weights.activate():
        for a, b in zip(whole.graph.initializer, rest.graph.initializer, strict=True):
            assert b.HasField("raw_data") == (a.name == "w0")
            np.testing.assert_array_equal(to_array(b), numpy_helper.to_array(a))
        inner = rest.graph.node[0].attribute[0].g.node[0].attribute[0].t
        assert not inner.HasField("raw_data")
        np.testing.assert_array_equal(to_array(inner), numbers(1, 5000) + 1)
    for a, b in zip(whole.graph.initializer, rest.graph.initializer, strict=True):
        b.CopyFrom(a)
    for branch in range(2):
        rest.graph.node[0].attribute[branch].CopyFrom(whole.graph.node[0].attribute[branch])
    assert rest == whole


@pytest.mark.parametrize("kind", ["float16", "float64", "int8", "uint64", "bool", "bfloat16"])
def test_stripped_weights_of_every_element_type(kind: str) -> None:
    """Those whose bytes are an array's stay out; others are left."""
    element = (
        helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        if kind != "bfloat16"
        else TensorProto.BFLOAT16
    )
    width = 2 if kind == "bfloat16" else np.dtype(kind).itemsize
    raw = np.random.default_rng(1).integers(0, 2, 40_000 * width).astype("uint8").tobytes()
    tensor = TensorProto(name="w", data_type=element, dims=[40_000], raw_data=raw)
    whole = onnx.ModelProto()
    whole.graph.initializer.append(tensor)
    rest, weights = parsed(whole.SerializeToString())
    assert rest.graph.initializer[0].HasField("raw_data") == (kind == "bfloat16")
    with weights.activate():
        np.testing.assert_array_equal(
            to_array(rest.graph.initializer[0]), numpy_helper.to_array(tensor)
        )


def tensor_with(**more: object) -> bytes:
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[8192], raw_data=bytes(1 << 15), **more)
    whole = onnx.ModelProto()
    whole.graph.initializer.append(tensor)
    return whole.SerializeToString()


def test_duplicate_fields_are_left_to_protobuf() -> None:
    once = tensor_with()
    raw = TensorProto(raw_data=bytes(1 << 15)).SerializeToString()
    attribute = onnx.AttributeProto(t=TensorProto(data_type=FLOAT, raw_data=bytes(1 << 15)))
    node = onnx.NodeProto.FromString(_field(5, attribute.SerializeToString() * 2))
    again = onnx.ModelProto()
    again.graph.node.append(node)
    twice = onnx.TensorProto(data_type=FLOAT).SerializeToString() + raw * 2
    assert weight_stripping.cut_weights(memoryview(once))[1]
    for data in (
        once * 2,
        tensor_with(segment=TensorProto.Segment(begin=0, end=1)),
        tensor_with(data_location=TensorProto.EXTERNAL),
        _field(7, _field(1, _field(5, attribute.SerializeToString() * 2))),
        _field(7, _field(5, twice)),
    ):
        rest, places = weight_stripping.cut_weights(memoryview(data))
        assert not places and bytes(rest) == data


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + weight_stripping._encode_varint(len(content)) + content


def test_reserved_weight_names_are_refused() -> None:
    message = [
        onnx.StringStringEntryProto(key="location", value="ekiden:0"),
        onnx.StringStringEntryProto(key="offset", value="0"),
    ]
    tensor = TensorProto(
        name="w",
        data_type=FLOAT,
        dims=[1],
        data_location=TensorProto.EXTERNAL,
        external_data=message,
    )
    broken = model(5000)
    broken.graph.initializer[0].CopyFrom(tensor)
    broken.graph.initializer[0].name = "w0"
    with pytest.raises(ImportModelError, match="the weight 'w0' lies in the file 'ekiden:0'"):
        import_onnx(broken.SerializeToString())


def test_wrong_number_of_bytes_is_named() -> None:
    broken = model(5000)
    broken.graph.initializer[0].dims[0] = 4999
    with pytest.raises(ImportModelError, match="initializer 'w0' is broken: cannot reshape"):
        import_onnx(broken.SerializeToString())


@pytest.mark.parametrize("seed", range(4))
def test_broken_files_give_protobufs_error(seed: int) -> None:
    """Cut short or with other bytes: the rest parses where the whole does, and the other way
    round where bytes of weights alone are not looked at."""
    random = np.random.default_rng(seed)
    data = model(10, 5000).SerializeToString()
    for _ in range(150):
        at = int(random.integers(len(data)))
        result = bytearray(data[:at] if random.random() < 0.3 else data)
        for place in (
            random.integers(0, min(len(result), 400) + 1, 2) if random.random() < 0.7 else []
        ):
            if place < len(result):
                result[place] = random.integers(256)
        _same_verdict(bytes(result))


def _same_verdict(data: bytes) -> None:
    try:
        whole = onnx.ModelProto.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            parsed(data)
        return
    rest, weights = parsed(data)
    with weights.activate():
        for a, b in zip(whole.graph.initializer, rest.graph.initializer, strict=True):
            assert _elements(a) == _elements(b)


def _elements(tensor: TensorProto) -> tuple[str, bytes] | None:
    """Those of a tensor, None where it is broken."""
    try:
        result = to_array(tensor)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return str(result.dtype), result.tobytes()


def constants(module: ekiden.IRModule) -> list[np.ndarray]:
    main = module["main"]
    assert isinstance(main, Function)
    return [e.data for e in post_order(main, into_functions=True) if isinstance(e, Constant)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(10, 5000, 400_000).SerializeToString())
    return path


def test_imported_module_needs_nothing_of_its_file(file: Path) -> None:
    module = import_onnx(str(file)).to_module()
    os.truncate(file, 0)
    large = max(constants(module), key=lambda a: a.size)
    assert large.flags.aligned
    np.testing.assert_array_equal(large, numbers(400_000, 1))


def test_file_truncated_during_import_is_an_error(file: Path) -> None:
    with mapped_files.allow_mapped_borrowing() as files:
        module = import_onnx(str(file)).to_module()
    large = max(constants(module), key=lambda a: a.size)
    files.check_unchanged("compile")
    os.truncate(file, 8192)
    assert np.asarray(large)[-1] == 0, "zeros, and no signal that ends the process"
    with pytest.raises(ImportModelError, match="compile: the file .* was changed while"):
        files.check_unchanged("compile")


@pytest.mark.parametrize("size", [0, 100_000])
def test_compiled_model_is_independent_of_its_file(file: Path, size: int) -> None:
    """What answers has copies; what is compiled beside may have read all before, or says why not
    in `wait`."""
    feed = {"x": numbers(1, 5000), "cond": np.array(True)}
    exe = ekiden.compile(str(file), tier="quick")
    os.truncate(file, size)
    expected = feed["x"] * (feed["x"] + 1) + sum(numbers(n, 1).sum() for n in (10, 5000, 400_000))
    np.testing.assert_allclose(exe(**feed).numpy(), expected, rtol=1e-3)
    try:
        exe.wait(60)
    except ImportModelError as error:
        assert "was changed while weights were read from it" in str(error)
    np.testing.assert_allclose(exe(**feed).numpy(), expected, rtol=1e-3)


def test_file_that_is_written_meanwhile_is_an_error(file: Path) -> None:
    with mapped_files.allow_mapped_borrowing() as files:
        import_onnx(str(file))
    with open(file, "r+b") as opened:
        opened.seek(100_000)
        opened.write(b"other bytes")
    os.utime(file)
    with pytest.raises(ImportModelError, match="was changed"):
        files.check_unchanged("compile")


@pytest.mark.parametrize("how", [os.unlink, lambda path: os.replace(_other(path), path)])
def test_mapped_file_survives_removal_and_replacement(
    file: Path, how: Callable[[Path], object]
) -> None:
    with mapped_files.allow_mapped_borrowing() as files:
        module = import_onnx(str(file)).to_module()
    how(file)
    large = max(constants(module), key=lambda a: a.size)
    np.testing.assert_array_equal(large, numbers(400_000, 1))
    files.check_unchanged("compile")


def _other(path: Path) -> Path:
    path.with_suffix(".new").write_bytes(b"another")
    return path.with_suffix(".new")


def test_more_files_than_can_be_watched_are_read(file: Path) -> None:
    with mapped_files.allow_mapped_borrowing() as files:
        assert sum(files.map(file) is None for _ in range(300)) >= 44
        module = import_onnx(str(file)).to_module()
    np.testing.assert_array_equal(max(constants(module), key=lambda a: a.size), numbers(400_000, 1))
