"""Kernel compilation: deduplication, caching, and errors of worker processes."""

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ekiden.backend.kernels.build import build_kernels
from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.codegen import llvm, parallel
from ekiden.codegen.build import CODE_GENERATORS
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.compile_task import CompileTask
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS
from ekiden.ir.prim import SizeVar
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.process_transfer import encode
from ekiden.ir.span import Span
from ekiden.ir.structural import structural_equal
from ekiden.ir.type import tensor_type
from ekiden.relay import infer_type, op
from ekiden.relay.expr import Expr, Function, const, var
from ekiden.runtime import load_image, tensor
from ekiden.runtime.errors import CompileError
from ekiden.target import Target

pytestmark = pytest.mark.quick

TARGET = Target.host()


def compile_with(monkeypatch: pytest.MonkeyPatch, compile: Callable[..., bytes]) -> None:
    """Kernels are made so."""
    monkeypatch.setitem(CODE_GENERATORS, "llvm", replace(CODE_GENERATORS["llvm"], compile=compile))


def primitive(scale: float, *dims: SizeVar | int, span: str = "") -> Function:
    """x -> tanh(x * scale), as fusion would make it."""
    x = var("x", tensor_type(dims or (4,)))
    body: Expr = op.tanh(op.multiply(x, const(scale)))
    result = Function((x,), body, None, (), {"Primitive": 1}, span=Span(span) if span else None)
    function = infer_type(IRModule({"main": result}))["main"]
    assert isinstance(function, Function)
    return function


@pytest.fixture(params=["1", "2"], ids=["one process", "two processes"])
def jobs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", request.param)
    yield request.param


@pytest.mark.slow
def test_kernels_compile_and_run(jobs: str) -> None:
    scales = [1.0, 2.0, 3.0, 4.0, 5.0]
    result = build_kernels([primitive(s) for s in scales], TARGET, cache=KernelCache(None))
    image = load_image(result.link(TARGET))
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    for scale, name in zip(scales, result.names, strict=True):
        out = np.zeros(4, np.float32)
        image[name](tensor(x), tensor(out))
        np.testing.assert_allclose(out, np.tanh(x * np.float32(scale)), rtol=1e-5)


def test_equal_functions_share_a_kernel() -> None:
    n, m = SizeVar("n"), SizeVar("m")
    result = build_kernels(
        [primitive(1.0, n, 3), primitive(1.0, m, 3), primitive(2.0, n, 3)],
        TARGET,
        cache=KernelCache(None),
    )
    assert result.names[0] == result.names[1] != result.names[2]
    assert len(llvm.parse_image(result.link(TARGET)).exports) == 2


def test_canonical_functions_differ_in_names_alone() -> None:
    n, m = SizeVar("n"), SizeVar("m")
    first, second = canonicalize(primitive(1.0, n, m)), canonicalize(primitive(1.0, m, n))
    assert structural_equal(first, second)
    assert [d.name for d in first.params[0].checked_type.shape] == ["n0", "n1"]


def test_repeated_symbol_is_a_distinct_kernel() -> None:
    n, m = SizeVar("n"), SizeVar("m")
    square, free = canonicalize(primitive(1.0, n, n)), canonicalize(primitive(1.0, n, m))
    assert not structural_equal(square, free)


