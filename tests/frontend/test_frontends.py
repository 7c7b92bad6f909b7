"""The frontend table: recognition of models, missing packages, rejected options."""

from __future__ import annotations

import gzip
import importlib
import pickle
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ekiden
from ekiden import relay
from ekiden.frontend import registry
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.packages import Package
from ekiden.frontend.registry import FRONTENDS, find_frontend, frontend_by_name, is_model_file
from ekiden.runtime.errors import CompileError, ImportModelError

pytestmark = pytest.mark.quick
FRAMEWORKS = ("onnx", "torch", "tensorflow", "tflite", "jax", "keras")


def model() -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", infos[:1], infos[1:])
    return helper.make_model(graph)


def modules_after(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {program}; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.slow
def test_frontend_table_imports_no_framework() -> None:
    program = (
        "import ekiden, ekiden.frontend.registry, ekiden.compiler.build, ekiden.compiler.compile; "
        "from ekiden import relay; relay.frontend"
    )
    assert modules_after(program).isdisjoint(FRAMEWORKS)


@pytest.mark.slow
def test_importing_onnx_imports_no_other_framework(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    path = str(tmp_path / "m.onnx")
    result = modules_after(
        f"from ekiden.compiler.build import import_model; import_model({path!r})"
    )
    assert result.intersection(FRAMEWORKS) == {"onnx"}


def test_models_are_recognized_by_name_content_and_class(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(model().SerializeToString())
    assert find_frontend(tmp_path / "model.bin") is frontend_by_name(
        "onnx"
    )  # what no other row claims
    assert find_frontend(b"") is frontend_by_name("onnx") is find_frontend(model())
    assert find_frontend("nowhere.onnx") is frontend_by_name("onnx")
    assert find_frontend(3) is None and find_frontend(object()) is None
    assert is_model_file("a.onnx") and not is_model_file("a.eki")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("model.pt", "by torch.load or torch.jit.load, with example_inputs"),
        ("model.safetensors", "load them into the model"),
        ("model.mlmodel", "convert it to ONNX"),
        ("model.eki", "load it by ekiden.load"),
    ],
)
def test_rejected_files_name_the_converter(name: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"any")
    with pytest.raises(ImportModelError, match=f"import {name!r}: it is .*{advice}"):
        ekiden.compile(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"any"), "compressed: unpack it"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
        (b"<!DOCTYPE html><html>404</html>", "a web page: the download gave no model"),
        (pickle.dumps([1]), "pickled: load it"),
        (struct.pack("<Q", 20) + b'{"w":{}}', "weights alone: "),
        (b"\x89HDF\r\n\x1a\n", "loaded by keras.models.load_model"),
        (b"\x10\0\0\0ORTM", "ONNX Runtime's own format"),
        (b"GGUF\3\0\0\0", "run it by `ekiden generate`"),
        (b"\x7fELF\2", "load it by ekiden.load"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value[:16],
)
@pytest.mark.parametrize("name", ["model", "model.onnx", "model.tflite", "model.PB"])
def test_rejected_files_are_recognized_by_content(
    data: bytes, message: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    for argument, label in ((tmp_path / name, repr(name)), (data, "bytes")):
        with pytest.raises(ImportModelError, match=f"^import {label}: it is .*{message}"):
            ekiden.compile(argument)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("b.onnx", "a.onnx", "readme"), "it is a folder: give the path of 'a.onnx' or 'b.onnx'$"),
        (tuple(f"{i}.onnx" for i in range(9)), "'4.onnx' or 4 more$"),
        (("config.json", "model.safetensors"), "a checkpoint of transformers: .*from_pretrained"),
        (("config.json", "model.safetensors", "model.onnx"), "give the path of 'model.onnx'$"),
        (("checkpoint", "a-1.index"), "weights alone"),
        (("readme.md",), "it is a folder, in which there is no model$"),
    ],
)  # fmt: skip
def test_folders_without_models_are_refused(
    files: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ImportModelError, match=f"^import .*{message}"):
        ekiden.compile(tmp_path)


def test_model_fragment_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ImportModelError, match=f"give the folder, '{tmp_path}'$"):
        ekiden.compile(tmp_path / "saved_model.pb")


@pytest.mark.parametrize("suffix", ["", ".onnx", ".pt", ".h5", ".tflite", ".relay", ".zip"])
@pytest.mark.parametrize(
    ("stem", "message"), [("no", "No such file"), ("a\0b", "zero"), ("a" * 300, "too long")]
)
def test_missing_paths_are_refused(stem: str, suffix: str, message: str) -> None:
    with pytest.raises(ImportModelError, match=f"^import .*{message}"):
        ekiden.compile(stem + suffix)


