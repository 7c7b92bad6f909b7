"""The models of the model set import with their dimensions symbolic, and agree with ONNX Runtime
when interpreted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ekiden.frontend.onnx import from_onnx
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, Select
from ekiden.ir.prim_visitor import post_order as prim_post_order
from ekiden.ir.structural import structural_equal
from ekiden.ir.type import TensorType, TupleType
from ekiden.relay import parse
from ekiden.relay.expr import Call, Constant, Function
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.visitor import post_order
from long_runs import LONG, alike
from onnx_runtime import run_onnx_runtime

MANIFEST = Path(__file__).resolve().parents[3] / "shared" / "models" / "models.json"
CACHE = Path(os.environ.get("EKIDEN_BENCH_CACHE", Path.home() / ".cache" / "ekiden-bench"))
MODELS = (
    "oww_alexa_mlp", "oww_timer_mlp", "magika_v3_3", "attacut_c", "deepcut", "ppocr2_cls",
    "ppocr4_det", "ddddocr_det", "minilm_l3_f32", "light_squeezenet", "light_resnet50",
    "light_inception_v1", "light_shufflenet", "light_densenet121", *(
        pytest.param(name, marks=LONG)  # most of all weights, for layers that others have too
        for name in ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512")
    ),
)  # fmt: skip
INTERPRETED = {
    "oww_alexa_mlp": ["default"],
    "oww_timer_mlp": ["default"],
    "magika_v3_3": ["default"],
    "attacut_c": ["default", "odd"],
    "deepcut": ["default", "one"],
    "ppocr2_cls": ["default", "batch6"],
    "ddddocr_det": ["default"],
    "minilm_l3_f32": ["short", "odd", "batch8"],
    "light_squeezenet": ["default"],
    "light_shufflenet": ["default"],
    "light_densenet121": ["default"],
}


@cache
def entries() -> dict[str, Any]:
    if not MANIFEST.is_file():
        return {}
    return {e["id"]: e for e in json.loads(MANIFEST.read_text())}


def path_of(name: str) -> Path:
    """The model's file; the test is skipped where nobody has fetched it."""
    if name not in entries():
        pytest.skip(f"no model manifest at {MANIFEST}")
    prepared = CACHE / "prepared" / f"{name}.onnx"
    result = prepared if entries()[name]["prepare"] else CACHE / entries()[name]["out"]
    if not result.is_file():
        pytest.skip(
            f"{result} is not in the model cache; fetch it with shared/models/fetch_models.py"
        )
    return result


def result_types(function: Function) -> list[TensorType]:
    result = function.ret_type
    fields = result.fields if isinstance(result, TupleType) else (result,)
    return [f for f in fields if isinstance(f, TensorType)]


def feed_for(name: str, case: str) -> Iterator[np.ndarray[Any, Any]]:
    """Plausible random inputs of a case."""
    entry = entries()[name]
    dims = next(c["dims"] for c in entry["cases"] if c["name"] == case)
    rng = np.random.default_rng(0)
    for spec in entry["input_specs"]:
        shape = [dims[d] if isinstance(d, str) else d for d in spec["shape"]]
        kind, *args = spec["gen"]
        result = (
            rng.integers(args[0], args[1], shape) if kind == "randint" else rng.uniform(0, 1, shape)
        )
        if kind == "const":
            result = np.full(shape, args[0])
        yield result.astype(spec["dtype"])


@alike(4)
@pytest.mark.parametrize("name", MODELS)
def test_model_imports_with_symbolic_dimensions(name: str) -> None:
    path = path_of(name)
    module = from_onnx(path)
    main = module["main"]
    assert isinstance(main, Function)
    model = onnx.load(path)
    weights = {t.name for t in model.graph.initializer}
    assert module.attrs["input_names"] == tuple(
        i.name for i in model.graph.input if i.name not in weights
    )
    assert module.attrs["output_names"] == tuple(o.name for o in model.graph.output)
    for result, stated in zip(result_types(main), model.graph.output, strict=True):
        for actual, reference in zip(result.shape, stated.type.tensor_type.shape.dim, strict=True):
            if reference.HasField("dim_value") and reference.dim_value >= 0:
                assert getattr(actual, "value", None) == reference.dim_value
    for item in post_order(main):
        if isinstance(item, Call):
            assert item.span is not None
            assert not any_select(item.checked_type_or_none())


def any_select(result: object) -> bool:
    """Whether a dimension is a choice: two symbols that could not be seen to be equal."""
    shape: tuple[PrimExpr, ...] = result.shape if isinstance(result, TensorType) else ()
    return any(isinstance(e, Select) for e in prim_post_order(*shape))


@alike(4)
@pytest.mark.parametrize(
    ("name", "case"), [(n, c) for n, cases in INTERPRETED.items() for c in cases]
)
def test_interpreted_model_matches_onnxruntime(name: str, case: str) -> None:
    path = path_of(name)
    module = from_onnx(path)
    feed = list(feed_for(name, case))
    names = module.attrs["input_names"]
    assert isinstance(names, tuple)
    expected = run_onnx_runtime(path, dict(zip(names, feed, strict=True)))
    actual = Interpreter(module).evaluate("main", *feed)
    for result, reference in zip(
        actual if isinstance(actual, tuple) else (actual,), expected, strict=True
    ):
        assert isinstance(result, np.ndarray)
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        scale = max(1.0, float(np.abs(reference).max()))
        np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-5 * scale)


def size_of(module: IRModule) -> int:
    """Bytes of the constants of main."""
    every = post_order(module["main"], into_functions=True)
    return sum(e.data.nbytes for e in every if isinstance(e, Constant))


@alike(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=LONG)])
def test_text_of_the_model_reads_back(name: str, large: bool) -> None:
    """Models above 32 MB take long."""
    module = from_onnx(str(path_of(name)))
    if large != (size_of(module) > 32 << 20):
        pytest.skip("tried under its size")
    assert structural_equal(parse(module.astext()), module)
