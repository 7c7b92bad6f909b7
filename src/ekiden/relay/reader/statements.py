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
from ekiden.relay.reader.expressions import Expressions, Missing, Scope

Statements = Sequence[ast.stmt]


class Body(Expressions):
    """Translator of a function's statements."""

    # Functions

    def signature(self, tree: ast.FunctionDef) -> tuple[tuple[Var, ...], Type | None]:
        """Return the parameters and the result type.

        Raises:
            ParseError: Parameters are not plain.
        """
        arguments = tree.args
        extra = [*arguments.kwonlyargs, *arguments.posonlyargs, *arguments.defaults]
        if extra or arguments.vararg is not None or arguments.kwarg is not None:
            self.fail(tree, f"{tree.name}: expected plain parameters without defaults")
        params = tuple(
            Var(a.arg, self.annotation(a.annotation), self.place.span(a)) for a in arguments.args
        )
        return params, self.annotation(tree.returns)

    def function(
        self,
        tree: ast.FunctionDef,
        params: tuple[Var, ...],
        ret_type: Type | None,
        outer: Scope | None = None,
    ) -> Function:
        """Translate a function definition."""
        scope = outer.inner() if outer is not None else Scope({})
        scope.names.update((p.name_hint, p) for p in params)
        result = self.block(tree.body, scope)
        if result is None:
            self.fail(tree, f"{tree.name}: not every way through the function returns a value")
        body = self.close(scope, result)
        return Function(params, body, ret_type, span=self.place.span(tree))

    # Blocks

    def block(self, statements: Statements, scope: Scope) -> Expr | None:
        """Translate statements; return their result, or None if control reaches the end."""
        for number, statement in enumerate(statements):
            following = statements[number + 1 :]
            match statement:
                case ast.Return(value=value):
                    if value is None:
                        return Tuple(())
                    return self.expr(value, scope)
                case ast.If() | ast.Match() if _may_return([statement]):
                    return self._final_choice(statement, following, scope)
                case ast.If():
                    result = self._choose(statement, scope)
                    if result is not None:
                        return result
                case ast.Match():
                    self._match(statement, scope)
                case ast.While():
                    self._while(statement, statement.test, statement.body, scope)
                case ast.For():
                    self._for(statement, scope)
                case _:
                    self._simple(statement, scope)
        return None

    def _simple(self, node: ast.stmt, scope: Scope) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self.value(value, scope), node, scope)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.bind(
                    name, self.expr(value, scope), node, scope, self.annotation(node.annotation)
                )
            case ast.AugAssign(target=ast.Name() as target):
                target_value = ast.copy_location(ast.Name(target.id, ast.Load()), target)
                operation = ast.copy_location(ast.BinOp(target_value, node.op, node.value), node)
                self._assign(target, self.value(operation, scope), node, scope)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case ast.Expr(value=value):
                effect = self.value(value, scope)
                if isinstance(effect, RelayExpr):
                    scope.lets.append((Var("_"), effect, node))
            case ast.FunctionDef():
                self._inner_function(node, scope)
            case _:
                kind = type(node).__name__
                self.fail(node, f"a Python statement of kind {kind} has no meaning in Relay")

    def _inner_function(self, tree: ast.FunctionDef, scope: Scope) -> None:
        params, ret_type = self.signature(tree)
        param_types = tuple(p.type_annotation for p in params if p.type_annotation is not None)
        is_typed = ret_type is not None and len(param_types) == len(params)
        kind = FuncType(param_types, ret_type) if is_typed and ret_type is not None else None
        name = Var(tree.name, kind, self.place.span(tree))
        scope_inside = scope.inner()
        scope_inside.names[tree.name] = name
        scope.lets.append((name, self.function(tree, params, ret_type, scope_inside), tree))
        scope.names[tree.name] = name

    def bind(
        self, name: str, value: Expr, node: ast.AST, scope: Scope, kind: Type | None = None
    ) -> Var:
        """Emit a let of a new variable, and return the variable."""
        variable = Var(
            name, kind if kind is not None else self.type_of(value), self.place.span(node)
        )
        scope.lets.append((variable, value, node))
        scope.names[name] = variable
        return variable

    def _assign(self, target: ast.expr, value: object, node: ast.AST, scope: Scope) -> None:
        """Translate an assignment: Relay values become lets, Python values stay as they are."""
        match target:
            case ast.Name(id=name):
                if isinstance(value, Var) or not isinstance(value, RelayExpr):
                    scope.names[name] = value
                else:
                    self.bind(name, value, node, scope)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for element, component in zip(
                    targets, self._parts(value, len(targets), node, scope), strict=True
                ):
                    self._assign(element, component, node, scope)
            case _:
                self.fail(target, "expected a name, or names, to assign to")

    def _parts(self, value: object, count: int, node: ast.AST, scope: Scope) -> Sequence[object]:
        if isinstance(value, Tuple):
            value = value.fields
        if isinstance(value, RelayExpr):
            tuple_var = value if isinstance(value, Var) else self.bind("parts", value, node, scope)
            del_name = scope.names.pop("parts", None)
            assert del_name is None or isinstance(del_name, Var)
            return [TupleGetItem(tuple_var, i) for i in range(count)]
        values = list(value) if hasattr(value, "__iter__") else []
        if len(values) != count:
            self.fail(node, f"expected {count} values, got {value!r}")
        return values

    # Choices

    def _final_choice(
        self, node: ast.If | ast.Match, following: Statements, scope: Scope
    ) -> Expr | None:
        """Translate an `if` that may return: the following statements are duplicated into branches
        that do not.
        """
        if isinstance(node, ast.Match):
            return self._final_match(node, following, scope)
        cond = self.value(node.test, scope)
        if not isinstance(cond, RelayExpr):
            return self.block([*(node.body if cond else node.orelse), *following], scope)
        sides = [
            self._side([*branch, *following], scope.inner(), node)
            for branch in (node.body, node.orelse)
        ]
        return If(cond, sides[0], sides[1], self.place.span(node))

    def _side(self, statements: Statements, scope: Scope, node: ast.AST) -> Expr:
        result = self.block(statements, scope)
        if result is None:
            self.fail(node, "not every way from here returns a value")
        return self.close(scope, result)

    def _choose(self, node: ast.If, scope: Scope) -> Expr | None:
        """Translate an `if` after which control continues."""
        cond = self.value(node.test, scope)
        if not isinstance(cond, RelayExpr):
            return self.block(node.body if cond else node.orelse, scope)
        inner = [scope.inner(), scope.inner()]
        for side, branch in zip(inner, (node.body, node.orelse), strict=True):
            self.block(branch, side)
        self._join(
            node, inner, scope, lambda sides: If(cond, sides[0], sides[1], self.place.span(node))
        )
        return None

    def _join(self, node: ast.AST, inner: list[Scope], scope: Scope, choose: object) -> None:
        """Bind the names that branches assign to fields of the conditional's result."""
        assert callable(choose)
        changed = {n for s in inner for n, v in s.names.items() if v is not scope.names.get(n)}
        joined = sorted(n for n in changed if all(n in s.names for s in inner))
        joined = [n for n in joined if not any(isinstance(s.names[n], Missing) for s in inner)]
        # A name that only some branches set has no value after them.
        for name in changed.difference(joined):
            scope.names[name] = Missing()
        values = [[self.lift(s.names[n], node) for n in joined] for s in inner]
        has_effects = any(s.lets for s in inner)
        if not joined and not has_effects:
            return
        ends = [v[0] if len(joined) == 1 else Tuple(tuple(v)) for v in values]
        chosen = choose([self.close(s, end) for s, end in zip(inner, ends, strict=True)])
        self._spread(joined, chosen, node, scope)

    def _spread(self, names: list[str], value: Expr, node: ast.AST, scope: Scope) -> None:
        """Bind names to the fields of a value, or a single name to the value."""
        if len(names) == 1:
            self.bind(names[0], value, node, scope)
            return
        tuple_var = Var("_" if not names else "all", self.type_of(value))
        scope.lets.append((tuple_var, value, node))
        for number, name in enumerate(names):
            self.bind(name, TupleGetItem(tuple_var, number), node, scope)

    # Matching

    def _match(self, node: ast.Match, scope: Scope) -> None:
        data = self.expr(node.subject, scope)
        inner = [scope.inner() for _ in node.cases]
        patterns = [self._case(c, s) for c, s in zip(node.cases, inner, strict=True)]
        for side, case in zip(inner, node.cases, strict=True):
            self.block(case.body, side)
        bound = [{v.name_hint for v in _pattern_vars(p)} for p in patterns]
        for side, names in zip(inner, bound, strict=True):
            for name in names:
                side.names[name] = scope.names.get(name, Missing())
        self._join(node, inner, scope, lambda sides: self._matched(node, data, patterns, sides))

    def _final_match(self, node: ast.Match, following: Statements, scope: Scope) -> Expr:
        data = self.expr(node.subject, scope)
        inner = [scope.inner() for _ in node.cases]
        patterns = [self._case(c, s) for c, s in zip(node.cases, inner, strict=True)]
        sides = [
            self._side([*case.body, *following], side, node)
            for case, side in zip(node.cases, inner, strict=True)
        ]
        return self._matched(node, data, patterns, sides)

    def _matched(
        self, node: ast.Match, data: Expr, patterns: list[Pattern], sides: list[Expr]
    ) -> Match:
        clauses = [Clause(p, s) for p, s in zip(patterns, sides, strict=True)]
        return Match(data, tuple(clauses), complete=True, span=self.place.span(node))

    def _case(self, case: ast.match_case, scope: Scope) -> Pattern:
        if case.guard is not None:
            self.fail(case.guard, "a guard of a case has no meaning in Relay")
        return self._pattern(case.pattern, scope)

    def _pattern(self, node: ast.pattern, scope: Scope) -> Pattern:
        match node:
            case ast.MatchAs(name=None):
                return PatternWildcard()
            case ast.MatchAs(pattern=None, name=str(name)):
                variable = Var(name, None, self.place.span(node))
                scope.names[name] = variable
                return PatternVar(variable)
            case ast.MatchSequence(patterns=inner):
                return PatternTuple(tuple(self._pattern(p, scope) for p in inner))
            case ast.MatchClass(cls=cls, patterns=inner, kwd_attrs=[]):
                constructor = self.value(cls, scope)
                if not isinstance(constructor, Constructor):
                    self.fail(node, f"expected a constructor, got {constructor!r}")
                return PatternConstructor(
                    constructor, tuple(self._pattern(p, scope) for p in inner)
                )
        self.fail(node, "expected a constructor, a tuple, a name or _ as a pattern")

    # Loops

    def _while(self, node: ast.stmt, test: ast.expr, body: Statements, scope: Scope) -> None:
        """Translate `while` to a recursive function over the variables it assigns."""
        for statement in (n for s in body for n in ast.walk(s)):
            if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
                kind = type(statement).__name__.lower()
                self.fail(statement, f"{kind} inside a loop has no meaning in Relay")
        assigned = _assigned(body)
        # Only variables that exist before the loop are carried through it.
        names = sorted(
            n for n in assigned if n in scope.names and not isinstance(scope.names[n], Missing)
        )
        first = [self.lift(scope.names[n], node) for n in names]
        kinds = [self._loop_type(n, v) for n, v in zip(names, first, strict=True)]
        params = tuple(Var(n, k) for n, k in zip(names, kinds, strict=True))
        inner = scope.inner()
        inner.names.update(zip(names, params, strict=True))
        cond = self.expr(test, inner)
        again = inner.inner()
        self.block(body, again)
        known_types = tuple(k for k in kinds if k is not None)
        ret = known_types[0] if len(known_types) == 1 else TupleType(known_types)
        is_typed = len(known_types) == len(kinds)
        loop_type = FuncType(known_types, ret) if is_typed else None
        loop = Var("while", loop_type, self.place.span(node))
        ends = [self.lift(again.names[n], node) for n in names]
        step = self.close(again, Call(loop, tuple(ends), span=self.place.span(node)))
        done: Expr = params[0] if len(params) == 1 else Tuple(params)
        loop_body = self.close(inner, If(cond, step, done, self.place.span(node)))
        loop_function = Function(
            params, loop_body, ret if is_typed else None, span=self.place.span(node)
        )
        scope.lets.append((loop, loop_function, node))
        self._spread(names, Call(loop, tuple(first), span=self.place.span(node)), node, scope)
        for name in assigned.difference(names):
            scope.names[name] = Missing()

    def _loop_type(self, name: str, value: Expr) -> Type | None:
        return value.type_annotation if isinstance(value, Var) else self.type_of(value)

    def _for(self, node: ast.For, scope: Scope) -> None:
        """Translate `for i in range(a, b, c)` to a while over an int32 counter."""
        match node:
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id="range"), args=args),
                orelse=[],
            ) if 1 <= len(args) <= 3:
                bounds = [self.value(a, scope) for a in args]
            case _:
                self.fail(node, "expected a loop of the form 'for name in range(...)'")
        start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == 3 else 1
        if not isinstance(step, int) or step == 0:
            self.fail(node, f"range: expected a step that is a number other than 0, got {step!r}")
        counter, end = _unused(f"_{name}", scope), _unused(f"_{name}_end", scope)
        scope.names[counter] = self._counter(start, node)
        scope.names[end] = self._counter(stop, node)
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
        self._while(node, test, [set_name, *node.body, count], scope)
        del scope.names[counter], scope.names[end]

    def _counter(self, value: object, node: ast.AST) -> Expr:
        return const(value, "int32") if isinstance(value, int) else self.lift(value, node)