def test_sizes_that_an_operator_relates_share_a_symbol() -> None:
    """A sum beside a strided window is of its own symbols only if nothing relates them: then the
    add would be a broadcast, which no kernel of the convolution can end in."""
    h = SizeVar("h")
    weight = var("w", tensor_type((4, 8, 3, 3), "float32"))
    for lines in (h + 2, (h + 1) // 2):  # of which the first names its symbol, the second does not
        data = var("x", tensor_type((1, lines, lines, 8), "float32"))
        side = (lines - 3) // 2 + 1
        conv = op.nn.conv2d(data, weight, strides=(2, 2), data_layout="NHWC")
        sums = var("s", tensor_type((1, side, side, 1), "float32"))
        for params in ((data, weight, sums), (sums, weight, data)):
            result = Function(params, op.subtract(conv, sums), None, (), {"Primitive": 1})
            function = infer_type(IRModule({"main": result}))["main"]
            assert isinstance(function, Function)
            form = canonicalize(function)
            dims = [d for p in form.params for d in p.checked_type.shape]
            assert len(free_vars(*dims)) == 1, form


def test_cached_kernel_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_kernels([primitive(1.5)], TARGET, cache=KernelCache(tmp_path))
    compile_with(monkeypatch, lambda *_: pytest.fail("compiled again"))
    assert build_kernels([primitive(1.5)], TARGET, cache=KernelCache(tmp_path)) == first


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file")
    assert build_kernels([primitive(1.0)], TARGET, cache=cache).link(TARGET)


@pytest.mark.slow
def test_progress_counts_compiled_kernels(jobs: str) -> None:
    seen: list[tuple[int, int]] = []
    functions = [primitive(s) for s in (1.0, 2.0, 3.0, 4.0, 5.0)]
    build_kernels(functions, TARGET, lambda d, t, n: seen.append((d, t)), KernelCache(None))
    assert seen == [(i, 5) for i in range(1, 6)]


@pytest.mark.slow
def test_progress_may_compile_other_kernels(jobs: str) -> None:
    """Of a thread that shows progress in a way that is a program itself, say."""
    seen: list[int] = []

    def inside(done: int, total: int, name: str) -> None:
        others = [primitive(s) for s in (6.0, 7.0, 8.0, 9.0 + done)]
        seen.append(len(build_kernels(others, TARGET, cache=KernelCache(None)).objects))

    functions = [primitive(s) for s in (1.0, 2.0, 3.0, 4.0)]
    build_kernels(functions, TARGET, inside, KernelCache(None))
    assert seen == [4, 4, 4, 4]


BROKEN = """
from ekiden.ir.op import OPS
from ekiden.runtime.errors import CompileError

def broken(*_):
    raise CompileError("tanh: no such luck")

definition = OPS["tanh"]
fields = {f: getattr(definition, f) for f in definition.__dataclass_fields__}
OPS["tanh"] = type(definition)(**{**fields, "lower": broken})
task.compile()
"""
"""What a worker runs in the place of a task: a compiler in which an operator is broken."""


def replace_tasks(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have workers run code of Python in the place of their tasks, which it calls `task`."""

    def encoded(task: CompileTask) -> bytes:
        return encode(CompileTask(task.key, task.name, exec, (code, {"task": task})))  # type: ignore[arg-type]

    monkeypatch.setattr(parallel, "encode", encoded)


def broken(*_: object) -> object:
    raise CompileError("tanh: no such luck")


def test_error_of_a_kernel_names_the_node_of_the_model(
    jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = OPS["tanh"]
    changed = {f: getattr(definition, f) for f in definition.__dataclass_fields__}
    monkeypatch.setitem(OPS, "tanh", type(definition)(**{**changed, "lower": broken}))
    replace_tasks(monkeypatch, BROKEN)
    functions = [primitive(float(s), span="Tanh 'layer1/act'") for s in range(1, 6)]
    with pytest.raises(CompileError) as caught:
        build_kernels(functions, TARGET, cache=KernelCache(None))
    assert str(caught.value) == "tanh: no such luck"
    (note,) = caught.value.__notes__
    assert note.startswith("while lowering the kernel fused_multiply_tanh_")
    assert note.endswith(" of Tanh 'layer1/act'")
    monkeypatch.undo()
    assert build_kernels([primitive(1.0)], TARGET, cache=KernelCache(None)).link(TARGET)


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (
            signal.SIGKILL,
            "{}: LLVM ERROR: no such register (out of memory?); "
            "EKIDEN_COMPILE_JOBS=1 compiles in this process",
        ),
        (signal.SIGABRT, "{}: LLVM ERROR: no such register"),
    ],
)
def test_worker_death_is_an_error(
    number: signal.Signals, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "2")
    printed = "import os; os.write(2, b'LLVM ERROR: no such register\\n')"
    replace_tasks(monkeypatch, f"{printed}; os.kill(os.getpid(), {number:d})")
    functions = [primitive(float(s)) for s in range(1, 6)]
    with pytest.raises(CompileError) as caught:
        build_kernels(functions, TARGET, cache=KernelCache(None))
    ended = f"compiling kernels: a worker process was ended by {number.name} at the kernel "
    message = str(caught.value)
    assert message.startswith(f"{ended}fused_multiply_")
    again = message.replace("LLVM ERROR: no such register\n", "")  # where both workers died
    assert again.removeprefix(ended).partition(":")[2] == how.partition(":")[2]
    monkeypatch.undo()
    assert build_kernels([primitive(1.0)], TARGET, cache=KernelCache(None)).link(TARGET)


@pytest.mark.slow
def test_kernels_compile_concurrently_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "2")
    images: list[bytes] = []

    def work() -> None:
        functions = [primitive(float(s)) for s in range(1, 6)]
        images.append(build_kernels(functions, TARGET, cache=KernelCache(None)).link(TARGET))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(images) == 3 and len(set(images)) == 1
