"""TVM's `contrib` modules: BLAS, clang, nvcc, visualizers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import ekiden as tvm
from ekiden import relay, te
from ekiden.contrib import cblas, clang, nvcc, relay_viz
from ekiden.contrib.relay_viz.terminal import TermPlotter
from ekiden.ir.expr import RelayExpr
from ekiden.relay.expr import Var
from ekiden.runtime.errors import ExportError, InputError


@pytest.mark.parametrize("transposed", [False, True])
def test_product_by_blas_is_an_extern_operation(transposed: bool) -> None:
    a, b = te.placeholder((5, 7), name="A"), te.placeholder((3, 7) if transposed else (7, 3))
    c = cblas.matmul(a, b, transb=transposed)
    d = te.compute(c.shape, lambda i, j: c[i, j] + 1, name="D")
    f = tvm.build(te.create_schedule(d.op), [a, b, d], "llvm")
    x, y = np.random.default_rng(0).random((2, 7, 7), "float32")
    y = np.ascontiguousarray(y[:3] if transposed else y[:, :3])
    out = tvm.nd.array(np.zeros((5, 3), "float32"))
    f(tvm.nd.array(x[:5]), tvm.nd.array(y), out)
    np.testing.assert_allclose(out.numpy(), x[:5] @ (y.T if transposed else y) + 1, rtol=1e-5)


def test_products_of_batches_by_blas() -> None:
    a, b = te.placeholder((2, 5, 7), "float64"), te.placeholder((2, 7, 3), "float64")
    c = cblas.batch_matmul(a, b)
    f = tvm.build(te.create_schedule(c.op), [a, b, c], "llvm")
    x, y = np.random.default_rng(0).random((2, 5, 7)), np.random.default_rng(1).random((2, 7, 3))
    out = tvm.nd.array(np.zeros((2, 5, 3)))
    f(tvm.nd.array(x), tvm.nd.array(y), out)
    np.testing.assert_allclose(out.numpy(), x @ y)


def test_blas_refuses_other_dtypes() -> None:
    multiply = tvm.get_global_func("tvm.contrib.cblas.matmul")
    a = tvm.nd.array(np.zeros((2, 2), "int32"))
    with pytest.raises(InputError, match="float32 or float64 expected, got int32"):
        multiply(a, a, a)


def test_clang_makes_llvm_text_or_is_told_missing(tmp_path: Path) -> None:
    code = 'extern "C" int twice(int x) {\n  return 2 * x;\n}\n'
    if not clang.find_clang(required=False):
        with pytest.raises(ExportError, match="clang: it is missing"):
            clang.create_llvm(code)
        return
    text = clang.create_llvm(code, output=tmp_path / "twice.ll")
    assert "@twice" in text and (tmp_path / "twice.ll").read_text() == text


def test_compiler_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="create_llvm"):
        clang.create_llvm("x\n", cc=shutil.which("false"))
    with pytest.raises(ExportError, match="one source expected, got 2"):
        clang.create_llvm(["a.c", "b.c"], cc="false")


def test_compute_capability_features() -> None:
    assert nvcc.parse_compute_version("8.6") == (8, 6)
    assert nvcc.have_tensorcore("7.0") and not nvcc.have_tensorcore("6.1")
    assert nvcc.have_fp16("5.3") and nvcc.have_int8("6.1") and not nvcc.have_bf16("7.5")
    assert nvcc.get_target_compute_version("cuda -arch=sm_90") == "9.0"
    assert nvcc.have_tensorcore(target="cuda -arch=sm_80")
    with pytest.raises(InputError, match="like '8.0' expected"):
        nvcc.have_fp16("eight")


def called() -> tvm.IRModule:
    """A function that calls another."""
    x, y = relay.var("x", shape=(2,)), relay.var("y", shape=(2,))
    a, b = relay.var("a", shape=(2,)), relay.var("b", shape=(2,))
    module = tvm.IRModule()
    add = relay.GlobalVar("AddFunc")
    module[add] = relay.Function((x, y), relay.add(x, y))
    once = relay.Call(add, (a, b))
    module["main"] = relay.Function((a, b), relay.Call(add, (once, once)))
    return module


def test_text_tree_of_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    relay_viz.RelayVisualizer(called()).render()
    assert (
        capsys.readouterr().out
        == """\
@main((a, b))
`--Call
   |--GlobalVar AddFunc
   |--Call
   |  |--GlobalVar AddFunc
   |  |--Var(Input) name_hint: a, shape: (2), dtype: float32
   |  `--Var(Input) name_hint: b, shape: (2), dtype: float32
   `--Call
@AddFunc((x, y))
`--Call
   |--add
   |--Var(Input) name_hint: x, shape: (2), dtype: float32
   `--Var(Input) name_hint: y, shape: (2), dtype: float32
"""
    )


def test_dot_visualizer_writes_graphviz(tmp_path: Path) -> None:
    parser, plotter = relay_viz.DotVizParser(), relay_viz.DotPlotter(graph_attr={"color": "red"})
    viz = relay_viz.RelayVisualizer(called(), {"b": 1}, plotter, parser)
    viz.render(str(tmp_path / "net"))
    text = (tmp_path / "net.dot").read_text()
    assert 'subgraph "cluster_main" {' in text and 'graph [color="red"];' in text
    assert "Call AddFunc" in text and "Var(Param)" in text
    assert text.count(" -> ") == 2 + 2 + 1 + 2 + 1
    with pytest.raises(InputError, match="a file name expected"):
        viz.render()


def test_custom_parser_and_plotter_are_used(tmp_path: Path) -> None:
    class Parser(relay_viz.VizParser):
        def get_node_edges(
            self,
            node: RelayExpr,
            relay_param: Mapping[str, object],
            node_to_id: Mapping[RelayExpr, str],
        ) -> tuple[relay_viz.VizNode | None, list[relay_viz.VizEdge]]:
            if isinstance(node, Var):
                return relay_viz.VizNode(node_to_id[node], "Mine", node.name_hint), []
            return relay_viz.TermVizParser().get_node_edges(node, relay_param, node_to_id)

    viz = relay_viz.RelayVisualizer(called(), {}, TermPlotter(), Parser())
    viz.render(str(tmp_path / "tree"))
    assert (tmp_path / "tree").read_text().count("Mine") == 4
