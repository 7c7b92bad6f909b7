"""Checks of operators on every way to run them, many cases to a build.

A case is an operator on arrays, with what NumPy gives. Each runs with its dimensions as numbers
and, where `symbolic`, as symbols; by each of BACKENDS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

import numpy as np
import pytest

from ekiden import kernels, runtime, te, topi
from ekiden.codegen.build import build
from ekiden.codegen.c import compile_c, compiler, emit_module
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.kernels.gpu import default, row_fusion
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.te import Tensor
from ekiden.tir import PrimFunc, interpreter
from ekiden.tir.transform import lower
from emulator import Emulator
from long_runs import LONG

Array = np.ndarray
RNG = np.random.default_rng(11)


@dataclass(frozen=True)
class Case:
    """`build` of one tensor per array gives tensors whose values are `expected`."""

    name: str
    build: Callable[..., object]
    arrays: tuple[Array, ...]
    expected: tuple[Array, ...]
    tolerance: float
    symbolic: bool
    chosen: tuple[int, ...] | None = None

    @property
    def label(self) -> str:
        """The case in messages."""
        shapes = ",".join(f"{a.dtype}{list(a.shape)}" for a in self.arrays)
        return f"{self.name}({shapes}){' symbolic' if self.symbolic else ''}"

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """(inputs, outputs); equal extents above 1 share a symbol."""
        symbols: dict[int, SizeVar] = {}

        def dim(n: int) -> SizeVar | int:
            fixed = n <= 1 or (self.chosen is not None and n not in self.chosen)
            return n if not self.symbolic or fixed else symbols.setdefault(n, SizeVar(f"n{n}"))

        inputs = [
            te.placeholder([dim(n) for n in a.shape], str(a.dtype), f"x{i}")
            for i, a in enumerate(self.arrays)
        ]
        result = self.build(*inputs)
        outputs = [result] if isinstance(result, Tensor) else list(result)  # type: ignore[call-overload]
        return inputs, outputs


def case(
    name: str,
    *arrays: Array,
    expected: object,
    build: Callable[..., object] | None = None,
    tolerance: float = 2e-5,
    symbolic: bool | tuple[int, ...] = True,
    **attributes: object,
) -> Case:
    """`name` with attributes on arrays; `expected` is an array, a tuple, or a function of arrays.

    `symbolic` says whether dimensions may be symbols, or which extents may.
    """
    operator = topi.operators()[name]
    if callable(expected):
        with np.errstate(all="ignore"):
            expected = expected(*arrays)
    many = expected if isinstance(expected, (tuple, list)) else (expected,)
    return Case(
        name,
        build or (lambda *inputs: operator(*inputs, **attributes)),
        arrays,
        tuple(np.asarray(e) for e in many),
        tolerance,
        bool(symbolic),
        symbolic if isinstance(symbolic, tuple) else None,
    )


def normal(*shape: int, dtype: str = "float32") -> Array:
    """Random values: floats of order one, integers small, bools."""
    values = RNG.normal(size=shape) * (1 if dtype.startswith("float") else 20)
    if dtype == "bool":
        return np.asarray(values > 0)
    return np.asarray(np.abs(values) if dtype.startswith("uint") else values).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
    """Random integers in [low, high)."""
    return np.asarray(RNG.integers(low, high, size=shape)).astype(dtype)


def _plain(cases: Sequence[Case]) -> list[PrimFunc]:
    result = []
    for n, item in enumerate(cases):
        inputs, outputs = item.tensors()
        copies = kernels.stages.copy_repeated_outputs(outputs)
        result.append(lower(te.create_prim_func([*inputs, *copies], f"k{n}")))
    return result


def _scheduled(
    cases: Sequence[Case], target: Target, given: Mapping[str, Mapping[str, int]] | None = None
) -> list[PrimFunc]:
    return [
        lower(kernels.schedule(*item.tensors(), target, f"k{n}", given or {}), target)
        for n, item in enumerate(cases)
    ]


Runner = Callable[..., object]


def _interpreted(funcs: Sequence[PrimFunc]) -> list[Runner]:
    return [lambda *arrays, f=f: interpreter.run_prim_func(f, *arrays) for f in funcs]


def _llvm(cases: Sequence[Case], target: Target | None = None) -> list[Runner]:
    target = target or Target.host()
    funcs = _scheduled(cases, target)
    image = load_image(link_image([compile_object(funcs, target)], [f.name for f in funcs]))
    return [image[f.name] for f in funcs]


def _baseline(cases: Sequence[Case]) -> list[Runner]:
    """For the oldest processors of this architecture."""
    return _llvm(cases, Target.parse("llvm -mcpu=x86-64"))


def _emulated(text: str, cases: Sequence[Case]) -> list[Runner]:
    """For another architecture, run by an emulator."""
    target = Target.parse(text)
    funcs = _scheduled(cases, target)
    image = link_image([compile_object(funcs, target)], [f.name for f in funcs])
    return [partial(Emulator(image).call, f.name) for f in funcs]


def _c(cases: Sequence[Case]) -> list[Runner]:
    """With few of the C compiler's optimisations, which would take most of the time."""
    target = Target.parse("c")
    funcs = [kernels.schedule(*e.tensors(), target, f"k{n}") for n, e in enumerate(cases)]
    text = emit_module([lower(f, target) for f in funcs], target)
    quick = {"-O2": "-O1", "-ftree-vectorize": "-fno-tree-vectorize"}
    with mock.patch.object(
        compiler, "COMPILER_FLAGS", tuple(quick.get(f, f) for f in compiler.COMPILER_FLAGS)
    ):
        image = load_image(link_image([compile_c(text, target)], [f.name for f in funcs]))
    return [image[f.name] for f in funcs]


