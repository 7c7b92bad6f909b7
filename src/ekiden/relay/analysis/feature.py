"""Language features used by a program."""

from __future__ import annotations

from enum import IntEnum

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, Let, Var
from ekiden.relay.visitor import (
    ATOM_CLASSES,
    CHILD_GETTERS,
    children,
    post_order,
    vars_bound_by,
)

Feature = IntEnum(
    "Feature",
    "fVar fGlobalVar fConstant fTuple fTupleGetItem fFunction fOp fCall fLet fIf"
    " fRefCreate fRefRead fRefWrite fConstructor fMatch fGraph fLetRec",
    start=0,
)
"""Language features (TVM's names and numbers), one per expression class; fGraph: an expression that
is no atom has several uses; fLetRec: a function uses its own let variable.

fGraph: an expression that is no atom is used twice. fLetRec: a function uses the variable that it
is bound to.
"""
_FEATURE_BY_CLASS = {kind: Feature[f"f{kind.__name__}"] for kind in CHILD_GETTERS}


def detect_feature(
    a: Expr | IRModule | None, b: Expr | IRModule | None = None
) -> frozenset[Feature]:
    """Return the features used by an expression, a module's functions, or both."""
    roots: list[Expr] = []
    for value in (a, b):
        if isinstance(value, IRModule):
            roots += [f for f in value.functions.values() if isinstance(f, Function)]
        elif value is not None:
            roots.append(value)
    return frozenset(feature for root in roots for feature in _expr_features(root))


def _expr_features(root: Expr) -> set[Feature]:
    features: set[Feature] = set()
    used: set[Expr] = set()
    for expr in post_order(root, into_functions=True):
        features.add(_FEATURE_BY_CLASS[type(expr)])
        for child in CHILD_GETTERS[type(expr)](expr):
            if child in used:
                features.add(Feature.fGraph)
            elif not isinstance(child, ATOM_CLASSES):
                used.add(child)
    if Feature.fLet in features and _has_recursive_function(root):
        features.add(Feature.fLetRec)
    return features


def _has_recursive_function(root: Expr) -> bool:
    """Return whether a let-bound function uses its own variable."""
    open_vars: set[Expr] = set()
    """Variables whose function values are being walked."""
    visited: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        expr, is_end = stack.pop()
        if is_end:
            open_vars.discard(expr)
        elif isinstance(expr, Var):
            if expr in open_vars:
                return True
        elif expr not in visited:
            visited.add(expr)
            if isinstance(expr, Let):
                # The value before the body, so that what they share is walked within the value.
                stack.append((expr.body, False))
                if isinstance(expr.value, Function):
                    open_vars.add(expr.var)
                    stack.append((expr.var, True))
                stack.append((expr.value, False))
            else:
                bound = vars_bound_by(expr)
                stack += [(child, False) for child in children(expr) if child not in bound]
    return False
