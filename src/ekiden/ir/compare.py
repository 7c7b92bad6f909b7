"""Structural equality that says where two things differ: by the path of fields that leads there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node
from ekiden.ir.structural import nodes_in, open_module, plan_of, structural_equal

_CONTEXT = 3
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference of two things: the fields that lead to it, and what stands there."""

    path: str
    lhs: str
    rhs: str

    def __str__(self) -> str:
        return f"{self.path}: {self.lhs} and {self.rhs}"


def assert_structural_equal(lhs: object, rhs: object, map_free_vars: bool = False) -> None:
    """Raise ValueError unless both mean the same, with the path to the first difference and the
    first lines in which their texts differ.
    """
    if structural_equal(lhs, rhs, map_free_vars):
        return
    found = first_mismatch(lhs, rhs, map_free_vars)
    where = "" if found is None else f" at {found}"
    raise ValueError(f"structural equality: the two differ{where}\n{_first_lines(lhs, rhs)}")


def get_first_structural_mismatch(
    lhs: object, rhs: object, map_free_vars: bool = False
) -> tuple[str, str] | None:
    """The paths to what differs first in each, None for two that mean the same. TVM's name."""
    found = first_mismatch(lhs, rhs, map_free_vars)
    return None if found is None else (found.path, found.path)


def first_mismatch(lhs: object, rhs: object, map_free_vars: bool = False) -> Mismatch | None:
    """Where two nodes, modules, arrays or containers differ first, None where they mean the same.

    The path is one of fields, numbers and names: `main.body.args[0].data[2, 1]`.
    """
    if structural_equal(lhs, rhs, map_free_vars):
        return None
    sizes = map_free_vars or isinstance(lhs, (IRModule, BaseFunc))
    return _Walk(map_free_vars, sizes).run(open_module(lhs), open_module(rhs))


@dataclass(frozen=True, slots=True)
class _Path:
    """The last step of a path and those before it: a path of many steps is no longer than its last
    one until somebody wants to read it.
    """

    before: _Path | None = None
    step: str = ""

    def __str__(self) -> str:
        steps: list[str] = []
        at: _Path | None = self
        while at is not None:
            steps.append(at.step)
            at = at.before
        return "".join(reversed(steps)).removeprefix(".") or "the root"


_Pair = tuple[_Path, object, object]
"""A path and what stands there in each."""


@dataclass(slots=True)
class _Walk:
    """Walks two programs side by side, in the order of their fields."""

    maps_free: bool
    maps_sizes: bool
    same: dict[Node, Node] = field(default_factory=dict)
    """A node on the left that was met -> that on the right."""
    back: dict[Node, Node] = field(default_factory=dict)
    bound: set[Node] = field(default_factory=set)

    def run(self, lhs: object, rhs: object) -> Mismatch | None:
        """The first difference."""
        stack: list[_Pair] = [(_Path(), lhs, rhs)]
        while stack:
            path, a, b = stack.pop()
            found = self._compare(path, a, b)
            if isinstance(found, Mismatch):
                return found
            stack.extend(reversed(list(found)))
        return None

    def _compare(self, path: _Path, a: object, b: object) -> Mismatch | Iterator[_Pair]:
        """That what stands here differs, or what to compare inside."""
        if isinstance(a, Node) and isinstance(b, Node):
            return self._nodes(path, a, b)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return _mappings(path, a, b)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return _arrays(path, a, b)
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            if len(a) != len(b):
                return _mismatch(path, f"{len(a)} items", f"{len(b)} items")
            pairs = enumerate(zip(a, b, strict=True))
            return iter([(_Path(path, f"[{at}]"), x, y) for at, (x, y) in pairs])
        if type(a) is type(b) and (structural_equal(a, b) if _has_structure(a) else a == b):
            return iter(())
        return _mismatch(path, _shown(a), _shown(b))

    def _nodes(self, path: _Path, a: Node, b: Node) -> Mismatch | Iterator[_Pair]:
        if a in self.same or b in self.back:
            is_it = self.same.get(a) is b or (self._is_copied(a) and structural_equal(a, b, True))
            shown = f"{_shown(a)} (shared)", f"{_shown(b)} (another)"
            return iter(()) if is_it else _mismatch(path, *shown)
        plan = plan_of(a)
        if a.type_key != b.type_key:
            return _mismatch(path, _shown(a), _shown(b))
        self.same[a], self.back[b] = b, a
        for name in plan.binding:
            self.bound.update(nodes_in(getattr(a, name)))
        is_size = a.type_key == "tir.SizeVar" and self.maps_sizes
        is_free = a not in self.bound and not (self.maps_free or is_size)
        if plan.is_variable and a is not b and is_free:
            return _mismatch(path, _shown(a), _shown(b))
        inside = [(_below(path, n), getattr(a, n), getattr(b, n)) for n in plan.names]
        return iter(inside)

    def _is_copied(self, node: Node) -> bool:
        """Whether it is no part of the meaning if a node is shared."""
        plan = plan_of(node)
        return not plan.is_graph and not plan.is_variable


def _has_structure(value: object) -> bool:
    return not isinstance(value, (type(None), bool, int, float, str, bytes))


def _below(path: _Path, name: str) -> _Path:
    return _Path(path, f".{name}")


def _mappings(
    path: _Path, a: Mapping[object, object], b: Mapping[object, object]
) -> Mismatch | Iterator[_Pair]:
    mine, other = ({str(k): v for k, v in each.items()} for each in (a, b))
    if mine.keys() != other.keys():
        key = sorted(mine.keys() ^ other.keys())[0]
        return _mismatch(
            _below(path, key), *("there" if key in m else "missing" for m in (mine, other))
        )
    return iter([(_below(path, k), mine[k], other[k]) for k in sorted(mine)])


def _arrays(path: _Path, a: np.ndarray, b: np.ndarray) -> Mismatch | Iterator[_Pair]:
    """The first element in which two arrays differ, bit by bit: a NaN equals itself."""
    kinds = [f"{each.dtype} of shape {each.shape}" for each in (a, b)]
    if kinds[0] != kinds[1]:
        return _mismatch(path, *kinds)
    rows = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (a, b)]
    wrong = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    if not len(wrong):
        return iter(())
    at = np.unravel_index(int(wrong[0]), a.shape)
    index = ", ".join(map(str, at))
    more = f" ({len(wrong)} of {a.size} elements differ)" if a.size > 1 else ""
    return _mismatch(_Path(path, f"[{index}]"), str(a[at]), f"{b[at]}{more}")


def _mismatch(path: _Path, lhs: str, rhs: str) -> Mismatch:
    return Mismatch(str(path), lhs, rhs)


def _shown(value: object) -> str:
    """A value on one short line."""
    if isinstance(value, Node):
        name = getattr(value, "name_hint", None) or getattr(value, "name", None)
        return f"a {type(value).__name__}" + (f" '{name}'" if isinstance(name, str) else "")
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _first_lines(lhs: object, rhs: object) -> str:
    left, right = _lines(lhs), _lines(rhs)
    for number, (a, b) in enumerate(zip_longest(left, right, fillvalue="")):
        if a != b:
            before = [f"  {line}" for line in left[max(0, number - _CONTEXT) : number]]
            return "\n".join([*before, f"- {a}", f"+ {b}"])
    return f"both print as\n{lhs}"


def _lines(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{key}: {each}" for key, each in value.items()]
    text = value.astext(show_meta_data=False) if isinstance(value, IRModule) else str(value)
    return text.splitlines()


__all__ = [
    "Mismatch",
    "assert_structural_equal",
    "first_mismatch",
    "get_first_structural_mismatch",
]
