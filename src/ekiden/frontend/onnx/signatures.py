"""Operator signatures of ONNX: input and output arity, attribute types, and rank and length
constraints. Checked once for all operators, so that converters may rely on them.

    signature("", "Clip", 13)  ->  inputs (input, min?, max?), outputs (output), no attributes
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.frontend.common.sequence_value import NonTensorValue
from ekiden.frontend.common.string_value import StringValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import known_int

if TYPE_CHECKING:
    from ekiden.frontend.onnx import contrib_signatures, shape_limits, signature_table
else:
    contrib_signatures = LazyModule("ekiden.frontend.onnx.contrib_signatures")
    shape_limits = LazyModule("ekiden.frontend.onnx.shape_limits")
    signature_table = LazyModule("ekiden.frontend.onnx.signature_table")

_PROTO = onnx.AttributeProto
ATTRIBUTE_KINDS: Mapping[str, tuple[int, str]] = {
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
class FormalParameter:
    """Formal input or output of an operator. repeats: the least number of times a variadic one
    occurs; None for others.
    """

    name: str
    is_optional: bool = False
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class FormalAttribute:
    """Formal attribute of an operator: its letter in ATTRIBUTE_KINDS, and whether it is
    required.
    """

    kind: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class OperatorSignature:
    """Inputs, outputs and attributes of an operator at one opset version."""

    inputs: tuple[FormalParameter, ...]
    outputs: tuple[FormalParameter, ...]
    attributes: Mapping[str, FormalAttribute]

    def input_name(self, index: int) -> str:
        """Return the name of an input; further inputs of a variadic one share its name."""
        return self.inputs[min(index, len(self.inputs) - 1)].name if self.inputs else ""


@lru_cache(1024)
def find_signature(domain: str, op_type: str, version: int) -> OperatorSignature | None:
    """Return the signature of an operator at a version; None if the operator is unknown."""
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
    return OperatorSignature(
        tuple(map(_parse_parameter, inputs)),
        tuple(map(_parse_parameter, outputs)),
        {name: FormalAttribute(kind[0], kind.endswith("!")) for name, kind in pairs},
    )


def _parse_parameter(word: str) -> FormalParameter:
    """Parse a parameter: `name`, `name?` (optional) or `name*count` (variadic)."""
    name, star, repeats = word.partition("*")
    if star:
        return FormalParameter(name, repeats=int(repeats))
    return FormalParameter(word.removesuffix("?"), word.endswith("?"))


# What can be told from a node alone.


def signature_errors(node: onnx.NodeProto, known_signature: OperatorSignature) -> Iterator[str]:
    """Yield a message for each input, output or attribute that violates the signature."""
    yield from _arity_errors("input", node.input, known_signature.inputs)
    yield from _arity_errors("output", node.output, known_signature.outputs)
    attributes = {a.name: a for a in node.attribute}
    for name, declared in known_signature.attributes.items():
        attribute = attributes.get(name)
        if attribute is None:
            if declared.is_required:
                yield f"attribute {name!r} is missing"
            continue
        kind, words = ATTRIBUTE_KINDS[declared.kind]
        if attribute.type != kind and not attribute.ref_attr_name:
            yield f"attribute {name!r} must be {words}, got {_kind_name(attribute.type)}"


def _kind_name(kind: int) -> str:
    """Return an attribute type's name in messages."""
    return next(
        (words for k, words in ATTRIBUTE_KINDS.values() if k == kind), f"one of the kind {kind}"
    )


def _arity_errors(
    what: str, names: Sequence[str], parameters: Sequence[FormalParameter]
) -> Iterator[str]:
    """Yield messages for missing or surplus inputs or outputs."""
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


def check_shape_limits(node: OnnxNode, known_signature: OperatorSignature) -> None:
    """Raise Unsupported for an input or attribute whose rank or length the operator forbids."""
    rules = shape_limits.SHAPE_LIMITS.get((_operator_domain(node), node.op_type))
    if rules is not None:
        operands = _OperandShapes(node, known_signature)
        for rule in rules.split():
            operands.check(rule)


def _operator_domain(node: OnnxNode) -> str:
    """Return the domain of a node's operator, with "ai.onnx" written as ""."""
    return "" if node.proto.domain == "ai.onnx" else str(node.proto.domain)


class _OperandShapes:
    """Ranks and lengths of a node's inputs and attributes, looked up by name."""

    def __init__(self, node: OnnxNode, known_signature: OperatorSignature) -> None:
        self._node = node
        self._places = {p.name: i for i, p in enumerate(known_signature.inputs)}

    def check(self, rule: str) -> None:
        """Raise Unsupported if a rule of ekiden.frontend.onnx.shape_limits is violated."""
        if ":" in rule:
            name, _, expected = rule.partition(":")
            rank = self._rank(name)
            if rank is not None:
                self._check_rank(name, rank, expected)
            return
        name, _, expected = rule.partition("#")
        count, needed = self._num_elements(name), self._evaluate_length(expected)
        if count is not None and needed is not None and count != needed:
            elements = "1 element" if needed == 1 else f"{needed} elements"
            raise Unsupported(f"{name!r} must have {elements}, got {count}")

    def _check_rank(self, name: str, rank: int, expected: str) -> None:
        """Raise Unsupported for a rank other than `3`, `3|4`, `3+`, or the rank of another
        input.
        """
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

    def _input_value(self, name: str) -> Value | None:
        """Return the value of an input by its formal name, without marking it as read."""
        index = self._places.get(name)
        inputs = self._node.proto.input
        is_there = index is not None and index < len(inputs)
        # peek does not count as a read, so an input that only a rule looks at is still reported as
        # unread.
        return self._node.peek(index) if is_there and index is not None else None

    def _rank(self, name: str) -> int | None:
        """Return the rank of an input; None for absent inputs and for what is no tensor."""
        value = self._input_value(name)
        if isinstance(value, StringValue):
            return len(value.shape)
        return None if value is None or isinstance(value, NonTensorValue) else len(value.type.shape)

    def _num_elements(self, name: str) -> int | None:
        """Return the number of elements of an input or list attribute; None if unknown."""
        value = self._input_value(name)
        if value is None:
            return self._node.list_length(name)
        if isinstance(value, NonTensorValue):
            return None
        extents = [known_int(d) for d in value.type.shape]
        return None if None in extents else math.prod(e for e in extents if e is not None)

    def _evaluate_length(self, expression: str) -> int | None:
        """Evaluate a length such as `2`, `3*x`, `x-2` or `2*x-4`, where x is a rank or, as `@x`, a
        length.
        """
        if expression.lstrip("-").isdigit():
            return int(expression)
        factor, star, term = expression.rpartition("*")
        names, minus, subtrahend = term.partition("-")
        for name in names.split("|"):
            number = self._num_elements(name[1:]) if name.startswith("@") else self._rank(name)
            if number is not None:
                return (int(factor) if star else 1) * number - (int(subtrahend) if minus else 0)
        return None
