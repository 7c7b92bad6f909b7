"""SliceInPlace: contiguous slices become views."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import program

import ekiden
from ekiden.relay import Interpreter
from ekiden.relay.printer import astext
from ekiden.relay.transform import ManifestAlloc, SliceInPlace
from long_runs import share

KERNEL = "fn (%p0: Tensor[{0}, float32], Primitive=1) -> Tensor[{1}, float32] {{ {2} }}"
X = "Tensor[(3, n, 16), float32]"
PROGRAMS = {
    "rows of a table": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %t = nn.relu(%x);
  let %a = strided_slice(%t, begin=[0], end=[1]);
  let %b = strided_slice(%t, begin=[1], end=[3]);
  (nn.dense(reshape(%a, newshape=[-1, 16]), %w), nn.dense(reshape(%b, newshape=[-1, 16]), %w))
}""",
    "from the end, and of a slice": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %t = nn.relu(%x);
  let %a = strided_slice(%t, begin=[-2], end=[3]);
  let %b = strided_slice(%a, begin=[1], end=[2]);
  let %c = reshape(%b, newshape=[-1, 16]);
  (nn.dense(%c, %w), nn.dense(reshape(%a, newshape=[-1, 16]), %w))
}""",
    "of a slice in another shape": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %t = nn.relu(%x);
  let %a = strided_slice(%t, begin=[1], end=[3]);
  let %r = reshape(%a, newshape=[1, 2, -1, 16]);
  let %b = strided_slice(%r, begin=[1], end=[2], axes=[1]);
  let %c = nn.dense(reshape(%b, newshape=[-1, 16]), %w);
  (%c, nn.dense(reshape(%a, newshape=[-1, 16]), %w))
}""",
    "parts of a split": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %t = nn.relu(%x);
  let %s = split(%t, indices_or_sections=[1, 2], axis=0);
  let %a = nn.dense(reshape(%s.0, newshape=[-1, 16]), %w);
  let %b = nn.dense(reshape(%s.1, newshape=[-1, 16]), %w);
  (%a, %b, nn.dense(reshape(%s.2, newshape=[-1, 16]), %w))
}""",
    "in a branch": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %t = nn.relu(%x);
  if (less(sum(%t), 100f)) {
    nn.dense(reshape(strided_slice(%t, begin=[2], end=[3]), newshape=[-1, 16]), %w)
  } else {
    nn.dense(reshape(strided_slice(%t, begin=[0], end=[1]), newshape=[-1, 16]), %w)
  }
}""",
    "results, which are copied": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %t = nn.relu(%x);
  (strided_slice(%t, begin=[0], end=[2]), %t, strided_slice(%t, begin=[1], end=[3]))
}""",
    "of the caller's tensor, which is copied": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  nn.dense(reshape(strided_slice(%x, begin=[1], end=[2]), newshape=[-1, 16]), %w)
}""",
    "updated, while the rest is used": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %t = nn.relu(%x);
  let %a = strided_slice(%t, begin=[1], end=[3]);
  let %i = cast(argmax(%w, axis=[1]), dtype="int64");
  let %u = reshape(take(%i, 0i64, axis=0), newshape=[1, 1]);
  let %row = scatter_nd(reshape(%a, newshape=[-1, 16]), multiply(%u, 0i64),
                        nn.dense(strided_slice(%w, begin=[0], end=[1]), %w), mode="update");
  (%row, nn.dense(reshape(%t, newshape=[-1, 16]), %w))
}""",
    "joined again": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %t = nn.relu(%x);
  let %a = strided_slice(%t, begin=[0], end=[1]);
  let %b = strided_slice(%t, begin=[2], end=[3]);
  let %c = nn.dense(reshape(%b, newshape=[-1, 16]), %w);
  (nn.batch_matmul(concatenate((%b, %a)), concatenate((%a, %b))), %c)
}""",
    "from a concatenation": """
def @main(%x: X, %w: Tensor[(16, 16), float32]) {
  let %w3 = broadcast_to(%w, shape=[3, 16, 16]);
  let %t = concatenate((nn.batch_matmul(%x, %w3), nn.batch_matmul(nn.relu(%x), %w3)));
  let %c = strided_slice(%t, begin=[2], end=[5]);
  let %d = strided_slice(%t, begin=[0], end=[3]);
  (nn.batch_matmul(%c, %w3), nn.batch_matmul(%d, %w3))
}""",
}
COPIED = {
    "results, which are copied": 2,
    "of the caller's tensor, which is copied": 1,
    "updated, while the rest is used": 1,  # of the caller's weight
    "joined again": 2,  # to where they lie in what joins them
}


