"""A fuzzer of operators: attributes, shapes, dtypes and values, indices out of range among them.

    python tests/relay/op/fuzz_operators.py --cases 1000000 --seed 1
    python tests/relay/op/fuzz_operators.py --seed 1 --number 12 take     a find again

With `--state FILE` a run that is stopped goes on later where it was, on the same sources only.

Every operator of the table that has a kernel is varied from its sample calls. A variant is
compiled with `bounds="check"`, its dimensions as numbers or as symbols, and run on many arrays;
each run is a case. A case is right when the virtual machine gives what the interpreter gives, or
both refuse it, an index with the same words. A BoundsError is never right: some kernel would have
read or written
outside of a buffer. scripts/fuzz_operators runs it with the runtime built for AddressSanitizer.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import functools
import hashlib
import json
import math
import sys
import time
import traceback
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import frontend_cases
import inventory_cases
import ml_dtypes
import nn_operator_cases
import numpy as np
import operator_cases
from operator_cases import Case, case, integers, normal

import ekiden
from ekiden import relay, runtime, te
from ekiden.ir.attrs import Attrs
from ekiden.ir.compiler_digest import compiler_digest
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import OPS, Array, OpPattern
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, Function
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.interpreter_values import ConstructorValue
from ekiden.relay.op.nn import backward
from ekiden.relay.op.prim_func_call import call_lowered
from ekiden.relay.transform import InferType
from ekiden.relay.visitor import bind
from ekiden.runtime.errors import BoundsError, CompileError, IndexRangeError, InputError, RunError
from ekiden.runtime.executable.conversions import sequence_to_list
from ekiden.tir.stmt import PrimFunc

EXTENTS = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
SHOWN = 3
"""Finds of one kind in one operator that are printed."""
STANDS = 600.0
"""Seconds that a variant may take; then where it stands is printed."""
LARGEST = 40_000
"""Elements of a tensor, at most."""
SIZES = 96
"""What data says a size or an index is, at most, where it decides how large a result is."""
LONGEST = 12
"""Elements of a tensor that says how large a result is, at most."""
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64",
          "uint32", "uint64", "bool")  # fmt: skip
LOOSE = {"float16": 2e-2, "bfloat16": 8e-2, "float32": 2e-3, "float64": 2e-3}
REFUSALS = (CompileError, RunError, ValueError, TypeError, IndexError, ZeroDivisionError)
"""What the interpreter refuses with, NumPy's own errors among it."""


def scaled_sum() -> PrimFunc:
    """(x, y) -> (x * 2 + y, y): a loop program of any sizes, with two results."""
    n, m = te.size_var("n"), te.size_var("m")
    x, y = te.placeholder((n, m), name="x"), te.placeholder((m,), name="y")
    whole = te.compute((n, m), lambda i, j: x[i, j] * te.const(2.0, "float32") + y[j], name="whole")
    again = te.compute((m,), lambda j: y[j], name="again")
    return te.create_prim_func([x, y, whole, again])


