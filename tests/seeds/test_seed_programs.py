"""The code in the seed documents runs as it stands, or is excused by name on docs/seeds.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from seed_blocks import RULES, CodeBlock, code_blocks, flat, seed_text, seeds_folder
from seed_programs import IMPORTS, PROGRAMS, Cpp, Excused, Library, Python

import ekiden as tvm
from ekiden import runtime

pytestmark = pytest.mark.skipif(
    seeds_folder() is None, reason="needs the seed documents: shared/seeds above the repository"
)

BLOCKS = code_blocks()
ONCE = {block.digest: block for block in BLOCKS}
"""Documents share some of their code."""
PAGE = Path(__file__).parents[2] / "docs/seeds.md"


def of_kind(kind: type) -> list[CodeBlock]:
    """The blocks that become of a kind, each once."""
    return [block for digest, block in ONCE.items() if isinstance(PROGRAMS.get(digest), kind)]


def test_every_block_is_run_or_excused_by_name() -> None:
    unknown = [str(block) for block in BLOCKS if block.digest not in PROGRAMS]
    assert not unknown, "neither run nor excused: " + ", ".join(unknown)
    assert set(PROGRAMS) == set(ONCE), "a row of the table is about code that no document has"


def test_every_document_has_a_rule_and_code() -> None:
    assert {block.seed for block in BLOCKS} == set(RULES)


def test_block_that_is_changed_is_noticed() -> None:
    block = of_kind(Python)[0]
    changed = CodeBlock(block.seed, block.place, block.text + "\nprint(1)")
    assert changed.digest not in PROGRAMS


@pytest.mark.parametrize("seed", ["002", "003", "004"])
def test_calls_in_a_document_stand_in_its_blocks(seed: str) -> None:
    """No line that calls a function of TVM's stands outside of what was found to be code."""
    result = "".join(flat(block.text) for block in BLOCKS if block.seed == seed)
    calls = re.findall(r"(?:tvm|relay)\.[a-z_.]+\([^)(]*\)", seed_text(seed), re.IGNORECASE)
    assert calls and [call for call in calls if flat(call) not in result] == []


def test_page_names_what_is_excused_or_changed() -> None:
    page = " ".join(PAGE.read_text().split())
    for digest, block in ONCE.items():
        row = PROGRAMS[digest]
        if isinstance(row, Excused):
            assert f"| {block.seed}.{block.place} | {row.what} | {row.reason} |" in page
        for old, new, why in row.changes if isinstance(row, Python) else ():
            line = f"| {block.seed}.{block.place} | `{old}` | `{new}` | {why} |"
            assert line in page, line


# C++ ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All programs of C++ of the documents, compiled and loaded."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: install g++ or clang")
    folder = tmp_path_factory.mktemp("cpp")
    program = Library()
    for block in of_kind(Cpp):
        row = PROGRAMS[block.digest]
        assert isinstance(row, Cpp)
        program.add(row, block.text, f"seed {block.seed}.{block.place}")
    (folder / "seeds.cpp").write_text(program.text)
    for name, text in program.files.items():
        (folder / name).write_text(text)
    path = folder / "seeds.so"
    runtime_library = runtime.library_path()
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-Wall", "-Wno-unused-variable"]
    link = [str(runtime_library), f"-Wl,-rpath,{runtime_library.parent}"]
    include = f"-I{runtime.include_dir()}"
    completed = subprocess.run(
        [*command, include, str(folder / "seeds.cpp"), *link, "-o", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    runtime.load_module(path)
    return path


def test_functions_of_cpp_run(library: Path) -> None:
    tvm.get_global_func("seeds.call_packed")()
    assert tvm.get_global_func("myadd")(1, 2) == 3
    with pytest.raises(TypeError, match=r"int expected, got ffi\.SmallStr|got a string"):
        tvm.get_global_func("myadd")("a", 2)
    assert tvm.get_global_func("seeds.visit")() == 1


def test_members_that_cpp_visits_are_fields(library: Path) -> None:
    result = runtime.make_node("seeds.Tensor", shape=[1, 2], value_index=3)
    assert list(runtime.fields_of(result)) == ["shape", "dtype", "op", "value_index"]
    assert (result.shape, result.dtype, result.op, result.value_index) == (
        [1, 2],
        "float32",
        None,
        3,
    )
    result.dtype = runtime.DataType("int8")
    assert runtime.load_json(runtime.save_json(result)).dtype == "int8"


def test_error_of_registering_is_that_of_loading(library: Path, tmp_path: Path) -> None:
    """The same names again, in another library."""
    copy = tmp_path / "again.so"
    shutil.copy(library, copy)
    with pytest.raises(ValueError, match="the name is taken"):
        runtime.load_module(copy)


# Python -------------------------------------------------------------------------------------------


def as_here(text: str, row: Python) -> str:
    """A program with its imports and what the table says changed, each of which is there."""
    text = text.lstrip()
    for old, new in IMPORTS:
        text = text.replace(old, new)
    for old, new, _ in row.changes:
        assert old in text, f"the table changes {old!r}, which is not there"
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("block", of_kind(Python), ids=str)
def test_seed_program_runs(
    block: CodeBlock,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    row = PROGRAMS[block.digest]
    assert isinstance(row, Python)
    if row.needs:
        request.getfixturevalue(row.needs)
    names = row.given()
    capfd.readouterr()
    exec(compile(as_here(block.text, row), f"seed {block}", "exec", dont_inherit=True), names)
    sys.stdout.flush()
    row.check(names, capfd.readouterr().out)
    for name, kind in names.get("__annotations__", {}).items():
        assert isinstance(names[name], kind), f"{name}: {kind}"
