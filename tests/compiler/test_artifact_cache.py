"""The artifact cache: a model compiled before is mapped from it, with the same result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import external_data_helper, numpy_helper

import ekiden
from ekiden import relay
from ekiden.codegen.cache import KernelCache
from ekiden.compiler import build
from ekiden.compiler.artifact import compile_artifact
from ekiden.compiler.cache.artifacts import ArtifactCache
from ekiden.compiler.cache.cache_keys import (
    CacheRequest,
    create_cache_request,
    file_digest,
    is_this_machine,
)
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.onnx import register
from ekiden.frontend.onnx.registry import CONVERTER_TABLE
from ekiden.frontend.registry import identify_model
from ekiden.ir import user_extensions
from ekiden.ir.instrument import PassTimingInstrument
from ekiden.ir.transform import PassContext, register_pass
from ekiden.relay.transform import InferType
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError, ImportModelError, InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.target import Target
from onnx_files import WEIGHT, arguments, expected, model


class Compiles:
    """Counts what the compiler is asked for."""

    def __init__(self) -> None:
        self.count = 0
        self._real = build.compile_model

    def __call__(self, *args: object, **named: object) -> build.CompiledModel:
        self.count += 1
        return self._real(*args, **named)  # type: ignore[arg-type]


@pytest.fixture
def compiles(
    kernel_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Compiles]:
    """Artifacts are kept in a folder of the test; kernels in that of the test run."""
    monkeypatch.setenv("EKIDEN_CACHE_LIMIT", "1G")
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(KernelCache, "default", lambda: KernelCache(kernel_cache))
    monkeypatch.setattr(user_extensions, "_USER_DEFINITIONS", [])  # tests before this one have some
    counted = Compiles()
    monkeypatch.setattr(build, "compile_model", counted)
    yield counted
    monkeypatch.undo()


def kept(tmp_path: Path, suffix: str = ".eki") -> list[Path]:
    return sorted((tmp_path / "cache" / "artifacts").glob(f"*{suffix}"))


def file_of(path: Path, proto: onnx.ModelProto | None = None) -> Path:
    onnx.save(proto or model(), path)
    return path


def changed_weight() -> onnx.ModelProto:
    graph_model = model()
    values = WEIGHT.copy()
    values[1, 2] += 1
    graph_model.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "w"))
    return graph_model


def test_second_compilation_uses_the_cache(compiles: Compiles, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.onnx")
    first, second = ekiden.compile(path), ekiden.compile(str(path))
    assert compiles.count == 1
    assert np.array_equal(second(**arguments(5)).numpy(), first(**arguments(5)).numpy())
    np.testing.assert_allclose(second(**arguments(5)).numpy(), expected(**arguments(5)), rtol=1e-6)


def test_cached_artifact_equals_compiled_one(compiles: Compiles, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.onnx")
    first, second = ekiden.compile(path), ekiden.compile(path)
    first.save(tmp_path / "first.eki")
    second.save(tmp_path / "second.eki")
    saved = (tmp_path / "first.eki").read_bytes()
    assert saved == (tmp_path / "second.eki").read_bytes() == build.compile_to_bytes(str(path))
    assert repr(first) == repr(second) and first.raw.metadata == second.raw.metadata
    assert first.disassemble() == second.disassemble() and first.save()[0] == second.save()[0]


def test_path_bytes_and_a_model_with_the_same_content_are_one(
    compiles: Compiles, tmp_path: Path
) -> None:
    proto = model()
    data = proto.SerializeToString(deterministic=True)
    (tmp_path / "a.onnx").write_bytes(data)
    (tmp_path / "b.onnx").write_bytes(data)
    for item in (tmp_path / "a.onnx", str(tmp_path / "b.onnx"), data, proto):
        ekiden.compile(item)
    assert compiles.count == 1


def test_options_are_part_of_the_cache_key(compiles: Compiles, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.onnx")
    depth, host = {"relay.FuseOps.max_depth": 2}, Target.host()
    calls: list[Callable[[], Executable]] = [
        lambda: ekiden.compile(path),
        lambda: ekiden.compile(path, shape={"x": [2, 3], "b": [2, 1]}),
        lambda: ekiden.compile(path, shape={"x": ["m", 3], "b": ["m", 1]}),
        lambda: ekiden.compile(path, executor="aot"),
        lambda: ekiden.compile(path, executor="async"),
        lambda: ekiden.compile(path, replace(host, cores=host.cores + 1)),
        lambda: ekiden.compile(path, [ekiden.device("cpu", 1)]),
        lambda: ekiden.compile(changed_weight()),
        lambda: _under(PassContext(opt_level=2), path),
        lambda: _under(PassContext(disabled_pass=["FoldScaleAxis"]), path),
        lambda: _under(PassContext(required_pass=["FoldScaleAxis"]), path),
        lambda: _under(PassContext(config=depth), path),
    ]
    for number, call in enumerate(calls, 1):
        call()
        assert compiles.count == number
    for call in calls:
        call()
    assert compiles.count == len(calls) == len(kept(tmp_path))


def _under(context: PassContext, path: Path) -> Executable:
    with context:
        return ekiden.compile(path)


def test_shapes_of_equal_meaning_are_one(compiles: Compiles, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.onnx")
    two = np.int64(2)
    for shape in ({"x": [2, 3], "b": (2, 1)}, {"b": [two, 1], "x": (two, 3)}):
        ekiden.compile(path, shape=shape)  # type: ignore[arg-type]
    assert compiles.count == 1


def test_changed_file_is_compiled(compiles: Compiles, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.onnx")
    before = ekiden.compile(path)(**arguments(2)).numpy()
    file_of(path, changed_weight())
    after = ekiden.compile(path)(**arguments(2)).numpy()
    assert compiles.count == 2 and not np.allclose(before, after)


def beside(folder: Path, proto: onnx.ModelProto) -> Path:
    """A model with its weight in the file `weights` beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "weights").unlink(missing_ok=True)
    path = folder / "a.onnx"
    external_data_helper.convert_model_to_external_data(proto, location="weights", size_threshold=0)
    onnx.save(proto, path)
    return path


