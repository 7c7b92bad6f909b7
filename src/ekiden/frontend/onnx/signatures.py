"""Operator signatures: the number of inputs and outputs, the attributes and their kinds, and the
ranks and lengths of inputs. Checked once for all operators, so that converters may rely on them.

    signature("", "Clip", 13)  ->  inputs (input, min?, max?), outputs (output), no attributes
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.frontend.common.sequence_value import NoTensor
from ekiden.frontend.common.text_value import TextValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.node import Node
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import known

if TYPE_CHECKING:
    from ekiden.frontend.onnx import contrib_signatures, limits, signature_table
else:
    contrib_signatures = LazyModule("ekiden.frontend.onnx.contrib_signatures")
    limits = LazyModule("ekiden.frontend.onnx.limits")
    signature_table = LazyModule("ekiden.frontend.onnx.signature_table")

_PROTO = onnx.AttributeProto
KINDS: Mapping[str, tuple[int, str]] = {
    "i": (_PROTO.INT, "an integer"),
    "f": (_PROTO.FLOAT, "a float"),
    "s": (_PROTO.STRING, "a string"),
    "t": (_PROTO.TENSOR, "a tensor"),
    "g": (_PROTO.GRAPH, "a graph"),
    "p": (_PROTO.TYPE_PROTO, "a type"),
    "y": (_PROTO.SPARSE_TENSOR, "a sparse tensor"),
    "I": (_PROTO.INTS, "a list of integers"),
    "F": (_PROTO.FLOATS, "a list of floats"),
    "S": (_PROTO.STRINGS, "a list of strings"),
    "T": (_PROTO.TENSORS, "a list of tensors"),
    "G": (_PROTO.GRAPHS, "a list of graphs"),
}
"""Letter of the tables -> the kind of an attribute, and its name in messages."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal input or output. repeats: the least number of times a variadic one occurs; None for
    others.
    """

    name: str
    is_optional: bool = False
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Attribute:
    """A formal attribute: a letter of KINDS, and whether every node must have it."""

    kind: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs, outputs and attributes of one version of an operator."""

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: Mapping[str, Attribute]

    def name_of_input(self, index: int) -> str:
        """Return the name of an input; further ones of a repeated input have its name too."""
        return self.inputs[min(index, len(self.inputs) - 1)].name if self.inputs else ""


@lru_cache(1024)
def signature(domain: str, op_type: str, version: int) -> Signature | None:
    """Return the signature of an operator at a version; None where none is known."""
    tables = (signature_table.SIGNATURES, contrib_signatures.SIGNATURES)
    text = next((t[domain][op_type] for t in tables if op_type in t.get(domain, ())), None)
    if text is None:
        return None
    rows = [row.split(" ", 1) for row in text.split(" ; ")]
    # ONNX Runtime puts some operators into older opsets: the oldest row holds there
    chosen = max(
        (r for r in rows if int(r[0]) <= version), key=lambda r: int(r[0]), default=rows[0]
    )
    inputs, outputs, attributes = (section.split() for section in f" {chosen[1]} ".split(" - "))
    # `name:kind`, where an exclamation mark makes the attribute required.
    pairs = (word.split(":") for word in attributes)
    return Signature(
        tuple(map(_parameter, inputs)),
        tuple(map(_parameter, outputs)),
        {name: Attribute(kind[0], kind.endswith("!")) for name, kind in pairs},
    )


def _parameter(word: str) -> Parameter:
    name, star, repeats = word.partition("*")
    if star:
        return Parameter(name, repeats=int(repeats))
    return Parameter(word.removesuffix("?"), word.endswith("?"))


# What can be told from a node alone.


def signature_problems(node: onnx.NodeProto, known_signature: Signature) -> Iterator[str]:
    """Yield a message for each input, output or attribute of a node that does not fit its
    operator's signature.
    """
    yield from _count_problems("input", node.input, known_signature.inputs)
    yield from _count_problems("output", node.output, known_signature.outputs)
    attributes = {a.name: a for a in node.attribute}
    for name, declared in known_signature.attributes.items():
        attribute = attributes.get(name)
        if attribute is None:
            if declared.is_required:
                yield f"attribute {name!r} is missing"
            continue
        kind, words = KINDS[declared.kind]
        if attribute.type != kind and not attribute.ref_attr_name:
            yield f"attribute {name!r} must be {words}, got {_kind_name(attribute.type)}"


