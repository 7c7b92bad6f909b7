"""Calls of Relay's operators whose attributes are extreme: around the ends of int32 and int64.

A case is an operator's sample call with one or more numbers of its attributes replaced. What is
accepted has exact sizes (exact_sizes.py), and where they are small, the shape that the interpreter
gives; one distinct program in so many is compiled and gives what the interpreter gives. The sample
calls and the comparison are those of tests/relay/op/fuzz_operators.py.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from case_kinds import Kind, Loader, SlowError, WrongResultError
from exact_sizes import Sample, check_sizes
from mutation import extreme

from ekiden import relay
from ekiden.arith import evaluate
from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OPS, Array
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, Var
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Function
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.visitor import bind
from ekiden.runtime.errors import BoundsError, CompileError, EkidenError
from ekiden.topi.dimensions import is_unknown_dim

sys.path.append(str(Path(__file__).parents[1] / "relay" / "op"))

RUNS = 2
"""Arrays that a program which is compiled runs on."""
FULL = 4
"""One program in so many of those that are compiled has kernels of its own, the others general
ones."""
INTERPRETED = 1 << 12
"""Elements of a result, at most, whose shape is compared: more take the interpreter seconds."""


def _extreme_attrs(attrs: Attrs, rng: Random) -> Attrs:
    """Return attributes with one or two of their numbers exchanged."""
    fields = [f.name for f in dataclasses.fields(attrs) if _holds_number(getattr(attrs, f.name))]  # type: ignore[arg-type]
    chosen = rng.sample(fields, min(len(fields), rng.choice((1, 1, 2))))
    return attrs.with_fields(**{name: _extreme(getattr(attrs, name), rng) for name in chosen})


def _extreme(value: object, rng: Random) -> object:
    """Return a value like that of a field, with the same number of entries."""
    match value:
        case IntImm():
            return IntImm(extreme(rng), value.dtype)
        case int() if not isinstance(value, bool):
            return extreme(rng)
        case tuple() if value:
            is_every, chosen = rng.random() < 0.2, rng.randrange(len(value))
            return tuple(
                _extreme(entry, rng) if is_every or index == chosen else entry
                for index, entry in enumerate(value)
            )
    return value


def _holds_number(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_number, value))
    return isinstance(value, (int, IntImm)) and not isinstance(value, bool)


def _names_with_numbers(samples: dict[str, list[Any]]) -> list[str]:
    """Return the operators whose samples have numbers among their attributes."""
    return [
        name
        for name, cases in sorted(samples.items())
        if "contrib_" not in name  # passes make their calls, from others that are tried
        and any(
            _holds_number(getattr(attrs, field.name))
            for attrs in (case.call.attrs for case in cases)
            if attrs is not None
            for field in dataclasses.fields(attrs)
        )
    ]


@dataclass(frozen=True)
class ExtremeCall:
    """A function of one call, and what its arguments are like."""

    name: str
    function: Function
    inputs: Sequence[Array]
    types: Sequence[tuple[tuple[int | SizeVar, ...], str]]
    seed: int
    """Of the arrays that it runs on."""

    def __repr__(self) -> str:
        call = self.function.body
        shapes = [list(shape) for shape, _ in self.types]
        return f"{self.name}({shapes}) {getattr(call, 'attrs', None)!r}"


def _call_of(sample: Any, rng: Random) -> ExtremeCall:  # noqa: ANN401
    """Return a sample call with extreme attributes, its extents as symbols in three of ten."""
    attrs = sample.call.attrs and _extreme_attrs(sample.call.attrs, rng)
    sizes = {d for array in sample.inputs for d in array.shape if d > 1}
    allowed = sample.symbolic if isinstance(sample.symbolic, tuple) else sizes
    is_symbolic = bool(sample.symbolic) and rng.random() < 0.3
    names = {d: SizeVar(f"n{d}") for d in sorted(sizes & {*allowed})} if is_symbolic else {}
    types = [(tuple(names.get(d, d) for d in a.shape), str(a.dtype)) for a in sample.inputs]
    params = [relay.var(f"x{n}", shape=s, dtype=t) for n, (s, t) in enumerate(types)]
    new = dict(zip(sample.params, params, strict=True))
    call = Call(sample.call.op, tuple(bind(a, new) for a in sample.call.args), attrs)
    function = Function(params, call)
    return ExtremeCall(sample.name, function, sample.inputs, types, rng.getrandbits(32))


def _extent(dim: PrimExpr, sizes: Mapping[Var, int]) -> int | None:
    """Return an extent where its symbols have known sizes; None for one that data say."""
    if is_unknown_dim(dim) or not sizes.keys() >= {*free_vars(dim)}:
        return None
    return evaluate(dim, sizes)


def _elements(kind: Type, sizes: Mapping[Var, int]) -> int:
    """Return the elements of the largest tensor of a type, an extent that data say as 1: those of
    a sample say a small one.
    """
    kinds = kind.fields if isinstance(kind, TupleType) else [kind]
    shapes = [item.shape for item in kinds if isinstance(item, TensorType)]
    elements = (
        math.prod(1 if (n := _extent(dim, sizes)) is None else n for dim in shape)
        for shape in shapes
    )
    return max(elements, default=0)


def _check_shapes(
    name: str, kind: Type, sizes: Mapping[Var, int], result: object, leaves: Callable[[Any], Any]
) -> None:
    """Raise WrongResultError where a result of the interpreter has another shape than its type."""
    kinds = kind.fields if isinstance(kind, TupleType) else [kind]
    arrays = leaves(result)
    if len(kinds) != len(arrays):
        return  # lists, whose length is data
    for expected, array in zip(kinds, arrays, strict=True):
        if not isinstance(expected, TensorType):
            return
        extents = [_extent(dim, sizes) for dim in expected.shape]
        pairs = zip(extents, array.shape, strict=False)
        if len(extents) != array.ndim or any(a not in (None, b) for a, b in pairs):
            raise WrongResultError(name, f"{expected} is inferred, {array.shape} computed")


def _is_of_reference(error: SlowError) -> bool:
    """Return whether it was the interpreter that took too long, which decides nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename.endswith("relay/interpreter.py") for frame in frames)


