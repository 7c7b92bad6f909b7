"""What is wrong with a model, its arguments or the installation is told in one message of ours: the
user's thing, and the line of the user's program where another library stopped.
"""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import ekiden
from ekiden import relay
from ekiden.compiler.build import import_model
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.registry import find_frontend
from ekiden.frontend.rejected_kinds import REJECTED_KINDS
from ekiden.runtime.errors import EkidenError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")  # deprecated, and imported
HERE = Path(__file__).name


class Small(torch.nn.Module):
    def __init__(self, function: Callable[..., object] | None = None) -> None:
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(4, 3), torch.nn.Dropout(0.5)
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.dropout(self.linear(x)) if self.function is None else self.function(x)


def told(text: str, call: Callable[[], object]) -> str:
    """The message of an error of ours, which the text, an expression, describes."""
    with pytest.raises(EkidenError) as caught:
        call()
    message = str(caught.value)
    assert re.search(text, message), message
    return message


X = torch.zeros(2, 4)


def _undefined(x: torch.Tensor) -> object:
    return x + undefined  # type: ignore[name-defined]  # noqa: F821 - what the test is about


def _of_data(x: torch.Tensor) -> object:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("model", "argument", "message"),
    [
        (Small(), {}, r"^compile: module Small: example_inputs are missing"),
        (Small, {"example_inputs": (X,)}, r"got the class Small; an instance of it is meant"),
        (Small().to("meta"), {"example_inputs": (X,)},
         r"^import module Small: the weight 'linear.weight' is on the device 'meta'"),
        (Small(), {"example_inputs": (X, X)}, r"torch.export: too many positional arguments$"),
        (Small(), {"example_inputs": ()}, r"torch.export: missing a required argument: 'x'$"),
        (Small(), {"example_inputs": (np.zeros((2, 4)),)},
         r"Unsupported input type <class 'numpy.ndarray'>"),
        (Small(), {"example_inputs": (X.to_sparse(),)},
         r"^compile: module Small: example input 'x' is sparse: a dense one expected$"),
        (Small(), {"example_inputs": (torch.zeros(2, 5),)},
         rf"torch.export: .*\n  {HERE}:\d+: return self.dropout"),
        (Small(), {"example_inputs": (X,), "example_kwargs": [X]},
         r"^compile: example_kwargs: a dictionary expected, got list$"),
        (Small(), {"example_inputs": (X,), "dynamic_shapes": {"x": {5: "n"}}},
         r"^compile: module Small: dynamic_shapes: the input 'x' has no dimension 5: its rank"),
        (Small(), {"example_inputs": (X,), "dynamic_shapes": {"x": {1: torch.export.Dim("n")}}},
         r"You marked n as dynamic but your code specialized it to be a constant \(4\)"),
        (Small(), {"example_inputs": (X,), "dynamic_shapes": {"y": {0: "n"}}},
         r"top-level keys must be the arg names \['x'\]"),
        (Small(_undefined), {"example_inputs": (X,)},
         rf"^import module Small: torch.export: name 'undefined' is not defined\n  {HERE}:\d+: "
         r"return x \+ undefined"),
        (Small(_of_data), {"example_inputs": (X,)},
         rf"data-dependent expression .*\n  {HERE}:\d+: return x if x.sum\(\) > 0 else -x$"),
        (lambda x: x + 1, {"example_inputs": (X,)},
         r"^compile: a JAX program: example input 0 is a Tensor of another framework; a PyTorch "
         r"model is a torch.nn.Module with"),
        (Small().state_dict(), {}, r"^import an object of class 'OrderedDict': it is weights"),
    ],
)  # fmt: skip
def test_pytorch_import_errors_name_the_cause(
    model: object, argument: Mapping[str, object], message: str
) -> None:
    if isinstance(model, torch.nn.Module):
        model.eval()
    text = told(message, lambda: ekiden.compile(model, **argument))
    assert "draft_export" not in text and 'TORCH_LOGS="dynamic"' not in text


def test_training_mode_is_imported_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    options = ImportOptions(example_inputs=(X,))
    with caplog.at_level(logging.WARNING, "ekiden.torch"):
        import_model(Small().eval(), options)
        import_model(Small(torch.relu).train(), options)
        assert not caplog.records
        import_model(Small().train(), options)
    (record,) = caplog.records
    assert "module Small is in training mode: aten.dropout.default 'dropout'" in record.getMessage()


