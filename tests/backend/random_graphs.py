"""Random graphs of operators, compiled beside the interpreter.

    python tests/backend/random_graphs.py --graphs 1000 --seed 1
    python tests/backend/random_graphs.py --seed 1 --number 12     a find again, with its program

A graph is a list of steps over inputs of all dtypes, shapes that are numbers, symbols or 0, and
data with NaN, infinities and the ends of dtypes. It is right when both tiers of the compiler give
what the interpreter gives, or when all refuse it.

How near a result must be is measured: the interpreter runs the same steps with each float moved by
some roundings, another for each element, and where that moves a result, compiled code may give as
much another one. So a sum that cancels out, or a number next to where it is rounded to a level,
asks for no more than it says; what stays as it is must be so in compiled code too.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from graph_steps import STEPS, Pick, Step, Value

import ekiden
from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.prim import SizeVar
from ekiden.relay import Function, Tuple, Var, const, infer_type, op, var
from ekiden.relay.expr import Expr
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.printer import astext as text
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.runtime.errors import EkidenError, IndexRangeError

DTYPES = ("float32", "float32", "float32", "float16", "int8", "int32", "int64", "bool")
SIZES = (0, 1, 2, 3, 5, 8, 17)
"""What a symbol is at run time."""
MOST = 20_000
"""Elements of a tensor, at most."""
ROUNDINGS = 16
"""How far a float is moved, in units of its last place."""
PHASES = (0.3, 1.7, 4.1)
LOOSE = {"float16": 4e-3, "float32": 3e-6, "float64": 1e-12}
"""What a float may be off beside what is measured: functions are not rounded exactly."""
TIERS = ("full", "quick")


@dataclass
class Graph:
    """Inputs, steps over them and over earlier ones, and which of all are results."""

    inputs: list[tuple[tuple[int | SizeVar, ...], str]]
    steps: list[Step] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def params(self) -> list[Var]:
        """The inputs as variables whose types are known."""
        result = [var(f"x{n}", shape=s, dtype=t) for n, (s, t) in enumerate(self.inputs)]
        for item in result:
            assert item.type_annotation is not None
            item.set_checked_type(item.type_annotation)
        return result

    def function(self, phase: float | None = None) -> Function:
        """The program; with a phase one whose floats are moved."""
        params = self.params()
        values: list[Expr] = [_moved(p, phase) for p in params]
        for step in self.steps:
            result = step.typed(*(values[i] for i in step.args))
            values.append(_moved(result, phase) if step.rounds else result)
        return Function(params, Tuple(tuple(values[i] for i in self.results)))


def _moved(x: Expr, phase: float | None) -> Expr:
    dtype = Value.of(0, x).dtype
    if phase is None or not is_float(dtype):
        return x
    wide = op.cast(x, "float64")
    wave = op.sin(op.add(op.multiply(wide, const(1e3, "float64")), const(phase, "float64")))
    unit = float(np.finfo(to_numpy(dtype)).eps) * ROUNDINGS
    factor = op.add(const(1.0, "float64"), op.multiply(wave, const(unit, "float64")))
    moved = op.cast(op.multiply(wide, factor), dtype)
    return infer_new_types(op.where(op.isfinite(x), moved, x))


def draw_graph(numbers: np.random.Generator) -> Graph:
    """Inputs and up to a dozen steps."""
    pick, n = Pick(numbers), SizeVar("n", "int64")
    graph = Graph([])
    for _ in range(pick.between(1, 4)):
        rank = pick.one((0, 1, 2, 2, 3, 4, 4))
        shape: list[int | SizeVar] = [pick.one((1, 2, 3, 4, 4, 6)) for _ in range(rank)]
        if shape and pick.often(0.3):
            shape[0] = n
        elif shape and pick.often(0.07):
            shape[pick.between(0, rank)] = 0
        graph.inputs.append((tuple(shape), pick.one(DTYPES)))
    pool = [Value.of(i, p) for i, p in enumerate(graph.params())]
    expected, used = pick.between(3, 13), set[int]()
    for _ in range(8 * expected):
        if len(graph.steps) == expected:
            break
        step = pick.one(STEPS)(pick, pool)
        result = None if step is None else _typed(step, pool)
        if step is None or result is None:
            continue
        pool.append(Value.of(len(pool), result))
        graph.steps.append(step)
        used |= set(step.args)
    graph.results = [v.index for v in pool if v.index not in used][-4:] or [pool[-1].index]
    return graph


def _typed(step: Step, pool: Sequence[Value]) -> Expr | None:
    """What a step gives; None for what has no type, or too many elements."""
    try:
        result = step.typed(*(pool[i].expr for i in step.args))
    except (EkidenError, ValueError):  # of what a relation refuses, which inference names
        return None
    sizes = [d if isinstance(d, int) else 17 for d in Value.of(0, result).shape]
    return result if np.prod(sizes, dtype=float) <= MOST else None


def draw_data(graph: Graph, numbers: np.random.Generator) -> list[Array]:
    """Arrays for the inputs; some have numbers that are none, or the ends of their dtype."""
    pick = Pick(numbers)
    size, result = pick.one(SIZES), []
    for shape, dtype in graph.inputs:
        extents = [d if isinstance(d, int) else size for d in shape]
        data = np.round(numbers.normal(size=extents) * pick.one((1, 3, 20)), pick.one((0, 1, 6)))
        array = (data > 0) if dtype == "bool" else data.astype(to_numpy(dtype))
        array = np.array(array)
        if pick.often(0.35) and dtype != "bool" and array.size:
            hits = numbers.random(extents) < 0.25
            array[hits] = numbers.choice(_ends(dtype), int(hits.sum()))
        result.append(array)
    return result


def _ends(dtype: str) -> Array:
    if not is_float(dtype):
        ends = np.iinfo(dtype)
        return np.array([ends.min, ends.max, 0, ends.max - 1], dtype)
    limits = np.finfo(dtype)
    many = [np.nan, np.inf, -np.inf, 0.0, -0.0, limits.max, limits.min, limits.tiny]
    return np.array([*many, limits.smallest_subnormal, 0.5, -1.5], dtype)


Outcome = list[Array] | Exception


def _run(call: Callable[[], object]) -> Outcome:
    try:
        result = call()
    except (EkidenError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
        return error
    many = result if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(a) for a in many]


def differences(graph: Graph, numbers: np.random.Generator, runs: int = 2) -> Iterator[str]:
    """What is wrong with a graph: a line for each result that is."""
    module = infer_type(IRModule.from_expr(graph.function()))
    exact, moved = Interpreter(module), [
        Interpreter(infer_type(IRModule.from_expr(graph.function(p)))) for p in PHASES
    ]  # fmt: skip
    executables = [(tier, ekiden.compile(module, tier=tier)) for tier in TIERS]
    for _ in range(runs):
        data = draw_data(graph, numbers)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of the mean of nothing
            expected = _run(lambda data=data: exact.evaluate("main", *data))  # type: ignore[misc]
            near = [_run(lambda m=m, data=data: m.evaluate("main", *data)) for m in moved]  # type: ignore[misc]
        for tier, exe in executables:
            actual = _run(lambda exe=exe, data=data: exe(*data))  # type: ignore[misc]
            for line in _compared(actual, expected, near):
                yield f"{tier}: {line} of {[(a.shape, str(a.dtype)) for a in data]}"


def _compared(actual: Outcome, wanted: Outcome, near: Sequence[Outcome]) -> Iterator[str]:
    if isinstance(wanted, IndexRangeError):
        return  # a kernel whose result has no elements reads none that it had to refuse
    if isinstance(wanted, Exception) or isinstance(actual, Exception):
        if not (isinstance(wanted, Exception) and isinstance(actual, Exception)):
            shown = [f"{type(o).__name__}: {o}" if isinstance(o, Exception) else "a result"
                     for o in (actual, wanted)]  # fmt: skip
            yield f"{shown[0]}, where the interpreter gives {shown[1]}"
        return
    others = [n for n in near if not isinstance(n, Exception)]
    for at, (result, reference) in enumerate(zip(actual, wanted, strict=True)):
        if result.shape != reference.shape or result.dtype != reference.dtype:
            yield (
                f"result {at} is {result.dtype}{result.shape}, "
                f"not {reference.dtype}{reference.shape}"
            )
            continue
        wrong = _wrong(result, reference, [n[at] for n in others])
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0].tolist())
            yield f"result {at} at {place}: {result[place]!r}, not {reference[place]!r}"


def _wrong(result: Array, reference: Array, near: Sequence[Array]) -> Array:
    """Where results are further apart than roundings move them."""
    with np.errstate(all="ignore"):
        a, b = result.astype(np.float64), reference.astype(np.float64)
        spread = np.zeros_like(b)
        for other in near:
            c = other.astype(np.float64)
            same = (b == c) | (np.isnan(b) & np.isnan(c))
            moved = np.where(same, 0.0, np.abs(b - c))
            spread = np.maximum(spread, np.where(np.isnan(moved), np.inf, moved))
        loose = LOOSE.get(str(reference.dtype), 0.0)
        least = 4 * float(np.finfo(reference.dtype).eps) if loose else 0.0
        allowed = 8 * spread + loose * np.abs(b) + least
        equal = (a == b) | (np.isnan(a) & np.isnan(b)) | (result == reference)
        return np.asarray(~(equal | (np.abs(a - b) <= allowed) | np.isinf(spread)))


def numbers_of(seed: int, number: int) -> np.random.Generator:
    """The random numbers of one graph."""
    return np.random.default_rng((seed, number))


def check(seed: int, number: int, runs: int = 2) -> list[str]:
    """What is wrong with one graph."""
    numbers = numbers_of(seed, number)
    return list(differences(draw_graph(numbers), numbers, runs))


def main(arguments: Sequence[str]) -> int:
    """The finds of many graphs, one a line; of one, the program too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int)
    argument = parser.parse_args(arguments)
    chosen = range(argument.graphs) if argument.number is None else [argument.number]
    finds = 0
    for number in chosen:
        if argument.number is not None:
            print(text(draw_graph(numbers_of(argument.seed, number)).function()))
        try:
            result = check(argument.seed, number)
        except Exception as error:  # whatever it is, it is a find
            result = [f"{type(error).__name__}: {str(error)[:400]}"]
        finds += bool(result)
        for line in result:
            print(f"seed {argument.seed} number {number}: {line}", flush=True)
    print(f"{len(chosen)} graphs, {finds} with finds")
    return min(finds, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
