"""Structural comparison that reports the path of the first mismatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest

import numpy as np

from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node
from ekiden.ir.structural import canonical_form, is_scope, open_module, plan_of, structural_equal
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.object_path import (
    MapValuePath,
    MissingArrayElementPath,
    MissingMapEntryPath,
    ObjectPath,
    RootPath,
)

_CONTEXT = 3
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Mismatch:
    """First structural difference of two values: its path in each, and the differing values as
    text.
    """

    lhs_path: ObjectPath
    rhs_path: ObjectPath
    lhs: str
    rhs: str

    @property
    def path(self) -> str:
        """Return the path of fields to the difference as text: `main.body.args[0]`."""
        at = self.lhs_path
        while isinstance(at, (MissingArrayElementPath, MissingMapEntryPath)) and at.parent:
            at = at.parent
        steps = [_text(step) for step in at.steps()]
        return "".join(reversed(steps)).removeprefix(".") or "the root"

    def __str__(self) -> str:
        return f"{self.path}: {self.lhs} and {self.rhs}"


def assert_structural_equal(lhs: object, rhs: object, map_free_vars: bool = False) -> None:
    """Raise ValueError, with the path of the first mismatch and a diff of the texts, unless both
    are structurally equal.
    """
    if structural_equal(lhs, rhs, map_free_vars):
        return
    mismatch = first_mismatch(lhs, rhs, map_free_vars)
    where = "" if mismatch is None else f" at {mismatch}"
    raise ValueError(f"structural equality: the two differ{where}\n{_first_lines(lhs, rhs)}")


def get_first_structural_mismatch(
    lhs: object, rhs: object, map_free_vars: bool = False
) -> tuple[ObjectPath, ObjectPath] | None:
    """Return the paths of the first mismatch in each value, or None if they are structurally equal.
    TVM's name.
    """
    mismatch = first_mismatch(lhs, rhs, map_free_vars)
    return None if mismatch is None else (mismatch.lhs_path, mismatch.rhs_path)


def first_mismatch(lhs: object, rhs: object, map_free_vars: bool = False) -> Mismatch | None:
    """Return the first StructuralMismatch of two nodes, modules, arrays or containers, or None.

    The path is one of fields, numbers and names: `main.body.args[0].data[2, 1]`.
    """
    if structural_equal(lhs, rhs, map_free_vars):
        return None
    # Named sizes of a whole function are bound by its parameters' shapes, and so are compared up to
    # renaming.
    sizes = map_free_vars or isinstance(lhs, (IRModule, BaseFunc))
    functions = frozenset(lhs.functions.values() if isinstance(lhs, IRModule) else ())
    return _Walk(map_free_vars, sizes, functions).run(open_module(lhs), open_module(rhs))


def _text(step: ObjectPath) -> str:
    """Format one step of a path as source code would write it: `.field`, `[index]`."""
    if isinstance(step, RootPath):
        return ""
    return f".{step.key}" if isinstance(step, MapValuePath) else step.form.format(step.key)


_Pair = tuple[ObjectPath, object, object]
"""A path and what stands there in each."""


@dataclass(slots=True, eq=False)
class _Scope:
    """Variable scope of the comparison: a module's function, a nested PrimFunc, or the outermost
    level.
    """

    around: _Scope | None = None
    same: dict[Node, Node] = field(default_factory=dict)
    """A node on the left that was met -> that on the right."""
    back: dict[Node, Node] = field(default_factory=dict)
    bound: set[Node] = field(default_factory=set)

    def binds(self, var: Node) -> bool:
        """Return whether the variable is bound in this scope or an enclosing one."""
        return var in self.bound or (self.around is not None and self.around.binds(var))

    def of_free(self, var: Node) -> _Scope:
        """Return the scope that binds a variable, or the outermost one for a free variable."""
        if self.around is None or var in self.bound:
            return self
        return self.around.of_free(var)


@dataclass(slots=True)
class _Walk:
    """Lockstep traversal of two programs in field order."""

    maps_free: bool
    maps_sizes: bool
    functions: frozenset[Node] = frozenset()
    """The functions of the module on the left, which are scopes."""
    scope: _Scope = field(default_factory=_Scope)
    """That of the node that is compared."""

    def run(self, lhs: object, rhs: object) -> Mismatch | None:
        """Compare depth first with an explicit stack and return the first mismatch, or None."""
        stack: list[tuple[_Pair, _Scope]] = [((ObjectPath.root(), lhs, rhs), self.scope)]
        while stack:
            pair, self.scope = stack.pop()
            outcome = self._compare(*pair)
            if isinstance(outcome, Mismatch):
                return outcome
            # Reversed, so that the first field is popped first. A stack, as programs are deeper
            # than Python's.
            stack.extend((inside, self.scope) for inside in reversed(list(outcome)))
        return None

    def _compare(self, path: ObjectPath, a: object, b: object) -> Mismatch | Iterator[_Pair]:
        """Return the mismatch of these two values themselves, or the pairs of children to compare
        next.
        """
        if isinstance(a, Node) and isinstance(b, Node):
            return self._nodes(path, a, b)
        if isinstance(a, _Absent):
            return _lacking(path, *a.counts)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return _mappings(path, a, b)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return _arrays(path, a, b)
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            return _sequences(path, a, b)
        if type(a) is type(b) and (structural_equal(a, b) if _has_structure(a) else a == b):
            return iter(())
        return _mismatch(path, _shown(a), _shown(b))

    def _nodes(self, path: ObjectPath, a: Node, b: Node) -> Mismatch | Iterator[_Pair]:
        plan = plan_of(a)
        if is_scope(a, plan, self.functions):
            self.scope = _Scope(self.scope)
            a, b = canonical_form(a), canonical_form(b)
        scope = self.scope.of_free(a) if plan.is_variable else self.scope
        # Both directions: two variables of one program must not match one of the other.
        if a in scope.same or b in scope.back:
            is_it = scope.same.get(a) is b or (self._is_copied(a) and structural_equal(a, b, True))
            shown = f"{_shown(a)} (shared)", f"{_shown(b)} (another)"
            return iter(()) if is_it else _mismatch(path, *shown)
        if a.type_key != b.type_key:
            return _mismatch(path, _shown(a), _shown(b))
        scope.same[a], scope.back[b] = b, a
        # Before the fields are compared, in which these variables occur.
        scope.bound.update(plan.bound_by(a))
        is_size = a.type_key == "tir.SizeVar" and self.maps_sizes
        is_free = not scope.binds(a) and not (self.maps_free or is_size)
        if plan.is_variable and a is not b and is_free:
            return _mismatch(path, _shown(a), _shown(b))
        inside = [(path.attr(n), getattr(a, n), getattr(b, n)) for n in plan.names]
        return iter(inside)

    def _is_copied(self, node: Node) -> bool:
        """Return whether sharing is irrelevant for the node: it is neither a graph node nor a
        variable.
        """
        plan = plan_of(node)
        return not plan.is_graph and not plan.is_variable


def _has_structure(value: object) -> bool:
    return not isinstance(value, (type(None), bool, int, float, str, bytes))


class _Absent:
    """Placeholder for the element missing at the end of the shorter sequence."""

    def __init__(self, counts: tuple[int, int]) -> None:
        self.counts = counts


def _sequences(path: ObjectPath, a: Sequence[object], b: Sequence[object]) -> Iterator[_Pair]:
    """Pair the elements of two sequences; of unequal lengths, append a missing-element pair."""
    pairs: list[_Pair] = [
        (path.array_index(at), x, y) for at, (x, y) in enumerate(zip(a, b, strict=False))
    ]
    if len(a) != len(b):
        absent = _Absent((len(a), len(b)))
        pairs.append((path, absent, absent))
    return iter(pairs)


def _lacking(path: ObjectPath, mine: int, theirs: int) -> Mismatch:
    shorter = path.missing_array_element(min(mine, theirs))
    longer = path.array_index(min(mine, theirs))
    paths = (shorter, longer) if mine < theirs else (longer, shorter)
    return Mismatch(*paths, f"{mine} items", f"{theirs} items")


def _mappings(
    path: ObjectPath, a: Mapping[object, object], b: Mapping[object, object]
) -> Mismatch | Iterator[_Pair]:
    mine, theirs = ({str(k): v for k, v in mapping.items()} for mapping in (a, b))
    if mine.keys() != theirs.keys():
        key = sorted(mine.keys() ^ theirs.keys())[0]
        paths = [
            path.map_value(key) if key in m else path.missing_map_entry() for m in (mine, theirs)
        ]
        shown = ["there" if key in m else "missing" for m in (mine, theirs)]
        return Mismatch(paths[0], paths[1], shown[0], shown[1])
    return iter([(path.map_value(k), mine[k], theirs[k]) for k in sorted(mine)])


def _arrays(path: ObjectPath, a: np.ndarray, b: np.ndarray) -> Mismatch | Iterator[_Pair]:
    """Return the first element that differs bitwise, so that a NaN equals itself."""
    kinds = [f"{array.dtype} of shape {array.shape}" for array in (a, b)]
    if kinds[0] != kinds[1]:
        return _mismatch(path, *kinds)
    if not a.size:  # no width of a row follows from no bytes
        return iter(())
    # One row of bytes for each element: elements are equal where their rows are.
    rows = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (a, b)]
    wrong = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    if not len(wrong):
        return iter(())
    # Row-major index of the first differing element, to be shown in the coordinates of the array.
    at = np.unravel_index(int(wrong[0]), a.shape)
    index = ", ".join(map(str, at))
    count_note = f" ({len(wrong)} of {a.size} elements differ)" if a.size > 1 else ""
    return _mismatch(path.array_index(index), str(a[at]), f"{b[at]}{count_note}")


def _mismatch(path: ObjectPath, lhs: str, rhs: str) -> Mismatch:
    return Mismatch(path, path, lhs, rhs)


def _shown(value: object) -> str:
    """Describe a value on one line of at most `_MAX_REPR_CHARS` characters."""
    if isinstance(value, Node):
        name = getattr(value, "name_hint", None) or getattr(value, "name", None)
        return f"a {type(value).__name__}" + (f" '{name}'" if isinstance(name, str) else "")
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _first_lines(lhs: object, rhs: object) -> str:
    lhs_lines, rhs_lines = _lines(lhs), _lines(rhs)
    for number, (a, b) in enumerate(zip_longest(lhs_lines, rhs_lines, fillvalue="")):
        if a != b:
            before = [f"  {line}" for line in lhs_lines[max(0, number - _CONTEXT) : number]]
            return "\n".join([*before, f"- {a}", f"+ {b}"])
    return f"both print as\n{lhs}"


def _lines(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{key}: {item}" for key, item in value.items()]
    text = value.astext(show_meta_data=False) if isinstance(value, IRModule) else str(value)
    return text.splitlines()


__all__ = [
    "Mismatch",
    "assert_structural_equal",
    "first_mismatch",
    "get_first_structural_mismatch",
]
