"""Defunctionalisation (Reynolds 1972): function values become data, which makes a higher-order
program first-order.

    let %f = fn (%y: float32) { add(%y, %x) };  %f(1f)
    ->  type Fn0 { Fn0_0(float32) }
        def @apply_0(%f: Fn0, %a: float32) { match (%f) { Fn0_0(%x) => add(%a, %x) } }
        let %f = Fn0_0(%x);  @apply_0(%f, 1f)

Each type of functions becomes a data type with a constructor for each function value of that type,
which holds what that captures. Polymorphic functions, local ones too, are first copied for each of
the types they are called with or passed at (J. Reynolds, Definitional Interpreters for Higher-Order
Programming Languages, 1972).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext, Sequential, module_pass
from ekiden.ir.type import FuncType, GlobalTypeVar, Type, TypeCall, TypeVar
from ekiden.relay.expr import (
    Call,
    Clause,
    Constructor,
    Function,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    TypeData,
    Var,
)
from ekiden.relay.transform.language.eta_expand import EtaExpand
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.remove_unused_functions import (
    check_entries,
    declared_entries,
)
from ekiden.relay.transform.language.scope_tree import is_atom
from ekiden.relay.visitor import (
    bind,
    children,
    free_vars,
    map_pattern,
    map_type,
    pattern_vars,
    post_order,
    post_order_after,
    rebuild,
    substitute_type,
    type_children,
)
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass


def monomorphize(module: IRModule, entry: str = "main") -> IRModule:
    """Monomorphise the functions reachable from an entry, and from those that the module declares:
    one copy per combination of type arguments.

    Needs checked types.
    """
    maker = _Monomorphizer(module)
    check_entries(module)
    for name in (entry, *declared_entries(module)):
        maker.instance(module.get_global_var(name), ())
    while maker.pending_instances:
        maker.build_instance(*maker.pending_instances.pop())
    named: dict[GlobalVar | str, BaseFunc] = dict(maker.instances.items())
    return InferType()(IRModule(named, module.type_definitions, module.attrs))


class _Monomorphizer:
    """Monomorphiser of the functions reachable from an entry."""

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self.names: dict[tuple[GlobalVar, tuple[Type, ...]], GlobalVar] = {}
        self.pending_instances: list[tuple[GlobalVar, tuple[Type, ...]]] = []
        self.instances: dict[GlobalVar, BaseFunc] = {}
        self.local_polymorphic_functions: Mapping[Var, Function] = {}
        """Let-bound polymorphic functions of the function being built."""

    def instance(self, name: GlobalVar, type_args: tuple[Type, ...]) -> GlobalVar:
        """Return the global name of a function instance; its body is built later."""
        key = (name, type_args)
        if key not in self.names:
            used_names = {g.name_hint for g in self.module} | {
                g.name_hint for g in self.names.values()
            }
            number = sum(1 for g, _ in self.names if g is name)
            instance_name = (
                name
                if not type_args
                else GlobalVar(_fresh_name(f"{name.name_hint}_{number}", used_names))
            )
            self.names[key] = instance_name
            # The name exists before the body, so that recursive functions end.
            self.pending_instances.append(key)
        return self.names[key]

    def build_instance(self, name: GlobalVar, type_args: tuple[Type, ...]) -> None:
        """Build the body of one instance."""
        function = self.module[name]
        if not isinstance(function, Function):
            self.instances[name] = function
            return
        self.local_polymorphic_functions = {
            e.var: e.value
            for e in post_order(function, into_functions=True)
            if isinstance(e, Let) and _is_polymorphic(e.value) and isinstance(e.value, Function)
        }
        types = dict(zip(function.type_params, type_args, strict=True))
        self.instances[self.names[name, type_args]] = self._specialize_function(function, types, {})

    def _specialize_function(
        self,
        function: Function,
        types: Mapping[TypeVar, Type],
        outer: Mapping[RelayExpr, RelayExpr],
    ) -> Function:
        """Copy a function at given type arguments; nested polymorphic functions are copied at each
        use.
        """
        nested: dict[RelayExpr, RelayExpr] = {
            e: e
            for e in post_order(function, into_functions=True)
            if isinstance(e, Function) and e.type_params and e is not function
        }
        new = dict(outer)
        for expr in post_order_after(function, {**outer, **nested}):
            new[expr] = self._copy_expr(expr, types, new)
        copied = new[function]
        assert isinstance(copied, Function)
        return copied.with_fields(type_params=())

    def _instantiate_use(
        self,
        value: RelayExpr,
        type_args: Sequence[Type],
        types: Mapping[TypeVar, Type],
        new: Mapping[RelayExpr, RelayExpr],
    ) -> RelayExpr:
        """Instantiate a polymorphic function at the type arguments of one use."""
        if isinstance(value, GlobalVar):
            return self.instance(value, tuple(type_args))
        function = (
            self.local_polymorphic_functions.get(value, value) if isinstance(value, Var) else value
        )
        # Polymorphic recursion would need infinitely many instances.
        if not isinstance(function, Function) or value in free_vars(function):
            raise CompileError(
                f"defunctionalization: {_function_description(value)} is polymorphic, and not a"
                " function whose types are known where it is used; wrap it into a function"
                " of concrete types"
            )
        inner = dict(zip(function.type_params, type_args, strict=True))
        return self._specialize_function(function, {**types, **inner}, new)

    def _instantiate_argument(
        self,
        value: RelayExpr,
        expected: Type | None,
        types: Mapping[TypeVar, Type],
        new: Mapping[RelayExpr, RelayExpr],
    ) -> RelayExpr:
        """Instantiate a polymorphic argument at the type that the callee expects."""
        if not _is_polymorphic(value):
            return new[value]
        scheme = value.checked_type
        assert isinstance(scheme, FuncType)
        type_args = (
            None if expected is None else _match_scheme(scheme, substitute_type(expected, types))
        )
        # Without the expected type, instances cannot be enumerated at compile time.
        if type_args is None:
            raise CompileError(
                f"defunctionalization: {_function_description(value)} is used as a value of unknown"
                " type; wrap it into a function of concrete types"
            )
        return self._instantiate_use(value, type_args, types, new)

    def _copy_expr(
        self, expr: RelayExpr, types: Mapping[TypeVar, Type], new: Mapping[RelayExpr, RelayExpr]
    ) -> RelayExpr:
        def concrete(kind: Type | None) -> Type | None:
            return None if kind is None else substitute_type(kind, types)

        match expr:
            case Var(name_hint=hint):
                return Var(hint, concrete(expr.type_annotation), span=expr.span)
            case GlobalVar():
                return expr
            case Call():
                expected_types = _expected_arg_types(expr)
                args = tuple(
                    self._instantiate_argument(a, t, types, new)
                    for a, t in zip(expr.args, expected_types, strict=True)
                )
                type_args = tuple(substitute_type(t, types) for t in expr.type_args)
                if isinstance(expr.op, GlobalVar):
                    callee: RelayExpr = self.instance(expr.op, type_args)
                elif _is_polymorphic(expr.op) and not isinstance(expr.op, (Op, Constructor)):
                    callee = self._instantiate_use(expr.op, type_args, types, new)
                else:
                    callee = new[expr.op]
                return Call(callee, args, expr.attrs, span=expr.span)
            case Let(value=Function() as value, body=body) if value.type_params:
                return new[body]
            case Function():
                copied = rebuild(expr, [new[c] for c in children(expr)])
                assert isinstance(copied, Function)
                return copied.with_fields(ret_type=concrete(expr.ret_type))
            case _:
                for child in children(expr):
                    if isinstance(child, GlobalVar):
                        self._check_global_value(child)
                return rebuild(expr, [new[c] for c in children(expr)])

    def _check_global_value(self, name: GlobalVar) -> None:
        function = self.module[name]
        if isinstance(function, Function) and function.type_params:
            raise CompileError(
                f"defunctionalization: the polymorphic function @{name.name_hint} is used as a "
                "value; wrap it into a function of concrete types"
            )
        self.instance(name, ())


def _is_polymorphic(value: RelayExpr) -> bool:
    kind = value.checked_type_or_none()
    return isinstance(kind, FuncType) and bool(kind.type_params)


def _function_description(value: RelayExpr) -> str:
    match value:
        case GlobalVar(name_hint=name):
            return f"the polymorphic function @{name}"
        case Var(name_hint=name):
            return f"the polymorphic function %{name}"
    return "a polymorphic function"


def _expected_arg_types(call: Call) -> Sequence[Type | None]:
    """Return the argument types that a call's callee expects; None where unknown."""
    kind = call.op.checked_type_or_none()
    if not isinstance(kind, FuncType) or len(kind.arg_types) != len(call.args):
        return (None,) * len(call.args)
    if len(kind.type_params) != len(call.type_args):
        return kind.arg_types
    substitution = dict(zip(kind.type_params, call.type_args, strict=True))
    return [substitute_type(t, substitution) for t in kind.arg_types]