def _more() -> Iterator[Case]:
    """Sample calls beside those of the other tests: what refuses indices, sizes that are data."""
    x = normal(5, 4)
    for dtype in ("int32", "int64", "uint8", "int8"):
        yield case(
            lambda x, i: op.take(x, i, 0, mode="raise"), x, integers(0, 5, 3, 2, dtype=dtype)
        )
    yield case(lambda x, i: op.take(x, i, 1, mode="raise"), x, integers(-4, 4, 2))
    yield case(lambda x, i: op.take(x, i, mode="raise"), x, integers(-20, 20, 33))
    yield case(lambda x, i: op.take(x, i, 0, mode="raise"), x, integers(0, 5))
    yield case(lambda x, y: call_lowered(scaled_sum(), (x, y)), x, normal(4))
    yield case(op.argwhere, normal(4, 3))
    grad, image, window = normal(1, 4, 3, 3), normal(1, 2, 6, 6), {"strides": (2, 2)}
    for pool in (backward.max_pool2d_grad, backward.avg_pool2d_grad):
        call = functools.partial(pool, pool_size=(2, 2), **window)
        yield case(call, grad[:, :2], image, symbolic=False)
    yield case(
        lambda g, x: backward.conv2d_backward_weight(g, x, kernel_size=(2, 2), **window),
        grad, image, symbolic=False,
    )  # fmt: skip
    yield case(op.det, normal(3, 3))
    shapes: tuple[tuple[Callable[..., Expr], tuple[Array, ...]], ...] = (
        (op.reshape, (x, np.array([2, -1]))),
        (op.broadcast_to, (normal(5, 1), np.array([5, 3]))),
        (op.tile, (x, np.array([2, 1]))),
        (lambda x, b, e: op.strided_slice(x, b, e), (x, np.array([1, 0]), np.array([4, 3]))),
        (lambda x, b, e: op.strided_slice(x, b, e, slice_mode="size"),
         (x, np.array([1, 0]), np.array([2, -1]))),
        (lambda x, b, e, s: op.strided_slice(x, b, e, s),
         (x, np.array([4, 0]), np.array([0, 3]), np.array([-1, 2]))),
        (lambda x, k: op.topk(x, k), (x, np.array(2))),
        (lambda v, s: op.full(v, s), (np.array(1.5, "float32"), np.array([2, 3]))),
        (lambda a, b, c: op.arange(a, b, c, dtype="int64"),
         (np.array(1), np.array(9), np.array(2))),
        (lambda i, d: op.one_hot(i, relay.const(1.0), relay.const(0.0), d),
         (integers(0, 4, 3), np.array(4))),
        (lambda x, w: op.nn.pad(x, w, relay.const(0.0)), (x, np.array([[1, 0], [0, 2]]))),
        (op.expand_dims, (x, np.array(1))),
        (op.squeeze, (normal(1, 3, 1), np.array([0, 2]))),
        (lambda s: op.zeros(s, "int32"), (np.array([2, 3]),)),
        (lambda s: op.ones(s, "float32"), (np.array([4]),)),
        (op.row_ranks, (normal(4, 3),)),
        (lambda i, v, s: op.sparse_to_dense(i, s, v),
         (np.array([[0, 1], [2, 3]], "int32"), normal(2), np.array([3, 4]))),
    )  # fmt: skip
    for build, arrays in shapes:
        yield case(build, *arrays, symbolic=False)


CHOSEN = ("vm.part", "vm.prefix")
"""Operators that the compiler alone makes, of shapes that it knows to fit."""


def samples() -> dict[str, list[Case]]:
    """Operator -> its sample calls."""
    result: dict[str, list[Case]] = defaultdict(list)
    families = (operator_cases, nn_operator_cases, inventory_cases, frontend_cases)
    for item in (*(c for f in families for c in f.CASES), *_more()):
        if item.name in CHOSEN:
            item = dataclasses.replace(item, symbolic=False)
        result[item.name].append(item)
    return dict(result)


SAMPLES = samples()


def _words() -> dict[tuple[str, str], list[str]]:
    """Kind of attributes, field -> the words that samples have for it."""
    result: dict[tuple[str, str], set[str]] = defaultdict(set)
    for attrs in (c.call.attrs for many in SAMPLES.values() for c in many):
        for f in () if attrs is None else dataclasses.fields(attrs):  # type: ignore[arg-type]
            value = getattr(attrs, f.name)
            if attrs is not None and isinstance(value, str):
                result[attrs.type_key, f.name].add(value)
    return {key: sorted(words) for key, words in result.items()}


WORDS = _words()


def _sorted_first(arrays: list[Array]) -> list[Array]:
    return [np.sort(arrays[0], -1), *arrays[1:]] if arrays[0].ndim else arrays


def _small(arrays: list[Array]) -> list[Array]:
    return [np.clip(a, -(2**20), 2**20).astype(a.dtype) for a in arrays]


def _scaled(arrays: list[Array]) -> list[Array]:
    """Scales above 0."""
    return [np.abs(a) + np.float32(0.01) if a.dtype.kind == "f" and n else a
            for n, a in enumerate(arrays)]  # fmt: skip


def _texts(arrays: list[Array]) -> list[Array]:
    return [frontend_cases.as_texts(a) if a.ndim == 2 and a.dtype == "uint8" else a for a in arrays]


def _trees(arrays: list[Array]) -> list[Array]:
    """Nodes and columns that there are."""
    data, roots, features, limits, children, missing = arrays
    nodes, columns = max(1, len(features)), max(1, data.shape[-1])
    return [data, roots % nodes, features % columns, limits, children % nodes, missing]


def _pairs(arrays: list[Array]) -> list[Array]:
    """Probabilities of the first of two against the second, and of the second: they sum to 1."""
    (pairs,) = arrays
    if pairs.ndim != 3 or pairs.shape[1] != pairs.shape[2]:
        return arrays
    odds = np.clip(pairs - pairs.transpose(0, 2, 1), -3, 3)
    return [np.asarray(1 / (1 + np.exp(odds)), pairs.dtype)]