def test_weights_in_files_of_their_own(compiles: Compiles, tmp_path: Path) -> None:
    path = beside(tmp_path / "model", model())
    first = ekiden.compile(path)(**arguments(2)).numpy()
    assert np.array_equal(ekiden.compile(path)(**arguments(2)).numpy(), first)
    assert compiles.count == 1 and len(kept(tmp_path, ".json")) == 1
    other = beside(tmp_path / "other", changed_weight())
    assert other.read_bytes() == path.read_bytes()
    assert not np.allclose(ekiden.compile(other)(**arguments(2)).numpy(), first)
    assert np.array_equal(ekiden.compile(path)(**arguments(2)).numpy(), first)
    assert compiles.count == 2
    with pytest.raises(ImportModelError, match="does not say where that is"):
        ekiden.compile(path.read_bytes())
    (tmp_path / "model" / "weights").unlink()
    with pytest.raises(ImportModelError, match="which must be in the folder of the model"):
        ekiden.compile(path)


def test_file_changed_during_compilation_is_not_cached(compiles: Compiles, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.onnx")
    expected_value = create_cache_request(identify_model(path), CompileOptions("llvm"))
    assert expected_value is not None
    early = CacheRequest(expected_value.digest, expected_value.path, path.stat().st_mtime_ns - 1)
    assert ArtifactCache.default().put(early, build.compile_to_bytes(model()), ()) is None
    assert kept(tmp_path) == []


def test_relative_path_keeps_its_working_directory(
    compiles: Compiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What compiles beside a program is done when that may have gone to another folder."""
    for name, proto in (("first", model()), ("second", changed_weight())):
        (tmp_path / name).mkdir()
        file_of(tmp_path / name / "a.onnx", proto)
    monkeypatch.chdir(tmp_path / "first")
    expected_value = create_cache_request(identify_model("a.onnx"), CompileOptions("llvm"))
    monkeypatch.chdir(tmp_path / "second")
    other = create_cache_request(identify_model("a.onnx"), CompileOptions("llvm"))
    assert expected_value is not None and other is not None
    assert expected_value.digest() != other.digest()
    assert expected_value.key(["a.onnx"]) != other.key(["a.onnx"])


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_retargeted_symlink_invalidates_cache_entry(
    compiles: Compiles, tmp_path: Path, linked: str
) -> None:
    """As programs are put in place: nothing was written but the link."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        file_of(tmp_path / name / "a.onnx")
    end = "/a.onnx" if linked == "file" else ""
    link = tmp_path / "current"
    link.symlink_to(f"old{end}")
    expected_value = create_cache_request(
        identify_model(link if end else link / "a.onnx"), CompileOptions("llvm")
    )
    assert expected_value is not None and expected_value.is_current([])
    link.unlink()
    link.symlink_to(f"new{end}")
    assert not expected_value.is_current([])


@pytest.mark.parametrize("damage", ["short", "flipped", "empty", "other"])
def test_damaged_file_is_replaced(compiles: Compiles, tmp_path: Path, damage: str) -> None:
    path = file_of(tmp_path / "a.onnx")
    ekiden.compile(path)
    (artifact,) = kept(tmp_path)
    whole = artifact.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    result = {"short": whole[:-9], "flipped": flipped, "empty": b"", "other": b"no artifact" * 99}
    artifact.write_bytes(result[damage])
    actual = ekiden.compile(path)
    assert compiles.count == 2 and artifact.read_bytes() == whole
    np.testing.assert_allclose(actual(**arguments(5)).numpy(), expected(**arguments(5)), rtol=1e-6)


def test_folder_that_cannot_be_used_is_no_error(
    compiles: Compiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path / "a.onnx")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path / "file"))
    ekiden.compile(path)
    ekiden.compile(path)
    assert compiles.count == 2


