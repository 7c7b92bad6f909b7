"""Dense layers with packed weights of any size, dtype, ending, decision and class of processors, in
code that compares every access with its buffer: no result is wrong, nothing is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, SizeVar, cast, maximum
from ekiden.kernels import FAMILIES, schedule, select_kernel
from ekiden.kernels.decision import Overrides
from ekiden.kernels.quantized.int8_dot import split_large_pairs
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir import verify
from ekiden.tir.transform import lower
from ekiden.topi.dimensions import as_dim
from ekiden.topi.nn import dense_pack
from ekiden.topi.nn.weight_packing import pack_weight
from long_runs import share, sizes
from processor import processors
from rounding import expect_within, gamma

Array = np.ndarray[Any, Any]
Element = Callable[[PrimExpr, list[te.Tensor], tuple[PrimExpr, ...]], PrimExpr]
MOST, DEEP = 40, (384, 768, 1152)
ABSENT = 77


@dataclass(frozen=True)
class Ending:
    """What follows a product of elements x: in code, in NumPy, and its steepest slope."""

    operands: tuple[str, ...]
    element: Element
    reference: Callable[..., Array]
    slope: float = 1.0


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


ENDINGS: dict[str, Ending] = {
    "none": Ending((), lambda x, _, i: x, lambda x: x),
    "bias and relu": Ending(
        ("columns",),
        lambda x, p, i: maximum(x + p[0][i[-1]], 0.0),
        lambda x, b: np.maximum(x + b, 0),
    ),
    "scale and residual": Ending(
        ("columns", "all"),
        lambda x, p, i: x * p[0][i[-1]] + p[1][i],
        lambda x, s, r: x * s + r,
        3.0,
    ),
    "of rows": Ending(
        ("rows",), lambda x, p, i: x + p[0][(*i[:-1], as_dim(0))], lambda x, r: x + r
    ),
    "one for all": Ending(("one",), lambda x, p, i: x - p[0][0], lambda x, c: x - c),
    "much": Ending(
        ("columns",),
        lambda x, p, i: call_intrin("sigmoid", x + p[0][i[-1]]) * call_intrin("tanh", x),
        lambda x, b: _sigmoid(x + b) * np.tanh(x),
        2.0,
    ),
}


@dataclass(frozen=True)
class Layer:
    """A drawn case. `leading` are the sizes before the columns, of which `symbolic` come at run
    time; `behind` are columns that the rows of the result have behind its own."""

    target: Target
    dtype: str
    leading: tuple[int, ...]
    symbolic: frozenset[int]
    columns: int
    depth: int
    panel: int
    ending: str
    behind: int
    is_narrow: bool
    is_decided: bool


def drawn(random: np.random.Generator) -> Layer:
    """A layer: mostly small and odd, sometimes deep enough for blocks of k."""
    texts = [*processors(), "llvm -mcpu=cascadelake"]
    served = [t for t in texts if Target.parse(t).serves(Target.host())]
    text = f"{random.choice(served)} -bounds=check"
    target = Target(Target.parse(text), cores=int(random.integers(1, 4)))
    dtype = str(random.choice(["float32", "float32", "uint8", "bfloat16"]))
    lanes = target.lanes("float32")
    rank = int(random.integers(1, 4))
    leading = [int(random.integers(1, 5)) for _ in range(rank - 1)]
    leading.append(int(random.integers(1, MOST + 1)))
    if random.random() < 0.1:
        leading = []
    depth = int(random.integers(1, MOST + 1))
    if random.random() < 0.2:
        depth = int(random.choice(DEEP))
    depth *= {"uint8": 4, "bfloat16": 2}.get(dtype, 1)
    symbolic = {n for n in range(len(leading)) if random.random() < 0.4}
    return Layer(
        target,
        dtype,
        tuple(leading),
        frozenset(symbolic),
        int(random.integers(1, MOST + 1) if random.random() < 0.8 else random.integers(1, 150)),
        depth,
        lanes * int(random.integers(1, 4)),
        str(random.choice(list(ENDINGS))) if dtype != "uint8" else "none",
        int(random.integers(1, 9)) if random.random() < 0.3 else 0,
        dtype == "uint8" and random.random() < 0.3,
        random.random() < 0.6,
    )


def operands(layer: Layer, random: np.random.Generator) -> tuple[Array, Array]:
    """Data [..., k] and a weight [n, k]."""
    shapes = (*layer.leading, layer.depth), (layer.columns, layer.depth)
    if layer.dtype != "uint8":
        result = [random.standard_normal(s).astype(np.float32) for s in shapes]
        kind = getattr(ml_dtypes, layer.dtype, np.float32)
        return result[0].astype(kind), result[1].astype(kind)
    data = random.integers(0, 256, shapes[0]).astype("uint8")
    return data, random.integers(-128, 128, shapes[1]).astype("int8")


KINDS = {"float32": "dense", "uint8": "dense_u8s8", "bfloat16": "dense_bf16"}
RESULTS = {"float32": "float32", "uint8": "int32", "bfloat16": "float32"}


def built(
    layer: Layer, packed: list[Array], random: np.random.Generator
) -> tuple[Callable[..., object], str]:
    """The kernel, and the decision that it is made by: the default, or any other."""
    symbols = [
        SizeVar(f"n{n}") if n in layer.symbolic else size for n, size in enumerate(layer.leading)
    ]
    data = te.placeholder((*symbols, layer.depth), layer.dtype, "data")
    weight, *places = (te.placeholder(p.shape, str(p.dtype), f"w{n}") for n, p in enumerate(packed))
    anchor = dense_pack(data, weight, layer.columns, layer.panel, RESULTS[layer.dtype], *places)
    ending = ENDINGS[layer.ending]
    leading, columns = anchor.shape[:-1], anchor.shape[-1]
    shapes = {"columns": (columns,), "rows": (*leading, 1), "all": anchor.shape, "one": (1,)}
    others = [te.placeholder(shapes[o], "float32", f"o{n}") for n, o in enumerate(ending.operands)]
    whole = {"whole": (*leading, as_dim(layer.columns + layer.behind))} if layer.behind else {}
    output = anchor
    if layer.ending != "none" or layer.behind:
        output = te.compute(
            anchor.shape,
            lambda *i: cast(ending.element(anchor[i], others, i), anchor.dtype),
            name="out",
            tag="broadcast",
            attrs=whole,
        )
    fixed: Overrides = {}
    if layer.is_decided:
        space = FAMILIES["dense_pack"].search_space(anchor, layer.target)
        fixed = {c.name: random.choice(c.domain).item() for c in space if not c.is_early}
    inputs = [data, weight, *places, *others]
    chosen = select_kernel([output], layer.target, {"dense_pack": fixed})
    assert chosen.family.name == "dense_pack"
    func = schedule(inputs, [output], layer.target, "kernel", {"dense_pack": fixed})
    lowered = lower(func, layer.target)
    verify(lowered)
    image = link_image([compile_object([lowered], layer.target)], ["kernel"])
    return load_image(image)["kernel"], str(chosen.decision)


def check(layer: Layer, random: np.random.Generator) -> None:
    """The layer's kernel computes it, and writes nothing behind its columns."""
    data, weight = operands(layer, random)
    packed = [pack_weight(weight, KINDS[layer.dtype], layer.panel)]
    if layer.is_narrow:
        packed = list(split_large_pairs(packed[0]))
    kernel, decision = built(layer, packed, random)
    ending = ENDINGS[layer.ending]
    shape = (*layer.leading, layer.columns)
    shapes = {"columns": shape[-1:], "rows": (*shape[:-1], 1), "all": shape, "one": (1,)}
    others = [random.uniform(-3, 3, shapes[o]).astype("float32") for o in ending.operands]
    wide = np.full((*layer.leading, layer.columns + layer.behind), ABSENT, RESULTS[layer.dtype])
    kernel(data, *packed, *others, wide)
    actual = wide[..., : layer.columns]
    np.testing.assert_array_equal(wide[..., layer.columns :], ABSENT, err_msg=decision)
    if layer.dtype == "uint8":
        exact = data.astype("int64") @ weight.T.astype("int64")
        np.testing.assert_array_equal(actual, exact, err_msg=decision)
        return
    left, right = data.astype(np.float64), weight.astype(np.float64).T
    exact, magnitude = left @ right, np.abs(left) @ np.abs(right)
    expected = ending.reference(exact, *others)
    roundings = gamma(layer.depth + 8)
    largest = sum((np.abs(o) for o in others), np.ones(1))
    bound = ending.slope * roundings * (magnitude + np.abs(exact) + largest)
    expect_within(actual, expected, np.broadcast_to(bound, expected.shape))