def test_pytorch_errors_are_reported_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(archives()["program"][:100])
    logger = logging.getLogger("torch")
    logger.addHandler(caplog.handler)
    try:
        for call in (
            lambda: ekiden.compile(Small().eval(), example_inputs=(torch.zeros(2, 5),)),
            lambda: ekiden.compile(tmp_path / "m.pt2"),
        ):
            told("reduction dim|no program", call)
    finally:
        logger.removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        (None, r"^from_pytorch: input_infos: \[\(name, shape\)\] .* expected, got None$"),
        ([("x",)], r"got \('x',\)$"),
        ([("x", ((2, 4), "floaty"))], r"'x' has the dtype 'floaty': one of float32"),
        ([], r"its inputs are 'input', got 0 of them$"),
    ],
)  # fmt: skip
def test_from_pytorch_checks_input_infos(infos: object, message: str) -> None:
    script = torch.jit.trace(torch.nn.Linear(4, 3), X)
    told(message, lambda: relay.frontend.from_pytorch(script, infos))


@pytest.mark.parametrize("function", ["from_onnx", "from_pytorch", "from_tflite"])
@pytest.mark.parametrize("model", [None, 3, torch.zeros(2)])
def test_relay_importers_refuse_non_models(function: str, model: object) -> None:
    told(f"^{function}: expected .*, got ", lambda: getattr(relay.frontend, function)(model, []))


def archives() -> dict[str, bytes]:
    result = {}
    script, program = io.BytesIO(), io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.ReLU(), X), script)
    torch.export.save(torch.export.export(torch.nn.ReLU(), (X,)), program)
    result["script"], result["program"] = script.getvalue(), program.getvalue()
    weights = io.BytesIO()
    torch.save({"w": X}, weights)
    result["weights"] = weights.getvalue()
    return result


def test_archives_are_recognized_by_their_members(tmp_path: Path) -> None:
    output = archives()
    for suffix in (".pt2", ".bin", ".onnx"):
        for kind, message in (("script", "a file of TorchScript"), ("weights", "torch.save wrote")):
            path = tmp_path / f"{kind}{suffix}"
            path.write_bytes(output[kind])
            told(f"^import '{path.name}': it is .*{message}", lambda p=path: ekiden.compile(p))
    result = ekiden.compile(output["program"])(np.full((2, 4), -1, np.float32))
    assert not result.numpy().any()
    with zipfile.ZipFile(tmp_path / "any.bin", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    told("expected an ONNX model", lambda: ekiden.compile(tmp_path / "any.bin"))


@pytest.mark.parametrize("cut", [0, 2, 100, -40])
def test_truncated_pytorch_program_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archives()["program"][:cut])
    told("^import program 'm.pt2': no program that torch.export saved: ",
         lambda: ekiden.compile(path))  # fmt: skip
    told("cannot read .*: No such file", lambda: ekiden.compile(tmp_path / "other.pt2"))


@pytest.mark.parametrize("name", [name for other in REJECTED_KINDS for name in other.class_names])
def test_convertible_objects_name_the_converter(name: str) -> None:
    package, _, qualified = name.partition(".")
    base = dict if package == "builtins" else type(qualified, (), {"__module__": f"{package}.x"})
    own = type("Own", (base,), {})
    message = told("^import an object of class 'Own': it is ", lambda: find_frontend(own()))
    assert message.count(": ") >= 2  # what it is, and what to do


FILES = ("m.onnx", "m.pt2", "m.tflite", "m.pb", "m.jax")
MISSING = """
import importlib.abc, sys
from importlib.machinery import ModuleSpec

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {names}:
            return None
        if {broken}:
            return ModuleSpec(name, self)
        raise ModuleNotFoundError(name)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        raise OSError("libodd.so: cannot open shared object file")

sys.meta_path.insert(0, Hidden())
import ekiden
from ekiden.runtime.errors import ImportModelError
for name in {files}:
    try:
        ekiden.compile(name)
    except ImportModelError as error:
        print(error)
"""


def test_missing_package_error_gives_the_pip_command() -> None:
    names = ("onnx", "torch", "tflite", "tensorflow", "jax")
    program = MISSING.format(names=names, broken=False, files=FILES)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    extras = (
        "onnx",
        "'ekiden[torch]'",
        "'ekiden[tflite]'",
        "'ekiden[tensorflow]'",
        "'ekiden[jax]'",
    )
    expected = [
        f"package '{n}' is missing; pip install {e}" for n, e in zip(names, extras, strict=True)
    ]
    lines = done.stdout.splitlines()
    assert [line.partition("the ")[2] for line in lines] == expected, done.stderr