def _kind_name(kind: int) -> str:
    return next((words for k, words in KINDS.values() if k == kind), f"one of the kind {kind}")


def _count_problems(
    what: str, names: Sequence[str], parameters: Sequence[Parameter]
) -> Iterator[str]:
    is_open = bool(parameters) and parameters[-1].repeats is not None
    if not is_open and any(names[len(parameters) :]):
        yield f"expected at most {len(parameters)} {what}s, got {len(names)}"
    for index, parameter in enumerate(parameters):
        min_count = 1 if parameter.repeats is None else parameter.repeats
        is_absent = len(names) < index + min_count or not all(names[index : index + min_count])
        # results that nobody wants may be absent, whatever the operator says
        if what == "input" and not parameter.is_optional and is_absent:
            yield f"input {index} ({parameter.name!r}) is missing"


# What needs the types of inputs.


def check_limits(node: Node, known_signature: Signature) -> None:
    """Raise Unsupported where an input has a rank or length that the operator refuses, or an
    attribute a length that does not fit them.
    """
    rules = limits.LIMITS.get((_domain(node), node.op_type))
    if rules is not None:
        operands = _Operands(node, known_signature)
        for rule in rules.split():
            operands.check(rule)


def _domain(node: Node) -> str:
    return "" if node.proto.domain == "ai.onnx" else str(node.proto.domain)


class _Operands:
    """A lookup of the ranks and lengths of a node's inputs and attributes, by name."""

    def __init__(self, node: Node, known_signature: Signature) -> None:
        self._node = node
        self._places = {p.name: i for i, p in enumerate(known_signature.inputs)}

    def check(self, rule: str) -> None:
        """Raise Unsupported where one rule of ekiden.frontend.onnx.limits does not hold."""
        if ":" in rule:
            name, _, expected = rule.partition(":")
            rank = self._rank(name)
            if rank is not None:
                self._check_rank(name, rank, expected)
            return
        name, _, expected = rule.partition("#")
        count, needed = self._count(name), self._length(expected)
        if count is not None and needed is not None and count != needed:
            elements = "1 element" if needed == 1 else f"{needed} elements"
            raise Unsupported(f"{name!r} must have {elements}, got {count}")

    def _check_rank(self, name: str, rank: int, expected: str) -> None:
        if expected in self._places:
            other_rank = self._rank(expected)
            if other_rank is not None and rank != other_rank:
                raise Unsupported(
                    f"{name!r} must have the rank of {expected!r}, which is {other_rank}, got "
                    f"{rank}"
                )
            return
        if expected.endswith("+"):
            if rank < int(expected[:-1]):
                raise Unsupported(f"{name!r} must have rank {expected[:-1]} or more, got {rank}")
        elif str(rank) not in expected.split("|"):
            choice = " or ".join(expected.split("|"))
            raise Unsupported(f"{name!r} must have rank {choice}, got {rank}")

    def _value(self, name: str) -> Value | None:
        index = self._places.get(name)
        inputs = self._node.proto.input
        is_there = index is not None and index < len(inputs)
        return self._node.peek(index) if is_there and index is not None else None

    def _rank(self, name: str) -> int | None:
        value = self._value(name)
        if isinstance(value, TextValue):
            return len(value.shape)
        return None if value is None or isinstance(value, NoTensor) else len(value.type.shape)

    def _count(self, name: str) -> int | None:
        """Return how many elements an input or a list has; None where that is not known."""
        value = self._value(name)
        if value is None:
            return self._node.length_of(name)
        if isinstance(value, NoTensor):
            return None
        extents = [known(d) for d in value.type.shape]
        return None if None in extents else math.prod(e for e in extents if e is not None)

    def _length(self, expression: str) -> int | None:
        """Return the value of a length such as `2`, `3*x`, `x-2` or `2*x-4`, where x is the rank of
        an input or the length of a list; of `axes|x` the first that is known.
        """
        if expression.lstrip("-").isdigit():
            return int(expression)
        factor, star, term = expression.rpartition("*")
        names, minus, subtrahend = term.partition("-")
        for name in names.split("|"):
            number = self._count(name[1:]) if name.startswith("@") else self._rank(name)
            if number is not None:
                return (int(factor) if star else 1) * number - (int(subtrahend) if minus else 0)
        return None
