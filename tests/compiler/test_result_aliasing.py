"""Results alias no writable memory: neither arguments, each other, nor later runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.contrib import graph_executor
from long_runs import share

LIST = "type List { Nil, Cons(Tensor[(3), float32], List) }\n"
X = np.arange(3, dtype="float32")

PROGRAMS = {
    "argument": "def @main(%x: Tensor[(3), float32]) { %x }",
    "argument twice": "def @main(%x: Tensor[(3), float32]) { (%x, %x) }",
    "argument as a view": "def @main(%x: Tensor[(3), float32]) { reshape(%x, newshape=[3, 1]) }",
    "result twice": "def @main(%x: Tensor[(3), float32]) { let %y = nn.relu(%x); (%y, (%y, %x)) }",
    "result and its view": "def @main(%x: Tensor[(3), float32]) "
    "{ let %y = nn.relu(%x); (%y, reshape(%y, newshape=[1, 3])) }",
    "constants": 'def @main(%x: Tensor[(3), float32]) { let %c = ones(shape=[3], dtype="float32");'
    " (%c, reshape(%c, newshape=[3, 1]), %c, nn.relu(%x)) }",
    "branch": "def @main(%x: Tensor[(3), float32]) "
    "{ if (min(%x) < 1f) { %x } else { nn.relu(%x) } }",
    "size of any": "def @main(%x: Tensor[(?), float32]) { (%x, reshape(%x, newshape=[-1, 1])) }",
    "named size": "def @main(%x: Tensor[(n), float32]) { (%x, nn.relu(%x), %x) }",
}
STRAIGHT = [name for name in PROGRAMS if name not in ("branch", "size of any")]


def leaves(value: object) -> list[runtime.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(value, runtime.Tensor):
        return [value]
    assert isinstance(value, tuple)
    return [leaf for part in value for leaf in leaves(part)]


def check_apart(run: Callable[[object], object], argument: object, memory: np.ndarray) -> None:
    """Write to each result, as NumPy and as PyTorch do, and look at all else."""
    torch = pytest.importorskip("torch")
    before = memory.copy()
    results = leaves(run(argument))
    expected = [result.numpy().copy() for result in results]
    for result, first in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), first)
        if not result.readonly:
            result.numpy().fill(9)
        torch.from_dlpack(result).fill_(8)
    np.testing.assert_array_equal(memory, before)
    for again, first in zip(leaves(run(argument)), expected, strict=True):
        np.testing.assert_array_equal(again.numpy(), first)


@share(4)
@pytest.mark.parametrize("executor", ["vm", "async"])
@pytest.mark.parametrize("kind", ["array", "tensor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_vm_results_do_not_alias(name: str, kind: str, executor: str) -> None:
    memory = X.copy()
    raw = ekiden.compile(relay.parse(PROGRAMS[name])).raw
    machine = runtime.VirtualMachine(raw, executor)
    argument = memory if kind == "array" else runtime.tensor(memory)
    check_apart(lambda x: machine.invoke("main", x), argument, memory)


@pytest.mark.parametrize("name", STRAIGHT)
def test_graph_executor_results_do_not_alias(name: str) -> None:
    lib = relay.build(relay.parse(PROGRAMS[name].replace("(n)", "(3)")), target="llvm")
    module = graph_executor.GraphModule(lib["default"](ekiden.cpu()))
    memory = runtime.tensor(X.copy())

    def run(x: object) -> object:
        module.set_input_zero_copy(0, x)
        module.run()
        return tuple(module.get_output(i) for i in range(module.get_num_outputs()))

    check_apart(run, memory, memory.numpy())


@pytest.mark.parametrize("name", ["result twice", "constants"])
def test_shared_library_results_do_not_alias(name: str, tmp_path: Path) -> None:
    ekiden.compile(relay.parse(PROGRAMS[name])).export_library(tmp_path / "program.so")
    function = runtime.load_module(tmp_path / "program.so")["main"]
    memory = X.copy()
    check_apart(function, runtime.tensor(memory), memory)


def test_constants_are_shared_and_read_only() -> None:
    compiled = ekiden.compile(relay.parse(PROGRAMS["constants"]))
    first, second = (compiled(X)[0] for _ in range(2))
    assert first.readonly
    assert np.shares_memory(first.numpy(), second.numpy())
    with pytest.raises(ValueError, match="read-only"):
        first.numpy().fill(7)
    with pytest.raises(ValueError, match="read-only"):
        first.copyfrom(X)


def test_adt_fields_shared_with_arguments_are_read_only() -> None:
    text = LIST + "def @main(%x: Tensor[(3), float32], %rest: List) { Cons(%x, %rest) }"
    compiled = ekiden.compile(relay.parse(text))
    own, other = runtime.tensor(X.copy()), runtime.tensor(X.copy())
    rest = runtime.ADT(1, [other, runtime.ADT(0, [])])
    head, (second, _) = compiled(own, rest)
    assert not np.shares_memory(head.numpy(), own.numpy())
    assert not head.readonly
    assert second.readonly
    assert not other.readonly
    # a list that is given back again and again is not wrapped again and again
    again: Any = (None, compiled(own, rest))
    for _ in range(5):
        again = compiled(own, again[1])
    assert again[1][1] is not None


def test_multiply_referenced_fields_stay_correct() -> None:
    lines = ["  let %v0 = (%x, %x);"]
    lines += [f"  let %v{i} = (%v{i - 1}, %v{i - 1});" for i in range(1, 8)]
    text = "def @main(%x: Tensor[(3), float32]) {\n" + "\n".join(lines) + "\n  %v7\n}"
    argument = runtime.tensor(X.copy())
    results = leaves(ekiden.compile(relay.parse(text))(argument))
    assert len(results) == 2**8
    for result in results:
        np.testing.assert_array_equal(result.numpy(), X)
        assert result.readonly or not np.shares_memory(result.numpy(), argument.numpy())


def test_repeated_load_and_run_does_not_leak(tmp_path: Path) -> None:
    text = "def @main(%x: Tensor[(n), float32]) { (nn.relu(%x), negative(%x)) }"
    ekiden.compile(relay.parse(text)).save(tmp_path / "program.eki")
    sizes = [10, 1_000, 30_000, 100_000]

    def cycle(times: int) -> int:
        for turn in range(times):
            compiled = ekiden.load(tmp_path / "program.eki")
            result = compiled(np.ones(sizes[turn % len(sizes)], "float32"))
            del compiled, result
        return runtime.memory_stats().held

    before = cycle(40)
    assert cycle(200) <= before + (64 << 10)
