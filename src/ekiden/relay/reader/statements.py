"""Translation of Python statements to lets, conditionals and recursive functions."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.type import FuncType, TupleType, Type
from ekiden.relay.expr import (
    Call,
    Clause,
    Constructor,
    Expr,
    Function,
    If,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    Tuple,
    TupleGetItem,
    Var,
    const,
)
from ekiden.relay.reader.expressions import ConditionallyUnset, ExpressionTranslator, ScriptScope

Statements = Sequence[ast.stmt]


class StatementTranslator(ExpressionTranslator):
    """Translator of a function's statements."""

    # Functions

    def translate_signature(self, tree: ast.FunctionDef) -> tuple[tuple[Var, ...], Type | None]:
        """Return the parameters and the result type.

        Raises:
            ParseError: Parameters are not plain.
        """
        arguments = tree.args
        extra = [*arguments.kwonlyargs, *arguments.posonlyargs, *arguments.defaults]
        if extra or arguments.vararg is not None or arguments.kwarg is not None:
            self.raise_error(tree, f"{tree.name}: expected plain parameters without defaults")
        params = tuple(
            Var(a.arg, self.parse_annotation(a.annotation), self.location.span(a))
            for a in arguments.args
        )
        return params, self.parse_annotation(tree.returns)

    def translate_function(
        self,
        tree: ast.FunctionDef,
        params: tuple[Var, ...],
        ret_type: Type | None,
        outer: ScriptScope | None = None,
    ) -> Function:
        """Translate a function definition."""
        scope = outer.child_scope() if outer is not None else ScriptScope({})
        scope.names.update((p.name_hint, p) for p in params)
        result = self.translate_block(tree.body, scope)
        if result is None:
            self.raise_error(
                tree, f"{tree.name}: not every way through the function returns a value"
            )
        body = self.wrap_lets(scope, result)
        return Function(params, body, ret_type, span=self.location.span(tree))

    # Blocks

    def translate_block(self, statements: Statements, scope: ScriptScope) -> Expr | None:
        """Translate statements; return their result, or None if control reaches the end."""
        for number, statement in enumerate(statements):
            following = statements[number + 1 :]
            match statement:
                case ast.Return(value=value):
                    if value is None:
                        return Tuple(())
                    return self.translate_expr(value, scope)
                case ast.If() | ast.Match() if _may_return([statement]):
                    return self._translate_returning_if(statement, following, scope)
                case ast.If():
                    result = self._translate_if(statement, scope)
                    if result is not None:
                        return result
                case ast.Match():
                    self._translate_match(statement, scope)
                case ast.While():
                    self._translate_while(statement, statement.test, statement.body, scope)
                case ast.For():
                    self._translate_for(statement, scope)
                case _:
                    self._translate_statement(statement, scope)
        return None

    def _translate_statement(self, node: ast.stmt, scope: ScriptScope) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self._translate_assignment(target, self.translate(value, scope), node, scope)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.bind_name(
                    name,
                    self.translate_expr(value, scope),
                    node,
                    scope,
                    self.parse_annotation(node.annotation),
                )
            case ast.AugAssign(target=ast.Name() as target):
                target_value = ast.copy_location(ast.Name(target.id, ast.Load()), target)
                operation = ast.copy_location(ast.BinOp(target_value, node.op, node.value), node)
                self._translate_assignment(target, self.translate(operation, scope), node, scope)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case ast.Expr(value=value):
                effect = self.translate(value, scope)
                if isinstance(effect, RelayExpr):
                    scope.lets.append((Var("_"), effect, node))
            case ast.FunctionDef():
                self._translate_inner_function(node, scope)
            case _:
                kind = type(node).__name__
                self.raise_error(node, f"a Python statement of kind {kind} has no meaning in Relay")

    def _translate_inner_function(self, tree: ast.FunctionDef, scope: ScriptScope) -> None:
        params, ret_type = self.translate_signature(tree)
        param_types = tuple(p.type_annotation for p in params if p.type_annotation is not None)
        is_typed = ret_type is not None and len(param_types) == len(params)
        kind = FuncType(param_types, ret_type) if is_typed and ret_type is not None else None
        name = Var(tree.name, kind, self.location.span(tree))
        scope_inside = scope.child_scope()
        scope_inside.names[tree.name] = name
        scope.lets.append(
            (name, self.translate_function(tree, params, ret_type, scope_inside), tree)
        )
        scope.names[tree.name] = name

    def bind_name(
        self, name: str, value: Expr, node: ast.AST, scope: ScriptScope, kind: Type | None = None
    ) -> Var:
        """Emit a let of a new variable, and return the variable."""
        variable = Var(
            name, kind if kind is not None else self.known_type(value), self.location.span(node)
        )
        scope.lets.append((variable, value, node))
        scope.names[name] = variable
        return variable

    def _translate_assignment(
        self, target: ast.expr, value: object, node: ast.AST, scope: ScriptScope
    ) -> None:
        """Translate an assignment: Relay values become lets, Python values stay as they are."""
        match target:
            case ast.Name(id=name):
                if isinstance(value, Var) or not isinstance(value, RelayExpr):
                    scope.names[name] = value
                else:
                    self.bind_name(name, value, node, scope)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for element, component in zip(
                    targets, self._unpack(value, len(targets), node, scope), strict=True
                ):
                    self._translate_assignment(element, component, node, scope)
            case _:
                self.raise_error(target, "expected a name, or names, to assign to")

    def _unpack(
        self, value: object, count: int, node: ast.AST, scope: ScriptScope
    ) -> Sequence[object]:
        if isinstance(value, Tuple):
            value = value.fields
        if isinstance(value, RelayExpr):
            tuple_var = (
                value if isinstance(value, Var) else self.bind_name("parts", value, node, scope)
            )
            del_name = scope.names.pop("parts", None)
            assert del_name is None or isinstance(del_name, Var)
            return [TupleGetItem(tuple_var, i) for i in range(count)]
        values = list(value) if hasattr(value, "__iter__") else []
        if len(values) != count:
            self.raise_error(node, f"expected {count} values, got {value!r}")
        return values

    # Choices

    def _translate_returning_if(
        self, node: ast.If | ast.Match, following: Statements, scope: ScriptScope
    ) -> Expr | None:
        """Translate an `if` that may return: the following statements are duplicated into branches
        that do not.
        """
        if isinstance(node, ast.Match):
            return self._translate_returning_match(node, following, scope)
        cond = self.translate(node.test, scope)
        if not isinstance(cond, RelayExpr):
            return self.translate_block([*(node.body if cond else node.orelse), *following], scope)
        sides = [
            self._translate_branch([*branch, *following], scope.child_scope(), node)
            for branch in (node.body, node.orelse)
        ]
        return If(cond, sides[0], sides[1], self.location.span(node))

    def _translate_branch(self, statements: Statements, scope: ScriptScope, node: ast.AST) -> Expr:
        result = self.translate_block(statements, scope)
        if result is None:
            self.raise_error(node, "not every way from here returns a value")
        return self.wrap_lets(scope, result)

    def _translate_if(self, node: ast.If, scope: ScriptScope) -> Expr | None:
        """Translate an `if` after which control continues."""
        cond = self.translate(node.test, scope)
        if not isinstance(cond, RelayExpr):
            return self.translate_block(node.body if cond else node.orelse, scope)
        inner = [scope.child_scope(), scope.child_scope()]
        for side, branch in zip(inner, (node.body, node.orelse), strict=True):
            self.translate_block(branch, side)
        self._merge_branch_names(
            node, inner, scope, lambda sides: If(cond, sides[0], sides[1], self.location.span(node))
        )
        return None

    def _merge_branch_names(
        self, node: ast.AST, inner: list[ScriptScope], scope: ScriptScope, choose: object
    ) -> None:
        """Bind the names that branches assign to fields of the conditional's result."""
        assert callable(choose)
        changed = {n for s in inner for n, v in s.names.items() if v is not scope.names.get(n)}
        joined = sorted(n for n in changed if all(n in s.names for s in inner))
        joined = [
            n for n in joined if not any(isinstance(s.names[n], ConditionallyUnset) for s in inner)
        ]
        # A name that only some branches set has no value after them.
        for name in changed.difference(joined):
            scope.names[name] = ConditionallyUnset()
        values = [[self.lift_value(s.names[n], node) for n in joined] for s in inner]
        has_effects = any(s.lets for s in inner)
        if not joined and not has_effects:
            return
        ends = [v[0] if len(joined) == 1 else Tuple(tuple(v)) for v in values]
        chosen = choose([self.wrap_lets(s, end) for s, end in zip(inner, ends, strict=True)])
        self._bind_fields(joined, chosen, node, scope)

    def _bind_fields(
        self, names: list[str], value: Expr, node: ast.AST, scope: ScriptScope
    ) -> None:
        """Bind names to the fields of a value, or a single name to the value."""
        if len(names) == 1:
            self.bind_name(names[0], value, node, scope)
            return
        tuple_var = Var("_" if not names else "all", self.known_type(value))
        scope.lets.append((tuple_var, value, node))
        for number, name in enumerate(names):
            self.bind_name(name, TupleGetItem(tuple_var, number), node, scope)

    # Matching

    def _translate_match(self, node: ast.Match, scope: ScriptScope) -> None:
        data = self.translate_expr(node.subject, scope)
        inner = [scope.child_scope() for _ in node.cases]
        patterns = [self._translate_case(c, s) for c, s in zip(node.cases, inner, strict=True)]
        for side, case in zip(inner, node.cases, strict=True):
            self.translate_block(case.body, side)
        bound = [{v.name_hint for v in _pattern_vars(p)} for p in patterns]
        for side, names in zip(inner, bound, strict=True):
            for name in names:
                side.names[name] = scope.names.get(name, ConditionallyUnset())
        self._merge_branch_names(
            node, inner, scope, lambda sides: self._build_match(node, data, patterns, sides)
        )

    def _translate_returning_match(
        self, node: ast.Match, following: Statements, scope: ScriptScope
    ) -> Expr:
        data = self.translate_expr(node.subject, scope)
        inner = [scope.child_scope() for _ in node.cases]
        patterns = [self._translate_case(c, s) for c, s in zip(node.cases, inner, strict=True)]
        sides = [
            self._translate_branch([*case.body, *following], side, node)
            for case, side in zip(node.cases, inner, strict=True)
        ]
        return self._build_match(node, data, patterns, sides)

    def _build_match(
        self, node: ast.Match, data: Expr, patterns: list[Pattern], sides: list[Expr]
    ) -> Match:
        clauses = [Clause(p, s) for p, s in zip(patterns, sides, strict=True)]
        return Match(data, tuple(clauses), complete=True, span=self.location.span(node))

    def _translate_case(self, case: ast.match_case, scope: ScriptScope) -> Pattern:
        if case.guard is not None:
            self.raise_error(case.guard, "a guard of a case has no meaning in Relay")
        return self._translate_pattern(case.pattern, scope)

    def _translate_pattern(self, node: ast.pattern, scope: ScriptScope) -> Pattern:
        match node:
            case ast.MatchAs(name=None):
                return PatternWildcard()
            case ast.MatchAs(pattern=None, name=str(name)):
                variable = Var(name, None, self.location.span(node))
                scope.names[name] = variable
                return PatternVar(variable)
            case ast.MatchSequence(patterns=inner):
                return PatternTuple(tuple(self._translate_pattern(p, scope) for p in inner))
            case ast.MatchClass(cls=cls, patterns=inner, kwd_attrs=[]):
                constructor = self.translate(cls, scope)
                if not isinstance(constructor, Constructor):
                    self.raise_error(node, f"expected a constructor, got {constructor!r}")
                return PatternConstructor(
                    constructor, tuple(self._translate_pattern(p, scope) for p in inner)
                )
        self.raise_error(node, "expected a constructor, a tuple, a name or _ as a pattern")

    # Loops

    def _translate_while(
        self, node: ast.stmt, test: ast.expr, body: Statements, scope: ScriptScope
    ) -> None:
        """Translate `while` to a recursive function over the variables it assigns."""
        for statement in (n for s in body for n in ast.walk(s)):
            if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
                kind = type(statement).__name__.lower()
                self.raise_error(statement, f"{kind} inside a loop has no meaning in Relay")
        assigned = _assigned_names(body)
        # Only variables that exist before the loop are carried through it.
        names = sorted(
            n
            for n in assigned
            if n in scope.names and not isinstance(scope.names[n], ConditionallyUnset)
        )
        first = [self.lift_value(scope.names[n], node) for n in names]
        kinds = [self._loop_var_type(n, v) for n, v in zip(names, first, strict=True)]
        params = tuple(Var(n, k) for n, k in zip(names, kinds, strict=True))
        inner = scope.child_scope()
        inner.names.update(zip(names, params, strict=True))
        cond = self.translate_expr(test, inner)
        again = inner.child_scope()
        self.translate_block(body, again)
        known_types = tuple(k for k in kinds if k is not None)
        ret = known_types[0] if len(known_types) == 1 else TupleType(known_types)
        is_typed = len(known_types) == len(kinds)
        loop_type = FuncType(known_types, ret) if is_typed else None
        loop = Var("while", loop_type, self.location.span(node))
        ends = [self.lift_value(again.names[n], node) for n in names]
        step = self.wrap_lets(again, Call(loop, tuple(ends), span=self.location.span(node)))
        done: Expr = params[0] if len(params) == 1 else Tuple(params)
        loop_body = self.wrap_lets(inner, If(cond, step, done, self.location.span(node)))
        loop_function = Function(
            params, loop_body, ret if is_typed else None, span=self.location.span(node)
        )
        scope.lets.append((loop, loop_function, node))
        self._bind_fields(
            names, Call(loop, tuple(first), span=self.location.span(node)), node, scope
        )
        for name in assigned.difference(names):
            scope.names[name] = ConditionallyUnset()

    def _loop_var_type(self, name: str, value: Expr) -> Type | None:
        return value.type_annotation if isinstance(value, Var) else self.known_type(value)

    def _translate_for(self, node: ast.For, scope: ScriptScope) -> None:
        """Translate `for i in range(a, b, c)` to a while over an int32 counter."""
        match node:
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id="range"), args=args),
                orelse=[],
            ) if 1 <= len(args) <= 3:
                bounds = [self.translate(a, scope) for a in args]
            case _:
                self.raise_error(node, "expected a loop of the form 'for name in range(...)'")
        start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == 3 else 1
        if not isinstance(step, int) or step == 0:
            self.raise_error(
                node, f"range: expected a step that is a number other than 0, got {step!r}"
            )
        counter, end = _unused_name(f"_{name}", scope), _unused_name(f"_{name}_end", scope)
        scope.names[counter] = self._counter_expr(start, node)
        scope.names[end] = self._counter_expr(stop, node)
        before = ast.copy_location(ast.Name(counter, ast.Load()), node)
        ast.fix_missing_locations(before)
        test = ast.Compare(
            before, [ast.Lt() if step > 0 else ast.Gt()], [ast.Name(end, ast.Load())]
        )
        set_name = ast.Assign([ast.Name(name, ast.Store())], before)
        add = ast.BinOp(before, ast.Add(), ast.Constant(step))
        count = ast.Assign([ast.Name(counter, ast.Store())], add)
        for tree in (test, set_name, count):
            ast.copy_location(tree, node)
            ast.fix_missing_locations(tree)
        self._translate_while(node, test, [set_name, *node.body, count], scope)
        del scope.names[counter], scope.names[end]

    def _counter_expr(self, value: object, node: ast.AST) -> Expr:
        return const(value, "int32") if isinstance(value, int) else self.lift_value(value, node)


