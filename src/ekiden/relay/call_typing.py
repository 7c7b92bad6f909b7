"""Typing of calls: operator relations, and instantiation of polymorphic callees."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ekiden.ir.dtype import SCALAR_BITS
from ekiden.ir.expr import GlobalVar
from ekiden.ir.expr_text import format_shape, format_type
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, Op, OpDef, identity_relation
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.type import FuncType, IncompleteType, TensorType, TupleType, Type
from ekiden.relay.analysis.kind_checking import check_kind
from ekiden.relay.expr import Call, Constructor, Expr, Var
from ekiden.relay.op._declare import call_shape_rule
from ekiden.relay.unify import MismatchError, Unifier, match_dims, size_vars, substitute_dims
from ekiden.relay.visitor import has_holes
from ekiden.runtime.errors import TypeInferenceError

Unify = Callable[[Type, Type], Type]
"""Function that unifies two types, or raises MismatchError."""


class CallTypeRules:
    """Types inferred so far, and the typing rule of calls."""

    def __init__(self, module: IRModule, knows_types: bool = True) -> None:
        self.module = module
        self.kinds_module = module if knows_types else None
        self.unifier = Unifier()
        self.types: dict[Expr, Type] = {}
        self.type_args: dict[Call, tuple[Type, ...]] = {}
        """Inferred type arguments of calls that omit them."""
        self.rigid: set[SizeVar] = set()
        """Named dimensions of the function being inferred, which its callees may not instantiate.
        """

    def type_of(self, expr: Expr) -> Type:
        """Return the inferred type of an expression, with its top-level hole followed."""
        kind = self.types[expr]
        return self.unifier.follow_holes(kind) if type(kind) is IncompleteType else kind

    def _check_written_type(self, kind: Type, at: Expr, what: str) -> Type:
        """Check the kind of a type annotation, and return it."""
        if type(kind) is TensorType:
            return kind
        try:
            check_kind(kind, self.kinds_module)
        except TypeInferenceError as error:
            self.raise_error(at, f"{what}: {error}")
        if has_holes(kind):
            self.unifier.has_holes = True
        return kind

    def type_call(self, expr: Call) -> Type | None:
        """Infer the type of a call by its operator's relation or its callee's instantiated type."""
        if isinstance(expr.op, Op):
            return self._type_operator_call(expr, expr.op.name)
        callee = self.type_of(expr.op)
        if isinstance(callee, FuncType):
            return self._type_application(expr, callee)
        if not isinstance(callee, IncompleteType):
            self.raise_error(
                expr,
                f"call of {self._callee_name(expr.op)}: expected a function, "
                f"got {self.format_type(callee)}",
            )
        result = self.unifier.fresh_hole()
        self._unify_or_fail(
            callee,
            FuncType(tuple(map(self.type_of, expr.args)), result),
            expr,
            f"call of {self._callee_name(expr.op)}",
        )
        return result

    def _type_operator_call(self, expr: Call, name: str) -> Type | None:
        definition = OPS.get(name)
        if definition is None:
            self.raise_error(expr, f"{name}: no such operator")
        arity = len(definition.arguments)
        if not arity - definition.optional <= len(expr.args) <= arity:
            names = ", ".join(definition.arguments)
            self.raise_error(
                expr,
                f"{name}: expected {format_count(len(definition.arguments), 'argument')} "
                f"({names}), got {len(expr.args)}",
            )
        kinds = [self.type_of(a) for a in expr.args]
        if self.unifier.has_holes:
            kinds = [self.unifier.resolve(k) for k in kinds]
            # Types that the arguments leave open may follow from the others.
            if any(map(self.unifier.is_open, kinds)):
                kinds = self._solve_arguments(expr, definition, kinds)
            if any(map(self.unifier.is_open, kinds)):
                # The result of an identity relation is known even while its argument is open.
                return kinds[0] if definition.relation is identity_relation else None
        try:
            if expr.attrs is not None:
                # Before the relation, which may divide by an attribute or use it as an extent.
                call_shape_rule(name, expr.attrs.check)
            result = definition.relation(kinds, expr.attrs)
            _check_result_type(name, result)
            return result
        except TypeInferenceError as error:
            raise TypeInferenceError(f"{error}{_span_suffix(expr)}", expr.span) from None
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            raise TypeInferenceError(
                f"{name}: the attributes {expr.attrs!r} do not go with the arguments"
                f" ({type(error).__name__}: {error}){_span_suffix(expr)}",
                expr.span,
            ) from error

    def _solve_arguments(self, expr: Call, definition: OpDef, kinds: list[Type]) -> list[Type]:
        """Return the argument types with holes solved from attributes and other arguments."""
        if definition.solve is None:
            return kinds
        partial = [None if isinstance(k, IncompleteType) else k for k in kinds]
        solution = definition.solve(partial, expr.attrs)
        for name, kind, solved in zip(definition.arguments, kinds, solution, strict=True):
            if isinstance(kind, IncompleteType) and solved is not None:
                self._unify_or_fail(kind, solved, expr, f"{definition.name}: {name}")
        return [self.unifier.resolve(k) for k in kinds]

    def _type_application(self, expr: Call, callee: FuncType) -> Type:
        name = self._callee_name(expr.op)
        if len(callee.arg_types) != len(expr.args):
            self.raise_error(
                expr,
                f"call of {name}: expected {format_count(len(callee.arg_types), 'argument')},"
                f" got {len(expr.args)}",
            )
        one = self._instantiate_callee(expr, callee, name)
        kinds = [self.unifier.resolve(self.type_of(a)) for a in expr.args]
        dims = self._infer_dims(expr, one, kinds)
        for number, (param, kind) in enumerate(zip(one.arg_types, kinds, strict=True)):
            self._unify_or_fail(
                substitute_dims(param, dims), kind, expr, f"call of {name}: argument {number}"
            )
        return substitute_dims(one.ret_type, dims)

    def _instantiate_callee(self, expr: Call, callee: FuncType, name: str) -> FuncType:
        """Instantiate a polymorphic callee's type for this call."""
        args = expr.type_args or tuple(self.unifier.fresh_hole() for _ in callee.type_params)
        if len(args) != len(callee.type_params):
            expected = format_count(len(callee.type_params), "type argument")
            self.raise_error(expr, f"call of {name}: expected {expected}, got {len(args)}")
        for number, kind in enumerate(expr.type_args):
            self._check_written_type(kind, expr, f"call of {name}: type argument {number}")
        # Noted, so that the arguments can be written into the call once they are known.
        if args and not expr.type_args:
            self.type_args[expr] = args
        return self.unifier.instantiate(callee, args)

    def _infer_dims(
        self, expr: Call, callee: FuncType, kinds: list[Type]
    ) -> dict[PrimVar, PrimExpr]:
        """Infer the values of the callee's symbolic dimensions for this call.

        The first argument that shows a dimension decides it, all others must agree. A function
        value defined inside of another shares the names of that, which it may not choose.
        """
        dims: dict[PrimVar, PrimExpr] = {}
        flexible = set(size_vars(callee.arg_types))
        # A local function shares the dimensions of the function around it.
        if not isinstance(expr.op, GlobalVar):
            flexible -= self.rigid
        if flexible:
            for param, kind in zip(callee.arg_types, kinds, strict=True):
                match_dims(param, kind, flexible, dims)
        return {v: d for v, d in dims.items() if v is not d}

    def _unify_or_fail(
        self, expected: Type, actual: Type, at: Expr, what: str, how: Unify | None = None
    ) -> Type:
        try:
            # The expected type first, as messages name it first.
            return (how or self.unifier.unify)(expected, actual)
        except MismatchError as error:
            reason = f" ({error})" if str(error) else ""
        self.raise_error(
            at,
            f"{what}: expected {self.format_type(expected)}, "
            f"got {self.format_type(actual)}{reason}",
        )

    def raise_error(self, at: Expr, message: str) -> NoReturn:
        """Raise TypeInferenceError with the position of an expression."""
        raise TypeInferenceError(message + _span_suffix(at), at.span)

    def format_type(self, kind: Type) -> str:
        """Format a type for messages."""
        return format_type(self.unifier.resolve(kind))

    def _callee_name(self, expr: Expr) -> str:
        match expr:
            case Var(name_hint=name):
                return f"%{name}"
            case GlobalVar(name_hint=name):
                return f"@{name}"
            case Constructor(name_hint=name):
                return name
            case _:
                return f"a {type(expr).__name__.lower()}"


def format_count(number: int, what: str) -> str:
    """Format a quantity: "1 argument", "2 arguments"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _check_result_type(name: str, result: Type) -> None:
    """Raise TypeInferenceError for an invalid result type."""
    for kind in result.fields if isinstance(result, TupleType) else (result,):
        if not isinstance(kind, TensorType):
            continue
        if kind.dtype not in SCALAR_BITS:
            raise TypeInferenceError(f"{name}: the result cannot have dtype {kind.dtype!r}")
        # A relation that subtracts may fall below 0; TensorType only sees constants.
        if any(isinstance(d, IntImm) and d.value < 0 for d in kind.shape):
            shape = format_shape(kind.shape)
            raise TypeInferenceError(f"{name}: the result cannot have shape {shape}")


def _span_suffix(expr: Expr) -> str:
    return f", at {expr.span}" if expr.span is not None else ""