def _opencl(cases: Sequence[Case]) -> list[Runner]:
    """On this machine's first device, by its own facts."""
    place = runtime.device("opencl")
    if not place.exist:
        pytest.skip("needs an OpenCL driver: apt-get install pocl-opencl-icd")
    target = Target("opencl")
    funcs = [kernels.schedule(*e.tensors(), target, f"k{n}", {}) for n, e in enumerate(cases)]
    module = build(IRModule({f.name: f for f in funcs}), target)

    def run(name: str, *arrays: Array) -> None:
        there = [runtime.nd.array(a, place) for a in arrays]
        module[name](*there)
        for array, tensor in zip(arrays, there, strict=True):
            array[...] = tensor.numpy()

    return [partial(run, f.name) for f in funcs]


ALONE = {"thread_product": {"shared": 0}}
"""Threads without barriers: the interpreter runs one after another. tests/device has the others."""


def _rows_alone(cases: Sequence[Case]) -> list[PrimFunc]:
    """For a device, with a thread for each row however long."""
    rows = mock.patch.object(row_fusion, "computes_with_vectors", lambda _: True)
    scans = mock.patch.object(default, "emit_scan_launch", lambda *_: None)
    with rows, scans:
        return _scheduled(cases, Target(kind="cuda"), ALONE)


VECTORS = Target("opencl -device=any -vector-bits=256")
"""A device whose threads run alone and compute with vectors."""
BACKENDS: dict[str, Callable[[Sequence[Case]], list[Runner]]] = {
    "plain": lambda cases: _interpreted(_plain(cases)),
    "threads": lambda cases: _interpreted(_rows_alone(cases)),
    "vectors": lambda cases: _interpreted(_scheduled(cases, VECTORS, {})),
    "llvm": _llvm,
    "c": _c,
    "x86-64": _baseline,
    "aarch64": partial(_emulated, "llvm -mcpu=cortex-a72 -cores=1"),
    "riscv64": partial(_emulated, "llvm -mtriple=riscv64-linux-gnu -cores=1"),
    "armv7": partial(_emulated, "llvm -mtriple=armv7-linux-gnueabihf -cores=1"),
    "opencl": _opencl,
}
"""How the kernels of cases are made: the unscheduled program and those for devices in the
interpreter, the one for this machine by both code generators, those for other processors, and those
for a device as its driver runs them."""
SAMPLED = {
    "threads": 4, "vectors": 5, "c": 6, "x86-64": 7, "aarch64": 7, "riscv64": 11, "armv7": 13,
    "opencl": 29,
}  # fmt: skip
"""What takes long: of so many operators one, and one case of it."""
ALL = ", all"
"""What the name of a long run ends with: all cases, with numbers and with symbols."""


def both(cases: Sequence[Case]) -> list[Case]:
    """The cases with numbers and, where they allow it, with symbols."""
    return [v for c in cases for v in ((replace(c, symbolic=False), c) if c.symbolic else (c,))]


def chosen(cases: Sequence[Case], backend: str) -> list[Case]:
    """The runs of a backend: a sample, or the first case of each operator with numbers and with
    symbols, an eighth of the others with one of them by turns."""
    if backend.endswith(ALL):
        return both(cases)
    first = {c.name: c for c in reversed(cases)}
    if one_of := SAMPLED.get(backend):
        at = list(SAMPLED).index(backend) % min(one_of, len(first))
        return list(first.values())[at::one_of]
    result = []
    for turn, item in enumerate(cases):
        runs = both([item])
        if item is first[item.name]:
            result += runs
        elif turn % 16 < 2:
            result.append(runs[turn % len(runs)])
    return result


def check(cases: Sequence[Case], backend: str) -> None:
    """Run all cases; every one that differs from what is expected is named."""
    every = chosen(cases, backend)
    wrong: list[str] = []
    for item, kernel in zip(every, BACKENDS[backend.removesuffix(ALL)](every), strict=True):
        results = [np.full(e.shape, 7, e.dtype) for e in item.expected]
        kernel(*(np.array(a, order="C") for a in item.arrays), *results)
        for n, (actual, expected) in enumerate(zip(results, item.expected, strict=True)):
            problem = difference(actual, expected, item.tolerance)
            if problem:
                wrong.append(f"{item.label} output {n}: {problem}")
    assert not wrong, f"{backend}: {len(wrong)} of {len(every)} cases\n" + "\n".join(wrong[:20])


def difference(actual: Array, expected: Array, tolerance: float) -> str:
    """What is wrong with a result; empty if nothing is."""
    if expected.dtype.kind not in "fc":
        tolerance = 0
    finite = np.abs(expected, where=np.isfinite(expected), out=np.zeros(expected.shape))
    scale = max(1.0, float(np.max(finite, initial=0)))
    try:
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


every_backend = pytest.mark.parametrize(
    "backend", [*BACKENDS, *(pytest.param(name + ALL, marks=LONG) for name in BACKENDS)]
)
