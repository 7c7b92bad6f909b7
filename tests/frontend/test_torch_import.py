"""Programs of torch.export: imported, compiled for all sizes, equal to PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import ekiden
from ekiden import relay
from ekiden.frontend.torch import register
from ekiden.frontend.torch.node import FxNode, user_source_line
from ekiden.frontend.torch.registry import CONVERTER_TABLE
from ekiden.relay.expr import Constant
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> object:
        return self.function(*args)


def agree(actual: object, wanted: object) -> None:
    result = actual if isinstance(actual, tuple) else (actual,)
    reference = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(result) == len(reference)
    for a, b in zip(result, reference, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(a.numpy().copy()), b.detach(), rtol=1e-4, atol=1e-5
        )


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        result = self.attention(y, y, y, need_weights=False)[0]
        assert isinstance(result, torch.Tensor)
        return x + result + self.inner(x)


def test_one_compile_serves_all_sizes_of_a_transformer() -> None:
    torch.manual_seed(0)
    model = Block().eval()
    shapes = ({0: Dim("batch"), 1: Dim("length")},)
    exe = ekiden.compile(model, (torch.randn(3, 5, 16),), dynamic_shapes=shapes)
    assert [str(i) for i in exe.inputs] == ["x: float32[batch, length, 16]"]
    for batch, length in ((1, 1), (2, 7), (5, 3), (3, 33)):
        x = torch.randn(batch, length, 16)
        agree(exe(x), model(x))


def test_convolutions_and_pooling() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4), nn.Softmax(-1),
    ).eval()  # fmt: skip
    exe = ekiden.compile(model, (torch.randn(2, 3, 20, 24),), dynamic_shapes=({0: Dim("n")},))
    for count in (1, 4):
        x = torch.randn(count, 3, 20, 24)
        agree(exe(x), model(x))


def test_weights_are_shared_not_copied() -> None:
    model = nn.Linear(4, 3)
    program = torch.export.export(model, (torch.randn(2, 4),))
    module = ekiden.frontend.torch.import_program(program).module
    result = [e.data for e in post_order(module["main"].body) if isinstance(e, Constant)]  # type: ignore[attr-defined]
    addresses = {a.__array_interface__["data"][0] for a in result}
    assert model.weight.data_ptr() in addresses and model.bias.data_ptr() in addresses


def test_results_may_be_nested_or_sizes() -> None:
    def function(x: torch.Tensor) -> object:
        return {"a": x.relu(), "b": [x.sum(), x.shape[0] * 2 + 1]}

    exe = ekiden.compile(Apply(function), (torch.randn(3, 2),), dynamic_shapes=(({0: Dim("n")},),))
    relu, total, size = exe(torch.full((5, 2), -1.0))  # type: ignore[misc]
    assert relu.numpy().max() == 0 and float(total.numpy()) == -10 and int(size.numpy()) == 11


def test_data_dependent_sizes_have_names() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        places = x.nonzero()
        return places * 2

    exe = ekiden.compile(Apply(function), (torch.tensor([0.0, 1.0, 2.0]),))
    agree(exe(torch.tensor([3.0, 0.0, 0.0])), torch.tensor([[0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.float64])
def test_dtypes_match_pytorch(dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    exe = ekiden.compile(Apply(lambda a: (a + 1) * 2), (x,))
    result = torch.from_dlpack(exe(x))
    assert result.dtype == dtype and torch.equal(result, (x + 1) * 2)


# Control flow.


def test_cond_matches_pytorch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))

    exe = ekiden.compile(Apply(function), (torch.ones(3),))
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign)
        agree(exe(x), function(x))


def test_while_loop_matches_pytorch() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def function(i: torch.Tensor, x: torch.Tensor) -> object:
        return while_loop(
            lambda n, a: n < 5, lambda n, a: (n + 1, a * 2), (i, x)
        )  # fmt: skip

    exe = ekiden.compile(Apply(function), (torch.tensor(0), torch.ones(2)))
    agree(exe(torch.tensor(2), torch.ones(2)), (torch.tensor(5), torch.full((2,), 8.0)))
    agree(exe(torch.tensor(9), torch.ones(2)), (torch.tensor(9), torch.ones(2)))


def test_scan_matches_pytorch() -> None:
    from torch._higher_order_ops.scan import scan

    def function(x: torch.Tensor) -> object:
        return scan(lambda c, a: (c + a, c * a), x[0] * 0, x)

    x = torch.arange(6.0).reshape(3, 2)
    exe = ekiden.compile(Apply(function), (x,))
    agree(exe(x), (x.sum(0), torch.stack([x[0] * 0, x[0] * x[1], (x[0] + x[1]) * x[2]])))


# Buffers that change.


class Counting(nn.Module):
    """A batch normalisation in training, and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        result = self.norm(x) + self.total
        assert isinstance(result, torch.Tensor)
        return result