@sizes("count", 12, 20_000)
def test_random_dense_layers_match_numpy(count: int) -> None:
    for seed in range(count):
        random = np.random.default_rng([15, seed])
        layer = drawn(random)
        try:
            check(layer, random)
        except Exception as error:
            error.add_note(f"seed {seed}: {layer}")
            raise


@share(4)
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize("leading", [(5, 2), (3, 2, 2), (2, 7, 3), (7, 9), (3, 3, 5)])
def test_ragged_tiles_match_numpy(leading: tuple[int, ...], text: str) -> None:
    """Rows of several axes, in tiles of a size that the last of them is no multiple of."""
    target = Target(Target.parse(f"{text} -bounds=check"), cores=2)
    for vectors in (1, 3):
        panel = vectors * target.lanes("float32")
        layer = Layer(
            target, "float32", leading, frozenset(), panel, 8, panel, "bias and relu", 0, False,
            False,
        )  # fmt: skip
        check(layer, np.random.default_rng(2))


@share(4)
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize(
    ("dtype", "ending"),
    [
        ("float32", "none"),
        ("float32", "bias and relu"),
        ("float32", "much"),
        ("uint8", "none"),
        ("bfloat16", "bias and relu"),
    ],
)
def test_single_column_dense_matches_numpy(text: str, dtype: str, ending: str) -> None:
    """The place of the only column is a constant: a store of a vector there goes past the end."""
    target = Target(Target.parse(f"{text} -bounds=check"), cores=2)
    lanes, random = target.lanes("float32"), np.random.default_rng(1)
    cases: list[tuple[tuple[int, ...], frozenset[int]]] = [
        ((12,), frozenset({0})),
        ((12,), frozenset()),
        ((), frozenset()),
        ((1,), frozenset({0})),
    ]
    for leading, symbolic in cases:
        layer = Layer(target, dtype, leading, symbolic, 1, 20, lanes, ending, 0, False, False)
        check(layer, random)


@pytest.mark.quick
@pytest.mark.parametrize("text", ["llvm", "llvm -mcpu=x86-64-v3", "c"])
def test_epilogue_of_a_product_without_elements(text: str) -> None:
    weight = relay.const(np.ones((1, 1), np.float32))
    x = relay.var("x", shape=(3, 7, 0, 1))
    exe = ekiden.compile(relay.Function([x], relay.tanh(relay.nn.dense(x, weight))), text)
    assert exe(np.zeros((3, 7, 0, 1), np.float32)).numpy().shape == (3, 7, 0, 1)
