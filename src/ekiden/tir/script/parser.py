"""Parser of scripts to PrimFuncs: converts the statements of Python's own syntax tree.

Python's parser limits a script to 100 levels of indentation and 200 nested brackets.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.diagnostics import reports_errors
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, SizeVar, StringImm, Var, cast, const, convert
from ekiden.tir.expr import Buffer, BufferLoad, ByteView
from ekiden.tir.script import builtins as script
from ekiden.tir.script.blocks import CallArguments
from ekiden.tir.script.buffers import BufferParser, Opened, StmtWrapper
from ekiden.tir.script.evaluate import Evaluator, ScriptSource
from ekiden.tir.stmt import (
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    PrimFunc,
    Stmt,
    While,
    seq,
)
from ekiden.tir.visitor import NO_OP

FOR_KINDS_BY_NAME = {
    "serial": ForKind.SERIAL,
    "parallel": ForKind.PARALLEL,
    "vectorized": ForKind.VECTORIZED,
    "unroll": ForKind.UNROLLED,
    "thread_binding": ForKind.THREAD_BINDING,
}


class FunctionParser(BufferParser):
    """A parser of one function."""

    def __init__(self, source: ScriptSource, names: Mapping[str, object]) -> None:
        super().__init__(source, names)
        self.threads: dict[script.EnvThread, Var] = {}
        """Variables of the thread axes that T.launch_thread has launched."""
        self.attrs: dict[str, object] | None = None

    # Functions.

    def parse_function_def(self, node: ast.FunctionDef, private: bool) -> PrimFunc:
        """Parse a function without its decorator. Raises ParseError."""
        if node.args.posonlyargs or node.args.kwonlyargs or node.args.vararg or node.args.kwarg:
            self.raise_error(node, "a prim_func takes plain parameters only")
        self.offsets = {
            attribute.value.id
            for attribute in ast.walk(node)
            if isinstance(attribute, ast.Attribute)
            and attribute.attr == "elem_offset"
            and isinstance(attribute.value, ast.Name)
        }
        declared = [self._parse_parameter(arg) for arg in node.args.args]
        body = self.parse_body(node.body)
        matched = {handle: buffer for handle, buffer in self.handles.items() if buffer is not None}
        params = [matched.get(p, p) if isinstance(p, Var) else p for p in declared]
        attrs = self.attrs
        if not private:
            attrs = {"global_symbol": node.name, **(attrs or {})}
        return PrimFunc(tuple(params), _strip_root_block(body), attrs)

    def _parse_parameter(self, node: ast.arg) -> Buffer | Var:
        if node.annotation is None:
            self.raise_error(
                node, f"parameter '{node.arg}' needs a type: T.Buffer(...), T.int64, T.handle"
            )
        kind = self.evaluator.evaluate(node.annotation)
        if isinstance(kind, str):
            # Under `from __future__ import annotations`, and in quotes, an annotation is a string:
            # it is parsed as an expression.
            kind = self.evaluator.evaluate(self._parse_forward_annotation(node.annotation, kind))
        parameter: Buffer | Var
        match kind:
            case script.DType():
                parameter = Var(node.arg, kind.dtype)
            case Buffer() | Var(name=""):
                parameter = kind.with_fields(name=node.arg)
            case _:
                expected = "a T.Buffer, a dtype such as T.int64, or a T.handle"
                self.raise_error(node, f"parameter '{node.arg}' must be {expected}, got {kind!r}")
        self.names[node.arg] = parameter
        if parameter.dtype == "handle" and isinstance(parameter, Var):
            self.handles[parameter] = None
        return parameter

    def _parse_forward_annotation(self, node: ast.AST, text: str) -> ast.expr:
        try:
            return ast.parse(text, mode="eval").body
        except SyntaxError as error:
            self.raise_error(node, f"not an annotation: {error.msg}")

    # Statements.

    def parse_body(self, nodes: Sequence[ast.stmt]) -> Stmt:
        """Parse the statements of one indented block; its names are local to it."""
        before = dict(self.names)
        opened: list[tuple[list[Stmt], StmtWrapper]] = []
        current: list[Stmt] = []
        for node in nodes:
            method = _STATEMENT_PARSERS.get(type(node))
            if method is None:
                kind = type(node).__name__.lower()
                self.raise_error(node, f"a prim_func has no such statement: {kind}")
            parsed = method(self, node)
            if isinstance(parsed, Stmt):
                current.append(parsed)
            elif parsed is not None:
                # A binding form such as alloc_buffer covers the rest of the block: statements so
                # far are set aside and the remainder is wrapped at the end.
                opened.append((current, parsed))
                current = []
        stmt = _join_stmts(current)
        for outer, wrap in reversed(opened):
            outer.append(wrap(stmt))
            stmt = _join_stmts(outer)
        self.names.clear()
        self.names.update(before)
        return stmt

    def _parse_pass(self, _: ast.Pass) -> Stmt:
        return NO_OP

    def _match_form(self, node: ast.expr) -> tuple[str, CallArguments] | None:
        """Return the name and arguments of a statement form's call, or None."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
            return None
        function = self.evaluator.evaluate(node.func)
        if not isinstance(function, script.ScriptForm):
            return None
        keywords = {k.arg: k.value for k in node.keywords if k.arg is not None}
        return function.name, CallArguments(node.args, keywords)

    def _parse_expression_stmt(self, node: ast.Expr) -> Stmt | StmtWrapper | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        match node.value:
            case ast.Call(func=ast.Attribute(attr="vstore", value=owner)):
                return self._parse_vector_store(node.value, self.evaluator.evaluate(owner))
        form = self._match_form(node.value)
        if form is not None:
            name, arguments = form
            method = _STATEMENT_FORM_PARSERS.get(name)
            if method is None:
                self.raise_error(node, f"T.{name} is no statement of its own")
            return method(self, node.value, arguments)
        value = self.evaluator.evaluate(node.value)
        if isinstance(value, Stmt):
            return value
        return Evaluate(self.evaluator.to_scalar(node.value, value))

    def _parse_vector_store(self, node: ast.Call, buffer: object) -> Stmt:
        if not isinstance(buffer, Buffer):
            self.raise_error(node, f"cannot store into {type(buffer).__name__}")
        arguments = CallArguments(node.args, {k.arg: k.value for k in node.keywords if k.arg})
        indices_node, value = arguments.argument(0, "indices"), arguments.argument(1, "value")
        if indices_node is None or value is None:
            self.raise_error(node, "vstore takes indices and a value")
        index = self.evaluator.evaluate(indices_node)
        index = tuple(index) if isinstance(index, list) else index
        mask = arguments.argument(2, "predicate")
        return BufferStore(
            buffer,
            self.evaluator.evaluate_expr(value, buffer.dtype),
            self.evaluator.evaluate_indices(node, index),
            None if mask is None else self.evaluator.evaluate_expr(mask),
        )

    def _parse_assign(self, node: ast.Assign) -> Stmt | StmtWrapper | None:
        if len(node.targets) != 1:
            self.raise_error(node, "assign to one name at a time")
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            return self._parse_store(target, node.value)
        form = self._match_form(node.value) or self._match_buffer_view(node.value)
        if form is not None:
            return self._parse_assigned_form(node, target, *form)
        if not isinstance(target, ast.Name):
            self._parse_unpacking(target, self.evaluator.evaluate(node.value))
            return None
        value = self.evaluator.evaluate(node.value)
        if isinstance(value, script.EnvThread):
            self.threads[value] = Var(target.id, "int32")
            self.names[target.id] = value
        elif isinstance(value, (SizeVar, Var)) and value.name == "":
            self.names[target.id] = value.with_fields(name=target.id)
        elif isinstance(value, PrimExpr):
            var = Var(target.id, value.dtype)
            self.names[target.id] = var
            return lambda body: LetStmt(var, value, body)
        else:
            self.names[target.id] = value
        return None

    def _parse_unpacking(self, target: ast.expr, value: object) -> None:
        match target:
            case ast.Name():
                self.names[target.id] = value
            case ast.Tuple() | ast.List():
                values = list(value) if isinstance(value, (tuple, list)) else []
                if len(values) != len(target.elts):
                    self.raise_error(
                        target, f"expected {len(target.elts)} values, got {len(values)}"
                    )
                for element, element_value in zip(target.elts, values, strict=True):
                    self._parse_unpacking(element, element_value)
            case _:
                self.raise_error(target, "cannot assign to this")

    def _parse_assigned_form(
        self, node: ast.Assign, target: ast.expr, name: str, arguments: CallArguments
    ) -> StmtWrapper | None:
        if name.startswith("axis."):
            self._parse_axis(node, target, name[5:], arguments)
            return None
        if not isinstance(target, ast.Name):
            self.raise_error(target, f"T.{name} gives one value")
        if name == "meta_var":
            if len(arguments.args) != 1:
                self.raise_error(node, "T.meta_var takes one value")
            self.names[target.id] = self.evaluator.evaluate(arguments.args[0])
            return None
        opening = _BINDING_FORM_PARSERS.get(name)
        if opening is None:
            self.raise_error(node, f"T.{name} gives no value")
        bound_value, wrap = opening(self, node, target.id, arguments)
        self.names[target.id] = bound_value
        return wrap

    def _match_buffer_view(self, node: ast.expr) -> tuple[str, CallArguments] | None:
        """Return `T.Buffer(shape, data=A.data)` as decl_buffer's arguments, or None for another
        expression.
        """
        match node:
            case ast.Call(func=ast.Attribute(attr="Buffer"), args=args, keywords=keywords):
                named = {k.arg: k.value for k in keywords if k.arg is not None}
                has_data = "data" in named or len(args) > 2
                return ("decl_buffer", CallArguments(args, named)) if has_data else None
        return None

    def _parse_launch_thread(self, node: ast.AST, name: str, arguments: CallArguments) -> Opened:
        """Bind a thread axis: the rest of the block becomes a loop over threads."""
        axis = self.evaluator.evaluate(arguments.args[0]) if arguments.args else None
        if len(arguments.args) != 2 or not isinstance(axis, (str, script.EnvThread)):
            self.raise_error(node, 'expected T.launch_thread("threadIdx.x", extent)')
        extent = self.evaluator.evaluate_expr(arguments.args[1], "int32")
        var = Var(name, extent.dtype) if isinstance(axis, str) else self.threads[axis]
        notes = {"thread": axis if isinstance(axis, str) else axis.axis}
        low = const(0, extent.dtype)
        self.loops[var] = low, extent
        return var, lambda body: For(var, low, extent, ForKind.THREAD_BINDING, body, notes)

    def _parse_annotated_assign(self, node: ast.AnnAssign) -> StmtWrapper:
        if not isinstance(node.target, ast.Name) or node.value is None:
            self.raise_error(node, "expected 'name: T.dtype = value'")
        kind = self.evaluator.evaluate(node.annotation)
        if not isinstance(kind, script.DType):
            self.raise_error(node.annotation, f"expected a dtype such as T.int64, got {kind!r}")
        value = self.evaluator.evaluate_expr(node.value, kind.dtype)
        var = Var(node.target.id, kind.dtype)
        self.names[node.target.id] = var
        return lambda body: LetStmt(var, value, body)

    def _parse_store(self, target: ast.Subscript, value: ast.expr) -> Stmt:
        buffer = self.evaluator.evaluate(target.value)
        if not isinstance(buffer, (Buffer, ByteView)):
            self.raise_error(target, f"cannot store into {type(buffer).__name__}")
        index = self.evaluator.evaluate(target.slice)
        load = self.evaluator.build_load(target, buffer, index)
        stored = self.evaluator.evaluate_expr(value, load.dtype)
        if dt.lanes_suffix(stored.dtype) in ("", dt.lanes_suffix(load.dtype)):
            stored = cast(stored, load.dtype)
        make = lambda: BufferStore(load.buffer, stored, load.indices)  # noqa: E731
        return self.evaluator.call_reporting_errors(target, make)  # type: ignore[return-value]

    def _parse_augmented_assign(self, node: ast.AugAssign) -> Stmt:
        if not isinstance(node.target, ast.Subscript):
            self.raise_error(node, "only an element of a buffer can be updated in place")
        expanded = ast.BinOp(node.target, node.op, node.value)
        ast.copy_location(expanded, node)
        return self._parse_store(node.target, expanded)

    def _parse_assert(self, node: ast.Assert) -> Stmt:
        message_value = None if node.msg is None else self.evaluator.evaluate(node.msg)
        kind, message, *shown = (
            message_value if isinstance(message_value, tuple) else ("RunError", message_value or "")
        )
        test = self.evaluator.evaluate_expr(node.test)
        return AssertStmt(test, str(message), str(kind), tuple(map(convert, shown)))

    def _parse_if(self, node: ast.If) -> Stmt | None:
        test = self.evaluator.evaluate(node.test)
        if not isinstance(test, PrimExpr) and not isinstance(node.test, ast.Constant):
            # A condition of the surrounding program chooses what the script is.
            nodes = node.body if test else node.orelse
            return self.parse_body(nodes) if nodes else None
        condition = self.evaluator.to_scalar(node.test, test, "bool")
        yes = self.parse_body(node.body)
        return IfThenElse(condition, yes, self.parse_body(node.orelse) if node.orelse else None)

    def _parse_while(self, node: ast.While) -> Stmt:
        if node.orelse:
            self.raise_error(node, "a while loop has no else")
        return While(self.evaluator.evaluate_expr(node.test, "bool"), self.parse_body(node.body))

    # Loops.

    def _parse_for(self, node: ast.For) -> Stmt:
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        if len(names) != len(targets) or node.orelse:
            self.raise_error(
                node, "expected 'for name, ... in T.grid(...)' or another kind of loop"
            )
        if not isinstance(node.iter, ast.Call):
            self.raise_error(node.iter, "expected range(...), T.grid(...), T.serial(...), ...")
        form = self._match_form(node.iter)
        if form is not None and form[0] == "grid":
            extents = [self.evaluator.evaluate_expr(a, "int64") for a in form[1].args]
            if len(extents) != len(names):
                self.raise_error(
                    node, f"T.grid has {len(extents)} extents for {len(names)} variables"
                )
            loops = [(const(0, e.dtype), e) for e in extents]
            return self._parse_loop_nest(node, names, loops, ForKind.SERIAL, None)
        is_range = form is None and self.evaluator.evaluate(node.iter.func) is range
        if form is None and is_range:
            keywords = {k.arg: k.value for k in node.iter.keywords if k.arg is not None}
            form = ("serial", CallArguments(node.iter.args, keywords))
        if form is None or form[0] not in FOR_KINDS_BY_NAME or len(names) != 1:
            self.raise_error(node.iter, "expected range(...), T.grid(...), T.serial(...), ...")
        kind, arguments = FOR_KINDS_BY_NAME[form[0]], form[1]
        bounds = self._evaluate_loop_bounds(node.iter, arguments)
        return self._parse_loop_nest(
            node, names, [bounds], kind, self._evaluate_annotations(arguments)
        )

    def _evaluate_loop_bounds(
        self, node: ast.AST, arguments: CallArguments
    ) -> tuple[PrimExpr, PrimExpr]:
        values = [self.evaluator.evaluate(a) for a in arguments.args]
        if len(values) > 1 and isinstance(values[-1], str):  # the thread axis
            arguments.keywords.setdefault("thread", arguments.args[-1])
            del values[-1]
        extent = arguments.keywords.get("extent")
        if extent is not None and len(values) == 1:
            size = self.evaluator.evaluate_expr(extent, "int64")
            return self.evaluator.to_scalar(node, values[0], size.dtype), size
        if len(values) == 1:
            size = self.evaluator.to_scalar(node, values[0], "int64")
            return const(0, size.dtype), size
        if len(values) != 2:
            self.raise_error(node, "a loop takes (extent) or (start, stop)")
        if not any(isinstance(p, PrimExpr) for p in values):
            low, high = (self.evaluator.to_scalar(node, p, "int64") for p in values)
        else:
            dtype = next(p.dtype for p in values if isinstance(p, PrimExpr))
            low, high = (self.evaluator.to_scalar(node, p, dtype) for p in values)
        return low, simplify(high - low)

    def _evaluate_annotations(self, arguments: CallArguments) -> dict[str, object] | None:
        node, thread = arguments.keywords.get("annotations"), arguments.keywords.get("thread")
        notes = None if node is None else self.evaluator.evaluate(node)
        if notes is not None and not isinstance(notes, dict):
            self.raise_error(node, "annotations must be a dictionary")  # type: ignore[arg-type]
        if thread is not None:
            notes = {**(notes or {}), "thread": self.evaluator.evaluate(thread)}
        return None if notes is None else script.convert_attrs(notes)

    def _parse_loop_nest(
        self,
        node: ast.For,
        names: Sequence[str],
        loops: Sequence[tuple[PrimExpr, PrimExpr]],
        kind: ForKind,
        notes: dict[str, object] | None,
    ) -> Stmt:
        before = dict(self.names)
        variables = [Var(n, e.dtype) for n, (_, e) in zip(names, loops, strict=True)]
        self.names.update(zip(names, variables, strict=True))
        self.loops.update(zip(variables, loops, strict=True))
        stmt = self.parse_body(node.body)
        self.names.clear()
        self.names.update(before)
        for var, (low, extent) in zip(reversed(variables), reversed(loops), strict=True):
            stmt = For(var, low, extent, kind, stmt, notes)
        return stmt

    # Blocks.

    def _parse_with(self, node: ast.With) -> Stmt | None:
        if len(node.items) != 1:
            self.raise_error(node, "one 'with' opens one thing")
        item = node.items[0]
        form = self._match_form(item.context_expr)
        if form is None:
            self.raise_error(node, "expected T.block, T.init, T.LetStmt or T.alloc_buffer")
        name, arguments = form
        if name == "block":
            return self._parse_block(node, arguments)
        if name == "attr":
            return self._parse_attr(item.context_expr, arguments)(self.parse_body(node.body))
        if name == "init":
            if not self.blocks:
                self.raise_error(node, "T.init stands in a block")
            self.blocks[-1].init = self.parse_body(node.body)
            return None
        target = item.optional_vars
        opening = _BINDING_FORM_PARSERS.get(name)
        if opening is None and name != "LetStmt":
            self.raise_error(node, "expected T.block, T.init, T.LetStmt or T.alloc_buffer")
        if not isinstance(target, ast.Name) and name != "launch_thread":
            self.raise_error(node, f"T.{name} needs 'as name'")
        target_name = target.id if isinstance(target, ast.Name) else ""
        if opening is None:
            return self._parse_let(node, target_name, arguments)
        bound_value, wrap = opening(self, node, target_name, arguments)
        body = self._parse_body_with_binding(target_name, bound_value, node.body)
        return body if wrap is None else wrap(body)

    def _parse_let(self, node: ast.With, name: str, arguments: CallArguments) -> Stmt:
        if not arguments.args:
            self.raise_error(node, "T.LetStmt takes a value")
        value = self.evaluator.evaluate_expr(arguments.args[0])
        kind = arguments.argument(1, "dtype")
        var = Var(name, value.dtype if kind is None else str(self.evaluator.evaluate(kind)))
        return LetStmt(var, value, self._parse_body_with_binding(name, var, node.body))

    def _parse_body_with_binding(self, name: str, value: object, nodes: Sequence[ast.stmt]) -> Stmt:
        """Parse a body in which a name is bound."""
        before = dict(self.names)
        self.names[name] = value
        stmt = self.parse_body(nodes)
        self.names.clear()
        self.names.update(before)
        return stmt

    def _parse_env_thread_launch(
        self, node: ast.Call, arguments: CallArguments
    ) -> StmtWrapper | None:
        """Parse T.launch_thread of a variable that T.env_thread declared."""
        var, wrap = self._parse_launch_thread(node, "", arguments)
        for name, value in list(self.names.items()):
            if isinstance(value, script.EnvThread) and self.threads[value] is var:
                self.names[name] = var
        return wrap

    def _parse_attr(self, node: ast.AST, arguments: CallArguments) -> StmtWrapper:
        """Parse T.attr(node, key, value): an attribute of the rest of the block; on a thread axis a
        thread loop.
        """
        if len(arguments.args) != 3:
            self.raise_error(node, "T.attr takes what it is of, a key and a value")
        attr_node, key, value = (self.evaluator.evaluate(a) for a in arguments.args)
        if not isinstance(key, str):
            self.raise_error(arguments.args[1], "the key of T.attr is a text")
        if isinstance(attr_node, script.EnvThread):
            axis = CallArguments([arguments.args[0], arguments.args[2]], {})
            wrap = self._parse_env_thread_launch(node, axis)  # type: ignore[arg-type]
            return wrap or (lambda body: body)
        attr_value = (
            StringImm(value) if isinstance(value, str) else self.evaluator.to_scalar(node, value)
        )
        return lambda body: AttrStmt(attr_node, key, attr_value, body)

    def _parse_func_attr(self, node: ast.Call, arguments: CallArguments) -> None:
        self.attrs = {**(self.attrs or {}), **self._parse_dict_argument(node, arguments)}

    def _parse_prefetch(self, node: ast.Call, arguments: CallArguments) -> Stmt:
        element_node, level = arguments.argument(0, "element"), arguments.argument(1, "locality")
        load = None if element_node is None else self.evaluator.evaluate(element_node)
        if not isinstance(load, BufferLoad):
            self.raise_error(node, "T.prefetch takes an element of a buffer")
        locality = 3 if level is None else self.evaluator.evaluate(level)
        if not isinstance(locality, int):
            self.raise_error(node, "the locality of T.prefetch is a number from 0 to 3")
        return Prefetch(load.buffer, load.indices, locality)


