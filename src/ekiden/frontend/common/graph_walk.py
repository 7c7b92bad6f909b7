"""Graph walk: conversion of a model's nodes with error locations, collecting unsupported nodes.

    with walk.at("Conv 'layer1'", inputs, made_by):
        for name, value in walk.outputs(convert(node), ["y"]).items(): ...

What cannot be imported is collected, so that one error lists all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope, field_types
from ekiden.frontend.common.sequence_value import SequenceValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.ir.expr_text import format_type
from ekiden.ir.prim import IntImm
from ekiden.ir.span import Span
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Expr, TupleGetItem
from ekiden.runtime.errors import (
    EkidenError,
    ImportModelError,
    InternalError,
    MemoryLimitError,
    UnsupportedError,
)

MAX_CHAIN_NODES = 8
"""How many of the nodes that led to an error are shown."""


class NodeError(ImportModelError):
    """Import error in a node; the message names the node, the notes its producers."""


class ConversionError(NodeError):
    """Error of a converter that raised a Python error: the model is malformed, or the converter is
    faulty.
    """


PYTHON_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError,
)  # fmt: skip
"""What code raises by itself on what it does not expect; ValueError is also raised on purpose."""


class GraphWalk:
    """Import state shared by all graphs of a model: label, scope and collected problems.

    label: the model, as messages have it. shapes: how a user states other ones. problems: a line
    for each node that turned out to be unsupported, in any graph. needed: inputs of the model that
    would have to be constants.
    """

    def __init__(self, label: str, scope: Scope, shapes: str = "shape={name: (...)}") -> None:
        self.label, self.scope, self.shapes = label, scope, shapes
        self.problems: list[str] = []
        self.needed: dict[str, None] = {}

    @contextmanager
    def convert_node(
        self,
        name: str,
        inputs: Mapping[str, Value | None],
        made_by: Callable[[], Iterable[str]] = tuple,
    ) -> Iterator[None]:
        """Return a context that converts a node; Unsupported ends it and is recorded as a problem.

        Args:
            name: the node, as messages have it.
            inputs: its inputs by name.
            made_by: returns the names of the nodes that led to it, the nearest first.

        Raises:
            NodeError: for what is wrong with the node, with notes on where it came from.
            ConversionError: where the code that converts it broke.
            MemoryLimitError: where its constants exceed the limit, with the node in a note.
        """
        around, self.scope.span = self.scope.span, Span(name)
        try:
            yield
        except Unsupported as error:
            if str(error):  # else what is inside has been reported
                self.problems.append(f"{name}: {error}")
                self.needed.update(dict.fromkeys(error.inputs))
        except (NodeError, UnsupportedError, MemoryLimitError) as error:
            # A limit of memory is the caller's, not a fault of the model: it stays one.
            error.add_note(f"inside {name}")
            raise
        except InternalError:
            raise
        except (EkidenError, ValueError) as error:
            raise self._locate_error(name, inputs, made_by, str(error)) from error
        except PYTHON_ERRORS as error:
            text = (
                f"its inputs and attributes do not fit each other ({type(error).__name__}: "
                f"{error}); if the model is valid, this is a fault of Ekiden's"
            )
            raise self._locate_error(name, inputs, made_by, text, ConversionError) from error
        finally:
            self.scope.span = around

    def raise_collected_problems(self) -> None:
        """Raise UnsupportedError if a node was unsupported."""
        raise_problems(self.problems, self.label, self.needed)

    def bind_outputs(self, result: Result, names: Sequence[str]) -> dict[str, Value]:
        """Bind a converter's results to the names of the node's used outputs.

        Raises Unsupported for an output that the converter did not return, ImportModelError for one
        of negative extent.
        """
        scope = self.scope
        all_outputs: Sequence[Expr | Value | None] = (
            self._split_outputs(result)
            if isinstance(result, Expr)
            else list(result)
            if isinstance(result, Sequence)
            else [result]
        )
        used_outputs = [(i, name) for i, name in enumerate(names) if name in scope.used and name]
        for index, name in used_outputs:
            if index >= len(all_outputs) or all_outputs[index] is None:
                raise Unsupported(f"output {index} ({name!r}) is not supported")
        exprs = {i: e for i, _ in used_outputs if isinstance(e := all_outputs[i], Expr)}
        for index, expr in exprs.items():
            _check_nonnegative_extents(names[index], scope.tensor_type_of(expr))
        spanned = dict(zip(exprs, scope.attach_spans(list(exprs.values())), strict=True))
        values: dict[str, Value] = {}
        for index, name in used_outputs:
            output = all_outputs[index]
            if isinstance(output, Value):
                values[name] = scope.materialize_long_elements(output)
            else:
                values[name] = scope.bind_named(spanned[index], name)
        return values

    def _split_outputs(self, expr: Expr) -> list[Expr | Value | None]:
        """Return the outputs of an expression: the fields of a tuple, or itself."""
        kind = self.scope.type_of(expr)
        if isinstance(kind, TensorType):
            return [expr]
        return [TupleGetItem(expr, i) for i in range(len(field_types(kind)))]

    def _locate_error(
        self,
        name: str,
        inputs: Mapping[str, Value | None],
        made_by: Callable[[], Iterable[str]],
        reason: str,
        kind: type[NodeError] = NodeError,
    ) -> NodeError:
        """Return an error that names the node, its inputs' types and the nodes that led to it."""
        error = kind(f"import {self.label}: {name}: {reason}")
        for input_name, value in inputs.items():
            if value is not None:
                error.add_note(f"its input {input_name!r} is {_value_type_text(value)}")
        chain = " <- ".join(islice(made_by(), MAX_CHAIN_NODES))
        if chain:
            error.add_note(f"made by {chain}")
        if sources := self._source_inputs(inputs.values()):
            origins = ", ".join(sources)
            error.add_note(f"hint: it follows from {origins}; {self.shapes} gives other shapes")
        return error

    def _source_inputs(self, inputs: Iterable[Value | None]) -> list[str]:
        """Return the model inputs, with their types, that the inputs of a node depend on."""
        names = self.scope.param_names
        exprs = [v.expr for v in inputs if v is not None and v.expr is not None]
        made_of = dict.fromkeys(v for e in exprs for v in self.scope.source_params(e))
        return [f"the input {names[v]!r}, {format_type(v.checked_type)}" for v in made_of]


def _value_type_text(value: Value) -> str:
    """Return the type of a value for messages; for a heterogeneous sequence those of its
    elements.
    """
    try:
        return format_type(value.relay_type)
    except Unsupported:
        items = value.items if isinstance(value, SequenceValue) else None
        return f"[{', '.join(map(_value_type_text, items or ()))}]"


def _check_nonnegative_extents(name: str, kind: TensorType) -> None:
    """Raise ImportModelError where an extent is negative: a window is wider than its
    padded input.
    """
    for axis, dim in enumerate(kind.shape):
        if isinstance(dim, IntImm) and dim.value < 0:
            raise ImportModelError(
                f"dimension {axis} of the output {name!r} would be {dim.value}: the inputs are too "
                "small"
            )


def raise_problems(
    problems: Sequence[str], label: str, inputs: Mapping[str, None] | None = None
) -> None:
    """Raise UnsupportedError if there are problems; `inputs` would have to be constants."""
    if problems:
        nodes = "1 node is" if len(problems) == 1 else f"{len(problems)} nodes are"
        raise UnsupportedError(
            "\n  ".join([f"import {label}: {nodes} not supported", *problems]),
            tuple(inputs or ()),
            tuple(problems),
        )