def text_of(name: str) -> str:
    return PROGRAMS[name].replace("X", X)


@share(4)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_every_form_gives_what_the_interpreter_gives(name: str, executor: str) -> None:
    module = program(text_of(name))
    exe = ekiden.compile(module, executor=executor)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 16)).astype(np.float32)
    for n in (1, 7, 32, *(() if "updated" in name else (0,))):  # no row to update
        x = rng.standard_normal((3, n, 16)).astype(np.float32)
        expected = Interpreter(module).evaluate("main", x, w)
        actual = exe(x, w)
        several = isinstance(expected, tuple)
        for a, b in zip(*((v if several else (v,)) for v in (actual, expected)), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)
    if executor == "vm":
        copies = [k for k in exe.disassemble().splitlines() if k.startswith("PackedFunc")]
        cutting = [k for k in copies if "strided_slice" in k or "split" in k]
        assert len(cutting) == COPIED.get(name, 0), cutting


def planned(piece: str, cut: str, shape: str = "(4, 8, 16)") -> str:
    """A table, a piece of it in a kernel of its own, and a kernel that reads that, in text."""
    tanh = KERNEL.format(shape, shape, "tanh(%p0)")
    cutting = KERNEL.format(shape, piece, cut)
    after = KERNEL.format(piece, piece, "tanh(%p0)")
    text = f"""def @main(%x: Tensor[{shape}, float32]) {{
      let %t = {tanh}(%x);
      let %a = {cutting}(%t);
      let %r = {after}(%a);
      %r
    }}"""
    return astext(SliceInPlace()(ManifestAlloc()(program(text))), show_meta_data=False)


@pytest.mark.parametrize(
    "piece, cut, offset",
    [
        ("(2, 8, 16)", "strided_slice(%p0, begin=[2], end=[4])", 1024),
        ("(3, 8, 16)", "strided_slice(%p0, begin=[-3], end=[4])", 512),
        ("(2, 8, 16)", 'strided_slice(%p0, begin=[1], end=[2], slice_mode="size")', 512),
        ("(2, 8, 16)", "strided_slice(%p0, begin=[0], end=[4], strides=[2])", None),
        ("(4, 4, 16)", "strided_slice(%p0, begin=[0, 4], end=[4, 8])", None),
        ("(1, 8, 16)", "strided_slice(%p0, begin=[1], end=[2])", None),  # a quarter of the table
    ],
)
def test_slice_is_a_view_of_the_table(piece: str, cut: str, offset: int | None) -> None:
    text = planned(piece, cut)
    shown = ", ".join(piece[1:-1].split(", "))
    place = f"memory.alloc_tensor(%storage, offset={offset}, shape=[{shown}]"
    assert (place in text and "strided_slice" not in text) == (offset is not None), text


def test_small_slice_is_copied() -> None:
    """It does lie there where the table is used longer."""
    cut = "strided_slice(%p0, begin=[1], end=[2])"
    assert "strided_slice" in planned("(1, 8, 16)", cut)
    tanh = KERNEL.format("(4, 8, 16)", "(4, 8, 16)", "tanh(%p0)")
    text = f"""def @main(%x: Tensor[(4, 8, 16), float32]) {{
      let %t = {tanh}(%x);
      let %a = {KERNEL.format("(4, 8, 16)", "(1, 8, 16)", cut)}(%t);
      let %b = {KERNEL.format("(1, 8, 16)", "(1, 8, 16)", "tanh(%p0)")}(%a);
      let %c = {tanh}(%t);
      (%b, %c)
    }}"""
    result = astext(SliceInPlace()(ManifestAlloc()(program(text))), show_meta_data=False)
    assert "strided_slice" not in result


def test_along_a_later_axis_behind_axes_of_one_element() -> None:
    cut = "strided_slice(%p0, begin=[0, 8], end=[1, 16])"
    assert "offset=512" in planned("(1, 8, 16)", cut, shape="(1, 16, 16)")
