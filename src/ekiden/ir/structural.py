"""Structural equality and hashing, up to alpha-renaming of bound variables, spans and inferred
types.

Both come from one canonical form: a list of rows, one per distinct node, children before parents. A
row holds the node's type key, its plain fields and the numbers of its children's rows; a variable's
row holds the order in which it was met. Two programs mean the same if their rows are the same, and
the digest is a hash of the rows. What is shared in one program must be shared in the other (Call,
Tuple, ...: the nodes of the graph), except atoms, types and scalar expressions. A scope (a function
of a module, a loop program that an attribute holds) has rows of its own, of which the row around it
holds a digest: what two scopes share means nothing, as it means nothing in their texts.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import Literal

import numpy as np

from ekiden import runtime
from ekiden.ir.dtype import is_float
from ekiden.ir.expr import BaseFunc, RelayExpr
from ekiden.ir.hashes import blake2b
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node, node_fields
from ekiden.ir.prim import PrimExpr, const
from ekiden.runtime import register_func
from ekiden.runtime.binding._core import Object
from ekiden.runtime.lazy_dataclass import dataclass

CanonicalRow = tuple[object, ...]
FreeVars = Literal["identity", "order"]
"""Key of a free variable: the variable itself, or its index in order of first use."""

VARIABLE_NAME_FIELDS = {
    "relay.Var": "name_hint",
    "tir.Var": "name",
    "tir.SizeVar": "name",
    "tir.Buffer": "name",
    "relay.TypeVar": "name_hint",
    "relay.IncompleteType": "",
}
"""Field that holds only a display name, by the type of nodes compared by identity."""
LABEL_FIELDS = {"tir.Block": "name"}
"""Field that only labels a node for messages, by node type."""
SHARING_AGNOSTIC_TYPES = frozenset(
    {"relay.Var", "relay.GlobalVar", "relay.Constant", "ir.Op", "ir.GlobalVar", "relay.Constructor"}
)
"""Types of Relay nodes whose sharing is irrelevant to equality."""

NESTED_BINDER_FIELDS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "relay.Constructor": (("inputs", "belong_to"), frozenset({"relay.TypeVar"})),
    "tir.PrimFunc": (("params",), frozenset({"tir.Var", "tir.SizeVar"})),
    "tir.DeclBuffer": (("buffer",), frozenset({"tir.Var", "tir.SizeVar"})),
}
"""Fields that bind variables inside: a constructor's type variables, a loop program's size
variables, a view's strides.
"""

_UNIT_TUPLE_ROW: CanonicalRow = ("relay.Tuple", ("(",))
"""Row of the empty tuple, whose sharing is irrelevant."""

SCOPE_TYPE_KEYS = frozenset({"tir.PrimFunc"})
"""Type keys of nodes that open a variable scope wherever they occur."""

INFERRED_FIELDS = {"relay.Call": "type_args"}
"""Field that type inference fills in and a program may omit, by node type."""

_digest_cache: weakref.WeakKeyDictionary[Node, str] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Canonical encoding plan of a node class: the fields compared, inferred and binding."""

    key: str
    names: tuple[str, ...]
    inferred: str
    binding: tuple[str, ...]
    is_variable: bool
    is_graph: bool

    def bound_variables(self, node: Node) -> Iterator[Node]:
        """Yield the variables that the node binds."""
        for name in self.binding:
            yield from nodes_in_field(getattr(node, name))
        if self.key in NESTED_BINDER_FIELDS:
            names, keys = NESTED_BINDER_FIELDS[self.key]
            yield from _nested_nodes(
                (n for name in names for n in nodes_in_field(getattr(node, name))), keys
            )


_plan_cache: dict[type, NodePlan] = {}


def node_plan(node: Node) -> NodePlan:
    """Return the (cached) encoding plan of the node's class."""
    plan = _plan_cache.get(type(node))
    if plan is None:
        key = node.type_key
        fields = [
            f
            for f in node_fields(node)
            if not f.metadata.get("ignored")
            and f.name not in (VARIABLE_NAME_FIELDS.get(key), LABEL_FIELDS.get(key))
        ]
        binding = tuple(f.name for f in fields if f.metadata.get("binding"))
        graph = isinstance(node, RelayExpr) and key not in SHARING_AGNOSTIC_TYPES
        inferred = INFERRED_FIELDS.get(key, "")
        names = tuple(f.name for f in fields if f.name != inferred)
        plan = NodePlan(key, names, inferred, binding, key in VARIABLE_NAME_FIELDS, graph)
        _plan_cache[type(node)] = plan
    return plan