def _unused_name(name: str, scope: ScriptScope) -> str:
    while name in scope.names:
        name = f"_{name}"
    return name


def _may_return(statements: Statements) -> bool:
    """Return whether statements contain a return, outside inner functions."""
    stack: list[ast.AST] = list(statements)
    while stack:
        current = stack.pop()
        if isinstance(current, ast.Return):
            return True
        if not isinstance(current, (ast.FunctionDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(current))
    return False


def _assigned_names(statements: Statements) -> set[str]:
    """Return the names that statements assign, outside inner functions."""
    names: set[str] = set()
    stack: list[ast.AST] = list(statements)
    while stack:
        current = stack.pop()
        if isinstance(current, ast.FunctionDef):
            names.add(current.name)
            continue
        if isinstance(current, ast.Name) and isinstance(current.ctx, ast.Store):
            names.add(current.id)
        if isinstance(current, ast.For) and isinstance(current.target, ast.Name):
            names.add(current.target.id)
        stack.extend(ast.iter_child_nodes(current))
    return names


def _pattern_vars(pattern: Pattern) -> list[Var]:
    match pattern:
        case PatternVar(var=var):
            return [var]
        case PatternConstructor(patterns=inner) | PatternTuple(patterns=inner):
            return [v for p in inner for v in _pattern_vars(p)]
    return []