def _unused(name: str, scope: Scope) -> str:
    while name in scope.names:
        name = f"_{name}"
    return name


def _may_return(statements: Statements) -> bool:
    """Return whether statements contain a return, outside inner functions."""
    stack: list[ast.AST] = list(statements)
    while stack:
        at = stack.pop()
        if isinstance(at, ast.Return):
            return True
        if not isinstance(at, (ast.FunctionDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(at))
    return False


def _assigned(statements: Statements) -> set[str]:
    """Return the names that statements assign, outside inner functions."""
    names: set[str] = set()
    stack: list[ast.AST] = list(statements)
    while stack:
        at = stack.pop()
        if isinstance(at, ast.FunctionDef):
            names.add(at.name)
            continue
        if isinstance(at, ast.Name) and isinstance(at.ctx, ast.Store):
            names.add(at.id)
        if isinstance(at, ast.For) and isinstance(at.target, ast.Name):
            names.add(at.target.id)
        stack.extend(ast.iter_child_nodes(at))
    return names


def _pattern_vars(pattern: Pattern) -> list[Var]:
    match pattern:
        case PatternVar(var=var):
            return [var]
        case PatternConstructor(patterns=inner) | PatternTuple(patterns=inner):
            return [v for p in inner for v in _pattern_vars(p)]
    return []