def test_full_disk_is_no_error(
    compiles: Compiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, to: object) -> None:
        raise OSError(28, "No space left on device")

    path = file_of(tmp_path / "a.onnx")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        ekiden.compile(path)
    assert list((tmp_path / "cache" / "artifacts").iterdir()) == []
    ekiden.compile(path)
    ekiden.compile(path)
    assert compiles.count == 2


def test_least_recently_used_artifacts_are_evicted(tmp_path: Path) -> None:
    expected_value = [CacheRequest(lambda n=n: f"{n:x}", None, 0) for n in range(6)]
    artifact = build.compile_to_bytes(model())
    limited = ArtifactCache(tmp_path / "kept", 4 * len(artifact) + 100)
    for age, item in enumerate(expected_value[:4]):
        limited.put(item, artifact, ())
        os.utime(tmp_path / "kept" / f"{item.digest()}.eki", (age, age))
    assert limited.get(expected_value[0]) is not None  # now the one used last
    limited.put(expected_value[4], artifact, ())
    limited.put(expected_value[5], artifact, ())
    there = {path.stem for path in (tmp_path / "kept").iterdir()}
    assert there == {expected_value[n].digest() for n in (0, 3, 4, 5)}


def test_empty_cache_does_not_hash_models(tmp_path: Path) -> None:
    """What a model is found by is made when there is anything to be found."""
    asked: list[str] = []
    expected_value = CacheRequest(lambda: asked.append("digest") or "a", None, 0)
    cache = ArtifactCache(tmp_path / "kept", 1 << 30)
    assert cache.get(expected_value) is None
    (tmp_path / "kept").mkdir()
    assert cache.get(expected_value) is None
    assert not asked
    (tmp_path / "kept" / "b.eki").touch()
    assert cache.get(expected_value) is None
    assert asked


def test_artifact_of_more_than_a_quarter_of_the_limit_is_not_kept(tmp_path: Path) -> None:
    artifact = build.compile_to_bytes(model())
    for limit in (4 * len(artifact) - 1, 4 * len(artifact)):
        assert not (tmp_path / "kept").exists()
        ArtifactCache(tmp_path / "kept", limit).put(
            CacheRequest(lambda: "a", None, 0), artifact, ()
        )
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["a.eki"]


