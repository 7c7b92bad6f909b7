"""The walk over the nodes of a model: each in its place, with errors that name it.

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
from ekiden.ir.prim import IntImm
from ekiden.ir.span import Span
from ekiden.ir.text import type_text
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Expr, TupleGetItem
from ekiden.runtime.errors import EkidenError, ImportModelError, InternalError, UnsupportedError

CHAIN = 8
"""How many of the nodes that led to an error are shown."""


class NodeError(ImportModelError):
    """A node that cannot be imported; the message names it, the notes say how one got there."""


class ConversionError(NodeError):
    """A node at which its converter broke: the model says what no check expects, or the converter
    is wrong.
    """


PYTHON_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError,
)  # fmt: skip
"""What code raises by itself on what it does not expect; ValueError is also raised on purpose."""


class Walk:
    """What all graphs of one import have in common.

    label: the model, as messages have it. shapes: how a user gives other ones. problems: a line for
    each node that turned out to be unsupported, in any graph. needed: inputs of the model that
    would have to be constants.
    """

    def __init__(self, label: str, scope: Scope, shapes: str = "shape={name: (...)}") -> None:
        self.label, self.scope, self.shapes = label, scope, shapes
        self.problems: list[str] = []
        self.needed: dict[str, None] = {}

    @contextmanager
    def at(
        self,
        name: str,
        inputs: Mapping[str, Value | None],
        made_by: Callable[[], Iterable[str]] = tuple,
    ) -> Iterator[None]:
        """A `with` block in which a node is converted, `inputs` by name; `made_by` gives the names
        of the nodes that led to it, the nearest first. Unsupported ends the block and is noted.

        Raises NodeError for what is wrong with the node, with what is known of how it came to be;
        ConversionError where the code that converts it broke.
        """
        around, self.scope.span = self.scope.span, Span(name)
        try:
            yield
        except Unsupported as error:
            if str(error):  # else what is inside has been reported
                self.problems.append(f"{name}: {error}")
                self.needed.update(dict.fromkeys(error.inputs))
        except (NodeError, UnsupportedError) as error:
            error.add_note(f"inside {name}")
            raise
        except InternalError:
            raise
        except (EkidenError, ValueError) as error:
            raise self._located(name, inputs, made_by, str(error)) from error
        except PYTHON_ERRORS as error:
            text = (
                f"its inputs and attributes do not fit each other ({type(error).__name__}: "
                f"{error}); if the model is valid, this is a fault of Ekiden's"
            )
            raise self._located(name, inputs, made_by, text, ConversionError) from error
        finally:
            self.scope.span = around

    def finish(self) -> None:
        """Raise UnsupportedError if there were problems."""
        raise_problems(self.problems, self.label, self.needed)

    def outputs(self, result: Result, names: Sequence[str]) -> dict[str, Value]:
        """What a converter gave, under the names of a node's outputs that anyone uses; their
        unknown dimensions have names from here on.

        Raises Unsupported for one that it gave not, ImportModelError for one of negative extent.
        """
        scope = self.scope
        many: Sequence[Expr | Value | None] = (
            self._fields(result)
            if isinstance(result, Expr)
            else list(result)
            if isinstance(result, Sequence)
            else [result]
        )
        wanted = [(i, name) for i, name in enumerate(names) if name in scope.used and name]
        for index, name in wanted:
            if index >= len(many) or many[index] is None:
                raise Unsupported(f"output {index} ({name!r}) is not supported")
        exprs = {i: e for i, _ in wanted if isinstance(e := many[i], Expr)}
        for index, expr in exprs.items():
            _check_extents(names[index], scope.typed(expr))
        spanned = dict(zip(exprs, scope.span_all(list(exprs.values())), strict=True))
        made: dict[str, Value] = {}
        for index, name in wanted:
            found = many[index]
            if isinstance(found, Value):
                made[name] = scope.short(found)
            else:
                made[name] = scope.bound(spanned[index], name)
        return made

    def _fields(self, expr: Expr) -> list[Expr | Value | None]:
        found = self.scope.type_of(expr)
        if isinstance(found, TensorType):
            return [expr]
        return [TupleGetItem(expr, i) for i in range(len(field_types(found)))]

    def _located(
        self,
        name: str,
        inputs: Mapping[str, Value | None],
        made_by: Callable[[], Iterable[str]],
        reason: str,
        kind: type[NodeError] = NodeError,
    ) -> NodeError:
        found = kind(f"import {self.label}: {name}: {reason}")
        for each, value in inputs.items():
            if value is not None:
                found.add_note(f"its input {each!r} is {_kind_text(value)}")
        chain = " <- ".join(islice(made_by(), CHAIN))
        if chain:
            found.add_note(f"made by {chain}")
        if sources := self._sources(inputs.values()):
            given = ", ".join(sources)
            found.add_note(f"hint: it follows from {given}; {self.shapes} gives other shapes")
        return found

    def _sources(self, inputs: Iterable[Value | None]) -> list[str]:
        """The inputs of the model, with their types, that the inputs of a node are made of."""
        names = self.scope.param_names
        exprs = [v.expr for v in inputs if v is not None and v.expr is not None]
        made_of = dict.fromkeys(v for e in exprs for v in self.scope.sources(e))
        return [f"the input {names[v]!r}, {type_text(v.checked_type)}" for v in made_of]


def _kind_text(value: Value) -> str:
    """Return the type of a value; of a sequence of several types, those of its elements."""
    try:
        return type_text(value.kind)
    except Unsupported:
        items = value.items if isinstance(value, SequenceValue) else None
        return f"[{', '.join(map(_kind_text, items or ()))}]"


def _check_extents(name: str, kind: TensorType) -> None:
    """Raise where a window is wider than what it moves over."""
    for axis, dim in enumerate(kind.shape):
        if isinstance(dim, IntImm) and dim.value < 0:
            raise ImportModelError(
                f"dimension {axis} of the output {name!r} would be {dim.value}: the inputs are too "
                "small"
            )


def raise_problems(
    problems: Sequence[str], label: str, inputs: Mapping[str, None] | None = None
) -> None:
    """Raise UnsupportedError if there are any; `inputs` would have to be constants."""
    if problems:
        nodes = "1 node is" if len(problems) == 1 else f"{len(problems)} nodes are"
        raise UnsupportedError(
            "\n  ".join([f"import {label}: {nodes} not supported", *problems]),
            tuple(inputs or ()),
            tuple(problems),
        )