def _match_scheme(scheme: FuncType, concrete: Type) -> list[Type] | None:
    """Return the type arguments that instantiate a polymorphic function type to a concrete one, or
    None.
    """
    substitution: dict[Type, Type] = {}
    plain = FuncType(scheme.arg_types, scheme.ret_type)
    work: list[tuple[Type, Type]] = [(plain, concrete)]
    while work:
        declared_part, concrete_part = work.pop()
        if isinstance(declared_part, TypeVar) and declared_part in scheme.type_params:
            if substitution.setdefault(declared_part, concrete_part) != concrete_part:
                return None
            continue
        inside, outside = type_children(declared_part), type_children(concrete_part)
        if type(declared_part) is not type(concrete_part) or len(inside) != len(outside):
            return None
        if not inside and declared_part != concrete_part:
            return None
        work.extend(zip(inside, outside, strict=True))
    type_args = [substitution.get(v) for v in scheme.type_params]
    return None if None in type_args else [t for t in type_args if t is not None]


def _fresh_name(hint: str, used_names: set[str]) -> str:
    name, count = hint, 0
    while name in used_names:
        count += 1
        name = f"{hint}_{count}"
    return name


@dataclass(eq=False, slots=True)
class _ClosureType:
    """Data type that represents the closures of one function type."""

    kind: FuncType
    header: GlobalTypeVar
    apply: GlobalVar
    params: tuple[Var, ...]
    constructors: list[Constructor] = field(default_factory=list)
    clauses: list[Clause] = field(default_factory=list)

    def add_constructor(
        self, captured: Sequence[Type], rhs: Callable[[tuple[Var, ...]], RelayExpr]
    ) -> Constructor:
        """Add a constructor whose fields are captured values.

        Args:
            captured: The types of what is captured.
            rhs: Takes the fields, and returns what applying the constructor computes.
        """
        number = len(self.constructors)
        name = f"{self.header.name_hint}_{number}"
        constructor = Constructor(name, tuple(captured), self.header, number)
        self.constructors.append(constructor)
        # The placeholder reserves the number: computing the right side may add further
        # constructors.
        self.clauses.append(Clause(PatternConstructor(constructor, ()), Var("later")))
        fields = tuple(Var(f"c{i}", t) for i, t in enumerate(captured))
        pattern = PatternConstructor(constructor, tuple(map(PatternVar, fields)))
        self.clauses[number] = Clause(pattern, rhs(fields))
        return constructor

    def apply_function(self) -> Function:
        """Build the apply function, which dispatches on the closure's constructor."""
        which = Var("f", TypeCall(self.header, ()))
        body = Match(which, tuple(self.clauses))
        return Function((which, *self.params), body, self.kind.ret_type)


