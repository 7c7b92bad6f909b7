"""A fuzzer of extreme attributes: sizes, strides and pads around the ends of int32 and int64.

    python tests/relay/op/fuzz_extremes.py --cases 1000000 --seed 1
    python tests/relay/op/fuzz_extremes.py --seed 1 --number 12 nn.conv2d     a find again

Each case is an operator's sample call with one or more numbers of its attributes replaced. Right is
a refusal by an error of the project's own, at import or in a run, or the result that the
interpreter gives; what wraps around somewhere gives a result of another shape, reads outside of a
buffer (kernels check their bounds), or ends the process. `scripts/fuzz_operators --extremes` runs
it with the runtime built for AddressSanitizer. See fuzz_operators.py for the rest.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Sequence
from types import FrameType

import numpy as np
from fuzz_operators import (
    LARGEST,
    SAMPLES,
    Fuzzer,
    Mutator,
    Tally,
    Variant,
    result_sizes,
    typed,
)
from operator_cases import Case

from ekiden import relay
from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OPS, Array
from ekiden.ir.prim import IntImm, SizeVar
from ekiden.relay.expr import Call, Function
from ekiden.relay.visitor import bind
from ekiden.runtime.errors import BoundsError, CompileError

STANDS = 30.0
"""Seconds of the processor that a variant may take; then it is a find, with where it stands."""
MEMORY = 6 << 30
"""Bytes of the process, at most."""
EDGES = (2**31, 2**32, 2**40, 2**61, 2**62)
EXTREMES = (
    *(sign * edge + step for edge in EDGES for sign in (1, -1) for step in (-1, 0, 1)),
    *(2**63 - 1, -(2**63), 2**63 - 4000),  # 2 * the last is -8000 modulo 2**64
    *(-(-(2**64) // part) for part in (3, 5, 6, 7)),  # part * it is small modulo 2**64
    *(2**64 // 3, 2**63 // 3),
)
"""Numbers whose products with small ones, or sums with each other, leave int64 and come back."""


class Stands(BaseException):
    """A variant takes too long: not an Exception, which is caught on the way."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stands


class ExtremeMutator(Mutator):
    """Changes the numbers of attributes to extreme ones; what else there is stays."""

    def attrs(self, attrs: Attrs | None) -> Attrs | None:
        """Return attributes with some of their numbers exchanged."""
        if attrs is None:
            return None
        fields = [
            f.name for f in dataclasses.fields(attrs) if _holds_number(getattr(attrs, f.name))
        ]  # type: ignore[arg-type]
        if not fields:
            return attrs
        chosen = {str(self.one(fields)) for _ in range(1 + self.often(0.4))}
        kind = attrs.type_key
        return attrs.with_fields(**{n: self.value((kind, n), getattr(attrs, n)) for n in chosen})

    def value(self, name: tuple[str, str], value: object) -> object:
        """Return a value like that of a field, with the same number of entries."""
        if isinstance(value, tuple) and value:
            every = self.often(0.2)
            at = int(self.rng.integers(len(value)))
            return tuple(
                self.value(name, v) if every or i == at else v for i, v in enumerate(value)
            )
        return super().value(name, value) if isinstance(value, (int, IntImm)) else value

    def integer(self, near: int) -> int:
        """Return an extreme number, sometimes a neighbour of the sample's."""
        return super().integer(near) if self.often(0.1) else int(self.one(EXTREMES))  # type: ignore[call-overload]


def _holds_number(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_number, value))
    return isinstance(value, (int, IntImm)) and not isinstance(value, bool)


