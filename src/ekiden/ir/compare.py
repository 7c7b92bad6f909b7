"""Structural comparison that reports the path of the first mismatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest

import numpy as np

from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node
from ekiden.ir.structural import (
    canonical_form,
    is_binding_scope,
    module_as_mapping,
    node_plan,
    structural_equal,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.object_path import (
    MapValuePath,
    MissingArrayElementPath,
    MissingMapEntryPath,
    ObjectPath,
    RootPath,
)

_CONTEXT_LINES = 3
_MAX_REPR_CHARS = 60


@dataclass(frozen=True, slots=True)
class StructuralMismatch:
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
        current = self.lhs_path
        while (
            isinstance(current, (MissingArrayElementPath, MissingMapEntryPath)) and current.parent
        ):
            current = current.parent
        steps = [_format_path_step(step) for step in current.steps()]
        return "".join(reversed(steps)).removeprefix(".") or "the root"

    def __str__(self) -> str:
        return f"{self.path}: {self.lhs} and {self.rhs}"


def assert_structural_equal(lhs: object, rhs: object, map_free_vars: bool = False) -> None:
    """Raise ValueError, with the path of the first mismatch and a diff of the texts, unless both
    are structurally equal.
    """
    if structural_equal(lhs, rhs, map_free_vars):
        return
    mismatch = find_first_mismatch(lhs, rhs, map_free_vars)
    where = "" if mismatch is None else f" at {mismatch}"
    raise ValueError(f"structural equality: the two differ{where}\n{_diff_text_lines(lhs, rhs)}")


def get_first_structural_mismatch(
    lhs: object, rhs: object, map_free_vars: bool = False
) -> tuple[ObjectPath, ObjectPath] | None:
    """Return the paths of the first mismatch in each value, or None if they are structurally equal.
    TVM's name.
    """
    mismatch = find_first_mismatch(lhs, rhs, map_free_vars)
    return None if mismatch is None else (mismatch.lhs_path, mismatch.rhs_path)


def find_first_mismatch(
    lhs: object, rhs: object, map_free_vars: bool = False
) -> StructuralMismatch | None:
    """Return the first StructuralMismatch of two nodes, modules, arrays or containers, or None.

    The path is one of fields, numbers and names: `main.body.args[0].data[2, 1]`.
    """
    if structural_equal(lhs, rhs, map_free_vars):
        return None
    # Named sizes of a whole function are bound by its parameters' shapes, and so are compared up to
    # renaming.
    sizes = map_free_vars or isinstance(lhs, (IRModule, BaseFunc))
    functions = frozenset(lhs.functions.values() if isinstance(lhs, IRModule) else ())
    return _StructuralComparer(map_free_vars, sizes, functions).find_mismatch(
        module_as_mapping(lhs), module_as_mapping(rhs)
    )


def _format_path_step(step: ObjectPath) -> str:
    """Format one step of a path as source code would write it: `.field`, `[index]`."""
    if isinstance(step, RootPath):
        return ""
    return f".{step.key}" if isinstance(step, MapValuePath) else step.form.format(step.key)


_Pair = tuple[ObjectPath, object, object]
"""Path and the values at it on both sides."""


@dataclass(slots=True, eq=False)
class _ComparisonScope:
    """Variable scope of the comparison: a module's function, a nested PrimFunc, or the outermost
    level.
    """

    parent_scope: _ComparisonScope | None = None
    lhs_to_rhs: dict[Node, Node] = field(default_factory=dict)
    """Map from each visited node of the left side to its counterpart."""
    rhs_to_lhs: dict[Node, Node] = field(default_factory=dict)
    bound_vars: set[Node] = field(default_factory=set)

    def is_bound(self, var: Node) -> bool:
        """Return whether the variable is bound in this scope or an enclosing one."""
        return var in self.bound_vars or (
            self.parent_scope is not None and self.parent_scope.is_bound(var)
        )

    def scope_of_variable(self, var: Node) -> _ComparisonScope:
        """Return the scope that binds a variable, or the outermost one for a free variable."""
        if self.parent_scope is None or var in self.bound_vars:
            return self
        return self.parent_scope.scope_of_variable(var)


@dataclass(slots=True)
class _StructuralComparer:
    """Lockstep traversal of two programs in field order."""

    map_free_vars: bool
    map_size_vars: bool
    functions: frozenset[Node] = frozenset()
    """Functions of the left module, each of which is a scope."""
    scope: _ComparisonScope = field(default_factory=_ComparisonScope)
    """Scope of the node being compared."""

    def find_mismatch(self, lhs: object, rhs: object) -> StructuralMismatch | None:
        """Compare depth first with an explicit stack and return the first mismatch, or None."""
        stack: list[tuple[_Pair, _ComparisonScope]] = [((ObjectPath.root(), lhs, rhs), self.scope)]
        while stack:
            pair, self.scope = stack.pop()
            outcome = self._compare_values(*pair)
            if isinstance(outcome, StructuralMismatch):
                return outcome
            # Reversed, so that the first field is popped first. A stack, as programs are deeper
            # than Python's.
            stack.extend((inside, self.scope) for inside in reversed(list(outcome)))
        return None

    def _compare_values(
        self, path: ObjectPath, a: object, b: object
    ) -> StructuralMismatch | Iterator[_Pair]:
        """Return the mismatch of these two values themselves, or the pairs of children to compare
        next.
        """
        if isinstance(a, Node) and isinstance(b, Node):
            return self._compare_nodes(path, a, b)
        if isinstance(a, _MissingElement):
            return _length_mismatch(path, *a.lengths)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return _pair_mappings(path, a, b)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return _compare_arrays(path, a, b)
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            return _pair_sequences(path, a, b)
        if type(a) is type(b) and (structural_equal(a, b) if _is_structured_value(a) else a == b):
            return iter(())
        return _make_mismatch(path, _describe_value(a), _describe_value(b))

    def _compare_nodes(
        self, path: ObjectPath, a: Node, b: Node
    ) -> StructuralMismatch | Iterator[_Pair]:
        plan = node_plan(a)
        if is_binding_scope(a, plan, self.functions):
            self.scope = _ComparisonScope(self.scope)
            a, b = canonical_form(a), canonical_form(b)
        scope = self.scope.scope_of_variable(a) if plan.is_variable else self.scope
        # Both directions: two variables of one program must not match one of the other.
        if a in scope.lhs_to_rhs or b in scope.rhs_to_lhs:
            is_it = scope.lhs_to_rhs.get(a) is b or (
                self._ignores_sharing(a) and structural_equal(a, b, True)
            )
            shown = f"{_describe_value(a)} (shared)", f"{_describe_value(b)} (another)"
            return iter(()) if is_it else _make_mismatch(path, *shown)
        if a.type_key != b.type_key:
            return _make_mismatch(path, _describe_value(a), _describe_value(b))
        scope.lhs_to_rhs[a], scope.rhs_to_lhs[b] = b, a
        # Before the fields are compared, in which these variables occur.
        scope.bound_vars.update(plan.bound_variables(a))
        is_size = a.type_key == "tir.SizeVar" and self.map_size_vars
        is_free = not scope.is_bound(a) and not (self.map_free_vars or is_size)
        if plan.is_variable and a is not b and is_free:
            return _make_mismatch(path, _describe_value(a), _describe_value(b))
        inside = [(path.attr(n), getattr(a, n), getattr(b, n)) for n in plan.names]
        return iter(inside)

    def _ignores_sharing(self, node: Node) -> bool:
        """Return whether sharing is irrelevant for the node: it is neither a graph node nor a
        variable.
        """
        plan = node_plan(node)
        return not plan.is_graph and not plan.is_variable


def _is_structured_value(value: object) -> bool:
    return not isinstance(value, (type(None), bool, int, float, str, bytes))


class _MissingElement:
    """Placeholder for the element missing at the end of the shorter sequence."""

    def __init__(self, counts: tuple[int, int]) -> None:
        self.lengths = counts


def _pair_sequences(path: ObjectPath, a: Sequence[object], b: Sequence[object]) -> Iterator[_Pair]:
    """Pair the elements of two sequences; of unequal lengths, append a missing-element pair."""
    pairs: list[_Pair] = [
        (path.array_index(index), x, y) for index, (x, y) in enumerate(zip(a, b, strict=False))
    ]
    if len(a) != len(b):
        absent = _MissingElement((len(a), len(b)))
        pairs.append((path, absent, absent))
    return iter(pairs)


def _length_mismatch(path: ObjectPath, mine: int, theirs: int) -> StructuralMismatch:
    shorter = path.missing_array_element(min(mine, theirs))
    longer = path.array_index(min(mine, theirs))
    paths = (shorter, longer) if mine < theirs else (longer, shorter)
    return StructuralMismatch(*paths, f"{mine} items", f"{theirs} items")


def _pair_mappings(
    path: ObjectPath, a: Mapping[object, object], b: Mapping[object, object]
) -> StructuralMismatch | Iterator[_Pair]:
    left_map, right_map = ({str(k): v for k, v in mapping.items()} for mapping in (a, b))
    if left_map.keys() != right_map.keys():
        key = sorted(left_map.keys() ^ right_map.keys())[0]
        paths = [
            path.map_value(key) if key in m else path.missing_map_entry()
            for m in (left_map, right_map)
        ]
        shown = ["there" if key in m else "missing" for m in (left_map, right_map)]
        return StructuralMismatch(paths[0], paths[1], shown[0], shown[1])
    return iter([(path.map_value(k), left_map[k], right_map[k]) for k in sorted(left_map)])


def _compare_arrays(
    path: ObjectPath, a: np.ndarray, b: np.ndarray
) -> StructuralMismatch | Iterator[_Pair]:
    """Return the first element that differs bitwise, so that a NaN equals itself."""
    kinds = [f"{array.dtype} of shape {array.shape}" for array in (a, b)]
    if kinds[0] != kinds[1]:
        return _make_mismatch(path, *kinds)
    if not a.size:  # no width of a row follows from no bytes
        return iter(())
    # One row of bytes for each element: elements are equal where their rows are.
    rows = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (a, b)]
    wrong = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    if not len(wrong):
        return iter(())
    # Row-major index of the first differing element, to be shown in the coordinates of the array.
    position = np.unravel_index(int(wrong[0]), a.shape)
    index = ", ".join(map(str, position))
    count_note = f" ({len(wrong)} of {a.size} elements differ)" if a.size > 1 else ""
    return _make_mismatch(path.array_index(index), str(a[position]), f"{b[position]}{count_note}")


def _make_mismatch(path: ObjectPath, lhs: str, rhs: str) -> StructuralMismatch:
    return StructuralMismatch(path, path, lhs, rhs)


def _describe_value(value: object) -> str:
    """Describe a value on one line of at most `_MAX_REPR_CHARS` characters."""
    if isinstance(value, Node):
        name = getattr(value, "name_hint", None) or getattr(value, "name", None)
        return f"a {type(value).__name__}" + (f" '{name}'" if isinstance(name, str) else "")
    text = repr(value)
    return text if len(text) <= _MAX_REPR_CHARS else f"{text[: _MAX_REPR_CHARS - 3]}..."


def _diff_text_lines(lhs: object, rhs: object) -> str:
    lhs_lines, rhs_lines = _text_lines(lhs), _text_lines(rhs)
    for number, (a, b) in enumerate(zip_longest(lhs_lines, rhs_lines, fillvalue="")):
        if a != b:
            before = [f"  {line}" for line in lhs_lines[max(0, number - _CONTEXT_LINES) : number]]
            return "\n".join([*before, f"- {a}", f"+ {b}"])
    return f"both print as\n{lhs}"


def _text_lines(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{key}: {item}" for key, item in value.items()]
    text = value.astext(show_meta_data=False) if isinstance(value, IRModule) else str(value)
    return text.splitlines()


__all__ = [
    "StructuralMismatch",
    "assert_structural_equal",
    "find_first_mismatch",
    "get_first_structural_mismatch",
]
