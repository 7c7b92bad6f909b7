"""The section METADATA: whatever stands in it behind a right checksum, loading it ends well or in a
LoadError that names the file and the field.
"""

from __future__ import annotations

import copy
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.ir.prim import SizeVar
from ekiden.relay import op
from ekiden.runtime.artifact.container_format import (
    SectionSource,
    assemble_in_memory,
    read_sections,
)
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.debug.instructions import make_instruction
from ekiden.runtime.profile.report import instruction_sources

Json = Any
IDENTITY = VMFunction("main", ("x",), 1, (make_instruction("Ret", src=0),))
MAIN = {
    "inputs": [{"name": "x", "shape": ["n", 3], "dtype": "float32"}],
    "outputs": [{"name": "y", "shape": ["n", 3], "dtype": "float32"}],
    "limits": {"n": 7},
}


def with_metadata(data: bytes, text: bytes) -> bytes:
    """The file with another METADATA and the checksums of that."""

    def part(kind: Section, payload: bytes) -> SectionSource:
        return SectionSource(kind, lambda at: [payload])

    kept = {kind: bytes(payload) for kind, _, payload in read_sections(data)}
    return bytes(
        assemble_in_memory(part(k, p) for k, p in {**kept, Section.METADATA: text}.items())
    )


def small(text: bytes) -> bytes:
    """An executable of one function, which gives back what it gets, with these metadata."""
    return with_metadata(write_executable([IDENTITY], [], [], b"", {}), text)


def refused(tmp_path: Path, text: bytes) -> str:
    """What the error says of a file with these metadata, behind the name of the file."""
    path = tmp_path / "model.eki"
    path.write_bytes(small(text))
    with pytest.raises(ekiden.LoadError) as caught:
        ekiden.load(path)
    start = f"load '{path}': METADATA: "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[]", "an object expected, got []"),
        (b"{}", "the field 'main' is missing"),
        (b'{"main": {', "it is no JSON: Expecting property name enclosed in double quotes: "
         "line 1 column 11 (char 10)"),
        (b'{"memory": {"peak": NaN}}', "NaN is no JSON"),
        (b'{"target": "a", "target": "b"}', "a field is there twice"),
        (b'{"maim": {}}', "there is no field 'maim'; there are checks, denormals, "
         "device_targets, executor, "
         "external, host_functions, kernels, main, memory, mod_name, placement, producer, "
         "regions, sources, states, target, tensors, variants, weights"),
        (b'{"placement": {"kernels": {}, "host": [["why"]]}}',
         "placement.host[0]: a list of at least 2 items expected, got ['why']"),
        (b'{"executor": "VM"}', "executor: one of 'aot', 'async', 'vm' expected, got 'VM'"),
        (b'{"executor": ["vm"]}', "executor: one of 'aot', 'async', 'vm' expected, got ['vm']"),
        (b'{"memory": {"peak": -1}}',
         "memory.peak: an integer from 0 to 2**63 - 1 expected, got -1"),
        (b'{"memory": {"peak": true}}',
         "memory.peak: an integer from 0 to 2**63 - 1 expected, got True"),
        (b'{"variants": []}', "variants: a list of at least 1 items expected, got []"),
        (b'{"producer": "\\ud800"}', "producer: a text in UTF-8 expected, got '\\ud800'"),
        (b'{"kernels": {"f": {}}}', "kernels['f']: the field 'flops' is missing"),
        (b'{"kernels": {"f": {"flops": "", "operators": [], "params": []}}}',
         "kernels: no primitive is named 'f'"),
        (b'{"host_functions": ["f"]}', "host_functions: no primitive is named 'f'"),
        (b'{"sources": {"g": []}}', "sources: no function is named 'g'"),
        (b'{"sources": {"main": [[0]]}}',
         "sources['main'][0]: a list of 2 items expected, got [0]"),
        (b'{"sources": {"main": [[0, 1]]}}', "sources['main'][0][1]: a text expected, got 1"),
        (b'{"sources": {"main": [[1, ""]]}}',
         "sources: ['main']: instructions in ascending order below 1 expected"),
        (b'{"checks": {"main": [[0, "Gather"]]}}',
         "checks['main'][0][1]: a list of at least 1 items expected, got 'Gather'"),
        (b'{"checks": {"main": [[1, ["Gather"]]]}}',
         "checks: ['main']: instructions in ascending order below 1 expected"),
    ],
)  # fmt: skip
def test_invalid_metadata_names_the_field(tmp_path: Path, text: bytes, message: str) -> None:
    assert refused(tmp_path, text) == message


@pytest.mark.quick
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": []}, "main.inputs: 1 items expected, got 0"),
        ({"outputs": {}}, "main.outputs: a list expected, got {}"),
        ({"limits": {"n": 1.5}},
         "main.limits['n']: an integer from 0 to 2**63 - 1 expected, got 1.5"),
        ({"inputs": [{"name": "x", "shape": [-1], "dtype": "int8"}]},
         "main.inputs[0].shape[0]: an integer from 0 to 2**63 - 1 expected, got -1"),
        ({"inputs": [{"name": "x", "shape": [""], "dtype": "int8"}]},
         "main.inputs[0].shape[0]: a text that is not empty expected, got ''"),
        ({"inputs": [{"name": "x", "shape": [], "dtype": "float"}]},
         "main.inputs[0].dtype: a dtype expected, got 'float'"),
        ({"inputs": [{"name": "x", "shape": [], "dtype": "int999"}]},
         "main.inputs[0].dtype: a dtype expected, got 'int999'"),
        ({"inputs": [{"name": "x", "shape": []}]}, "main.inputs[0]: the field 'dtype' is missing"),
    ],
)  # fmt: skip
def test_invalid_main_signature_names_the_field(tmp_path: Path, change: Json, message: str) -> None:
    text = json.dumps({"main": {**MAIN, **change}}).encode()
    assert refused(tmp_path, text) == message


