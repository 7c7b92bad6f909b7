"""Type inference: unification plus the relations of operators.

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
from ekiden.relay.adjoint_type import definition
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.call_types import CallTypes, count
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
from ekiden.relay.fill_types import fill
from ekiden.relay.unify import size_vars
from ekiden.relay.visitor import CHILDREN, has_holes
from ekiden.tir.stmt import PrimFunc

if TYPE_CHECKING:
    import ekiden.relay.analysis.well_formedness as well_formedness
    import ekiden.relay.op.lowered as lowered
else:
    well_formedness = LazyModule("ekiden.relay.analysis.well_formedness")
    lowered = LazyModule("ekiden.relay.op.lowered")

_UNIT = TupleType(())
_BOOL = TensorType((), "bool")

Step = Expr | tuple[Callable[[Expr], None], Expr]
"""Work on the stack: an expression to open, or an action on one whose parts are done."""


def infer_type(module: IRModule, annotate: bool = True) -> IRModule:
    """Set the checked type of every expression of the module's Relay functions.

    Args:
        module: The module.
        annotate: Fill in types of parameters and results.

    Returns:
        The module with the types that it leaves out, such as type arguments of calls; the module
        itself if there are none.

    Raises:
        TypeInferenceError: Types do not fit; the message has the position and both types.
    """
    if annotate and _is_inferred(module):
        return module
    run = _Inference(module)
    for name in _callees_first(module):
        run.function(name)
    run.finish()
    filled = _defining(fill(module, run.type_args, annotate), run.standard_types)
    if annotate:
        together = len(filled.functions), object()
        _inferred.update((f, (g, together)) for g, f in filled.functions.items())
    return filled


def _defining(module: IRModule, data: Mapping[GlobalTypeVar, Node]) -> IRModule:
    """Return the module with the definitions of the standard types that it uses."""
    if not data:
        return module
    named: dict[GlobalVar | str, BaseFunc] = dict(module.functions.items())
    return IRModule(named, {**data, **module.type_definitions}, module.attrs)


_inferred: weakref.WeakKeyDictionary[BaseFunc, tuple[GlobalVar, object]] = (
    weakref.WeakKeyDictionary()
)
"""Function -> its name and a mark of those that were inferred together, with nothing left out."""


def _is_inferred(module: IRModule) -> bool:
    """Return whether exactly these functions, under these names, were inferred together before.

    The mark is of the full module: one function of it in another module may be called with
    different types, or call a function that is not present.
    """
    marks = [_inferred.get(f, (None, None)) for f in module.functions.values()]
    named = all(g is name for g, (name, _) in zip(module.functions, marks, strict=True))
    together = {mark for _, mark in marks}
    if not named or len(together) != 1:
        return False
    mark = together.pop()
    return isinstance(mark, tuple) and mark[0] == len(marks)


def infer_expr_type(expr: Expr, module: IRModule | None = None) -> Type:
    """Return the type of an expression whose free variables have annotations or checked types.

    Checked types are set on the way.
    """
    run = _Inference(module or IRModule(), knows_types=module is not None)
    run.walk(expr, into_typed=False)
    run.finish()
    return expr.checked_type


def _callees_first(module: IRModule) -> list[GlobalVar]:
    """Return the Relay functions so that, outside of cycles, a function comes after those
    it names.
    """
    functions = {g: f for g, f in module.functions.items() if isinstance(f, Function)}
    if len(functions) < 2 or all(_signature(f) is not None for f in functions.values()):
        return list(functions)
    groups = CallGraph(module).components()
    return [g for group in groups for g in group if g in functions]


def _signature(function: Function) -> FuncType | None:
    """Return the type of a function whose parameters and result are annotated in full, or None."""
    kinds = [p.type_annotation for p in function.params]
    written = [*kinds, function.ret_type]
    if any(k is None or has_holes(k) for k in written):
        return None
    assert function.ret_type is not None
    return FuncType(
        tuple(k for k in kinds if k is not None), function.ret_type, function.type_params
    )


class _Inference(CallTypes):
    """The state of inference over one module."""

    def __init__(self, module: IRModule, knows_types: bool = True) -> None:
        """Set up inference over a module; `knows_types` if it defines every data type that
        is used.
        """
        super().__init__(module, knows_types)
        self.standard_types: dict[GlobalTypeVar, Node] = {}
        """Standard data types that are used and that the module does not define."""
        self.waiting: list[Expr] = []
        self.current: GlobalVar | None = None

    # Walking

    def function(self, name: GlobalVar) -> None:
        """Infer one global function."""
        function = self.module[name]
        assert isinstance(function, Function)
        self.current = name
        self.rigid = set(
            size_vars(p.type_annotation for p in function.params if p.type_annotation is not None)
        )
        self._global(name)
        self.walk(function)
        self._solve_waiting()
        what = f"the type of @{name.name_hint}, as it is called"
        self._agree(self.types[name], self.type_of(function), function, what)
        self.types[name] = self.unifier.resolve(self.type_of(function))

    def walk(self, root: Expr, into_typed: bool = True) -> None:
        """Infer a type for every expression below root, without recursion; typed ones may be
        skipped.

        The stack holds expressions to open and actions to take when their children are done. A
        shared expression is opened once; `opened` has it before its type is known, which matters
        for a function that a let binds and that names its own variable.
        """
        stack: list[Step] = [root]
        types = self.types
        atoms = _ATOMS
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
            opened.add(step)
            self._open(step, stack)

    def _open(self, expr: Expr, stack: list[Step]) -> None:
        match expr:
            case Let():
                self._refuse_operators(expr, (expr.value, expr.body))
                self._announce(expr)
                stack += ((self._close_let, expr), expr.body, (self._bind, expr), expr.value)
            case Match():
                stack.append((self._close, expr))
                for clause in reversed(expr.clauses):
                    stack.append(clause.rhs)
                stack += ((self._bind_patterns, expr), expr.data)
            case _ if type(expr) in _RULES:
                stack.append((self._close, expr))
                subexprs = CHILDREN[type(expr)](expr)
                self._refuse_operators(expr, subexprs)
                stack.extend(reversed(subexprs))
            case _:
                self.fail(expr, f"a {type(expr).__name__} is not a Relay expression")

    def _refuse_operators(self, expr: Expr, subexprs: Sequence[Expr]) -> None:
        """Refuse operators as values: an operator has no type of its own, so it can only
        be called.
        """
        for subexpr in subexprs:
            if type(subexpr) is Op and not (type(expr) is Call and subexpr is expr.op):
                names = ", ".join(f"%{name}" for name in subexpr.definition.arguments)
                self.fail(
                    expr,
                    f"operator {subexpr.name}: expected a call of it, got the operator as a value;"
                    f" write fn ({names}) {{ {subexpr.name}({names}) }}",
                )

    def _close(self, expr: Expr) -> None:
        checked = expr.checked_type_or_none()
        if checked is not None:
            self.types[expr] = checked
            if type(expr) is Call and self._leaves_type_args_out(expr):
                self._agree(checked, self.call(expr) or checked, expr, "the result")
            return
        inferred = _RULES[type(expr)](self, expr)
        if inferred is None:
            self.waiting.append(expr)
            inferred = self.unifier.hole()
        self.types[expr] = inferred

    def _leaves_type_args_out(self, call: Call) -> bool:
        callee = self.type_of(call.op)
        return isinstance(callee, FuncType) and len(callee.type_params) > len(call.type_args)

    def _close_let(self, let: Expr) -> None:
        assert isinstance(let, Let)
        self.types[let] = self.type_of(let.body)

    # Names

    def var(self, var: Expr) -> Type:
        """Return the annotation of a variable, else the type found before, else a hole."""
        assert isinstance(var, Var)
        annotation = var.type_annotation
        if annotation is None:
            return var.checked_type_or_none() or self.unifier.hole()
        return self._written(annotation, var, f"the type of %{var.name_hint}")

    def _announce(self, let: Let) -> None:
        """Set the type of a variable before its value: a function may call itself by that
        variable.
        """
        if let.var.type_annotation is not None:
            self.types[let.var] = self.var(let.var)
        elif isinstance(let.value, Function):
            self.types[let.var] = self._signature_with_holes(let.value)

    def _signature_with_holes(self, function: Function) -> FuncType:
        signature = _signature(function)
        if signature is not None:
            return signature
        for p in function.params:
            if p not in self.types:
                self.types[p] = self.var(p)
        ret = function.ret_type if function.ret_type is not None else self.unifier.hole()
        self._written(ret, function, self._result_of(function))
        return FuncType(tuple(self.types[p] for p in function.params), ret, function.type_params)

    def _bind(self, let: Expr) -> None:
        assert isinstance(let, Let)
        value = self.type_of(let.value)
        if let.var in self.types:
            what = f"the value of %{let.var.name_hint}"
            # An annotation wins over the inferred type, which may be more specific.
            merged = self._agree(self.types[let.var], value, let, what)
            self.types[let.var] = merged if let.var.type_annotation is None else self.types[let.var]
        else:
            self.types[let.var] = value

    def _global(self, name: Expr) -> Type:
        assert isinstance(name, GlobalVar)
        if name not in self.types:
            self.types[name] = self._global_type(name)
        return self.types[name]

    def _global_type(self, name: GlobalVar) -> Type:
        function: BaseFunc | None = self.module.functions.get(name)
        if function is None:
            checked = name.checked_type_or_none()
            if checked is None:
                self.fail(name, f"@{name.name_hint} is not a function of the module")
            return checked
        if isinstance(function, Function):
            return self._signature_with_holes(function)
        assert isinstance(function, PrimFunc), "the kinds of functions are two"
        return lowered.relay_type(function.with_attr("global_symbol", name.name_hint))

    def constructor(self, constructor: Expr) -> Type:
        """Return the type of a constructor, a polymorphic function into its data type, even without
        fields.
        """
        assert isinstance(constructor, Constructor)
        header = constructor.belong_to
        data = definition(self.module, header)
        if data is None:
            self.fail(
                constructor, f"{constructor.name_hint}: the module has no type {header.name_hint}"
            )
        if header not in self.module.type_definitions:
            self.standard_types[header] = data
        return FuncType(constructor.inputs, TypeCall(header, data.type_vars), data.type_vars)

    def constant(self, constant: Expr) -> Type:
        """Return the tensor type of the array."""
        assert isinstance(constant, Constant)
        checked = constant.checked_type_or_none()
        if checked is not None:
            return checked
        return TensorType(tuple(const(d) for d in constant.data.shape), str(constant.data.dtype))

    def op(self, op: Expr) -> Type:
        """Return the unit type: operators have relations, not types."""
        return op.checked_type_or_none() or _UNIT

    # One rule per expression: its type, or None to wait for open arguments

    def tuple_(self, expr: Tuple) -> Type:
        """Return the type of a tuple: `(a, b): (A, B)`."""
        return TupleType(tuple(map(self.type_of, expr.fields)))

    def projection(self, expr: TupleGetItem) -> Type | None:
        """Return the type of a projection: `(a, b).0: A`."""
        kind = self.type_of(expr.tuple_value)
        if isinstance(kind, IncompleteType):
            return None
        if not isinstance(kind, TupleType):
            self.fail(expr, f"field {expr.index}: expected a tuple, got {self.text(kind)}")
        if not 0 <= expr.index < len(kind.fields):
            self.fail(
                expr,
                f"field {expr.index}: expected one of the {len(kind.fields)} fields of a tuple,"
                f" got {self.text(kind)}",
            )
        return kind.fields[expr.index]

    def choice(self, expr: If) -> Type:
        """Return the common type of both branches."""
        self._agree(_BOOL, self.type_of(expr.cond), expr, "if: the condition")
        what = "if: the else branch, beside the other"
        branches = self.type_of(expr.true_branch), self.type_of(expr.false_branch)
        return self._agree(*branches, expr, what, self.unifier.join)

    def lambda_(self, expr: Function) -> Type:
        """Return the type of a function: `fn (x: A) { b: B }: fn (A) -> B`."""
        ret = self.type_of(expr.body)
        if expr.ret_type is not None:
            what = self._result_of(expr)
            merged = self._agree(self._written(expr.ret_type, expr, what), ret, expr, what)
            ret = merged if has_holes(expr.ret_type) else expr.ret_type
        return FuncType(tuple(map(self.type_of, expr.params)), ret, expr.type_params)

    def _result_of(self, function: Function) -> str:
        at = self.current
        is_global = at is not None and self.module.functions[at] is function
        return f"the result of @{at.name_hint}" if at and is_global else "the result of a function"

    def ref_create(self, expr: RefCreate) -> Type:
        """Return the type of a new cell: `ref(a): ref(A)`."""
        return RelayRefType(self.type_of(expr.value))

    def ref_read(self, expr: RefRead) -> Type:
        """Return the type of the value in a cell: `ref_read(r): A`."""
        return self._referent(expr, expr.ref)

    def ref_write(self, expr: RefWrite) -> Type:
        """Return the unit type: `ref_write(r, a): ()`."""
        self._agree(
            self._referent(expr, expr.ref), self.type_of(expr.value), expr, "ref_write: the value"
        )
        return _UNIT

    def _referent(self, expr: Expr, ref: Expr) -> Type:
        kind = self.type_of(ref)
        if isinstance(kind, RelayRefType):
            return kind.value
        value = self.unifier.hole()
        name = "ref_read" if isinstance(expr, RefRead) else "ref_write"
        self._agree(RelayRefType(value), kind, expr, f"{name}: the cell")
        return value

    def match(self, expr: Match) -> Type:
        """Return the common type of all right sides, after a check that the clauses fit every
        value.
        """
        missing = well_formedness.match_error(expr, self.module)
        if missing is not None:
            self.fail(expr, f"{missing}; add them, or write match? to have it checked at run time")
        joint: Type = self.unifier.hole()
        for number, clause in enumerate(expr.clauses):
            what = f"match: clause {number}, beside the first"
            joint = self._agree(joint, self.type_of(clause.rhs), expr, what, self.unifier.join)
        return joint

    def _bind_patterns(self, expr: Expr) -> None:
        assert isinstance(expr, Match)
        for clause in expr.clauses:
            self._pattern(expr, clause, clause.lhs, self.type_of(expr.data))

    def _pattern(self, at: Match, clause: Clause, pattern: Pattern, kind: Type) -> None:
        match pattern:
            case PatternVar(var=var):
                what = f"match: pattern %{var.name_hint}"
                declared = self.var(var)
                merged = self._agree(declared, kind, at, what)
                self.types[var] = merged if var.type_annotation is None else declared
            case PatternTuple(patterns=inner):
                fields = tuple(self.unifier.hole() for _ in inner)
                self._agree(TupleType(fields), kind, at, "match: a tuple pattern")
                self._patterns(at, clause, inner, fields)
            case PatternConstructor(constructor=constructor, patterns=inner):
                constructor_type = self.constructor(constructor)
                assert isinstance(constructor_type, FuncType)
                holes = tuple(self.unifier.hole() for _ in constructor_type.type_params)
                one = self.unifier.instantiate(constructor_type, holes)
                if len(inner) != len(one.arg_types):
                    expected = count(len(one.arg_types), "pattern")
                    what = f"match: pattern {constructor.name_hint}"
                    self.fail(at, f"{what}: expected {expected} inside, got {len(inner)}")
                self._agree(one.ret_type, kind, at, f"match: pattern {constructor.name_hint}")
                self._patterns(at, clause, inner, one.arg_types)

    def _patterns(
        self, at: Match, clause: Clause, inner: tuple[Pattern, ...], kinds: tuple[Type, ...]
    ) -> None:
        for pattern, kind in zip(inner, kinds, strict=True):
            self._pattern(at, clause, pattern, kind)

    # Ends

    def _solve_waiting(self) -> None:
        """Retry waiting expressions, in order, for as long as something is solved."""
        while self.waiting:
            before, self.waiting = self.waiting, []
            for expr in before:
                inferred = _RULES[type(expr)](self, expr)
                if inferred is None:
                    self.waiting.append(expr)
                else:
                    self._agree(self.types[expr], inferred, expr, "the result")
            if len(self.waiting) == len(before):
                return

    def finish(self) -> None:
        """Write the types down.

        Raises:
            TypeInferenceError: A type is still unknown.
        """
        self._solve_waiting()
        resolve, holes = self.unifier.resolve, self.unifier.has_holes
        # Expressions share types: each is resolved once. `self.types` keeps them alive.
        resolved_types: dict[int, Type] = {}
        for expr, kind in self.types.items():
            if holes:
                resolved = resolved_types.get(id(kind))
                if resolved is None:
                    resolved = resolve(kind)
                    if has_holes(resolved):
                        self._report_open(expr, resolved)
                    resolved_types[id(kind)] = resolved
                kind = resolved
            if expr.checked_type_or_none() is not kind:
                expr.set_checked_type(kind)
        self.type_args = {c: tuple(map(resolve, args)) for c, args in self.type_args.items()}

    def _report_open(self, expr: Expr, kind: Type) -> NoReturn:
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
        self.fail(
            at,
            f"the type of {self._name(expr)}: expected enough to infer it, got {self.text(kind)};"
            " annotate it",
        )


_ATOMS: Mapping[type, Callable[[_Inference, Expr], Type]] = {
    Var: _Inference.var,
    GlobalVar: _Inference._global,
    Constant: _Inference.constant,
    Op: _Inference.op,
    Constructor: _Inference.constructor,
}
_RULES: Mapping[type, Callable[..., Type | None]] = {
    Call: _Inference.call,
    Tuple: _Inference.tuple_,
    TupleGetItem: _Inference.projection,
    If: _Inference.choice,
    Function: _Inference.lambda_,
    RefCreate: _Inference.ref_create,
    RefRead: _Inference.ref_read,
    RefWrite: _Inference.ref_write,
    Match: _Inference.match,
}