def _join_stmts(statements: Sequence[Stmt]) -> Stmt:
    return seq(*statements) if statements else NO_OP


def _strip_root_block(body: Stmt) -> Stmt:
    """Return the body without TVM's implicit block "root", which carries no information."""
    match body:
        case BlockRealize(
            iter_values=(), block=Block(name="root", init=None, annotations=None, body=inner)
        ):
            return inner
    return body


_STATEMENT_PARSERS: dict[type[ast.stmt], Callable[..., Stmt | StmtWrapper | None]] = {
    ast.Pass: FunctionParser._parse_pass,
    ast.Expr: FunctionParser._parse_expression_stmt,
    ast.Assign: FunctionParser._parse_assign,
    ast.AnnAssign: FunctionParser._parse_annotated_assign,
    ast.AugAssign: FunctionParser._parse_augmented_assign,
    ast.Assert: FunctionParser._parse_assert,
    ast.If: FunctionParser._parse_if,
    ast.For: FunctionParser._parse_for,
    ast.While: FunctionParser._parse_while,
    ast.With: FunctionParser._parse_with,
}
_BINDING_FORM_PARSERS: dict[str, Callable[..., Opened]] = {
    "match_buffer": FunctionParser._parse_match_buffer,
    "alloc_buffer": FunctionParser._parse_alloc_buffer,
    "allocate": FunctionParser._parse_allocate,
    "decl_buffer": FunctionParser._parse_decl_buffer,
    "launch_thread": FunctionParser._parse_launch_thread,
}
"""Parsers of the forms that bind a name, for the rest of a block or in a nested one."""
_STATEMENT_FORM_PARSERS: dict[str, Callable[..., Stmt | StmtWrapper | None]] = {
    "launch_thread": FunctionParser._parse_env_thread_launch,
    "where": FunctionParser._parse_where,
    "reads": FunctionParser._parse_reads,
    "writes": FunctionParser._parse_writes,
    "block_attr": FunctionParser._parse_block_attr,
    "func_attr": FunctionParser._parse_func_attr,
    "attr": FunctionParser._parse_attr,
    "prefetch": FunctionParser._parse_prefetch,
}


