"""`shape=` of Relay programs: sizes for symbolic and unknown dimensions of inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.prim import SizeVar
from ekiden.runtime.errors import CompileError, EkidenError, ImportModelError

PROGRAM = """
#[version = "0.0.5"]
def @scale(%a: Tensor[(k, 3), float32]) -> Tensor[(k, 3), float32] { multiply(%a, 2f) }
def @main(%x: Tensor[(n, 3), float32], %y: Tensor[(n, ?), float32],
          %z: Tensor[((2*n), 3), float32]) {
  let %ones = ones(shape=[n, 3], dtype="float32");
  (add(@scale(%x), %ones), nn.relu(%y), %z)
}
"""


def compiled_input_shapes(program: ekiden.runtime.Executable) -> dict[str, tuple[object, ...]]:
    return {info.name: tuple(info.shape) for info in program.inputs}


def test_stated_size_is_bound_wherever_its_symbol_occurs() -> None:
    program = ekiden.compile(relay.parse(PROGRAM), shape={"x": (4, 3), "y": (4, 5)})
    assert compiled_input_shapes(program) == {"x": (4, 3), "y": (4, 5), "z": (8, 3)}
    x, y, z = (np.full(shape, -1.5, "float32") for shape in ((4, 3), (4, 5), (8, 3)))
    scaled, positive, same = program(x, y, z)
    np.testing.assert_array_equal(scaled.numpy(), x * 2 + 1)
    np.testing.assert_array_equal(positive.numpy(), np.zeros_like(y))
    np.testing.assert_array_equal(same.numpy(), z)


def test_stated_shapes_of_text_files_and_functions_are_honoured(tmp_path: Path) -> None:
    path = tmp_path / "m.relay"
    path.write_text(PROGRAM)
    assert compiled_input_shapes(ekiden.compile(path, shape={"x": (2, None)}))["z"] == (4, 3)
    x = relay.var("x", shape=(relay.Any(), 3))
    function = relay.Function([x], relay.nn.relu(x))
    assert compiled_input_shapes(ekiden.compile(function, shape={"x": (7, 3)})) == {"x": (7, 3)}
    assert compiled_input_shapes(ekiden.compile(function, shape={"x": (8, 3)})) == {"x": (8, 3)}


def test_names_and_none_keep_dimensions_dynamic() -> None:
    program = ekiden.compile(relay.parse(PROGRAM), shape={"x": ("rows", 3), "y": (None, "columns")})
    shapes = compiled_input_shapes(program)
    assert shapes["x"] == ("rows", 3)
    assert shapes["y"] == ("rows", "columns")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"w": (1,)}, "shape of 'w': no such input; the inputs are: x, y, z"),
        ({"x": (1,)}, "shape of 'x': 2 dimensions expected, as in Tensor[(n, 3), float32]; got 1"),
        ({"x": (4, 5)}, "shape of 'x': dimension 1 is 3 in Tensor[(n, 3), float32], not 5"),
        (
            {"x": (4, 3), "y": (5, 1)},
            "shape of 'y': dimension 'n' cannot be 5: the shape of 'x' makes it 4",
        ),
        (
            {"x": (4, 3), "z": (9, 3)},
            "shape of 'z': dimension 0 is 2 * n = 8 in Tensor[(2 * n, 3), float32], not 9",
        ),
    ],
)
def test_shape_that_the_program_excludes_is_refused(
    shape: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ImportModelError) as caught:
        ekiden.compile(relay.parse(PROGRAM), shape=shape)
    assert str(caught.value) == message


def test_symbol_bounds_are_kept() -> None:
    x = relay.var("x", shape=(SizeVar("n", upper=8), SizeVar("m"), 3))
    function = relay.Function([x], relay.nn.relu(x))
    assert ekiden.compile(function, shape={"x": (8, 9, 3)}).inputs[0].shape == (8, 9, 3)
    renamed = ekiden.compile(function, shape={"x": ("rows", None, 3)})
    assert renamed.inputs[0].shape == ("rows", "m", 3)
    with pytest.raises(EkidenError):
        renamed(np.zeros((9, 1, 3), "float32"))
    for rows in (9, "m"):
        with pytest.raises(ImportModelError) as caught:
            ekiden.compile(function, shape={"x": (rows, 2 if rows == 9 else None, 3)})
        assert str(caught.value) == f"shape of 'x': dimension 'n' is at most 8, not {rows}"


def test_more_elements_than_memory_has_addresses_are_refused_by_input() -> None:
    x = relay.var("x", shape=(SizeVar("n"), 3))
    with pytest.raises(ImportModelError, match="^shape of 'x': a tensor's type: no more than"):
        ekiden.compile(relay.Function([x], relay.nn.relu(x)), shape={"x": (1 << 70, 3)})


def test_non_tensor_inputs_have_no_shape() -> None:
    program = relay.parse("def @main(%p: (Tensor[(n,), float32], int32)) { %p.0 }")
    with pytest.raises(ImportModelError, match="a tensor expected, the input is"):
        ekiden.compile(program, shape={"p": (3,)})


def test_condition_of_an_imported_model_that_a_size_breaks_names_its_node() -> None:
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, m] a, float[n, k] b) => (float[n, p] c) { c = Add(a, b) }"""
    )
    module, _ = relay.frontend.from_onnx(graph)
    program = ekiden.compile(module, shape={"a": (2, 3)})
    assert compiled_input_shapes(program)["b"][0] == 2
    with pytest.raises(CompileError, match="Add"):
        ekiden.compile(module, shape={"a": (2, 3), "b": (2, 4)})


def test_other_import_options_of_a_relay_program_are_refused() -> None:
    with pytest.raises(
        CompileError, match="a Relay program takes no 'signature'; it takes 'shape'"
    ):
        ekiden.compile(relay.parse(PROGRAM), signature="serve")
