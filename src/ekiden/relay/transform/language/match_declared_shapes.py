"""Run-time shape checks (match_shape) where a value of unknown size flows into a position with a
declared shape.

    let %y: Tensor[(n, 3), float32] = @g(%x);             @g returns Tensor[(?, 3), float32]
    -> let %y: Tensor[(n, 3), float32] = vm.match_shape(@g(%x), shape=[n, 3]);

Type inference lets `?`, and sizes that are not known to differ, enter a position of a known size:
it is sound only with these checks. The positions are variables of lets and patterns, results of
functions, branches and clauses, arguments of calls (of functions, closures and constructors), and
cells. A name that a position declares and nothing bound before is bound by its first value. A
function value whose parameters declare more than its position does is wrapped in one that checks:

    let %f: fn (Tensor[(?, 3), float32]) -> Tensor[(?, 3), float32] = %relu_of_n;
    -> let %f = fn (%p0: Tensor[(?, 3), float32]) { %relu_of_n(vm.match_shape(%p0, shape=[n, 3])) };

Functions that main returns are called by whoever runs the program: their parameters are checked,
too. Elements of data types are checked where they are put in. A value of a data type, or a cell,
that exists already is not taken apart: where its position says more of the sizes inside, or for a
cell less, it is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ekiden.arith import prove_equal
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.span import Span
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import FuncType, RelayRefType, TensorType, TupleType, Type, TypeCall
from ekiden.relay.adjoint_type import type_definition
from ekiden.relay.expr import (
    Call,
    Clause,
    Constructor,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.op.vm import match_shape
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    infer_local_type,
    is_atom,
    map_functions,
    rewrite_graph,
)
from ekiden.relay.unify import Unifier, match_dims, size_vars, substitute_dims
from ekiden.relay.visitor import map_type, type_post_order
from ekiden.runtime.errors import TypeInferenceError

ShapeDeclaration = tuple[str, Span | None]
"""Origin of a declared shape, for messages."""


def _is_proven_equal(declared: PrimExpr, actual: PrimExpr) -> bool:
    if declared is actual or isinstance(declared, AnyDim):
        return True
    if isinstance(declared, IntImm) and isinstance(actual, IntImm):
        return declared.value == actual.value
    return not isinstance(actual, AnyDim) and prove_equal(declared, actual)


def infer_call_dims(
    params: Sequence[Type], args: Sequence[Type], bound: set[SizeVar]
) -> dict[Symbol, PrimExpr]:
    """Infer the values of a callee's symbolic dimensions for one call by matching parameter and
    argument types.

    A name that no argument shows and several dimensions share is a new one, which the check of the
    first argument binds. Names in `bound` are those of the caller, and not the callee's to choose.
    """
    dims: dict[Symbol, PrimExpr] = {}
    flexible = set(size_vars(params)) - bound
    for param, arg in zip(params, args, strict=True):
        match_dims(param, arg, flexible, dims)
    tensors = [t for p in params for t in type_post_order(p) if isinstance(t, TensorType)]
    uses = Counter(v for t in tensors for d in t.shape for v in free_vars(d))
    for symbol, dim in dims.items():
        if isinstance(dim, AnyDim) and uses[symbol] > 1:
            dims[symbol] = SizeVar(symbol.name)
    return {symbol: dim for symbol, dim in dims.items() if symbol is not dim}


class _ShapeCheckInserter:
    """Inserter of shape checks into one global function."""

    def __init__(self, module: IRModule, root: Function) -> None:
        self.module, self.root = module, root
        self.bound = set(size_vars(p.checked_type for p in root.params))

    def run(self) -> Function:
        """Return the function with checks inserted, or itself where none is needed."""
        body = rewrite_graph(self.root.body, self._rewrite_typed)
        body = self._check_result(self.root, body)
        kind = self.root.ret_type
        if kind is not None and self._global_name() == "main":
            kind = self._generalize_parameters(kind)
            declaration = "a function that @main gives", self.root.body.span or self.root.span
            body = self._coerce(body, self.root.ret_type or kind, kind, declaration)
        if body is self.root.body:
            return self.root
        return self.root.with_fields(body=body, ret_type=kind)

    def _global_name(self) -> str:
        names = [g.name_hint for g, f in self.module.functions.items() if f is self.root]
        return names[0] if names else ""

    def _generalize_parameters(self, kind: Type) -> Type:
        """Generalise the parameters of result functions: dimensions that depend on main's symbols
        become unknown.
        """
        if isinstance(kind, TupleType):
            return TupleType(tuple(map(self._generalize_parameters, kind.fields)))
        if not isinstance(kind, FuncType):
            return kind
        args = tuple(map_type(arg, self._erase_bound_dims) for arg in kind.arg_types)
        return FuncType(args, kind.ret_type, kind.type_params, kind.type_constraints)

    def _erase_bound_dims(self, kind: Type) -> Type:
        """Replace the dimensions of a tensor type that depend on main's symbols by unknown ones."""
        if not isinstance(kind, TensorType):
            return kind
        dims = (d if self.bound.isdisjoint(free_vars(d)) else AnyDim() for d in kind.shape)
        return TensorType(tuple(dims), kind.dtype)

    def _rewrite_typed(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        old_type = old.checked_type_or_none()
        checked = self._insert_checks(old, new)
        if checked is not new and old_type is not None:
            checked.set_checked_type(old_type)
        return checked

    def _insert_checks(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Insert the checks that an expression with rewritten children needs."""
        match old, new:
            case Let(), Let():
                what = f"let %{old.var.name_hint}", old.value.span or old.span
                value = self._check_value(new.value, old.value, old.var.checked_type, what)
                return new if value is new.value else new.with_fields(value=value)
            case RefWrite(), RefWrite():
                kind = old.ref.checked_type
                assert isinstance(kind, RelayRefType)
                value = self._check_value(new.value, old.value, kind.value, ("ref_write", old.span))
                return new if value is new.value else new.with_fields(value=value)
            case If(), If():
                branches = {
                    name: self._check_value(getattr(new, name), getattr(old, name),
                    old.checked_type,
                                            ("if: a branch", old.span))
                    for name in ("true_branch", "false_branch")
                }  # fmt: skip
                same = all(getattr(new, name) is value for name, value in branches.items())
                return new if same else new.with_fields(**branches)
            case Match(), Match():
                return self._check_match(old, new)
            case Function(), Function() if not is_atom(old):
                body = self._check_result(old, new.body)
                return new if body is new.body else new.with_fields(body=body)
            case Call(), Call() if not isinstance(old.op, Op):
                return self._check_call(old, new)
        return new

    def _check_result(self, function: Function, body: RelayExpr) -> RelayExpr:
        if function.ret_type is None:
            return body
        declaration = "the result of a function", function.body.span or function.span
        if function is self.root:
            declaration = f"the result of @{self._global_name()}", declaration[1]
        return self._check_value(body, function.body, function.ret_type, declaration)

    def _check_call(self, old: Call, new: Call) -> RelayExpr:
        callee = self._callee_type(old)
        if callee is None or len(callee.arg_types) != len(old.args):
            return new
        kinds = [a.checked_type for a in old.args]
        # A local function shares the caller's names; a global one has its own.
        own = set() if isinstance(old.op, GlobalVar) else self.bound
        dims = infer_call_dims(callee.arg_types, kinds, own)
        name = getattr(old.op, "name_hint", "a function")
        args = tuple(
            self._check_value(arg, before, substitute_dims(kind, dims),
                              (f"argument {at} of {name}", old.span))
            for at, (arg, before, kind) in enumerate(
                zip(new.args, old.args, callee.arg_types, strict=True)
            )
        )  # fmt: skip
        same = all(a is b for a, b in zip(args, new.args, strict=True))
        return new if same else new.with_fields(args=args)

    def _callee_type(self, call: Call) -> FuncType | None:
        """Return the callee's type, instantiated at the call's type arguments."""
        if isinstance(call.op, Constructor):
            data = type_definition(self.module, call.op.belong_to)
            assert data is not None, "the type checker has looked it up"
            result = TypeCall(call.op.belong_to, data.type_vars)
            kind: Type | None = FuncType(call.op.inputs, result, data.type_vars)
        else:
            kind = call.op.checked_type_or_none()
        if not isinstance(kind, FuncType) or len(kind.type_params) != len(call.type_args):
            return None
        return Unifier().instantiate(kind, call.type_args)

    def _check_match(self, old: Match, new: Match) -> RelayExpr:
        clauses = []
        for before, clause in zip(old.clauses, new.clauses, strict=True):
            declaration = "match: a clause", before.rhs.span or old.span
            rhs = self._check_value(clause.rhs, before.rhs, old.checked_type, declaration)
            lhs = clause.lhs
            for var, kind in self._pattern_types(before.lhs, old.data.checked_type):
                if self._needs_check(var.checked_type, kind):
                    pattern_var = Var(var.name_hint, kind)
                    pattern_var.set_checked_type(kind)
                    lhs = _replace_pattern_var(lhs, var, pattern_var)
                    declaration = f"match: %{var.name_hint}", old.span
                    value = self._coerce(pattern_var, kind, var.checked_type, declaration)
                    result = rhs.checked_type
                    rhs = Let(var, value, rhs)
                    rhs.set_checked_type(result)
            same = rhs is clause.rhs and lhs is clause.lhs
            clauses.append(clause if same else Clause(lhs, rhs))
        same = all(a is b for a, b in zip(clauses, new.clauses, strict=True))
        return new if same else new.with_fields(clauses=tuple(clauses))

    def _pattern_types(self, pattern: Pattern, kind: Type) -> Iterator[tuple[Var, Type]]:
        """Yield the variables of a pattern with the types of the components they match."""
        waiting = [(pattern, kind)]
        while waiting:
            at, value_type = waiting.pop()
            match at, value_type:
                case PatternVar(var=var), _:
                    yield var, value_type
                case PatternTuple(patterns=inner), TupleType(fields=fields):
                    waiting.extend(zip(inner, fields, strict=True))
                case PatternConstructor(constructor=constructor, patterns=inner), TypeCall(
                    args=args
                ):
                    data = type_definition(self.module, constructor.belong_to)
                    assert data is not None, "the type checker has looked it up"
                    constructor_type = FuncType(constructor.inputs, value_type, data.type_vars)
                    one = Unifier().instantiate(constructor_type, args)
                    waiting.extend(zip(inner, one.arg_types, strict=True))

    def _needs_check(self, declared: Type, actual: Type) -> bool:
        """Return whether a declared extent is not proven equal to the value's, so that a run-time
        check is needed.
        """
        if declared is actual:
            return False
        match declared, actual:
            case TensorType(), TensorType():
                return not all(map(_is_proven_equal, declared.shape, actual.shape))
            case TupleType(), TupleType():
                return any(map(self._needs_check, declared.fields, actual.fields))
            case FuncType(), FuncType():
                # Parameters are contravariant: the value's parameters must not declare more than
                # the position's.
                dims = infer_call_dims(actual.arg_types, declared.arg_types, self.bound)
                params = [substitute_dims(kind, dims) for kind in actual.arg_types]
                return any(map(self._needs_check, params, declared.arg_types)) or (
                    self._needs_check(declared.ret_type, substitute_dims(actual.ret_type, dims))
                )
            case TypeCall(), TypeCall():
                return any(map(self._needs_check, declared.args, actual.args))
            case RelayRefType(), RelayRefType():
                declared_value, actual_value = declared.value, actual.value
                # A cell is read and written, so its types must agree in both directions.
                return self._needs_check(declared_value, actual_value) or self._needs_check(
                    actual_value, declared_value
                )
        return False

    def _check_value(
        self, value: RelayExpr, old: RelayExpr, declared: Type, declaration: ShapeDeclaration
    ) -> RelayExpr:
        """Return the value checked against a declared type; `old` is the expression before
        rewriting.
        """
        if value is old and type(old) in (GlobalVar, Constructor):
            return value  # of which each call is checked
        return self._coerce(value, old.checked_type, declared, declaration)

    def _coerce(
        self, value: RelayExpr, actual: Type, declared: Type, declaration: ShapeDeclaration
    ) -> RelayExpr:
        """Coerce a value to the declared type by checks; return it unchanged if it has
        that type.
        """
        if not self._needs_check(declared, actual):
            return value
        match declared, actual:
            case TensorType(), TensorType():
                # The check binds names that nothing has bound before.
                self.bound.update(size_vars((declared,)))
                call = match_shape(value, declared.shape, declaration[0]).with_fields(
                    span=declaration[1]
                )
                return infer_local_type(call)
            case TupleType(), TupleType():
                fields = []
                for at, (inner, own) in enumerate(zip(declared.fields, actual.fields, strict=True)):
                    if isinstance(value, Tuple):
                        field_value = value.fields[at]
                    else:
                        field_value = TupleGetItem(value, at)
                        field_value.set_checked_type(own)
                    fields.append(self._coerce(field_value, own, inner, declaration))
                coerced = Tuple(tuple(fields), value.span)
                coerced.set_checked_type(declared)
                return coerced
            case RelayRefType(), RelayRefType() if isinstance(value, RefCreate):
                cell = RefCreate(
                    self._coerce(value.value, actual.value, declared.value, declaration),
                    value.span,
                )
                cell.set_checked_type(declared)
                return cell
        if not isinstance(declared, FuncType) or not isinstance(actual, FuncType):
            kinds = f"expected {format_type(declared)}, got {format_type(actual)}"
            where = f" ({declaration[1]})" if declaration[1] else ""
            raise TypeInferenceError(
                f"{declaration[0]}{where}: {kinds}: sizes inside of a value that exists "
                "already are not"
                " checked; declare them where it is made",
                declaration[1],
            )
        return self._wrap_function(value, actual, declared, declaration)

    def _wrap_function(
        self, value: RelayExpr, actual: FuncType, declared: FuncType, declaration: ShapeDeclaration
    ) -> RelayExpr:
        """Wrap a function value in one of the declared type that checks arguments and result."""
        callee = Var("f", actual)
        callee.set_checked_type(actual)
        params = [Var(f"p{at}", kind) for at, kind in enumerate(declared.arg_types)]
        for param, kind in zip(params, declared.arg_types, strict=True):
            param.set_checked_type(kind)
        dims = infer_call_dims(actual.arg_types, declared.arg_types, self.bound)
        args = [
            self._coerce(p, of, substitute_dims(kind, dims), declaration)
            for p, of, kind in zip(params, declared.arg_types, actual.arg_types, strict=True)
        ]
        result = Call(callee, tuple(args), None, span=declaration[1])
        kind = substitute_dims(actual.ret_type, dims)
        result.set_checked_type(kind)
        body = self._coerce(result, kind, declared.ret_type, declaration)
        wrapper = Function(tuple(params), body, declared.ret_type, declared.type_params)
        wrapper.set_checked_type(declared)
        bound_wrapper = Let(callee, value, wrapper)
        bound_wrapper.set_checked_type(declared)
        return bound_wrapper


def _replace_pattern_var(pattern: Pattern, old: Var, new: Var) -> Pattern:
    """Replace a variable in a pattern."""
    match pattern:
        case PatternVar(var=var):
            return PatternVar(new) if var is old else pattern
        case PatternConstructor(patterns=inner) | PatternTuple(patterns=inner):
            new_patterns = tuple(_replace_pattern_var(p, old, new) for p in inner)
            same = all(a is b for a, b in zip(new_patterns, inner, strict=True))
            return pattern if same else pattern.with_fields(patterns=new_patterns)
    return pattern


@module_pass(name="MatchDeclaredShapes", required=(InferType(),))
def _match_declared_shapes(module: IRModule, context: PassContext) -> IRModule:
    checked = map_functions(module, lambda function: _ShapeCheckInserter(module, function).run())
    same = all(checked[name] is f for name, f in module.functions.items())
    return module if same else checked


def MatchDeclaredShapes() -> Pass:  # noqa: N802
    """Return a pass that inserts run-time checks of declared shapes."""
    return _match_declared_shapes