def is_binding_scope(node: Node, plan: NodePlan, functions: Collection[Node]) -> bool:
    """Return whether a non-root node opens a variable scope: a PrimFunc, or a function of the
    module.
    """
    return plan.key in SCOPE_TYPE_KEYS or node in functions


def nodes_in_field(value: object) -> Iterator[Node]:
    """Yield the nodes in a field's value, flattening tuples and mappings."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from nodes_in_field(item)
    elif isinstance(value, Mapping):
        # Sorted, so that the order of insertion has no part in equality.
        for key in sorted(value, key=str):
            yield from nodes_in_field(value[key])


def _nested_nodes(roots: Iterable[Node], keys: frozenset[str]) -> Iterator[Node]:
    """Yield the nodes with the given type keys at any depth."""
    work, visited = list(roots), set[Node]()
    while work:
        node = work.pop()
        if node.type_key in keys:
            yield node
        for name in node_plan(node).names:
            inside = [n for n in nodes_in_field(getattr(node, name)) if n not in visited]
            visited.update(inside)
            work.extend(inside)


@dataclass(slots=True)
class _CanonicalForm:
    """Canonical form of one program: a list of rows, one per distinct node, in post order."""

    free_var_keys: FreeVars
    map_sizes: bool
    functions: frozenset[Node] = frozenset()
    """Functions of a module, each of which is a scope."""
    root: object = None
    """Root node of the rows, which is no scope within itself."""
    rows: list[CanonicalRow] = field(default_factory=list)
    row_of_node: dict[Node, int] = field(default_factory=dict)
    """Row number of each node."""
    interned_rows: dict[CanonicalRow, int] = field(default_factory=dict)
    """Number of each interned row, for nodes whose sharing is irrelevant."""
    bound_vars: set[Node] = field(default_factory=set)
    inferred: list[object] = field(default_factory=list)
    """Values of inferred fields, in row order; they are in no row."""
    free_vars: list[Node] = field(default_factory=list)
    """Free variables, in row order."""
    open_scopes: dict[Node, _CanonicalForm] = field(default_factory=dict)
    """Rows inside each scope whose own row is not written yet."""
    scopes: dict[int, _CanonicalForm] = field(default_factory=dict)
    """Rows inside each scope, by the scope's row number."""

    def write(self, root: object) -> CanonicalRow:
        """Append the rows of all nodes in `root`, and return the row of `root` itself."""
        # Each node is met twice: to put what is inside before it, and, when that has its rows, to
        # make its own. Linear in the distinct nodes, of which a chain x1 = f(x0, x0), x2 = f(x1,
        # x1), ... has few however long its text; and a stack of our own, since models are deeper
        # than Python recurses. Binders are seen on the way down, before the variables they bind.
        stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(list(nodes_in_field(root)))]
        numbers = self.row_of_node
        while stack:
            node, done = stack.pop()
            if node in numbers:
                continue
            plan = node_plan(node)
            if done:
                numbers[node] = self._append_row(node, plan)
                continue
            stack.append((node, True))
            inside = [n for n in self._prerequisite_nodes(node, plan) if n not in numbers]
            stack.extend((n, False) for n in reversed(inside))
        return ("root", self._encode_value(root))

    def _prerequisite_nodes(self, node: Node, plan: NodePlan) -> Iterable[Node]:
        """Return the nodes whose rows must precede the node's row: a scope's free variables, else
        its children.
        """
        if node is not self.root and is_binding_scope(node, plan, self.functions):
            form = canonical_form(node)
            # A scope's own rows count from 0: equal functions then have one digest wherever they
            # stand.
            scope = self.open_scopes[node] = _CanonicalForm("order", map_sizes=False, root=form)
            scope.rows.append(scope.write(form))
            return scope.free_vars
        self.bound_vars.update(plan.bound_variables(node))
        return [n for name in plan.names for n in nodes_in_field(getattr(node, name))]

    def _append_row(self, node: Node, plan: NodePlan) -> int:
        if node is not self.root and is_binding_scope(node, plan, self.functions):
            scope = self.open_scopes.pop(node)
            row: CanonicalRow = (
                plan.key,
                _hash_rows(scope.rows),
                self._encode_value(scope.free_vars),
            )
            number = self._intern_row(row)
            self.scopes.setdefault(number, scope)
            return number
        row = (plan.key, *(self._encode_value(getattr(node, name)) for name in plan.names))
        # No row holds it: it may be missing in one of two programs, and is compared apart.
        if plan.inferred:
            self.inferred.append(getattr(node, plan.inferred))
        if plan.is_variable:
            row = (*row, *self._encode_variable(node, plan.key))
        # Equal rows are one number, so that a type written twice and one that is shared compare
        # equal.
        elif not plan.is_graph or row == _UNIT_TUPLE_ROW:
            return self._intern_row(row)
        self.rows.append(row)
        return len(self.rows) - 1

    def _intern_row(self, row: CanonicalRow) -> int:
        """Return the number of a row, appending it only if no equal row exists."""
        number = self.interned_rows.setdefault(row, len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
        return number

    def _encode_variable(self, node: Node, key: str) -> CanonicalRow:
        is_mapped = node in self.bound_vars or (key == "tir.SizeVar" and self.map_sizes)
        if not is_mapped:
            self.free_vars.append(node)
        if is_mapped or self.free_var_keys == "order":
            return ("bound" if is_mapped else "free", len(self.rows))
        # A free variable under "identity": no variable but itself is equal.
        return ("is", id(node))

    def _encode_value(self, value: object) -> object:
        """Encode a field's value as strings, row numbers and nested tuples."""
        if isinstance(value, Node):
            return self.row_of_node[value]
        if isinstance(value, Enum):
            # By the name: numbers of enums may change between versions, digests are kept on disk.
            return f"e{value.name}"
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            # With the type's letter: True, 1 and 1.0 are different values here.
            return f"{type(value).__name__[0]}{value!r}"
        if isinstance(value, (tuple, list)):
            return ("(", *(self._encode_value(v) for v in value))
        if isinstance(value, Mapping):
            return ("{", *((str(k), self._encode_value(value[k])) for k in sorted(value, key=str)))
        if isinstance(value, (np.ndarray, np.generic)):
            return _encode_array(np.asarray(value))
        if isinstance(value, Object):
            return _RuntimeObjectKey(value)
        if getattr(type(value), "is_compared_by_text", False):
            return f"t{value}"
        raise TypeError(
            f"structural equality: a {type(value).__name__} has no structure: {value!r}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _RuntimeObjectKey:
    """Hashable wrapper of a runtime object, compared by structural equality."""

    value: Object

    def __eq__(self, rhs: object) -> bool:
        return isinstance(rhs, _RuntimeObjectKey) and runtime.structural_equal(
            self.value, rhs.value
        )

    def __hash__(self) -> int:
        return runtime.structural_hash(self.value)

    def __repr__(self) -> str:
        return f"{self.value.type_key}:{hash(self)}"


def _encode_array(value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> CanonicalRow:
    # The bytes decide: a NaN equals itself, and 0.0 is not -0.0.
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    digest = blake2b(content.data, digest_size=16).hexdigest()
    return (str(value.dtype), value.shape, digest)


def canonical_form(value: Node) -> Node:
    """Return a function in the form its class uses for comparison, without meaningless
    differences.
    """
    if not isinstance(value, BaseFunc):
        return value
    form = type(value).canonical_form
    return value if form is None else form(value)


def module_as_mapping(value: object) -> object:
    """Return a module as a mapping of its functions, types and attributes; a function in canonical
    form.
    """
    if isinstance(value, BaseFunc):
        return canonical_form(value)
    if not isinstance(value, IRModule):
        return value
    functions = {g.name_hint: f for g, f in value.functions.items()}
    types = {str(getattr(g, "name_hint", g)): d for g, d in value.type_definitions.items()}
    return {"functions": functions, "types": types, "attrs": value.attrs}


def _canonicalize(value: object, free: FreeVars) -> _CanonicalForm:
    """Build the canonical form of a value; its last row is the root."""
    map_sizes = free == "order" or isinstance(value, (IRModule, BaseFunc))
    functions = frozenset(value.functions.values() if isinstance(value, IRModule) else ())
    opened = module_as_mapping(value)
    form = _CanonicalForm(free, map_sizes, functions, root=opened)
    form.rows.append(form.write(opened))
    return form


def _hash_rows(rows: Iterable[CanonicalRow]) -> str:
    """Return the 128-bit hex digest of the rows."""
    state = blake2b(digest_size=16)
    for row in rows:
        # repr of tuples of strings and numbers is the same in every process; hash() is not.
        state.update(repr(row).encode())
    return state.hexdigest()


def _equal_inferred_fields(mine: _CanonicalForm, theirs: _CanonicalForm) -> bool:
    """Return whether inferred fields are equal where both programs state them.

    Equal rows hold equal calls in the same order, so that their type arguments pair up. They are
    compared where both programs have them, under the numbers that the rows have given to variables.
    """
    # Only where both sides have one: a program without types equals its typed form.
    written = [p for p in zip(mine.inferred, theirs.inferred, strict=True) if all(p)]
    # Writing them adds rows, which must be the same too.
    if not all(mine.write(x) == theirs.write(y) for x, y in written) or mine.rows != theirs.rows:
        return False
    return all(
        _equal_inferred_fields(scope, theirs.scopes[position])
        for position, scope in mine.scopes.items()
    )


def structural_equal(a: object, b: object, map_free_vars: bool = False) -> bool:
    """Return whether two nodes, modules, arrays or containers are structurally equal.

    Free variables must be the same objects unless `map_free_vars`. Named dimensions are free in a
    type or an expression, but bound in a function or module. A call that leaves out its type
    arguments means the same as with those that inference finds. A Python number means the constant
    of the other side's dtype.
    """
    if a is b:
        return True
    a, b = _promote_number(a, b), _promote_number(b, a)
    free: FreeVars = "order" if map_free_vars else "identity"
    left_form, right_form = _canonicalize(a, free), _canonicalize(b, free)
    return left_form.rows == right_form.rows and _equal_inferred_fields(left_form, right_form)


def _promote_number(value: object, beside: object) -> object:
    """Convert a Python number to a constant of the dtype of the expression it is compared with."""
    if not isinstance(value, (bool, int, float)):
        return value
    dtype = beside.dtype if isinstance(beside, PrimExpr) else None
    # 1.5 beside an integer stays a float: cut to 1 it would be equal to it.
    is_cut = isinstance(value, float) and dtype is not None and not is_float(dtype)
    return const(value, None if is_cut else dtype)


def structural_digest(a: object) -> str:
    """Return the 128-bit structural digest in hex, stable across processes; cached for
    functions.
    """
    # Functions are immutable, and asked for again by every cache.
    if isinstance(a, BaseFunc) and (remembered := _digest_cache.get(a)) is not None:
        return remembered
    digest = _hash_rows(_canonicalize(a, "order").rows)
    if isinstance(a, BaseFunc):
        _digest_cache[a] = digest
    return digest


def structural_hash(a: object, map_free_vars: bool = False) -> int:
    """Return the 64-bit structural hash, consistent with `structural_equal` under the same
    argument.

    Those of something without free variables are the first of `structural_digest`.
    """
    rows = _canonicalize(a, "order" if map_free_vars else "identity").rows
    # Without free variables both modes have equal rows, and the digest of a function is remembered.
    if not any(len(row) > 2 and row[-2] == "is" for row in rows):
        return int(structural_digest(a)[:16], 16)
    state = blake2b(repr(rows).encode(), digest_size=8)
    return int(state.hexdigest(), 16)


def structural_key(a: object) -> Hashable:
    """Return a dictionary key that is equal exactly for structurally equal values.

    Type arguments are left alone. Free variables are themselves; the digests of `n` and `m` are the
    same. It holds as long as the variables inside are alive.
    """
    return tuple(_canonicalize(a, "identity").rows)


def _signed_structural_hash(a: object, map_free_vars: bool = False) -> int:
    """Return the structural hash as a signed 64-bit integer for the FFI."""
    return int.from_bytes(structural_hash(a, map_free_vars).to_bytes(8), signed=True)


register_func("node.StructuralEqual", structural_equal, override=True)
register_func("node.StructuralHash", _signed_structural_hash, override=True)

__all__ = [
    "canonical_form",
    "is_binding_scope",
    "module_as_mapping",
    "node_plan",
    "structural_digest",
    "structural_equal",
    "structural_hash",
    "structural_key",
]
