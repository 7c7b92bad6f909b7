"""Type inference by unification and operator relations.

One walk in the order of evaluation gives each expression its type. An operator whose argument types
are still open waits in a queue until they are solved. Expressions that have a checked type keep it,
so that inference after a pass costs what the pass changed.

    Gamma |- f : fn (A1, .., An) -> B,  Gamma |- xi : Ai      =>  f(x1, .., xn) : B
    relation of op ((A1, .., An), attrs) = B                  =>  op(x1, .., xn) : B

Types are unified as in Hindley and Milner's system, without generalising at let: type parameters
are written. A hole stands for what is not known yet; `Unifier.solved` maps it to a type, and the
types of expressions are resolved once, at the end. Recursion goes through the signature: a function
that has none in full gets one with holes before its body is looked at, and callees come before
callers, so that in most programs nothing waits.

Dimensions are integers, expressions on names, or `?`. A function's own names are rigid while its
body is inferred; in a call of it they are what the arguments have. Where two compound expressions
cannot be decided to be equal, the first counts and the run checks: inference is sound only with
those checks.

Linear in expressions and in the size of types; each retry of what waits is a pass over the queue,
and ends when one solves nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ekiden._lazy import LazyModule
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node
from ekiden.ir.op import Op
from ekiden.ir.prim import const
from ekiden.ir.type import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
)
from ekiden.relay.adjoint_type import type_definition
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.annotate_types import annotate_types
from ekiden.relay.call_typing import CallTypeRules, format_count
from ekiden.relay.expr import (
    Call,
    Clause,
    Constant,
    Constructor,
    Expr,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.unify import size_vars
from ekiden.relay.visitor import CHILD_GETTERS, has_holes
from ekiden.tir.stmt import PrimFunc

if TYPE_CHECKING:
    import ekiden.relay.analysis.well_formedness as well_formedness
    import ekiden.relay.op.prim_func_call as lowered
else:
    well_formedness = LazyModule("ekiden.relay.analysis.well_formedness")
    lowered = LazyModule("ekiden.relay.op.prim_func_call")

_UNIT_TYPE = TupleType(())
_BOOL_SCALAR_TYPE = TensorType((), "bool")

Step = Expr | tuple[Callable[[Expr], None], Expr]
"""Work item: an expression to open, or an action on one whose children are inferred."""


def infer_type(module: IRModule, annotate: bool = True) -> IRModule:
    """Infer the types of all expressions of a module's Relay functions.

    Args:
        module: The module.
        annotate: Fill in types of parameters and results.

    Returns:
        The module with the types that it leaves out, such as type arguments of calls; the module
        itself if there are none.

    Raises:
        TypeInferenceError: Types do not fit; the message has the position and both types.
    """
    # Passes infer types before and after each other: an unchanged module costs a look-up.
    if annotate and _is_already_inferred(module):
        return module
    run = _TypeInferencer(module)
    for name in _callee_order(module):
        run.infer_function(name)
    run.write_types()
    filled = _with_standard_types(
        annotate_types(module, run.type_args, annotate), run.standard_types
    )
    if annotate:
        # A new object for each run, so that functions of two runs never count as one.
        together = len(filled.functions), object()
        _inferred.update((f, (g, together)) for g, f in filled.functions.items())
    return filled


def _with_standard_types(module: IRModule, data: Mapping[GlobalTypeVar, Node]) -> IRModule:
    """Return the module with definitions of the standard types it uses."""
    if not data:
        return module
    named: dict[GlobalVar | str, BaseFunc] = dict(module.functions.items())
    return IRModule(named, {**data, **module.type_definitions}, module.attrs)


_inferred: weakref.WeakKeyDictionary[BaseFunc, tuple[GlobalVar, object]] = (
    weakref.WeakKeyDictionary()
)
"""Functions with known inference: name, and a token shared by functions inferred together."""


def _is_already_inferred(module: IRModule) -> bool:
    """Return whether exactly these functions were inferred together before.

    The mark is of the full module: one function of it in another module may be called with
    different types, or call a function that is not present.
    """
    marks = [_inferred.get(f, (None, None)) for f in module.functions.values()]
    # A function inferred with other callees may have another type.
    named = all(g is name for g, (name, _) in zip(module.functions, marks, strict=True))
    together = {mark for _, mark in marks}
    if not named or len(together) != 1:
        return False
    mark = together.pop()
    return isinstance(mark, tuple) and mark[0] == len(marks)


def infer_expr_type(expr: Expr, module: IRModule | None = None) -> Type:
    """Infer the type of an expression whose free variables are typed.

    Checked types are set on the way.
    """
    run = _TypeInferencer(module or IRModule(), knows_types=module is not None)
    run.infer_subexpressions(expr, into_typed=False)
    run.write_types()
    return expr.checked_type


def _callee_order(module: IRModule) -> list[GlobalVar]:
    """Return the Relay functions with callees before callers, except within cycles."""
    functions = {g: f for g, f in module.functions.items() if isinstance(f, Function)}
    # With all signatures written, the order does not matter.
    if len(functions) < 2 or all(_annotated_signature(f) is not None for f in functions.values()):
        return list(functions)
    groups = CallGraph(module).components()
    return [g for group in groups for g in group if g in functions]


def _annotated_signature(function: Function) -> FuncType | None:
    """Return the type of a fully annotated function, or None."""
    kinds = [p.type_annotation for p in function.params]
    written = [*kinds, function.ret_type]
    if any(k is None or has_holes(k) for k in written):
        return None
    assert function.ret_type is not None
    return FuncType(
        tuple(k for k in kinds if k is not None), function.ret_type, function.type_params
    )


class _TypeInferencer(CallTypeRules):
    """State of type inference over one module."""

    def __init__(self, module: IRModule, knows_types: bool = True) -> None:
        """Set up inference over a module; `knows_types` if it defines every data type that
        is used.
        """
        super().__init__(module, knows_types)
        self.standard_types: dict[GlobalTypeVar, Node] = {}
        """Standard data types used but not defined by the module."""
        self.deferred_exprs: list[Expr] = []
        self.current_function: GlobalVar | None = None

    # Walking

    def infer_function(self, name: GlobalVar) -> None:
        """Infer one global function."""
        function = self.module[name]
        assert isinstance(function, Function)
        self.current_function = name
        self.rigid = set(
            size_vars(p.type_annotation for p in function.params if p.type_annotation is not None)
        )
        self._type_of_global(name)
        self.infer_subexpressions(function)
        # What the signature of this function does not decide may be solved by its callers.
        self._solve_deferred()
        what = f"the type of @{name.name_hint}, as it is called"
        self._unify_or_fail(self.types[name], self.type_of(function), function, what)
        self.types[name] = self.unifier.resolve(self.type_of(function))

    def infer_subexpressions(self, root: Expr, into_typed: bool = True) -> None:
        """Infer the types below root iteratively; typed expressions may be skipped.

        The stack holds expressions to open and actions to take when their children are done. A
        shared expression is opened once; `opened` has it before its type is known, which matters
        for a function that a let binds and that names its own variable.
        """
        stack: list[Step] = [root]
        types = self.types
        atoms = _ATOM_RULES
        opened: set[Expr] = set()
        while stack:
            step = stack.pop()
            if isinstance(step, tuple):
                step[0](step[1])
                continue
            if step in types or step in opened:
                continue
            atom = atoms.get(type(step))
            if atom is not None:
                types[step] = atom(self, step)
                continue
            checked = None if into_typed else step.checked_type_or_none()
            if checked is not None:
                types[step] = checked
                continue
            # Before its parts: a recursive function meets itself there.
            opened.add(step)
            self._open_expr(step, stack)

    def _open_expr(self, expr: Expr, stack: list[Step]) -> None:
        match expr:
            case Let():
                self._check_no_operator_values(expr, (expr.value, expr.body))
                self._declare_let_var(expr)
                # The last is taken first: the value, the variable, the body, the let.
                stack += ((self._close_let, expr), expr.body, (self._bind_let, expr), expr.value)
            case Match():
                stack.append((self._close_expr, expr))
                for clause in reversed(expr.clauses):
                    stack.append(clause.rhs)
                stack += ((self._bind_patterns, expr), expr.data)
            case _ if type(expr) in _TYPING_RULES:
                stack.append((self._close_expr, expr))
                subexprs = CHILD_GETTERS[type(expr)](expr)
                self._check_no_operator_values(expr, subexprs)
                stack.extend(reversed(subexprs))
            case _:
                self.raise_error(expr, f"a {type(expr).__name__} is not a Relay expression")

    def _check_no_operator_values(self, expr: Expr, subexprs: Sequence[Expr]) -> None:
        """Raise an error for operators in value position: they have relations, not types."""
        for subexpr in subexprs:
            # Operators are overloaded by relations: no function type describes one.
            if type(subexpr) is Op and not (type(expr) is Call and subexpr is expr.op):
                names = ", ".join(f"%{name}" for name in subexpr.definition.arguments)
                self.raise_error(
                    expr,
                    f"operator {subexpr.name}: expected a call of it, got the operator as a value;"
                    f" write fn ({names}) {{ {subexpr.name}({names}) }}",
                )

    def _close_expr(self, expr: Expr) -> None:
        checked = expr.checked_type_or_none()
        if checked is not None:
            self.types[expr] = checked
            # It has a type, but its type arguments are still to be found.
            if type(expr) is Call and self._omits_type_args(expr):
                self._unify_or_fail(checked, self.type_call(expr) or checked, expr, "the result")
            return
        inferred = _TYPING_RULES[type(expr)](self, expr)
        if inferred is None:
            self.deferred_exprs.append(expr)
            inferred = self.unifier.fresh_hole()
        self.types[expr] = inferred

    def _omits_type_args(self, call: Call) -> bool:
        callee = self.type_of(call.op)
        return isinstance(callee, FuncType) and len(callee.type_params) > len(call.type_args)

    def _close_let(self, let: Expr) -> None:
        assert isinstance(let, Let)
        self.types[let] = self.type_of(let.body)

    # Names

    def type_of_var(self, var: Expr) -> Type:
        """Return a variable's annotation, its inferred type, or a fresh hole."""
        assert isinstance(var, Var)
        annotation = var.type_annotation
        if annotation is None:
            return var.checked_type_or_none() or self.unifier.fresh_hole()
        return self._check_written_type(annotation, var, f"the type of %{var.name_hint}")

    def _declare_let_var(self, let: Let) -> None:
        """Declare the type of a let variable before its value, for recursive functions."""
        if let.var.type_annotation is not None:
            self.types[let.var] = self.type_of_var(let.var)
        elif isinstance(let.value, Function):
            # Before its value is inferred: recursive calls see what is known so far.
            self.types[let.var] = self._signature_with_holes(let.value)

    def _signature_with_holes(self, function: Function) -> FuncType:
        signature = _annotated_signature(function)
        if signature is not None:
            return signature
        for p in function.params:
            if p not in self.types:
                self.types[p] = self.type_of_var(p)
        ret = function.ret_type if function.ret_type is not None else self.unifier.fresh_hole()
        self._check_written_type(ret, function, self._result_description(function))
        return FuncType(tuple(self.types[p] for p in function.params), ret, function.type_params)

    def _bind_let(self, let: Expr) -> None:
        assert isinstance(let, Let)
        value = self.type_of(let.value)
        if let.var in self.types:
            what = f"the value of %{let.var.name_hint}"
            # An annotation wins over the inferred type, which may be more specific.
            merged = self._unify_or_fail(self.types[let.var], value, let, what)
            self.types[let.var] = merged if let.var.type_annotation is None else self.types[let.var]
        else:
            self.types[let.var] = value

    def _type_of_global(self, name: Expr) -> Type:
        assert isinstance(name, GlobalVar)
        if name not in self.types:
            self.types[name] = self._global_type(name)
        return self.types[name]

    def _global_type(self, name: GlobalVar) -> Type:
        function: BaseFunc | None = self.module.functions.get(name)
        if function is None:
            checked = name.checked_type_or_none()
            if checked is None:
                self.raise_error(name, f"@{name.name_hint} is not a function of the module")
            return checked
        if isinstance(function, Function):
            return self._signature_with_holes(function)
        assert isinstance(function, PrimFunc), "the kinds of functions are two"
        # The loop program's type takes its name for messages.
        return lowered.relay_function_type(function.with_attr("global_symbol", name.name_hint))

    def type_of_constructor(self, constructor: Expr) -> Type:
        """Return the polymorphic function type of a constructor, also of one without fields."""
        assert isinstance(constructor, Constructor)
        header = constructor.belong_to
        data = type_definition(self.module, header)
        if data is None:
            self.raise_error(
                constructor, f"{constructor.name_hint}: the module has no type {header.name_hint}"
            )
        if header not in self.module.type_definitions:
            self.standard_types[header] = data
        return FuncType(constructor.inputs, TypeCall(header, data.type_vars), data.type_vars)

    def type_of_constant(self, constant: Expr) -> Type:
        """Return the tensor type of a constant."""
        assert isinstance(constant, Constant)
        checked = constant.checked_type_or_none()
        if checked is not None:
            return checked
        return TensorType(tuple(const(d) for d in constant.data.shape), str(constant.data.dtype))

    def type_of_op(self, op: Expr) -> Type:
        """Return the unit type, since operators have relations, not types."""
        return op.checked_type_or_none() or _UNIT_TYPE

    # One rule per expression: its type, or None to wait for open arguments

    def type_of_tuple(self, expr: Tuple) -> Type:
        """Return the type of a tuple: `(a, b): (A, B)`."""
        return TupleType(tuple(map(self.type_of, expr.fields)))

    def type_of_projection(self, expr: TupleGetItem) -> Type | None:
        """Return the type of a projection: `(a, b).0: A`."""
        kind = self.type_of(expr.tuple_value)
        if isinstance(kind, IncompleteType):
            return None
        if not isinstance(kind, TupleType):
            self.raise_error(
                expr, f"field {expr.index}: expected a tuple, got {self.format_type(kind)}"
            )
        if not 0 <= expr.index < len(kind.fields):
            self.raise_error(
                expr,
                f"field {expr.index}: expected one of the {len(kind.fields)} fields of a tuple,"
                f" got {self.format_type(kind)}",
            )
        return kind.fields[expr.index]

    def type_of_if(self, expr: If) -> Type:
        """Return the common type of both branches."""
        self._unify_or_fail(_BOOL_SCALAR_TYPE, self.type_of(expr.cond), expr, "if: the condition")
        what = "if: the else branch, beside the other"
        branches = self.type_of(expr.true_branch), self.type_of(expr.false_branch)
        # Joined, not unified: branches of different sizes have an unknown one together.
        return self._unify_or_fail(*branches, expr, what, self.unifier.join)

    def type_of_function(self, expr: Function) -> Type:
        """Return the type of a function: `fn (x: A) { b: B }: fn (A) -> B`."""
        ret = self.type_of(expr.body)
        if expr.ret_type is not None:
            what = self._result_description(expr)
            merged = self._unify_or_fail(
                self._check_written_type(expr.ret_type, expr, what), ret, expr, what
            )
            # A type written in full stays as it is written, with its names.
            ret = merged if has_holes(expr.ret_type) else expr.ret_type
        return FuncType(tuple(map(self.type_of, expr.params)), ret, expr.type_params)

    def _result_description(self, function: Function) -> str:
        at = self.current_function
        is_global = at is not None and self.module.functions[at] is function
        return f"the result of @{at.name_hint}" if at and is_global else "the result of a function"

    def type_of_ref_create(self, expr: RefCreate) -> Type:
        """Return the type of a new reference: `ref(a): ref(A)`."""
        return RelayRefType(self.type_of(expr.value))

    def type_of_ref_read(self, expr: RefRead) -> Type:
        """Return the type of the value in a reference: `ref_read(r): A`."""
        return self._referent_type(expr, expr.ref)

    def type_of_ref_write(self, expr: RefWrite) -> Type:
        """Return the unit type: `ref_write(r, a): ()`."""
        self._unify_or_fail(
            self._referent_type(expr, expr.ref),
            self.type_of(expr.value),
            expr,
            "ref_write: the value",
        )
        return _UNIT_TYPE

    def _referent_type(self, expr: Expr, ref: Expr) -> Type:
        kind = self.type_of(ref)
        if isinstance(kind, RelayRefType):
            return kind.value
        # A cell of what is not known yet.
        value = self.unifier.fresh_hole()
        name = "ref_read" if isinstance(expr, RefRead) else "ref_write"
        self._unify_or_fail(RelayRefType(value), kind, expr, f"{name}: the cell")
        return value

    def type_of_match(self, expr: Match) -> Type:
        """Return the common type of all clauses, after checking exhaustiveness."""
        missing = well_formedness.find_match_error(expr, self.module)
        if missing is not None:
            self.raise_error(
                expr, f"{missing}; add them, or write match? to have it checked at run time"
            )
        joint: Type = self.unifier.fresh_hole()
        for number, clause in enumerate(expr.clauses):
            what = f"match: clause {number}, beside the first"
            joint = self._unify_or_fail(
                joint, self.type_of(clause.rhs), expr, what, self.unifier.join
            )
        return joint

    def _bind_patterns(self, expr: Expr) -> None:
        assert isinstance(expr, Match)
        for clause in expr.clauses:
            self._bind_pattern(expr, clause, clause.lhs, self.type_of(expr.data))

    def _bind_pattern(self, at: Match, clause: Clause, pattern: Pattern, kind: Type) -> None:
        match pattern:
            case PatternVar(var=var):
                what = f"match: pattern %{var.name_hint}"
                declared = self.type_of_var(var)
                merged = self._unify_or_fail(declared, kind, at, what)
                self.types[var] = merged if var.type_annotation is None else declared
            case PatternTuple(patterns=inner):
                fields = tuple(self.unifier.fresh_hole() for _ in inner)
                self._unify_or_fail(TupleType(fields), kind, at, "match: a tuple pattern")
                self._bind_subpatterns(at, clause, inner, fields)
            case PatternConstructor(constructor=constructor, patterns=inner):
                constructor_type = self.type_of_constructor(constructor)
                assert isinstance(constructor_type, FuncType)
                holes = tuple(self.unifier.fresh_hole() for _ in constructor_type.type_params)
                # The constructor's type parameters are chosen anew in each pattern.
                one = self.unifier.instantiate(constructor_type, holes)
                if len(inner) != len(one.arg_types):
                    expected = format_count(len(one.arg_types), "pattern")
                    what = f"match: pattern {constructor.name_hint}"
                    self.raise_error(at, f"{what}: expected {expected} inside, got {len(inner)}")
                self._unify_or_fail(
                    one.ret_type, kind, at, f"match: pattern {constructor.name_hint}"
                )
                self._bind_subpatterns(at, clause, inner, one.arg_types)

    def _bind_subpatterns(
        self, at: Match, clause: Clause, inner: tuple[Pattern, ...], kinds: tuple[Type, ...]
    ) -> None:
        for pattern, kind in zip(inner, kinds, strict=True):
            self._bind_pattern(at, clause, pattern, kind)

    # Ends

    def _solve_deferred(self) -> None:
        """Retry deferred expressions in order until a fixed point."""
        while self.deferred_exprs:
            before, self.deferred_exprs = self.deferred_exprs, []
            # Relations may need types that only later expressions determine.
            for expr in before:
                inferred = _TYPING_RULES[type(expr)](self, expr)
                if inferred is None:
                    self.deferred_exprs.append(expr)
                else:
                    self._unify_or_fail(self.types[expr], inferred, expr, "the result")
            # A round without progress: the rest stays open.
            if len(self.deferred_exprs) == len(before):
                return

    def write_types(self) -> None:
        """Write the inferred types to the expressions.

        Raises:
            TypeInferenceError: A type is still unknown.
        """
        self._solve_deferred()
        resolve, holes = self.unifier.resolve, self.unifier.has_holes
        # Expressions share types: each is resolved once. `self.types` keeps them alive.
        resolved_types: dict[int, Type] = {}
        for expr, kind in self.types.items():
            if holes:
                resolved = resolved_types.get(id(kind))
                if resolved is None:
                    resolved = resolve(kind)
                    if has_holes(resolved):
                        self._raise_unsolved(expr, resolved)
                    resolved_types[id(kind)] = resolved
                kind = resolved
            # Setting equal types again would touch every expression of the module.
            if expr.checked_type_or_none() is not kind:
                expr.set_checked_type(kind)
        self.type_args = {c: tuple(map(resolve, args)) for c, args in self.type_args.items()}

    def _raise_unsolved(self, expr: Expr, kind: Type) -> NoReturn:
        # An unannotated variable is the best place to point at.
        for candidate in self.types:
            if (
                isinstance(candidate, Var)
                and candidate.type_annotation is None
                and self.unifier.is_open(self.types[candidate])
            ):
                expr, kind = candidate, self.types[candidate]
                break
        at = self.module.functions.get(expr, expr) if isinstance(expr, GlobalVar) else expr
        self.raise_error(
            at,
            f"the type of {self._callee_name(expr)}: expected enough to infer it, "
            f"got {self.format_type(kind)}; annotate it",
        )


_ATOM_RULES: Mapping[type, Callable[[_TypeInferencer, Expr], Type]] = {
    Var: _TypeInferencer.type_of_var,
    GlobalVar: _TypeInferencer._type_of_global,
    Constant: _TypeInferencer.type_of_constant,
    Op: _TypeInferencer.type_of_op,
    Constructor: _TypeInferencer.type_of_constructor,
}
_TYPING_RULES: Mapping[type, Callable[..., Type | None]] = {
    Call: _TypeInferencer.type_call,
    Tuple: _TypeInferencer.type_of_tuple,
    TupleGetItem: _TypeInferencer.type_of_projection,
    If: _TypeInferencer.type_of_if,
    Function: _TypeInferencer.type_of_function,
    RefCreate: _TypeInferencer.type_of_ref_create,
    RefRead: _TypeInferencer.type_of_ref_read,
    RefWrite: _TypeInferencer.type_of_ref_write,
    Match: _TypeInferencer.type_of_match,
}