class ExtremeFuzzer(Fuzzer):
    """Tries variants whose attributes are extreme."""

    def __init__(self, seed: int, tally: Tally | None = None) -> None:
        super().__init__(seed, tally)
        self.mutator = ExtremeMutator(np.random.default_rng(seed))

    def variant(self, name: str, number: int) -> Variant | None:
        """Return a sample's call with extreme attributes; None where it has no type."""
        pick = self.mutator
        pick.rng = np.random.default_rng([self.seed, zlib.crc32(name.encode()), number])
        sample = pick.one(SAMPLES[name])
        assert isinstance(sample, Case)
        attrs = pick.attrs(sample.call.attrs)
        sizes = {d for a in sample.inputs for d in a.shape if d > 1}
        allowed = sample.symbolic if isinstance(sample.symbolic, tuple) else sizes
        is_symbolic = bool(sample.symbolic) and pick.often(0.3)
        names = {d: SizeVar(f"n{d}") for d in sorted(sizes & {*allowed})} if is_symbolic else {}
        types = [(tuple(names.get(d, d) for d in a.shape), str(a.dtype)) for a in sample.inputs]
        params = [relay.var(f"x{n}", shape=s, dtype=t) for n, (s, t) in enumerate(types)]
        new = dict(zip(sample.params, params, strict=True))
        call = Call(sample.call.op, tuple(bind(a, new) for a in sample.call.args), attrs)
        text = f"{name}({[list(s) for s, _ in types]}) {attrs!r} [number {number}]"
        try:
            module = typed(Function(params, call))
        except CompileError:
            return None
        except Exception as error:
            self.tally.add("type", text, "".join(traceback.format_exception_only(error)).strip())
            return None
        main = module["main"]
        assert isinstance(main, Function)
        if any(size > LARGEST for size in result_sizes(main.body.checked_type)):
            return None
        dynamic = OPS[name].dims is not None or OPS[name].padded is not None
        return Variant(name, module, sample.inputs, types, text, dynamic)

    def compare(
        self,
        variant: Variant,
        arrays: Sequence[Array],
        wanted: object,
        refusal: Exception | None,
        found: object,
        error: Exception | None,
    ) -> tuple[str, str] | None:
        """Return what is wrong with a case. The interpreter may refuse a size as NumPy does."""
        if isinstance(refusal, MemoryError) and not isinstance(error, BoundsError):
            return None
        if isinstance(refusal, OverflowError):
            refusal = ValueError(str(refusal))
        return super().compare(variant, arrays, wanted, refusal, found, error)

    def attempt(self, name: str, number: int, most: int, seconds: float) -> None:
        """Count one variant as a case: refused where it has no type, or else run."""
        signal.setitimer(signal.ITIMER_PROF, STANDS)
        faulthandler.dump_traceback_later(10 * STANDS)  # in C no signal is seen
        try:
            variant = self.variant(name, number)
            if variant is None:
                self.tally.cases[name] += 1
                self.tally.refused[name] += 1
            else:
                self.try_variant(variant, most, seconds)
        except Stands:
            self.tally.add("hang", f"{name}(?) [number {number}]", traceback.format_exc(limit=-3))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()


def varied() -> list[str]:
    """Return the operators whose samples have numbers among their attributes."""
    found = []
    for name, cases in sorted(SAMPLES.items()):
        if "contrib_" in name:  # passes make their calls, from others that are tried
            continue
        attrs = [c.call.attrs for c in cases if c.call.attrs is not None]
        if any(_holds_number(getattr(a, f.name)) for a in attrs for f in dataclasses.fields(a)):  # type: ignore[arg-type]
            found.append(name)
    return found


def fuzz_extremes(
    cases: int, seed: int, names: Sequence[str] | None = None, quiet: bool = True
) -> Tally:
    """Run so many cases of the operators (or of some) in turn, two arrays for each variant."""
    signal.signal(signal.SIGPROF, _stop)
    fuzzer, chosen = ExtremeFuzzer(seed), list(names or varied())
    tally, shown = fuzzer.tally, time.perf_counter()
    while sum(tally.cases.values()) < cases:
        name = min(chosen, key=lambda n: (tally.variants[n], n))
        tally.variants[name] += 1
        fuzzer.attempt(name, tally.variants[name], 2, 1.0)
        if not quiet and time.perf_counter() - shown > 30:
            shown = time.perf_counter()
            print(f"{sum(tally.cases.values())} cases, {len(tally.finds)} finds", flush=True)
    return tally


def _limit_memory() -> None:
    """Let large arrays fail at once. AddressSanitizer reserves more than any limit."""
    if "asan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def main() -> int:
    """The command."""
    _limit_memory()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="this variant of the operators alone")
    parser.add_argument("names", nargs="*", help="operators, else all that have numbers")
    options = parser.parse_args()
    if options.number is not None:
        signal.signal(signal.SIGPROF, _stop)
        fuzzer = ExtremeFuzzer(options.seed)
        for name in options.names:
            fuzzer.attempt(name, options.number, 2, 1.0)
        return 1 if fuzzer.tally.finds else 0
    tally = fuzz_extremes(options.cases, options.seed, options.names, quiet=False)
    print(f"{sum(tally.cases.values())} cases ({sum(tally.refused.values())} refused) of"
          f" {len(tally.cases)} operators: {len(tally.finds)} finds"
          f" {dict(Counter(f.kind for f in tally.finds))}")  # fmt: skip
    return 1 if tally.finds else 0


if __name__ == "__main__":
    sys.exit(main())