class _Defunctionalizer:
    """Rewriter of a monomorphic, typed module to first order."""

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self.closure_types: dict[FuncType, _ClosureType] = {}
        self.constructors: dict[Constructor, Constructor] = {}
        self._globals: dict[GlobalVar, Constructor] = {}

    def run(self) -> IRModule:
        """Return the first-order module."""
        definitions = {
            h: self._convert_type_data(d) for h, d in self.module.type_definitions.items()
        }
        functions: dict[GlobalVar | str, BaseFunc] = {}
        for name, function in self.module.functions.items():
            is_ours = isinstance(function, Function) and function.attr("Compiler") is None
            functions[name] = self._convert_function(function) if is_ours else function  # type: ignore[arg-type]
        done: set[_ClosureType] = set()
        # Building an apply function may create further families.
        while len(done) < len(self.closure_types):
            for family in [f for f in self.closure_types.values() if f not in done]:
                functions[family.apply] = family.apply_function()
                done.add(family)
        for family in self.closure_types.values():
            definitions[family.header] = TypeData(family.header, (), tuple(family.constructors))
        return InferType()(IRModule(functions, definitions, self.module.attrs))

    def convert_type(self, kind: Type) -> Type:
        """Convert a type by replacing function types by their closure types."""
        return map_type(
            kind, lambda t: self._closure_type_call(t) if isinstance(t, FuncType) else t
        )

    def _closure_type_call(self, kind: FuncType) -> Type:
        return TypeCall(self._closure_type(kind).header, ())

    def _closure_type(self, kind: FuncType) -> _ClosureType:
        """Return the closure type of a function type whose components are converted already."""
        if kind not in self.closure_types:
            number = len(self.closure_types)
            used_names = {g.name_hint for g in self.module}
            header = GlobalTypeVar(f"Fn{number}")
            params = tuple(Var(f"a{i}", t) for i, t in enumerate(kind.arg_types))
            apply = GlobalVar(_fresh_name(f"apply_{number}", used_names))
            self.closure_types[kind] = _ClosureType(kind, header, apply, params)
        return self.closure_types[kind]

    def _closure_type_of_value(self, kind: Type) -> _ClosureType:
        """Return the closure type of a function value's inferred type."""
        assert isinstance(kind, FuncType), f"expected a function, got {kind}"
        args = tuple(map(self.convert_type, kind.arg_types))
        return self._closure_type(FuncType(args, self.convert_type(kind.ret_type)))

    def _convert_type_data(self, data: Node) -> Node:
        assert isinstance(data, TypeData)
        constructors_ = []
        for constructor in data.constructors:
            inputs = tuple(map(self.convert_type, constructor.inputs))
            new = (
                constructor
                if inputs == constructor.inputs
                else constructor.with_fields(inputs=inputs)
            )
            self.constructors[constructor] = new
            constructors_.append(new)
        return data.with_fields(constructors=tuple(constructors_))

    def _convert_function(self, function: Function) -> Function:
        """Convert a global function; only functions inside it are values."""
        new: dict[RelayExpr, RelayExpr] = {}
        # A recursive local function refers to its own closure, which is rebuilt rather than
        # captured.
        bound_vars = {e.value: e.var for e in post_order(function, True) if isinstance(e, Let)}
        for expr in post_order(function, into_functions=True):
            if expr is not function:
                new[expr] = self._convert_expr(expr, new, bound_vars)
        params = [new[p] for p in function.params]
        rebuilt = rebuild(function, [*params, self._convert_value(function.body, new)])
        assert isinstance(rebuilt, Function)
        kind = function.checked_type
        assert isinstance(kind, FuncType)
        return rebuilt.with_fields(ret_type=self.convert_type(kind.ret_type))

    def _convert_value(self, expr: RelayExpr, new: Mapping[RelayExpr, RelayExpr]) -> RelayExpr:
        """Return the converted form of an expression in value position."""
        if not isinstance(expr, GlobalVar):
            return new[expr]
        if expr not in self._globals:
            callee = self.module[expr]
            family = self._closure_type_of_value(callee.checked_type)
            self._globals[expr] = family.add_constructor(
                (), lambda fields: Call(expr, family.params)
            )
        return Call(self._globals[expr], ())

    def _convert_expr(
        self,
        expr: RelayExpr,
        new: Mapping[RelayExpr, RelayExpr],
        bound_vars: Mapping[RelayExpr, Var],
    ) -> RelayExpr:
        match expr:
            case Var(name_hint=hint):
                var_type = expr.checked_type_or_none() or expr.type_annotation
                return Var(
                    hint, None if var_type is None else self.convert_type(var_type), span=expr.span
                )
            case Constructor():
                return self.constructors.get(expr, expr)
            case Function() if is_atom(expr):
                return expr
            case Function():
                return self._convert_closure(expr, new, bound_vars.get(expr))
            case Call(op=callee, args=args):
                values = tuple(self._convert_value(a, new) for a in args)
                if isinstance(callee, (Op, GlobalVar, Constructor)) or (is_atom(callee) and (
                    isinstance(callee, Function)
                )):  # fmt: skip
                    target = new.get(callee, callee)
                    return Call(target, values, expr.attrs, span=expr.span)
                family = self._closure_type_of_value(callee.checked_type)
                return Call(
                    family.apply, (self._convert_value(callee, new), *values), span=expr.span
                )
            case Match():
                clauses = tuple(
                    Clause(self._convert_pattern(c.lhs, new), self._convert_value(c.rhs, new))
                    for c in expr.clauses
                )
                return Match(
                    self._convert_value(expr.data, new), clauses, expr.complete, span=expr.span
                )
            case _:
                return rebuild(expr, [self._convert_value(c, new) for c in children(expr)])

    def _convert_pattern(self, pattern: Pattern, new: Mapping[RelayExpr, RelayExpr]) -> Pattern:
        renamed = map_pattern(pattern, {v: new[v] for v in pattern_vars(pattern)})
        return _replace_constructors(renamed, self.constructors)

    def _convert_closure(
        self, function: Function, new: Mapping[RelayExpr, RelayExpr], self_var: Var | None
    ) -> RelayExpr:
        family = self._closure_type_of_value(function.checked_type)
        captured = [v for v in free_vars(function) if v is not self_var]
        values = [new[v] for v in captured]
        kinds = [self.convert_type(v.checked_type) for v in captured]
        number = len(family.constructors)

        def apply_clause(fields: tuple[Var, ...]) -> RelayExpr:
            """Build the apply clause of a closure.

            Captured values are the constructor's fields, the parameters those of `apply`, and the
            function itself, where it is recursive, is the closure rebuilt from the fields.
            """
            within: dict[Var, RelayExpr] = {}
            for value, field_var in zip(values, fields, strict=True):
                assert isinstance(value, Var)
                within[value] = field_var
            for param, apply_param in zip(function.params, family.params, strict=True):
                inner = new[param]
                assert isinstance(inner, Var)
                within[inner] = apply_param
            if self_var is not None:
                itself = new[self_var]
                assert isinstance(itself, Var)
                within[itself] = Call(family.constructors[number], fields)
            return bind(self._convert_value(function.body, new), within)

        return Call(family.add_constructor(kinds, apply_clause), tuple(values), span=function.span)


