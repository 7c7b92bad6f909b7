"""Modules are saved and loaded with all their imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, rpc, runtime, te
from ekiden.contrib.graph_executor import GraphModule
from ekiden.runtime.errors import CompileError, ExportError, InputError, LoadError
from ekiden.runtime.executor import AotModule

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

X = np.array([1, 2, 3], "float32")


def scaled(name: str, factor: float) -> runtime.Module:
    """A module with one function, (x, y): y becomes x times a number."""
    a = te.placeholder((3,), name="a")
    func = te.create_prim_func([a, te.compute((3,), lambda i: a[i] * factor, name="b")])
    return ekiden.build(func, "llvm", name=name)


def result_of(function: runtime.PackedFunc) -> list[float]:
    y = runtime.empty((3,))
    function(X, y)
    return [float(v) for v in y.numpy()]


def network(**options: object) -> ekiden.Executable:
    x = relay.var("x", shape=(3,))
    return relay.build(relay.Function([x], relay.nn.relu(x) + relay.const(1.0)), "llvm", **options)


def test_exported_operator_is_loaded(tmp_path: Path) -> None:
    scaled("double", 2).export_library(tmp_path / "double.so")
    again = runtime.load_module(tmp_path / "double.so")
    assert again.kind == "image" and again.names() == ["double"]
    assert result_of(again["double"]) == [2, 4, 6]


def test_module_tree_is_saved_with_imports(tmp_path: Path) -> None:
    """A root, two that it imports, and one that both of these import, which stays one."""
    root, left, right, shared = (scaled(n, f) for n, f in zip("abcd", (2, 3, 4, 5), strict=True))
    for importer, imported in ((root, left), (root, right), (left, shared), (right, shared)):
        importer.import_module(imported)
    root.import_module(network().module)
    root.export_library(tmp_path / "tree.so")
    again = runtime.load_module(tmp_path / "tree.so")
    assert [m.names() for m in again.imported_modules] == [["b"], ["c"], ["main"]]
    below = [m.imported_modules for m in again.imported_modules]
    assert below[0] == below[1] and below[0][0].names() == ["d"]
    assert [result_of(again[n])[0] for n in "abcd"] == [2, 3, 4, 5]
    assert again["main"](-X).numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["tree.o", "tree.c", "tree.tar"])
def test_tree_is_written_as_what_the_suffix_says(name: str, tmp_path: Path) -> None:
    root = scaled("a", 2)
    root.import_module(scaled("b", 3))
    root.export_library(tmp_path / name)
    assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.parametrize("session", [None, rpc.LocalSession()])
def test_archive_is_loaded_without_a_compiler(
    session: rpc.LocalSession | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator, a tree of modules and a network, here and where it was uploaded."""
    tree = scaled("a", 2)
    tree.import_module(scaled("b", 3))
    for name, result in (("double", scaled("double", 2)), ("tree", tree), ("net", network())):
        result.export_library(tmp_path / f"{name}.tar")
    monkeypatch.setenv("PATH", str(tmp_path))

    def loaded(name: str) -> runtime.Module:
        if session is None:
            return runtime.load_module(tmp_path / f"{name}.tar")
        session.upload(tmp_path / f"{name}.tar")
        return session.load_module(f"{name}.tar")

    place = runtime if session is None else session
    x, y = (place.cpu(0).array(a) if session else runtime.tensor(a) for a in (X, X.copy()))
    for name, symbol, expected in (("double", "double", 2), ("tree", "a", 2), ("tree", "b", 3)):
        loaded(name)[symbol](x, y)
        assert y.numpy().tolist() == (X * expected).tolist()
    assert ekiden.load(tmp_path / "net.tar")(-X).numpy().tolist() == [1, 1, 1]
    net = GraphModule(loaded("net")["default"](place.cpu(0)))
    net.set_input("x", -X)
    net.run()
    assert net.get_output(0).numpy().tolist() == [1, 1, 1]


def rewritten(data: bytes, size: bytes) -> bytes:
    """An archive whose .eki says that it has another size."""
    at = data.rindex(b".eki\0" + bytes(16), 0, data.index(b"ustar", 0)) // 512 * 512
    head = bytearray(data[at : at + 512])
    head[124:136], head[148:156] = size, b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return data[:at] + bytes(head) + data[at + 512 :]