def test_buffers_keep_their_values_between_runs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Counting()
    exe = ekiden.compile(model, (torch.randn(4, 3),))
    assert [i.name for i in exe.inputs] == ["x"] and len(exe.outputs) == 1
    exe.save(tmp_path / "model.eki")
    loaded = ekiden.load(tmp_path / "model.eki")
    for item in (exe, loaded):
        expected = Counting()
        for _ in range(3):
            x = torch.randn(4, 3)
            agree(item(x), expected(x))
        for name, value in item.state.items():
            torch.testing.assert_close(
                torch.from_numpy(value.numpy().copy()), expected.state_dict()[name]
            )
    before = {name: value.numpy().copy() for name, value in exe.state.items()}
    apart = exe.session()
    agree(apart(x), Counting()(x))  # as the first run of all
    assert all((exe.state[name].numpy() == value).all() for name, value in before.items())
    apart.set_state(loaded.state)
    agree(apart(x), expected(x))
    wrong = {**before, "total": torch.zeros(4)}
    with pytest.raises(
        ekiden.InputError, match=r"state: 'total': expected float32\[3\], got float32"
    ):
        exe.set_state(wrong)
    with pytest.raises(ekiden.InputError, match="state: values of 'total', 'norm"):
        exe.set_state({})
    exe.reset_state()
    agree(exe(x), Counting()(x))
    with pytest.raises(ekiden.InputError, match="keeps state between runs"):
        exe.bind(x)
    assert exe.profile(x) is not None


def test_input_that_is_changed_is_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    with pytest.raises(UnsupportedError, match="it changes its input"):
        ekiden.compile(Apply(function), (torch.ones(2),))


# What the user adds, and what is refused.


def test_custom_operator_converters_can_be_registered() -> None:
    @torch.library.custom_op("ekiden_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    case, x = Apply(lambda a: twice(a) + 1), torch.ones(3)
    with pytest.raises(UnsupportedError) as caught:
        ekiden.compile(case, (x,))
    message = str(caught.value)
    assert "ekiden_test.twice.default 'twice' (test_torch_import.py:" in message
    assert "unknown operator" in message

    @register("ekiden_test::twice")
    def convert(node: FxNode, value: object) -> object:
        return relay.op.multiply(node.to_expr(value), relay.const(2.0))  # type: ignore[arg-type]

    try:
        agree(ekiden.compile(case, (x,))(x), torch.full((3,), 3.0))
        with pytest.raises(ValueError, match="it is there"):
            register("ekiden_test::twice")(convert)
    finally:
        del CONVERTER_TABLE["ekiden_test::twice"]


def test_module_without_examples_is_refused() -> None:
    with pytest.raises(CompileError) as caught:
        ekiden.compile(nn.Linear(2, 2))
    text = "example_inputs are missing: compile(module, (x, ...))"
    assert str(caught.value) == f"compile: module Linear: {text}"


def test_examples_and_target_by_position_or_name() -> None:
    module, x = nn.Linear(2, 2).eval(), torch.ones(1, 2)
    expected = module(x).detach()
    for result in (
        ekiden.compile(module, (x,), target="llvm"),
        ekiden.compile(module, (x,), "llvm"),
        ekiden.compile(module, "llvm", example_inputs=(x,)),
        ekiden.compile(module, target="llvm", example_inputs=(x,)),
    ):
        torch.testing.assert_close(torch.from_dlpack(result(x)), expected)
    with pytest.raises(TypeError, match="compile: one target expected, got"):
        ekiden.compile(module, (x,), "llvm", target="llvm")
    with pytest.raises(CompileError, match="unknown kind in 'nothing'"):
        ekiden.compile(module, (x,), target="nothing")


def test_exported_program_refuses_extra_options() -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(CompileError, match="is already exported: it takes no 'dynamic_shapes'"):
        ekiden.compile(program, dynamic_shapes=({0: Dim("n")},))


def test_torch_export_errors_are_reported() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x  # a branch on data

    with pytest.raises(ImportModelError, match="import module Apply: torch.export: "):
        ekiden.compile(Apply(function), (torch.ones(2),))


def test_bounds_of_dimensions_are_checked() -> None:
    shapes = (({0: Dim("n", min=3, max=8)},),)
    exe = ekiden.compile(Apply(lambda x: x * 2), (torch.ones(4),), dynamic_shapes=shapes)
    agree(exe(torch.ones(8)), torch.full((8,), 2.0))
    with pytest.raises(ekiden.InputError, match="n"):
        exe(torch.ones(9))


# Files, TVM's name, what is imported.


def test_saved_program_is_a_file(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2).eval(), torch.randn(2, 3)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (x,)), path)
    agree(ekiden.compile(path)(x), model(x))
    path.write_bytes(b"PK nothing")
    with pytest.raises(ImportModelError, match="import program 'model.pt2'"):
        ekiden.compile(path)


