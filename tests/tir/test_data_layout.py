"""Layouts: axes, and maps of indices and shapes between layouts."""

import pytest

from ekiden import tir

pytestmark = pytest.mark.quick


def test_layout_is_its_text_and_its_axes() -> None:
    layout = tir.layout("NCHW16c")
    assert layout == "NCHW16c" and f"{layout}" == layout.name == "NCHW16c"
    assert len(layout) == 5 and list(layout) == ["N", "C", "H", "W", "c"] and layout[-1] == "c"
    assert [layout.index_of(axis) for axis in "NcO"] == [0, 4, -1]
    assert [layout.factor_of(axis) for axis in "CcN"] == [16, 16, -1]
    assert "W" in layout and "O" not in layout and not tir.layout("")
    assert tir.layout("NCHW", "int64").axes[0].var.dtype == "int64"
    with pytest.raises(TypeError, match="a dtype of integers expected, got 'float32'"):
        tir.layout("NCHW", "float32")
    with pytest.raises(ValueError, match="layout 'NC-HW'"):
        tir.layout("NC-HW")


@pytest.mark.parametrize(
    ("source", "target", "shape", "moved", "index", "there"),
    [
        ("NCHW", "NHWC", (1, 2, 3, 4), (1, 3, 4, 2), (0, 1, 2, 3), (0, 2, 3, 1)),
        ("NCHW", "NCHW4c", (1, 8, 3, 2), (1, 2, 3, 2, 4), (0, 6, 2, 1), (0, 1, 2, 1, 2)),
        ("NCHW2c", "NHW8cC", (1, 8, 3, 2, 2), (1, 3, 2, 8, 2), (0, 5, 2, 1, 1), (0, 2, 1, 3, 1)),
    ],
)
def test_indices_and_shapes_move_there_and_back(
    source: str,
    target: str,
    shape: tuple[int, ...],
    moved: tuple[int, ...],
    index: tuple[int, ...],
    there: tuple[int, ...],
) -> None:
    both = tir.bijective_layout(source, target)
    assert both is not None
    assert tuple(map(int, both.forward_shape(shape))) == moved
    assert tuple(map(int, both.backward_shape(moved))) == shape
    assert tuple(map(int, both.forward_index(index))) == there
    assert tuple(map(int, both.backward_index(there))) == index


def test_layouts_of_other_axes_have_no_way() -> None:
    for source, target in (("NCHW", "ABCD"), ("", "NCHW"), ("__undef__", "NCHW")):
        assert tir.bijective_layout(source, target) is None
    both = tir.bijective_layout("NCHW", "NHWC")
    assert both is not None
    with pytest.raises(ValueError, match="layout NCHW: 4 axes expected, got 2"):
        both.forward_shape((1, 2))