def _nibbles(arrays: list[Array]) -> list[Array]:
    """Sums of the blocks beside them."""
    data, step, _, *weight = arrays
    return [data, step, frontend_cases.sums_of_blocks(data, step.shape), *weight]


def _castable(arrays: list[Array]) -> list[Array]:
    """Floats that the whole numbers of the other's dtype hold: what others become is nobody's
    promise, NumPy's neither."""
    data, like = arrays
    if like.dtype.kind not in "iu" or data.dtype.kind in "iub":
        return arrays
    info = np.iinfo(like.dtype)
    wide = np.nan_to_num(data.astype(np.float64), nan=0.0)
    return [np.asarray(np.clip(wide, info.min / 2, info.max / 2)).astype(data.dtype), like]


def _whole_bytes(arrays: list[Array]) -> list[Array]:
    """Data that are bytes as they are, so that none is rounded, and scales, which lie first in each
    row, that are finite: how those that are not cancel out depends on the order of sums."""
    data, weight = arrays
    if weight.dtype == np.uint8:
        weight = weight.copy()
        weight[..., 1:128:2] &= 0xBB  # bits of the exponents of float16
    with np.errstate(all="ignore"):
        result = np.nan_to_num(np.round(data), nan=0.0).clip(-127, 127).astype(np.float32)
    result[..., ::32] = 127
    return [result, weight]


def _contracting(arrays: list[Array]) -> list[Array]:
    """Weights by which states do not grow: what is rounded in one step would be all in the last."""
    return [arrays[0], *(a / max(1, 4 * a.shape[-1]) if a.dtype.kind == "f" else a
                         for a in arrays[1:])]  # fmt: skip


def _by_some_scale(arrays: list[Array]) -> list[Array]:
    """Scales that are numbers, above 0: others leave it open where a pixel is."""
    data, scales = arrays
    with np.errstate(all="ignore"):
        return [data, np.nan_to_num(np.abs(scales), nan=1.0).clip(1e-3, 1e3)]


PREPARED: Mapping[str, Callable[[list[Array]], list[Array]]] = {
    "searchsorted": _sorted_first,
    "cast_like": _castable,
    "fixed_point_multiply": _small,
    "qnn.quantize": _scaled,
    "qnn.dequantize": _scaled,
    "ml.tree_leaves": _trees,
    "ml.couple": _pairs,
    "image.resize2d_scaled": _by_some_scale,
    "nn.recurrent": _contracting,
    "nn.contrib_dense_nibbles_pack": _nibbles,
    "nn.contrib_dense_blocks_pack": _whole_bytes,
    "nn.contrib_take_blocks_pack": _whole_bytes,
    **{name: _texts for name in SAMPLES if name.startswith("text.")},
}
"""What data must be for a result to be defined."""
STEPS = frozenset(f"qnn.{name}" for name in frontend_cases.UNARY)
"""Operators that round a function of floats to levels: two ways to compute it may be one apart."""
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1e-40)
"""Numbers that are none, that have no end, that overflow, that are subnormal."""
TAME = 1e15
"""Below it squares and small sums of squares do not overflow."""


@dataclass(slots=True)
class Find:
    """Something that is wrong: of which kind, in which variant, on which arrays."""

    kind: str
    variant: str
    message: str


@dataclass(slots=True)
class Tally:
    """What a run of the fuzzer has done and found."""

    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    variants: Counter[str] = field(default_factory=Counter)
    """How many were tried, those without a type with them."""
    finds: list[Find] = field(default_factory=list)

    def save(self, path: Path, seed: int) -> None:
        """Write what was done, for a run with the same seed on the same sources to go on."""
        counts = {name: getattr(self, name) for name in COUNTS}
        finds = [dataclasses.astuple(f) for f in self.finds]
        text = json.dumps({"of": _sources(seed), "finds": finds, **counts})
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)

    @staticmethod
    def load(path: Path, seed: int) -> Tally:
        """What `save` wrote. Raises ValueError where it is of other sources or another seed."""
        result = json.loads(path.read_text())
        if result["of"] != _sources(seed):
            raise ValueError(f"{path}: of other sources or another seed: begin anew")
        finds = [Find(*item) for item in result["finds"]]
        return Tally(finds=finds, **{name: Counter(result[name]) for name in COUNTS})

    def add(self, kind: str, variant: str, message: str) -> None:
        """Note something that is wrong, and say so at once."""
        self.finds.append(Find(kind, variant, message))
        name = variant.partition("(")[0]
        if sum(f.kind == kind and f.variant.startswith(f"{name}(") for f in self.finds) <= SHOWN:
            print(f"FIND {kind}: {variant}\n    {message}", flush=True)