def test_code_for_other_machines_is_not_kept(compiles: Compiles, tmp_path: Path) -> None:
    for count in (1, 2):
        result = compile_artifact(identify_model(model()), CompileOptions("llvm -mcpu=neoverse-n1"))
        assert isinstance(result.contents, memoryview) and compiles.count == count
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "limit"),
    [("0", 0), ("1000", 1000), ("64K", 64 << 10), ("500M", 500 << 20), ("2G", 2 << 30),
     ("", 4 << 30)],
)  # fmt: skip
def test_limit_of_the_environment(text: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_LIMIT", text)
    assert environment.cache_limit_bytes() == limit


def test_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_LIMIT", "much")
    with pytest.raises(InputError) as caught:
        environment.cache_limit_bytes()
    expected = "the variable EKIDEN_CACHE_LIMIT: expected bytes, such as 500M, got 'much'"
    assert str(caught.value) == expected


@pytest.mark.parametrize(("name", "value"), [("EKIDEN_CACHE_LIMIT", "0"), ("EKIDEN_CACHE_DIR", "")])
def test_artifact_cache_can_be_disabled(
    compiles: Compiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    path = file_of(tmp_path / "a.onnx")
    monkeypatch.setenv(name, value)
    ekiden.compile(path)
    ekiden.compile(path)
    assert compiles.count == 2 and not (tmp_path / "cache" / "artifacts").exists()


def test_instrument_sees_the_passes(compiles: Compiles, tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.onnx")
    ekiden.compile(path)
    timing = PassTimingInstrument()
    with PassContext(instruments=[timing]):
        ekiden.compile(path)
    assert compiles.count == 2 and "FuseOps" in timing.render()


def test_module_is_compiled(compiles: Compiles) -> None:
    module = build.import_model(model())
    ekiden.compile(module)
    ekiden.compile(module)
    assert compiles.count == 2


def test_converter_of_the_program_is_used(
    compiles: Compiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ekiden.compile(model())(**arguments(2)).numpy()
    key = ("", "Relu")
    monkeypatch.setitem(CONVERTER_TABLE, key, CONVERTER_TABLE[key])
    register("", "Relu", override=True)(lambda node: node.expr(0))
    after = ekiden.compile(model())(**arguments(2)).numpy()
    assert compiles.count == 2 and not np.allclose(before, after)


def test_pass_of_the_program_is_an_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_extensions, "_USER_DEFINITIONS", [])
    monkeypatch.setattr("ekiden.ir.transform._PASS_FACTORIES", {})
    register_pass("InferType", InferType)
    assert not user_extensions.has_extensions()
    register_pass("InferType", lambda: InferType())
    assert user_extensions.has_extensions()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (lambda: ekiden.compile(3), "compile: expected a path"),  # type: ignore[arg-type]
        (lambda: ekiden.compile("none.onnx"), "import model 'none.onnx': cannot read"),
        (
            lambda: ekiden.compile(model(), "nonsense"),
            "target: unknown kind in 'nonsense'; there are llvm, c",
        ),
        (lambda: ekiden.compile(model(), executor="quick"), "compile: executor one of"),
        (lambda: ekiden.compile(model(), shape={"z": [1]}), "shape is given for 'z'"),
    ],
)
def test_errors_are_those_of_compiling(
    compiles: Compiles, argument: Callable[[], object], message: str
) -> None:
    for _ in range(2):
        with pytest.raises((CompileError, ImportModelError), match=message):
            argument()


@pytest.mark.usefixtures("compiles")
def test_pipe_input_bypasses_the_cache(tmp_path: Path) -> None:
    """What can be read but once is not even opened, which would wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    assert create_cache_request(identify_model(tmp_path / "pipe"), CompileOptions("llvm")) is None


def test_digest_covers_all_bytes(tmp_path: Path) -> None:
    path = tmp_path / "large"
    data = bytearray(np.random.default_rng(0).bytes((33 << 20) + 5))
    seen = set()
    for at in (None, 0, 16 << 20, (32 << 20) - 1, len(data) - 1):
        if at is not None:
            data[at] ^= 1
        path.write_bytes(data)
        seen.add(file_digest(path))
        assert file_digest(path) in seen
    path.write_bytes(data[:-1])
    assert file_digest(path) not in seen and len(seen) == 5


PROGRAM = """
import json, sys, numpy
before = set(sys.modules)
import ekiden
executable = ekiden.compile(sys.argv[1])
heavy = {"onnx", "llvmlite", "ekiden.relay", "ekiden.tir", "ekiden.topi", "ekiden.compiler.build",
         "ekiden.target", "ml_dtypes", "logging", "pathlib"} & (set(sys.modules) - before)
executable.save(sys.argv[2])
print(json.dumps(sorted(heavy)))
"""


def run_twice(path: Path, folder: Path) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, str(path)]
    return [
        subprocess.Popen([*command, str(folder / f"{n}.eki")], stdout=subprocess.PIPE, text=True)
        for n in range(2)
    ]


def test_two_processes_at_once_and_then_one_that_needs_no_compiler(
    compiles: Compiles, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "a.onnx")
    started = run_twice(path, tmp_path)
    loaded = [json.loads(item.communicate(timeout=120)[0]) for item in started]
    assert all(item.returncode == 0 for item in started)
    assert any(loaded)  # a busy machine may run one after the other
    assert (tmp_path / "0.eki").read_bytes() == (tmp_path / "1.eki").read_bytes()
    assert len(kept(tmp_path)) == 1 and len(list(kept(tmp_path)[0].parent.iterdir())) == 1
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "2.eki")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == []
    assert (tmp_path / "2.eki").read_bytes() == (tmp_path / "0.eki").read_bytes()


def test_edit_recompiles_only_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that was compiled before the kernels of all other lines are found."""
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "1")
    x = relay.var("x", shape=(3, 40))

    def compiled(last: Callable[[relay.expr.Expr], relay.expr.Expr]) -> set[str]:
        """The kernels in the cache once a model is compiled: three, one behind the other."""
        body = relay.annotation.stop_fusion(relay.exp(x))
        body = last(relay.annotation.stop_fusion(relay.sum(body, axis=1)))
        ekiden.compile(ekiden.IRModule.from_expr(relay.Function([x], body)))
        return {path.name for path in (tmp_path / "kernels").rglob("*.o")}

    first = compiled(relay.tanh)
    assert len(first) == 3
    assert len(compiled(relay.sigmoid) - first) == 1
    assert len(compiled(relay.tanh)) == 4


def test_another_thread_may_be_importing_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first calls of a program, in two threads: one found half a module."""
    with Target("llvm -mcpu=nehalem"):
        assert not is_this_machine(None)
    monkeypatch.setitem(sys.modules, "ekiden.target.target", ModuleType("ekiden.target.target"))
    assert is_this_machine(None) and not is_this_machine("c")
