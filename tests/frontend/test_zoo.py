"""A small fixed sample of the zoo (benchmarks/zoo.py), where its packages are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages warn of their own deprecations
FILE = Path(__file__).parents[2] / "benchmarks" / "zoo.py"


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark as a module."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(FILE.parent)  # as where it is run
    spec = importlib.util.spec_from_file_location("zoo", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "zoo", module)  # its data classes look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "name", "frontend", "sizes"),
    [
        ("timm", "test_resnet", "export", "dynamic"),
        ("timm", "test_vit", "onnx", "static"),
        ("timm", "test_efficientnet", "compile", "static"),
        ("transformers", "bert", "export", "dynamic"),
        ("transformers", "gpt2", "onnx", "static"),
    ],
)
def test_models_of_packages_agree(
    zoo: ModuleType, package: str, name: str, frontend: str, sizes: str
) -> None:
    _needs(package)
    line = zoo.measure_model(package, name, frontend, sizes, 1)
    assert line["state"] == "agrees", line


def _needs(package: str) -> None:
    for item in {package, "torchvision"}:
        pytest.importorskip("PIL", reason="the package pillow is not installed")
        if importlib.util.find_spec(item) is None:
            pytest.skip(f"the package {item} is not installed")


@pytest.mark.slow
def test_model_of_several_configurations_is_small(zoo: ModuleType) -> None:
    _needs("transformers")
    model = zoo.PACKAGES["transformers"].build("llava", 1_000_000)  # 7,000 million by itself
    assert model.axes_of("input_ids") == {0: "batch", 1: "length"}
    with pytest.raises(zoo.TooLargeError, match="parameters"):
        zoo.PACKAGES["torchvision"].build("vgg16", 1_000_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("lxmert", {"input_ids": (1, 16), "visual_feats": (1, 16, 2048), "visual_pos": (1, 16, 4)}),
        ("siglip2", {"input_ids": (1, 16), "pixel_values": (1, 64, 768),
                     "pixel_attention_mask": (1, 64)}),
        ("lighton_ocr", {"input_ids": (1, 16)}),
    ],
)  # fmt: skip
def test_extra_model_inputs_are_found(
    zoo: ModuleType, name: str, inputs: dict[str, tuple[int, ...]]
) -> None:
    _needs("transformers")
    model = zoo.PACKAGES["transformers"].build(name, 40_000_000)
    assert {n: tuple(v.shape) for n, v in model.inputs.items()} == inputs
    assert len(model.module(*model.inputs.values())) >= 1


def test_per_layer_config_lists_are_truncated(zoo: ModuleType) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    class Config(transformers.PretrainedConfig):  # type: ignore[misc]
        def __init__(
            self,
            num_hidden_layers: int = 6,
            hidden_size: int = 640,
            layer_types: tuple[str, ...] = ("a", "b", "c", "d", "e", "f"),
            vision_feature_layer: tuple[int, ...] = (),
            image_token_id: int | None = None,
            pad_id: int = 9,
        ) -> None:
            super().__init__()
            self.num_hidden_layers, self.hidden_size = num_hidden_layers, hidden_size
            self.layer_types = list(layer_types)
            self.vision_feature_layer = list(vision_feature_layer) or [24, 18, 12]
            self.image_token_id, self.pad_id = image_token_id, pad_id

    way = zoo.zoo_transformers
    plain = Config(pad_id=2)
    result = way._min_of(plain, way._numbers_by_sample(plain, way._cut(way._tiny)))
    assert (result.num_hidden_layers, result.hidden_size, result.layer_types) == (2, 64, ["e", "f"])
    assert result.vision_feature_layer == [-1, -2, -1]  # of layers that there are
    assert result.image_token_id == way._PLACEHOLDER  # the class leaves it open


def test_kernels_without_compiled_code_are_refused(zoo: ModuleType) -> None:
    class Executable:
        inputs = ()

        def wait(self, seconds: float) -> None:
            if seconds < 2:
                raise TimeoutError("wait: 3 kernels are not compiled")
            raise ValueError("no loops fit")

        def __call__(self) -> list[object]:
            return []

    call, line = zoo.Compiled(Executable()), {}
    assert zoo._wait_for_compiled_kernels(line, call, 0) == ""
    assert zoo._wait_for_compiled_kernels(line, call, 1) == ""
    assert line == {"kernels": "wait: 3 kernels are not compiled"}
    model = zoo.ZooModel(lambda: None, {})
    ran = zoo._run_engines(model, {"ekiden": lambda: call}, [], False, 0, 9)
    assert (ran["state"], ran["why"]) == (
        "refused",
        "kernels stay general: ValueError: no loops fit",
    )


def test_small_results_are_compared_by_their_size(zoo: ModuleType) -> None:
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    tiny = torch.full((3,), 1e-20).numpy()
    assert zoo._max_relative_error([tiny * 2], [tiny]) == pytest.approx(1)
    module = torch.nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.zero_()
        zoo._randomize_zero_weights(module)
    assert module.weight.all()


def test_table_counts_measured_models(zoo: ModuleType) -> None:
    same = {"package": "timm", "frontend": "export", "sizes": "static"}
    lines = [
        {
            **same,
            "name": "a",
            "state": "agrees",
            "error": 0.0,
            "compile_cpu_s": 2.0,
            "over_eager": 2.0,
            "slowest_pass": "import",
            "slowest_pass_s": 1.5,
        },
        {
            **same,
            "name": "b",
            "state": "agrees",
            "error": 0.0,
            "compile_cpu_s": 4.0,
            "slowest_pass": "llvm compile",
            "slowest_pass_s": 3.0,
            "over_eager": 8.0,
            "kernels_s": 9.0,
        },
        {**same, "name": "c", "state": "refused", "why": "a | b", "onnxruntime": 1e-7},
        {**same, "name": "d", "state": "large", "why": "much"},
    ]
    rows = zoo.format_table(lines).splitlines()
    means = "2 (66.7%) | 1 | 0 of 1 | 4.00 |  |  | 3.0"
    assert rows[2] == f"| timm | export | static | 4 | 3 | {means} |"
    assert rows[-1] == "| c | export static | refused | a / b |"
    assert "- b, export: 4.0, of which llvm compile 3.0 s" in rows


def test_exporter_timeouts_are_classified(zoo: ModuleType) -> None:
    zoo._enter_stage("exporting")
    assert zoo._timeout_outcome(9) == {"state": "not exported", "why": "9 s over, exporting"}
    zoo._enter_stage("compiling")
    assert zoo._timeout_outcome(9) == {"state": "out of time", "why": "9 s over, compiling"}
    assert {zoo.STAGES["building"], zoo.STAGES["exporting"]} < set(zoo.NOT_MEASURED)


@pytest.mark.parametrize(
    ("result", "reference", "state"),
    [(1.0, 9.0, "agrees"), (2.0, 2.0, "exported differently"), (2.0, 1.0, "differs")],
)
def test_exporter_differences_are_classified(
    zoo: ModuleType, result: float, reference: float, state: str
) -> None:
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    model = zoo.ZooModel(lambda x: x, {"x": torch.ones(2)})
    engines = {
        "onnxruntime": lambda: lambda inputs: [inputs[0].numpy() * reference],
        "ekiden": lambda: lambda inputs: [inputs[0].numpy() * result],
    }
    line = zoo._run_engines(model, engines, [torch.ones(2).numpy()], False, 0)
    assert line["state"] == state
    assert line["onnxruntime"] == pytest.approx(reference - 1)


def test_model_that_roundings_change_is_unstable(zoo: ModuleType) -> None:
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    model = zoo.ZooModel(lambda x: (x - 1) * 1e6, {"x": torch.ones(2)})
    wrong = {"ekiden": lambda: lambda inputs: [inputs[0].numpy()]}
    line = zoo._run_engines(model, wrong, [torch.zeros(2).numpy()], False, 0)
    assert line["state"] == "unstable"
    assert line["state"] in zoo.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("reference", "state"),
    [(-1.0, "unstable"), (1.0, "differs")],  # ONNX Runtime's order is another one; or PyTorch's
)
def test_ties_are_classified_as_unstable(
    zoo: ModuleType, monkeypatch: pytest.MonkeyPatch, reference: float, state: str
) -> None:
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    monkeypatch.setattr(zoo, "_is_unstable", lambda model, expected: False)  # they stay equal
    marks = torch.arange(4.0)

    def chosen(x: Any) -> Any:  # noqa: ANN401
        return marks[torch.topk(x, 2).indices]

    model = zoo.ZooModel(chosen, {"x": torch.tensor([1.0, 3.0, 3.0, 3.0])})
    expected = [chosen(model.inputs["x"]).numpy()]
    engines = {
        "onnxruntime": lambda: lambda inputs: [expected[0] * reference],
        "ekiden": lambda: lambda inputs: [expected[0] * 2],
    }
    line = zoo._run_engines(model, engines, expected, False, 0)
    assert line["state"] == state
    other = zoo.ZooModel(chosen, {"x": torch.tensor([1.0, 2.0, 3.0, 4.0])})
    assert not zoo.has_ties(other) and zoo.has_ties(model)