def parse_python_ast(text: str, source: ScriptSource) -> ast.Module:
    """Return Python's syntax tree of a text; report its syntax errors as ParseError."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        source.raise_error_at(error.lineno or 1, max((error.offset or 1) - 1, 0), error.msg)
    except (RecursionError, MemoryError):
        source.raise_error_at(1, 0, "nested too deep for Python's parser")


def _is_private_function(node: ast.FunctionDef) -> bool:
    return any(
        isinstance(d, ast.Call)
        and any(
            k.arg == "private" and isinstance(k.value, ast.Constant) and k.value.value is True
            for k in d.keywords
        )
        for d in node.decorator_list
    )


def parse_function(
    node: ast.FunctionDef, source: ScriptSource, names: Mapping[str, object]
) -> PrimFunc:
    """Return the PrimFunc of a function's syntax tree. Raises ParseError."""
    try:
        return FunctionParser(source, names).parse_function_def(node, _is_private_function(node))
    except RecursionError:
        source.raise_error(node, "expressions are nested too deep")


@reports_errors()
def from_source(
    text: str,
    names: Mapping[str, object] | None = None,
    name: str = "script",
    check_well_formed: bool = True,
) -> PrimFunc | IRModule:
    """Parse the function, or the module of functions (a class), that a text defines.

    Args:
        text: Python source with one or more functions or a class; the last one is returned.
        names: what the text may use besides T. Its imports of `tir` and `ir` name T and I.
        name: the text's name in error messages.
        check_well_formed: accepted as in TVM; the parser always checks, and so does `tir.verify`.

    Returns:
        The PrimFunc, or an IRModule for a class.

    Raises:
        ParseError: with the line, the column and a caret.
    """
    del check_well_formed
    source = ScriptSource(text, name)
    scope: dict[str, object] = {"T": script.T, "I": script.I, **(names or {})}
    parsed: PrimFunc | IRModule | None = None
    for node in parse_python_ast(text, source).body:
        match node:
            case ast.FunctionDef():
                parsed = parse_function(node, source, scope)
            case ast.ClassDef():
                parsed = _parse_class(node, source, scope)
            case ast.ImportFrom() | ast.Import():
                for alias in node.names:
                    if alias.name in ("tir", "T"):
                        scope[alias.asname or alias.name] = script.T
                    if alias.name in ("ir", "I"):
                        scope[alias.asname or alias.name] = script.I
            case _:
                source.raise_error(
                    node, "expected a function under @T.prim_func or a class of them"
                )
    if parsed is None:
        source.raise_error_at(1, 0, "the text defines no function")
    return parsed


def _parse_class(node: ast.ClassDef, source: ScriptSource, scope: Mapping[str, object]) -> IRModule:
    functions: dict[GlobalVar | str, BaseFunc] = {}
    relay, attrs = script.RelayText(""), script.ModuleAttrs({})
    evaluator = Evaluator(source, scope)
    for member in node.body:
        match member:
            case ast.FunctionDef():
                functions[member.name] = parse_function(member, source, scope)
            case ast.Assign(value=value) | ast.Expr(value=value):
                member_value = evaluator.evaluate(value)
                relay = member_value if isinstance(member_value, script.RelayText) else relay
                attrs = member_value if isinstance(member_value, script.ModuleAttrs) else attrs
            case ast.Pass():
                pass
            case _:
                source.raise_error(
                    member, "a module has functions under @T.prim_func, and I.relay(text)"
                )
    module = relay.parse(functions) if relay.text else IRModule(functions)
    merged: dict[GlobalVar | str, BaseFunc] = dict(module.functions.items())
    return IRModule(merged, module.type_definitions, {**module.attrs, **attrs.values})


__all__ = ["FunctionParser", "ScriptSource", "from_source", "parse_function"]