def test_unimportable_package_is_reported() -> None:
    program = MISSING.format(names=("torch", "tflite"), broken=True, files=FILES[1:3])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    result = [line for line in done.stdout.splitlines() if "libodd.so" in line]
    assert len(result) == 2, done.stderr
    for line, extra in zip(result, ("torch", "tflite"), strict=True):
        assert line.endswith(
            "cannot be imported: libodd.so: cannot open shared object file; "
            f"pip install --force-reinstall {extra}"
        )


# Frameworks that the tests' environment may lack.


def _jax_cases() -> list[tuple[Callable[[], object], str]]:
    jax = pytest.importorskip("jax", reason="the package jax is not installed")
    jnp, x = jax.numpy, np.ones((2, 3), np.float32)

    def of_data(a: object) -> object:
        return a if a.sum() > 0 else -a  # type: ignore[attr-defined,operator]

    def contradicting(a: object) -> object:
        return jnp.dot(a, jnp.ones((7, 7)))

    compile, function = ekiden.compile, jax.jit(jnp.sin)
    return [
        (lambda: compile(contradicting, (x,)), rf"\n  {HERE}:\d+: return jnp.dot"),
        (lambda: compile(of_data, (x,)), rf"boolean conversion (.|\n)*\n  {HERE}:\d+: return a if"),
        (lambda: compile(function, (x,), dynamic_shapes=("b, 3, 4",)), "^import .*: dynamic_"),
        (lambda: compile(function, (x,), dynamic_shapes={"x": "b"}), "pytree(.|\n)*one text "),
        (lambda: compile(function.lower(x)), "it is lowered already: give ekiden.compile"),
        (lambda: compile(jax.export.export(function, platforms=["cuda", "tpu"])(x)),
         "exported for cuda, tpu: export it for 'cpu'"),
    ]  # fmt: skip


def test_jax_import_errors_name_the_cause() -> None:
    for call, message in _jax_cases():
        told(message, call)


def test_program_of_jax_for_several_platforms() -> None:
    jax = pytest.importorskip("jax", reason="the package jax is not installed")
    x = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    program = jax.export.export(jax.jit(jax.numpy.sin), platforms=["cuda", "cpu"])(x)
    np.testing.assert_allclose(ekiden.compile(program)(x).numpy(), np.sin(x), rtol=1e-6)


def test_keras_and_tensorflow_import_errors_name_the_cause(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="the package tensorflow is not installed")
    import keras

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x: object) -> object:
            return self.dense(x)

    class Layer(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: object) -> object:
            return x

    model = keras.Sequential([keras.Input((4,), name="x"), Layer()])
    path, cut, odd = (tmp_path / n for n in ("m.keras", "cut.keras", "odd.keras"))
    model.save(path)
    cut.write_bytes(path.read_bytes()[:1000])
    odd.write_bytes(b"nothing")
    saved = tmp_path / "saved"
    tf.saved_model.save(tf.Module(), str(saved))
    (saved / "saved_model.pb").write_bytes(b"\xff" * 40)
    compile = ekiden.compile
    for call, message in (
        (lambda: compile(path), "Could not locate class 'Layer'.*\n.*keras.saving.load_model"),
        (lambda: compile(cut), "'cut.keras': it is no zip archive, .*, or cut short$"),
        (lambda: compile(odd), "'odd.keras': it is no zip archive"),
        (lambda: compile(tmp_path / "no.keras"), "cannot read .*: No such file"),
        (lambda: compile(saved), "^import model 'saved': TensorFlow cannot load it: "),
        (lambda: compile(model, signature="any"), "no signature 'any'; a SavedModel alone"),
        (lambda: compile(model, shape={"x": (-3, 4)}), "0 on, a name, .*, got -3$"),
        (lambda: compile(model, shape={"x": (1.5, 4)}), "0 on, a name, .*, got 1.5$"),
        (lambda: compile(Own()), "it has no inputs yet: call it once, or build it"),
        (lambda: compile(tf.function(tf.nn.relu)), "f.get_concrete_function"),
        (lambda: relay.frontend.from_tensorflow(model), "a frozen GraphDef expected, got Seq"),
    ):
        told(message, call)
    own, x = Own(), np.ones((2, 4), np.float32)
    expected = own(x).numpy()  # it has been called, and so may be exported
    np.testing.assert_allclose(compile(own)(x).numpy(), expected, rtol=1e-5, atol=1e-6)