def _relay() -> tuple[Any, Loader]:
    from fuzz_operators import (  # type: ignore[import-not-found]  # by its path
        LARGEST,
        SAMPLES,
        Fuzzer,
        Variant,
        _leaves,
        _tried,
        typed,
    )

    class ExtremeFuzzer(Fuzzer):  # type: ignore[misc]  # it is imported by its path
        """A comparison in which the interpreter may refuse a size as NumPy does."""

        def compare(
            self,
            variant: Any,  # noqa: ANN401
            arrays: Sequence[Array],
            expected: object,
            refusal: Exception | None,
            actual: object,
            error: Exception | None,
        ) -> tuple[str, str] | None:
            """Return what is wrong with a run; of two wrong sizes either may be told of."""
            is_symbolic = any(isinstance(d, SizeVar) for shape, _ in variant.types for d in shape)
            if is_symbolic and isinstance(refusal, EkidenError) and isinstance(error, EkidenError):
                return ("bounds", str(error)) if isinstance(error, BoundsError) else None
            if isinstance(refusal, MemoryError) and not isinstance(error, BoundsError):
                return None
            if isinstance(refusal, OverflowError):
                refusal = ValueError(str(refusal))
            message: tuple[str, str] | None = super().compare(
                variant, arrays, expected, refusal, actual, error
            )
            return message

    names, sample = _names_with_numbers(SAMPLES), Sample()

    def make(rng: Random) -> ExtremeCall:
        return _call_of(rng.choice(SAMPLES[rng.choice(names)]), rng)

    def load(case: ExtremeCall) -> None:
        try:
            compare(case)
        except SlowError as error:
            if not _is_of_reference(error):
                raise

    def is_refused(case: ExtremeCall) -> bool:
        """Return whether the call has no type with the sample's sizes in place of symbols."""
        params = [
            relay.var(param.name_hint, shape=array.shape, dtype=str(array.dtype))
            for param, array in zip(case.function.params, case.inputs, strict=True)
        ]
        new = dict(zip(case.function.params, params, strict=True))
        try:
            typed(Function(params, bind(case.function.body, new)))
        except CompileError:
            return True
        return False

    def compare(case: ExtremeCall) -> None:
        module = typed(case.function)
        check_sizes(module)
        main = module["main"]
        kind = main.body.checked_type
        symbols = {
            dim: extent
            for (shape, _), array in zip(case.types, case.inputs, strict=True)
            for dim, extent in zip(shape, array.shape, strict=True)
            if isinstance(dim, SizeVar)
        }
        elements = _elements(kind, symbols)
        if elements > LARGEST:
            return
        is_sized_by_data = OPS[case.name].dims is not None or OPS[case.name].padded is not None
        variant = Variant(case.name, module, case.inputs, case.types, repr(case), is_sized_by_data)
        if not sample.takes(module):
            if elements <= INTERPRETED and not (symbols and is_refused(case)):
                interpreter = Interpreter(module)
                result, _ = _tried(lambda: interpreter.evaluate("main", *case.inputs))
                if result is not None:
                    _check_shapes(case.name, kind, symbols, result, _leaves)
            return
        fuzzer = ExtremeFuzzer(case.seed)
        fuzzer.tier = "quick" if case.seed % FULL else "full"
        fuzzer.try_variant(variant, RUNS, math.inf)
        for find in fuzzer.tally.finds:
            raise WrongResultError(f"{case.name} ({find.kind})", find.message)

    return make, load


KINDS = (Kind("relay", "attributes of Relay's operators", _relay),)