def test_from_pytorch_has_tvms_signature() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval(), torch.randn(2, 4)
    scripted = torch.jit.trace(model, x)
    module, params = relay.frontend.from_pytorch(scripted, [("input0", (2, 4))])
    assert len(params) == 2 and len(module["main"].params) == 3
    library = relay.build(module, "llvm", params=params)
    agree(library(input0=x), model(x))


def test_importing_torch_models_imports_no_other_framework() -> None:
    program = (
        "import sys, warnings; warnings.simplefilter('ignore'); import torch, ekiden; "
        "from ekiden.compiler.build import import_model; "
        "from ekiden.frontend.common.options import ImportOptions; "
        "import_model(torch.nn.ReLU(), ImportOptions(example_inputs=(torch.ones(2),))); "
        "print(*{'onnx', 'tensorflow', 'jax', 'tflite'}.intersection(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_arrays_of_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="input 'args_0': dtype complex64"):
        ekiden.compile(Apply(lambda x: x * 2), (torch.ones(2, dtype=torch.complex64),))


def test_tensors_that_cannot_be_read_are_refused_by_name() -> None:
    exe = ekiden.compile(Apply(lambda x: x * 2), (torch.ones(2, 2),))
    for wrong in (torch.ones(2, 2, device="meta"), torch.eye(2).to_sparse()):
        with pytest.raises(ekiden.InputError, match="input 'args_0': expected an array of float32"):
            exe(wrong)


def test_example_inputs_may_be_mappings() -> None:
    exe = ekiden.compile(
        Apply(lambda d: d["a"] - d["b"]), ({"a": torch.ones(2), "b": torch.ones(2)},)
    )
    agree(exe(torch.ones(2), torch.zeros(2)), torch.ones(2))


class Routed(nn.Module):
    """A layer of experts as libraries write it: rows sorted by expert, counted, one product."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 16, 8))

    def forward(self, x: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(expert, stable=True)
        counts = torch.histc(expert.float(), bins=4, min=0, max=3)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        result = torch.nn.functional.grouped_mm(x[order], self.weights, offs=ends)
        return result[torch.argsort(order)].float()


def test_experts_by_a_grouped_product() -> None:
    module, row = Routed().eval().bfloat16(), {0: Dim("rows")}  # PyTorch's traces no others
    x, expert = torch.randn(6, 16).bfloat16(), torch.tensor([3, 0, 0, 2, 3, 0])
    made = ekiden.compile(module, (x, expert), dynamic_shapes=(row, row))
    for count in (2, 9):
        x, expert = torch.randn(count, 16).bfloat16(), torch.randint(0, 4, (count,))
        weights = module.weights.detach().double()
        expected = torch.stack([r @ weights[e] for r, e in zip(x.double(), expert, strict=True)])
        actual = torch.from_dlpack(made(x, expert))
        # the sum is rounded once to 8 bits
        torch.testing.assert_close(actual, expected.float(), rtol=2**-8, atol=2**-8)


def test_histc_matches_pytorch() -> None:
    function = Apply(lambda x: torch.histc(x, 7, -1.0, 1.5))
    made = ekiden.compile(function, (torch.randn(9),), dynamic_shapes=(({0: Dim("n", max=999)},),))
    for count in (2, 501):
        x = torch.randn(count)
        x[0], x[1] = 1.5, -1.0
        torch.testing.assert_close(torch.from_dlpack(made(x)), torch.histc(x, 7, -1.0, 1.5))
    with pytest.raises(UnsupportedError, match="'min' must be below 'max'"):
        ekiden.compile(Apply(torch.histc), (torch.randn(9),))


def test_malformed_stack_trace_is_ignored() -> None:
    """A file of an exported program may hold a number in its place."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["stack_trace"] = 1.5
    assert not user_source_line(node)
