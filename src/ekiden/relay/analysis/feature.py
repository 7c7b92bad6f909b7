"""Language features used by a program."""

from __future__ import annotations

from enum import IntEnum

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, Let
from ekiden.relay.visitor import ATOM_CLASSES, CHILD_GETTERS, free_vars, post_order

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
        if (
            isinstance(expr, Let)
            and isinstance(expr.value, Function)
            and expr.var in free_vars(expr.value)
        ):
            features.add(Feature.fLetRec)
    return features