def text_of_program() -> str:
    """A program with a constant that does not stand in its text."""
    x = relay.var("x", shape=(relay.Any(), 100), dtype="float32")
    added = relay.add(x, relay.const(np.arange(100, dtype="float32")))
    return ekiden.IRModule.from_expr(relay.Function([x], added)).astext()


def test_file_of_relays_text_is_a_model(tmp_path: Path) -> None:
    text = text_of_program()
    (tmp_path / "m.relay").write_text(text)
    assert (
        find_frontend(tmp_path / "m.relay")
        is frontend_by_name("relay_program")
        is find_frontend(text.encode())
    )
    data = np.ones((3, 100), "float32")
    for model in (tmp_path / "m.relay", text.encode()):
        np.testing.assert_array_equal(ekiden.compile(model)(data).numpy(), data + np.arange(100))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"def @main(%x: float32) {\n  nn.relu(%y)\n}", "m.relay:2:11: %y is not bound here"),
        (
            b"def @f(%x: float32) { %x }",
            "import 'm.relay': a function @main is expected, there are: @f",
        ),
        (b"", "import 'm.relay': a function @main is expected, there are: none"),
        (b"# \xff", "import 'm.relay': no text of Relay: byte 2 begins no character of UTF-8"),
    ],
)
def test_relay_text_errors_name_the_file(text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "m.relay").write_bytes(text)
    with pytest.raises(CompileError) as caught:
        ekiden.compile(tmp_path / "m.relay")
    assert str(caught.value).startswith(said)
    with pytest.raises(
        CompileError, match="a Relay program takes no 'signature'; it takes 'shape'"
    ):
        ekiden.compile(tmp_path / "m.relay", signature="serve")


def test_missing_relay_text_file_is_named() -> None:
    with pytest.raises(ImportModelError, match="import 'nowhere.relay': No such file"):
        ekiden.compile("nowhere.relay")


def test_onnx_importer_names_the_format_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "m.relay").write_text(text_of_program())
    with pytest.raises(ImportModelError, match="expected an ONNX model, got a Relay program"):
        relay.frontend.from_onnx(tmp_path / "m.relay")


def test_frontend_is_found_by_content_and_marker_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(
        FRONTENDS[0], name="other", suffixes=(".odd",), magic_bytes=((4, b"ODD1"),),
        marker_files=("saved.odd",), class_names=("pathlib.Path",),
    )  # fmt: skip
    monkeypatch.setattr(registry, "FRONTENDS", (FRONTENDS[0], other))
    (tmp_path / "saved.odd").write_bytes(b"")
    (tmp_path / "file").write_bytes(b"\0\0\0\0ODD1 and more")
    assert find_frontend(tmp_path) is other and is_model_file(tmp_path)
    assert find_frontend(tmp_path / "file") is other
    assert find_frontend(b"\0\0\0\0ODD1") is other
    assert find_frontend("x.odd") is other


@pytest.mark.slow
def test_unsupported_frontend_options_are_refused() -> None:
    with pytest.raises(CompileError) as caught:
        ekiden.compile(model(), dynamic_shapes={"x": 3})
    assert str(caught.value) == "compile: an ONNX model takes no 'dynamic_shapes'; it takes 'shape'"
    program = relay.parse("def @main(%x: Tensor[(n,), float32]) { exp(%x) }")
    with pytest.raises(CompileError) as caught:
        ekiden.compile(program, signature="serve")
    assert str(caught.value) == "compile: a Relay program takes no 'signature'; it takes 'shape'"


def test_set_options_are_distinguished_from_defaults() -> None:
    assert list(ImportOptions().set_option_names()) == []
    assert list(ImportOptions(shape={}, signature="").set_option_names()) == []
    assert list(ImportOptions(shape={"x": [1]}, example_inputs=()).set_option_names()) == [
        "shape",
        "example_inputs",
    ]


@pytest.mark.parametrize(
    ("package", "extra", "message"),
    [
        (Package("no_such_module", ("no-such",)), "odd",
         "the package 'no-such' is missing; pip install 'ekiden[odd]'"),
        (Package("no_such_module", ("no-such",)), "",
         "the package 'no-such' is missing; pip install no-such"),
        (Package("onnx", ("onnx",), "99.1"), "odd",
         f"expected onnx from 99.1, got {onnx.__version__}; pip install --upgrade 'ekiden[odd]'"),
        (Package("onnx", ("onnx",), "1.0", "1.1"), "odd",
         f"expected onnx from 1.0 below 1.1, got {onnx.__version__}; "
         "pip install --upgrade 'ekiden[odd]'"),
    ],
)  # fmt: skip
def test_missing_package_error_gives_the_pip_command(
    package: Package, extra: str, message: str
) -> None:
    row = replace(FRONTENDS[0], packages=(package,), extra=extra)
    with pytest.raises(ImportModelError) as caught:
        row.entry_module()
    assert str(caught.value) == f"import an ONNX model: {message}"


