"""TVM's arguments of `relay.frontend.from_*`: taken where they mean something, else refused by a
sentence that names the way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx_models import graph_model

import ekiden
from ekiden import relay
from ekiden.ir.pass_context import PassContext
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import CompileError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
A, B = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)


def product_model() -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    return graph_model([node], {"a": A, "b": B}, ["c"])


def main_of(module: ekiden.IRModule) -> relay.Function:
    main = module["main"]
    assert isinstance(main, relay.Function)
    return main


def dims_of(module: ekiden.IRModule) -> list[str]:
    kind = main_of(module).params[0].checked_type
    assert isinstance(kind, relay.TensorType)
    return [str(dim) for dim in kind.shape]


def test_modules_have_no_spans_where_fill_span_is_off() -> None:
    with_spans, _ = relay.frontend.from_onnx(product_model())
    with PassContext(config={"relay.frontend.fill_span": False}):
        without, _ = relay.frontend.from_onnx(product_model())
    assert any(e.span for e in post_order(main_of(with_spans)))
    assert not any(getattr(e, "span", None) for e in post_order(main_of(without)))
    assert ekiden.structural_equal(with_spans, without)
    np.testing.assert_allclose(ekiden.compile(without)(A, B).numpy(), A @ B)


def test_from_onnx_takes_convert_config_by_its_known_names() -> None:
    for value in (True, False):
        config = {"use_nt_batch_matmul": value}
        module, _ = relay.frontend.from_onnx(product_model(), convert_config=config)
        np.testing.assert_allclose(ekiden.compile(module)(A, B).numpy(), A @ B)
    with pytest.raises(CompileError, match="convert_config: expected use_nt_batch_matmul"):
        relay.frontend.from_onnx(product_model(), convert_config={"use_dense": True})


def test_from_onnx_checks_dtypes_of_inputs() -> None:
    shapes = {"a": (2, 3)}
    relay.frontend.from_onnx(product_model(), shapes, dtype="float32")
    relay.frontend.from_onnx(product_model(), shapes, dtype={"a": "float32"})
    with pytest.raises(CompileError, match="dtype: 'a' is float32, not float16"):
        relay.frontend.from_onnx(product_model(), shapes, dtype={"a": "float16"})
    with pytest.raises(CompileError, match="dtype: 'z' is no input"):
        relay.frontend.from_onnx(product_model(), shapes, dtype={"z": "float16"})
    with pytest.raises(CompileError, match="opset: expected a number, got 'float32'; TVM's third"):
        relay.frontend.from_onnx(product_model(), shapes, "float32")  # type: ignore[arg-type]


def test_from_onnx_saves_the_model_with_named_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "renamed"
    model = product_model()
    relay.frontend.from_onnx(model, export_node_renamed_model_path=folder)
    (path,) = folder.iterdir()
    renamed = onnx.load(path)
    assert [node.name for node in renamed.graph.node] == ["c"]
    assert not model.graph.node[0].name
    onnx.checker.check_model(renamed)


def test_shapes_of_onnx_inputs_may_have_relays_dimensions() -> None:
    shape = {"a": (relay.Any(), 3), "b": (3, relay.SizeVar("n"))}
    module, _ = relay.frontend.from_onnx(product_model(), shape)
    compiled = ekiden.compile(module)
    for rows, columns in ((2, 4), (5, 1)):
        a, b = np.ones((rows, 3), np.float32), np.ones((3, columns), np.float32)
        np.testing.assert_allclose(compiled(a, b).numpy(), a @ b)


class Flattened(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.reshape(x.shape[0], -1)) + 1


@pytest.mark.parametrize("is_traced", [False, True])
def test_shapes_of_pytorch_inputs_may_have_relays_dimensions(is_traced: bool) -> None:
    model: torch.nn.Module = Flattened().eval()
    if is_traced:
        model = torch.jit.trace(model, torch.zeros(3, 4, 5))
    module, _ = relay.frontend.from_pytorch(model, [("x", (relay.Any(), 4, relay.SizeVar("n")))])
    compiled = ekiden.compile(module)
    for rows, columns in ((2, 3), (7, 64)):
        x = torch.randn(rows, 4, columns)
        np.testing.assert_allclose(compiled(x).numpy(), Flattened()(x).numpy())


def test_from_pytorch_keeps_stated_numbers() -> None:
    module, _ = relay.frontend.from_pytorch(Flattened(), [("x", (relay.Any(), 4, 5))])
    assert dims_of(module)[1:] == ["4", "5"] and dims_of(module)[0] not in ("64", "?")


def test_frameworks_that_are_not_read_name_the_way_through_onnx() -> None:
    names = "caffe caffe2 coreml darknet mxnet oneflow paddle".split()
    for name in names:
        importer = getattr(relay.frontend, f"from_{name}")
        with pytest.raises(UnsupportedError, match=rf"^from_{name}: .* through ONNX: .*from_onnx"):
            importer(object(), shape={"x": (1, 3)})