COUNTS = ("cases", "refused", "seconds", "variants")
"""What a tally counts by operator."""


def _sources(seed: int) -> str:
    """What decides the cases of a run and what comes of them."""
    digest = hashlib.sha256(f"{seed} {compiler_digest()}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Mutator:
    """Changes calls at random."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def often(self, chance: float) -> bool:
        """True so often."""
        return bool(self.rng.random() < chance)

    def one(self, items: Sequence[object]) -> object:
        """Any of some items."""
        return items[int(self.rng.integers(len(items)))]

    def attrs(self, attrs: Attrs | None) -> Attrs | None:
        """Attributes with some fields changed."""
        if attrs is None or self.often(0.3):
            return attrs
        fields = [f.name for f in dataclasses.fields(attrs)]  # type: ignore[arg-type]
        if not fields:
            return attrs
        chosen = {str(self.one(fields)) for _ in range(1 + self.often(0.3))}
        kind = attrs.type_key
        return attrs.with_fields(**{n: self.value((kind, n), getattr(attrs, n)) for n in chosen})

    def value(self, name: tuple[str, str], value: object) -> object:
        """A value like that of a field."""
        match value:
            case bool():
                return not value
            case IntImm():
                return IntImm(self.integer(value.value), value.dtype)
            case PrimExpr() | None:
                return value if self.often(0.7) else self.integer(1)
            case int():
                return self.integer(value)
            case float():
                return float(self.one((value, 0.0, 1.0, -1.0, 0.5, 2.5, value * 2)))  # type: ignore[arg-type]
            case str():
                return self.one(WORDS.get(name, [value]))
            case tuple() if value:
                many = list(value)
                at = int(self.rng.integers(len(many)))
                if self.often(0.1):
                    del many[at]
                elif self.often(0.1):
                    many.insert(at, many[at])
                else:
                    many[at] = self.value(name, many[at])
                return tuple(many)
        return value

    def integer(self, near: int) -> int:
        """A small number."""
        return int(self.one((near, near + 1, near - 1, 0, 1, 2, 3, -1, -2, 7)))  # type: ignore[call-overload]

    def extents(self, arrays: Sequence[Array]) -> dict[int, int]:
        """Extent -> what it becomes, all at once."""
        result = {d for a in arrays for d in a.shape}
        return {d: d if self.often(0.6) else int(self.one(EXTENTS)) for d in sorted(result)}  # type: ignore[call-overload]

    def types(self, arrays: Sequence[Array]) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and dtypes like those of some arrays."""
        extents = self.extents(arrays)
        dtypes = {str(a.dtype): str(a.dtype) for a in arrays}
        if dtypes and self.often(0.25):
            old = str(self.one(sorted(dtypes)))
            whole = to_numpy(old).kind in "iub"
            like = [d for d in DTYPES if (to_numpy(d).kind in "iub") == whole]
            dtypes[old] = str(self.one(like))
        result = []
        for array in arrays:
            shape = tuple(extents[d] for d in array.shape)
            if shape and self.often(0.05):  # one that does not go with the others
                shape = (*shape[:-1], int(self.one(EXTENTS)))  # type: ignore[call-overload]
            result.append((shape, dtypes[str(array.dtype)]))
        return result

    def array(
        self, like: Array, shape: Sequence[int], dtype: str, sizes: bool, indices: bool
    ) -> Array:
        """Values of a type; integers like the sample's, or around the ends of what is valid, or
        anything. `sizes`: they may say how large a result is; `indices`: the operator refuses some.
        """
        kind = np.dtype(to_numpy(dtype))
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if kind.kind not in "iu":
            return self.floats(shape, kind, not sizes)
        info = np.iinfo(kind)
        whole = like.size and like.dtype.kind in "iub"
        low, high = (int(f(like)) if whole else 3 * n for n, f in enumerate((np.min, np.max)))
        way = self.rng.random()
        if way < 0.45:
            result = self.rng.integers(low, high + 1, shape)
        elif way < 0.6:
            result = self.rng.integers(-abs(high) - 2, abs(high) + 3, shape)
        elif way < 0.8:
            result = self.rng.integers(low, high + 1, shape)
            if result.size:  # one that is a little, or far, out of range
                spoilt = (
                    low - 1,
                    high + 1,
                    -high - 2,
                    2 * high + 1,
                    1000,
                    -1000,
                    info.max,
                    info.min,
                )
                result.reshape(-1)[int(self.rng.integers(result.size))] = np.int64(
                    min(int(self.one(spoilt)), 2**62)  # type: ignore[call-overload]
                )
        else:
            result = self.rng.integers(-9, 40, shape)
        if sizes:
            result = np.clip(result, -SIZES, SIZES)
        return np.asarray(np.clip(result, max(info.min, -(2**62)), min(info.max, 2**62))).astype(
            kind
        )

    def floats(self, shape: Sequence[int], kind: np.dtype[Any], special: bool) -> Array:
        """Numbers around 0; sometimes `special` ones among them."""
        result = self.rng.normal(size=shape) * float(self.one((1, 1, 1, 10)))  # type: ignore[arg-type]
        result = np.asarray(result)
        if special and result.size and self.often(0.1):
            count = 1 + int(self.rng.integers(min(result.size, 4)))
            at = self.rng.integers(result.size, size=count)
            result.reshape(-1)[at] = self.rng.choice(SPECIAL, count)
        with np.errstate(all="ignore"):
            return result.astype(kind)


def _leaves(result: object) -> list[Array]:
    if isinstance(result, ConstructorValue):
        return op.sequence.elements(result)
    if isinstance(result, runtime.ADT):
        return [_plain(e) for e in sequence_to_list(result)]
    many = result if isinstance(result, (tuple, list)) else (result,)
    return [a for m in many for a in (_leaves(m) if isinstance(m, (tuple, list)) else [_plain(m)])]


def _plain(result: object) -> Array:
    return np.asarray(result.numpy() if hasattr(result, "numpy") else result)


def result_sizes(kind: Type) -> Iterator[int]:
    """Yield the elements of each tensor of a type, its symbols as large as extents are."""
    for item in kind.fields if isinstance(kind, TupleType) else (kind,):
        if isinstance(item, TensorType):
            extents = [d.value if isinstance(d, IntImm) else max(EXTENTS) for d in item.shape]
            yield math.prod(extents)


@dataclass(slots=True)
class Variant:
    """A call to be tried: its module, and how its arguments are made."""

    name: str
    module: ekiden.IRModule
    likes: Sequence[Array]
    types: Sequence[tuple[tuple[int | SizeVar, ...], str]]
    text: str
    sizes: bool
    """Whether the data say how large the result is."""

    def is_refused(self, arrays: Sequence[Array]) -> bool:
        """Whether the call has no type on such arrays, or less is taken for granted of it."""
        if any(isinstance(d, SizeVar) for shape, _ in self.types for d in shape):
            return True
        main = self.module["main"]
        assert isinstance(main, Function)
        params = [
            relay.var(p.name_hint, shape=a.shape, dtype=t)
            for p, a, (_, t) in zip(main.params, arrays, self.types, strict=True)
        ]
        body = bind(main.body, dict(zip(main.params, params, strict=True)))
        try:
            typed(Function(params, body))
        except CompileError:
            return True
        return False


def typed(main: Function) -> ekiden.IRModule:
    """Return a module of a function, with types. Raises CompileError."""
    lists = {op.sequence.LIST.header: op.sequence.LIST}
    return InferType()(ekiden.IRModule.from_expr(main, type_defs=lists))


class Fuzzer:
    """Makes variants, runs them, compares."""

    tier = "full"
    """Of the programs that are compiled."""

    def __init__(self, seed: int, tally: Tally | None = None) -> None:
        self.seed = seed
        self.mutator = Mutator(np.random.default_rng(seed))
        self.tally = tally or Tally()

    def variant(self, name: str, number: int) -> Variant | None:
        """The variant of an operator of that number; None where it has no type. All that is random
        about it, its data with it, follows from the seed, the operator and the number.
        """
        pick = self.mutator
        pick.rng = np.random.default_rng([self.seed, zlib.crc32(name.encode()), number])
        sample = pick.one(SAMPLES[name])
        assert isinstance(sample, Case)
        whole = pick.often(0.15) or "contrib_" in name  # those come from passes, which know
        arrays = sample.inputs
        types = [(a.shape, str(a.dtype)) for a in arrays] if whole else pick.types(arrays)
        if any(np.prod(shape, dtype=float) > LARGEST for shape, _ in types):
            return None
        attrs = sample.call.attrs if whole or pick.often(0.4) else pick.attrs(sample.call.attrs)
        named: dict[int, SizeVar] = {}
        if sample.symbolic and pick.often(0.35):
            allowed = sample.symbolic if isinstance(sample.symbolic, tuple) else None
            before = {d for a in arrays for d in a.shape if d > 1}
            kept = {d for d in before if (allowed is None or d in allowed)}
            named = {d: SizeVar(f"n{d}") for d in kept if whole and pick.often(0.8)}
        shapes = [tuple(named.get(d, d) for d in shape) for shape, _ in types]
        params = [
            relay.var(f"x{n}", shape=s, dtype=t)
            for n, (s, (_, t)) in enumerate(zip(shapes, types, strict=True))
        ]
        new = dict(zip(sample.params, params, strict=True))
        call = Call(sample.call.op, tuple(bind(a, new) for a in sample.call.args), attrs)
        shown = [f"{t}{list(s)}" for s, (_, t) in zip(shapes, types, strict=True)]
        text = f"{name}({', '.join(shown)}) {attrs!r} [number {number}]"
        try:
            module = typed(Function(params, call))
        except CompileError:
            return None
        except Exception as error:
            self.tally.add("type", text, "".join(traceback.format_exception_only(error)).strip())
            return None
        main = module["main"]
        assert isinstance(main, Function)
        result = main.body.checked_type
        if any(size > LARGEST for size in result_sizes(result)):
            return None
        dynamic = OPS[name].dims is not None or OPS[name].padded is not None
        if dynamic and any(np.prod(s, dtype=float) > LONGEST for s, _ in types[1:] or types):
            return None  # more axes than NumPy has, or tensors that no memory holds
        types = [(s, t) for s, (_, t) in zip(shapes, types, strict=True)]
        return Variant(name, module, arrays, types, text, dynamic)

    def data(self, variant: Variant) -> list[Array]:
        """Arguments for a variant."""
        symbols: dict[SizeVar, int] = {}
        result = []
        for like, (shape, dtype) in zip(variant.likes, variant.types, strict=True):
            extents = [
                symbols.setdefault(d, int(self.mutator.one(EXTENTS)))  # type: ignore[call-overload]
                if isinstance(d, SizeVar)
                else d
                for d in shape
            ]
            result.append(
                self.mutator.array(like, extents, dtype, variant.sizes, OPS[variant.name].may_fail)
            )
        prepare = PREPARED.get(variant.name)
        return result if prepare is None else prepare(result)

    def try_variant(self, variant: Variant, most: int, seconds: float) -> None:
        """Compile a variant and run it on so many arrays, or for so long."""
        tally = self.tally
        interpreter = Interpreter(variant.module)
        try:
            exe = ekiden.compile(variant.module, tier=self.tier, bounds="check")
        except Exception as error:
            data = self.data(variant)
            refusal = _tried(lambda: interpreter.evaluate("main", *data))[1]
            tally.cases[variant.name] += 1
            tally.refused[variant.name] += 1
            if refusal is None or not isinstance(error, CompileError):
                tally.add("compile", variant.text, _said(error))
            return
        end = time.perf_counter() + seconds
        wrong = 0
        for _ in range(most):
            arrays = self.data(variant)
            expected, refusal = _tried(lambda data=arrays: interpreter.evaluate("main", *data))
            actual, error = _tried(lambda data=arrays: exe(*data))
            tally.cases[variant.name] += 1
            tally.refused[variant.name] += error is not None
            message = self.compare(variant, arrays, expected, refusal, actual, error)
            if message is not None:
                shown = "; ".join(f"{a.dtype}{list(a.shape)} {a.tolist()!r:.200}" for a in arrays)
                tally.add(message[0], variant.text, f"{message[1]} on {shown}")
                wrong += 1
            if wrong or time.perf_counter() > end:
                break

    def compare(
        self,
        variant: Variant,
        arrays: Sequence[Array],
        wanted: object,
        refusal: Exception | None,
        actual: object,
        error: Exception | None,
    ) -> tuple[str, str] | None:
        """What is wrong with a case, if anything."""
        if isinstance(error, BoundsError):
            return "bounds", str(error)
        if isinstance(refusal, IndexRangeError) or isinstance(error, IndexRangeError):
            same = type(refusal) is type(error) and str(refusal) == str(error)
            return None if same else ("index", f"interpreter: {refusal!r:.300} vm: {error!r:.300}")
        if refusal is not None and not isinstance(refusal, REFUSALS):
            return "interpreter", _said(refusal)
        if isinstance(error, MemoryError) or isinstance(refusal, MemoryError):
            return None
        if refusal is None and isinstance(error, InputError) and variant.is_refused(arrays):
            return None
        if (refusal is None) != (error is None):
            return "refusal", f"interpreter: {_said(refusal)} vm: {_said(error)}"
        if refusal is not None or OPS[variant.name].stateful:
            return None
        outcome = _leaves(wanted), _leaves(actual)
        if variant.name == "vm.part":  # the rest is nobody's
            outcome = tuple([a[tuple(map(slice, arrays[0].shape))] for a in r] for r in outcome)
        floats = (a.astype("float64") for a in arrays if a.dtype.kind not in "iub")
        is_tame = all((np.abs(a) < TAME).all() for a in floats)
        pattern = OPS[variant.name].pattern
        if not is_tame and (pattern > OpPattern.COMM_REDUCE or variant.name == "prod"):
            return None  # what spreads from there depends on how sums are put together
        if variant.name == "prod" and _may_overflow(arrays[0], _plain(wanted).dtype):
            return None
        if pattern == OpPattern.COMM_REDUCE:  # and so does whether they overflow, or cancel
            outcome = _both_finite(*outcome)
        sizes = [float(np.abs(a.astype(np.float64)).max(initial=0, where=np.isfinite(a)))
                 for a in arrays]  # fmt: skip
        return _difference(*outcome, max(sizes, default=0.0), int(variant.name in STEPS))


def _tried(run: Callable[[], object]) -> tuple[object, Exception | None]:
    try:
        with np.errstate(all="ignore"):
            return run(), None
    except Exception as error:
        return None, error


def _said(error: Exception | None) -> str:
    if error is None:
        return "a result"
    notes = " / ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error!s:.300} {notes:.300}"


def _may_overflow(data: Array, dtype: np.dtype[Any]) -> bool:
    """Whether the product of some of the numbers is too large, or too small, for a dtype: which
    those are depends on the order."""
    if dtype.kind in "iub":
        return False
    with np.errstate(all="ignore"):
        logarithms = np.log2(np.abs(data.astype(np.float64)))
    logarithms = logarithms[np.isfinite(logarithms)]
    parts = (np.sum(logarithms, where=logarithms > 0), -np.sum(logarithms, where=logarithms < 0))
    return bool(max(parts) > ml_dtypes.finfo(dtype).maxexp - 2)


def _both_finite(wanted: Sequence[Array], actual: Sequence[Array]) -> tuple[list[Array], ...]:
    """Results with 0 where neither is a finite number."""
    kept: tuple[list[Array], list[Array]] = [], []
    for a, b in zip(wanted, actual, strict=False):
        alike = a.shape == b.shape and a.dtype.kind not in "iub" and b.dtype.kind not in "iub"
        none = ~np.isfinite(a) & ~np.isfinite(b) if alike else None
        for to, item in zip(kept, (a, b), strict=True):
            to.append(item if none is None else np.where(none, np.zeros((), item.dtype), item))
    return kept


def _difference(
    wanted: Sequence[Array], actual: Sequence[Array], largest: float, steps: int
) -> tuple[str, str] | None:
    """How results differ; what is lost by cancelling counts by the `largest` argument. Integers
    may be so many `steps` apart.
    """
    if len(wanted) != len(actual):
        return "count", f"{len(wanted)} results expected, got {len(actual)}"
    for a, b in zip(wanted, actual, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return "type", f"{a.dtype}{a.shape} expected, got {b.dtype}{b.shape}"
        if a.dtype.kind in "iub":
            apart = a != b if not steps else np.abs(a.astype(np.int64) - b) > steps
            if apart.any():
                at = tuple(int(i) for i in np.argwhere(apart)[0])
                return "value", f"{a[at]} expected at {at}, got {b[at]}"
            continue
        loose = LOOSE.get(str(a.dtype), 0.3)
        x, y = a.astype(np.float64), b.astype(np.float64)
        if str(a.dtype) in ("float16", "bfloat16"):  # sums overflow at other places
            x, y = (np.where(np.isfinite(x) & np.isfinite(y), v, 0) for v in (x, y))
        scale = max(1.0, largest, float(np.max(np.abs(x), initial=0, where=np.isfinite(x))))
        with np.errstate(all="ignore"):
            close = np.isclose(x, y, rtol=loose, atol=loose * scale, equal_nan=True)
        if not close.all():
            at = tuple(int(i) for i in np.argwhere(~close)[0])
            return "value", f"{x[at]} expected at {at}, got {y[at]}"
    return None


def fuzz(
    cases: int,
    seed: int,
    names: Sequence[str] | None = None,
    each: int = 300,
    seconds: float = 1.0,
    quiet: bool = True,
    state: Path | None = None,
) -> Tally:
    """So many cases in all, of the operators in turn (or of some); of a variant at most `each`, and
    no longer than `seconds`. What was done is kept in the file `state`, to go on from.
    """
    known = Tally.load(state, seed) if state is not None and state.exists() else None
    fuzzer = Fuzzer(seed, known)
    tally = fuzzer.tally
    chosen = sorted(SAMPLES) if names is None else list(names)
    started = shown = time.perf_counter()
    while sum(tally.cases.values()) < cases:
        # those that have had the least time come first: slow ones do not hold up the others
        name = min(chosen, key=lambda n: (tally.seconds[n], tally.variants[n]))
        began = time.perf_counter()
        for _ in range(20):
            tally.variants[name] += 1
            variant = fuzzer.variant(name, tally.variants[name])
            if variant is not None:
                if state is not None:
                    state.with_suffix(".now").write_text(variant.text)
                faulthandler.dump_traceback_later(STANDS)
                fuzzer.try_variant(variant, each, seconds)
                faulthandler.cancel_dump_traceback_later()
                break
        tally.seconds[name] += time.perf_counter() - began
        if not quiet and time.perf_counter() - shown > 30:
            shown = time.perf_counter()
            done = sum(tally.cases.values())
            print(f"{done} cases in {shown - started:.0f} s, {len(tally.finds)} finds", flush=True)
            if state is not None:
                tally.save(state, seed)
    if state is not None:
        tally.save(state, seed)
    return fuzzer.tally


def neighbours(name: str, samples: int = 2) -> Iterator[Variant]:
    """Calls of an operator with one extent of one argument that is one more, one less, or 0: what
    a kernel takes for granted of arguments that go together, an operator has to look at.
    """
    if name in CHOSEN or "contrib_" in name:
        return
    kinds = {(tuple(a.ndim for a in c.inputs), str(c.call.attrs)): c for c in SAMPLES[name]}
    for sample in list(kinds.values())[:samples]:
        for n, array in enumerate(sample.inputs):
            for axis, extent in enumerate(array.shape):
                for other in {0, max(extent - 1, 0), extent + 1}:
                    shapes = [list(a.shape) for a in sample.inputs]
                    shapes[n][axis] = other
                    variant = _variant_of(sample, shapes)
                    if variant is not None:
                        yield variant


def _variant_of(sample: Case, shapes: Sequence[Sequence[int]]) -> Variant | None:
    """A sample with arguments of other shapes; None where it has no type."""
    types = [(tuple(s), str(a.dtype)) for s, a in zip(shapes, sample.inputs, strict=True)]
    params = [relay.var(f"x{n}", shape=s, dtype=t) for n, (s, t) in enumerate(types)]
    new = dict(zip(sample.params, params, strict=True))
    call = Call(sample.call.op, tuple(bind(a, new) for a in sample.call.args), sample.call.attrs)
    try:
        module = typed(Function(params, call))
    except CompileError:
        return None
    main = module["main"]
    assert isinstance(main, Function)
    if any(size > LARGEST for size in result_sizes(main.body.checked_type)):
        return None
    dynamic = OPS[sample.name].dims is not None or OPS[sample.name].padded is not None
    text = f"{sample.name}({shapes}) {sample.call.attrs!r}"
    return Variant(sample.name, module, sample.inputs, types, text, dynamic)


def _again(options: argparse.Namespace) -> int:
    """One variant of each of some operators, as a find names it."""
    fuzzer = Fuzzer(options.seed)
    for name in options.names:
        variant = fuzzer.variant(name, options.number)
        print(name if variant is None else variant.text)
        if variant is not None:
            fuzzer.try_variant(variant, options.each, options.seconds)
    return 1 if fuzzer.tally.finds else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=300, help="cases of a variant")
    parser.add_argument("--seconds", type=float, default=1.0, help="for a variant")
    parser.add_argument("--state", type=Path, help="a file to go on from, and to keep the state in")
    parser.add_argument("--number", type=int, help="this variant of the operators alone")
    parser.add_argument("names", nargs="*", help="operators, else all that there are")
    options = parser.parse_args()
    if options.number is not None:
        return _again(options)
    tally = fuzz(options.cases, options.seed, options.names or None, options.each,
                 options.seconds, quiet=False, state=options.state)  # fmt: skip
    print(f"{sum(tally.cases.values())} cases ({sum(tally.refused.values())} refused) of"
          f" {sum(tally.variants.values())} variants of {len(tally.cases)} operators:"
          f" {len(tally.finds)} finds {dict(Counter(f.kind for f in tally.finds))}")  # fmt: skip
    return 1 if tally.finds else 0


if __name__ == "__main__":
    sys.exit(main())