def installed(folder: Path, name: str, body: str, version: str) -> None:
    """A package of one module in a folder."""
    (folder / f"{name}.py").write_text(body)
    (folder / f"{name}-{version}.dist-info").mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(text)


AGAIN = "pip install --force-reinstall"


@pytest.mark.parametrize(
    ("name", "body", "version", "message"),
    [
        ("odd_one", "", "0.9", "expected odd_one from 1.0, got 0.9; pip install --upgrade odd_one"),
        ("odd_two", "", "1.1",
         "odd_two 1.1 cannot be imported: module 'odd_two' has no attribute 'to'; "
         f"{AGAIN} odd_two"),
        ("odd_three", "raise ImportError('libodd.so: no such file')", "1.1",
         f"odd_three 1.1 cannot be imported: libodd.so: no such file; {AGAIN} odd_three"),
        ("odd_four", "raise KeyError", "1.1",
         f"odd_four 1.1 cannot be imported: KeyError; {AGAIN} odd_four"),
        ("odd_five", "raise SystemExit", "1.1",
         f"odd_five 1.1 cannot be imported: SystemExit; {AGAIN} odd_five"),
        ("odd_six", "def to(): pass", "1.1", ""),
        ("odd_seven", "import warnings\nwarnings.warn('x')\ndef to(): pass", "99.0", ""),
        ("no_such_converter", None, "",
         "the package 'no_such_converter' is missing; pip install no_such_converter"),
    ],
)  # fmt: skip
def test_missing_converter_package_gives_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str | None, version: str,
    message: str,
) -> None:  # fmt: skip
    if body is not None:
        installed(tmp_path, name, body, version)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = Package(name, (name,), "1.0", required_function="to").unusable_reason()
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert result == message


def test_broken_package_error_names_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "odd_jax", "raise SystemExit(3)", "1.1")
    installed(tmp_path, "odd_jaxlib", "", "1.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = tuple(Package(n, (n,), "1.0") for n in ("odd_jax", "odd_jaxlib"))
    row = replace(FRONTENDS[0], name="no_such_folder", packages=packages)
    with pytest.raises(ImportModelError) as caught:
        row.entry_module()
    text = str(caught.value)
    assert text.startswith("import an ONNX model: odd_jax 1.1, odd_jaxlib 1.0 cannot be imported: ")
    assert text.endswith("pip install --force-reinstall odd_jax odd_jaxlib")


def test_error_of_a_newer_package_names_the_tested_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "odd_torch", "", "3.0.1+cpu")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("odd_torch")
    package = Package("odd_torch", ("odd_torch",), "2.6", tested_version="2.15.0")
    row = replace(FRONTENDS[0], name="no_such_folder", packages=(package,))
    with pytest.raises(ImportModelError) as caught:
        row.entry_module()
    monkeypatch.delitem(sys.modules, "odd_torch")
    assert str(caught.value) == (
        "import an ONNX model: odd_torch 3.0.1+cpu is newer than what Ekiden is tested with, and "
        "lacks a part: No module named 'ekiden.frontend.no_such_folder'; "
        "pip install odd_torch==2.15.0"
    )


@pytest.mark.parametrize("top,cls,text", [
    ("sklearn.base", "BaseEstimator", "by skl2onnx.to_onnx"),
    ("xgboost.core", "Booster", "by onnxmltools.convert_xgboost"),
    ("lightgbm.basic", "Booster", "by onnxmltools.convert_lightgbm"),
    ("paddle.nn", "Layer", "by paddle2onnx.export"),
    ("flax.linen.module", "Module", "lambda x: module.apply"),
])  # fmt: skip
def test_foreign_models_name_their_converter(
    top: str, cls: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Package, "unusable_reason", lambda self: f"pip install {self.distribution_name}"
    )
    model = type(cls, (), {"__module__": top})()
    with pytest.raises(ImportModelError) as caught:
        ekiden.compile(model)
    first, _, rest = str(caught.value).partition("\n")
    assert text in first
    assert rest.startswith("  pip install ") == text.startswith("by ")


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ImportModelError, match=r"import '.*': it is a folder, in which there is no"
    ):
        ekiden.compile(tmp_path)


def test_git_lfs_pointer_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ImportModelError, match="a pointer of Git LFS"):
        ekiden.compile(tmp_path / "m.safetensors")