def _replace_constructors(pattern: Pattern, new: Mapping[Constructor, Constructor]) -> Pattern:
    if isinstance(pattern, (PatternConstructor, PatternTuple)):
        inner = tuple(_replace_constructors(p, new) for p in pattern.patterns)
        pattern = pattern.with_fields(patterns=inner)
    if isinstance(pattern, PatternConstructor):
        new_constructor = new.get(pattern.constructor, pattern.constructor)
        return pattern.with_fields(constructor=new_constructor)
    return pattern


@module_pass(name="Defunctionalize", opt_level=0)
def _defunctionalize(module: IRModule, context: PassContext) -> IRModule:
    return _Defunctionalizer(monomorphize(module)).run()


def Defunctionalize() -> Pass:  # noqa: N802
    """Return a pass that defunctionalises everything reachable from `main` and other entry
    functions.
    """
    return Sequential((InferType(), EtaExpand(), InferType(), _defunctionalize), "Defunctionalize")


def Defunctionalization(func: Function, mod: IRModule) -> Function:  # noqa: N802
    """Defunctionalise `func` (TVM's Defunctionalization); needed functions and types are added to
    `mod`.

    Raises:
        CompileError: When a polymorphic function is used as a value.
    """
    done = Defunctionalize()(mod.with_function("main", func))
    main = done["main"]
    assert isinstance(main, Function)
    mod.update(done)
    return main