@pytest.mark.quick
def test_deep_metadata_are_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, b"[" * 100_000).startswith("it is no JSON: ")


@pytest.mark.quick
def test_module_and_file_executables_have_equal_metadata(tmp_path: Path) -> None:
    (tmp_path / "model.eki").write_bytes(small(b'{"executor": 1}'))
    actual = ekiden.runtime.load_module(str(tmp_path / "model.eki"))["get_executable"]()
    expected = "load executable: METADATA: executor: one of 'aot', 'async', 'vm' expected, got 1"
    with pytest.raises(ekiden.LoadError) as caught:
        _ = actual.metadata
    assert str(caught.value) == expected


@pytest.fixture(scope="module")
def compiled() -> bytes:
    """A model with kernels, a symbol with a limit, a choice, and sources of instructions."""
    x = relay.var("x", relay.tensor_type((SizeVar("n", "int64", upper=9), 4)))
    dense = op.nn.relu(op.nn.dense(x, relay.const(np.ones((5, 4), np.float32))))
    test = op.min(op.greater(x, relay.const(0.0)))
    chosen = relay.If(test, dense, op.nn.softmax(dense))
    module = relay.IRModule.from_expr(relay.Function((x,), chosen, None))
    return ekiden.compile(module).raw.to_bytes()


HOSTILE: tuple[Json, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.5, 1e400, "", "main", "x", "n", "a" * 300,
    "\x00", "\ud800", "object", "string", "sequence of float32", "maps to int8", "float32", "int",
    [], [[]], [0], [0, "x"], {}, {"name": "x"}, {"": {}}, [{}], "n*", "1/0", "9" * 5000,
)  # fmt: skip


DTYPES = ("object", "string", "sequence of float32", "maps to int8", "int8", "float64", "float3")


def places(root: Json) -> list[tuple[Json, Any]]:
    """Every (container, key) in a document."""
    result: list[tuple[Json, Any]] = []
    stack = [root]
    while stack:
        at = stack.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        result += [(at, key) for key in keys]
        stack += [at[key] for key in keys]
    return result


def mutate(document: Json, rng: random.Random) -> bytes:
    """A copy with one to three changes of its structure, or of its text."""
    result = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        spots = places(result)
        if not spots:
            break
        at, key = rng.choice(spots)
        if key in ("dtype", "shape"):
            at["dtype"] = rng.choice(DTYPES)
            continue
        match rng.randrange(6):
            case 0:
                at[key] = copy.deepcopy(rng.choice(HOSTILE))
            case 1:
                del at[key]
            case 2:
                other, place = rng.choice(spots)
                at[key] = copy.deepcopy(other[place])
            case 3 if isinstance(at, dict):
                at[rng.choice(("x", "main", f"{key}s"))] = at.pop(key)
            case 4 if isinstance(at, list):
                at.insert(key, copy.deepcopy(rng.choice(HOSTILE)))
            case _:
                at[key] = [at[key]] if rng.random() < 0.5 else {str(key): at[key]}
    text = json.dumps(result, sort_keys=True).encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + bytes([rng.randrange(1, 128)]) + text[at + rng.randint(0, 2) :]
    return text


def use(path: Path) -> None:
    """All that reads metadata."""
    exe = ekiden.load(path)
    assert repr(exe) and exe.disassemble()
    assert isinstance(exe.target, str) and len(exe.variants) > 0
    assert exe.peak_memory is None or exe.peak_memory >= 0
    assert all(isinstance(text, str) for text in instruction_sources(exe.raw).values())
    machine = ekiden.runtime.vm.VirtualMachine(exe)
    with suppress(ekiden.EkidenError):
        exe(np.ones((2, 4), np.float32))
    with suppress(ekiden.EkidenError):
        exe.profile(np.ones((2, 4), np.float32), peak=False).table()
        machine.set_input("main", x=np.ones((2, 4), np.float32))
        machine.stepper.set_breakpoint(source="dense")


def fuzz(compiled: bytes, folder: Path, seeds: range) -> int:
    """How many of the mutations were refused."""
    path, count = folder / "model.eki", 0
    document = ekiden.runtime.Executable.from_bytes(compiled).metadata
    for seed in seeds:
        text = mutate(document, random.Random(seed))
        path.write_bytes(with_metadata(compiled, text))
        try:
            use(path)
        except ekiden.LoadError as error:
            assert str(error).startswith(f"load '{path}': METADATA: "), (seed, error)
            count += 1
        except Exception as error:
            raise AssertionError(f"mutation {seed}: {text!r}") from error
    return count


def test_mutations_load_or_are_refused(compiled: bytes, tmp_path: Path) -> None:
    """Most of what is changed is refused: the table says all there is."""
    assert fuzz(compiled, tmp_path, range(500)) > 250


@pytest.mark.long
def test_many_mutations_load_or_are_refused(compiled: bytes, tmp_path: Path) -> None:
    assert fuzz(compiled, tmp_path, range(500, 40_500)) > 20_000