def test_invalid_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.tar"
    with pytest.raises(FileNotFoundError, match=r"some\.tar"):
        runtime.load_module(path)
    path.write_bytes(b"no archive" * 100)
    with pytest.raises(LoadError, match=r"load module '.*some\.tar': "):
        runtime.load_module(path)
    scaled("a", 2).export_library(tmp_path / "whole.tar")
    data = (tmp_path / "whole.tar").read_bytes()
    for end in (100, 700, 5000):
        path.write_bytes(data[:end])
        with pytest.raises(LoadError, match=r"load module '.*some\.tar': "):
            runtime.load_module(path)
    with pytest.raises(LoadError, match=r"load '.*whole\.tar': it contains no model"):
        ekiden.load(tmp_path / "whole.tar")
    for size in (b"77777777777\0", b"\x80" + b"\xff" * 11, b"-0000000001\0", b"no number!!\0"):
        path.write_bytes(rewritten(data, size))
        with pytest.raises(LoadError, match=r"load module '.*some\.tar': "):
            runtime.load_module(path)
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "some/model.c")
    with pytest.raises(LoadError, match=r"that export_library wrote has one \.eki, got 0"):
        runtime.load_module(path)


def test_another_process_and_the_published_package_run_it(tmp_path: Path) -> None:
    root = scaled("a", 2)
    root.import_module(scaled("b", 3))
    root.export_library(tmp_path / "tree.so")
    program = (
        "import sys, numpy as np, ekiden.runtime as r\n"
        "m, y = r.load_module(sys.argv[1]), np.zeros(3, 'float32')\n"
        "m['b'](np.ones(3, 'float32'), y); print(y.tolist(), 'llvmlite' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "tree.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "[3.0, 3.0, 3.0] False\n"
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="pip install apache-tvm-ffi")
    torch = pytest.importorskip("torch", reason="pip install torch")
    y = torch.zeros(3)
    tvm_ffi.load_module(str(tmp_path / "tree.so"))["a"](torch.ones(3), y)
    assert y.tolist() == [2, 2, 2]


def test_unsavable_modules_are_refused(tmp_path: Path) -> None:
    scaled("a", 2).export_library(tmp_path / "a.so")
    library = tmp_path / "plain.so"
    source = tmp_path / "plain.c"
    source.write_text("int __tvm_ffi_f(void *a, const void *b, int c, void *d) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    root = scaled("a", 2)
    root.import_module(runtime.load_module(library))
    with pytest.raises(ExportError, match="modules of kind 'library' cannot be saved"):
        root.export_library(tmp_path / "tree.so")
    with pytest.raises(ExportError, match=r"modules are written as \.so"):
        scaled("a", 2).export_library(tmp_path / "a.eki")
    with pytest.raises(ExportError, match="the suffix decides"):
        scaled("a", 2).export_library(tmp_path / "a.txt")


def test_graph_executor_under_a_name_of_its_own(tmp_path: Path) -> None:
    lib = network(mod_name="resnet18", runtime="cpp")
    lib.export_library(tmp_path / "net.so", cc=shutil.which("c++"), options=["-std=gnu++17"])
    lib.save(tmp_path / "net.eki")
    loaded = [lib, *map(runtime.load_module, (tmp_path / "net.so", tmp_path / "net.eki"))]
    for item in loaded:
        for executor in (GraphModule, AotModule):
            graph = executor(item["resnet18"](ekiden.cpu()))
            graph.set_input(0, -X)
            graph.run()
            assert graph.get_output(0).numpy().tolist() == [1, 1, 1]
        assert item["default"](ekiden.cpu()) is not None
        assert list(item["list_module_names"]()) == ["resnet18"]
        with pytest.raises(InputError, match="at most 1 devices expected, got 2"):
            item["default"](ekiden.cpu(), ekiden.cpu())
    assert lib.libmod_name == "resnet18" and network().libmod_name == "default"


def test_executor_knows_inputs_by_two_names() -> None:
    x = relay.var("in/put:0", shape=(3,))
    lib = relay.build(relay.Function([x], relay.nn.relu(x)), executor="aot")
    module = AotModule(lib["default"](ekiden.cpu()))
    assert module.get_input_name(0) == "in/put:0"
    for name in ("in/put:0", "in_put_0"):
        module.run(**{name: -X})
        assert module.get_input_index(name) == 0 and not module.get_output(0).numpy().any()
    for unknown in (module.set_input, module.get_input_index):
        with pytest.raises(InputError, match="no input is named 'y'; there are in/put:0"):
            unknown("y")
    assert GraphModule(module.module).get_input_index("y") == -1


@pytest.mark.parametrize("name", ["two words", "", "1st", "main", 'x"y'])
def test_invalid_module_name_is_refused(name: str) -> None:
    with pytest.raises(CompileError, match="mod_name"):
        network(mod_name=name)


def test_another_runtime_is_refused() -> None:
    with pytest.raises(CompileError, match="crt"):
        network(runtime="crt")
