"""Printing of PrimFuncs as Python text that `ekiden.tir.script` parses back, in the style of
TVMScript.

`astext` returns the text, `print_with_lines` also the line of each statement; `expression_text`
prints the expressions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, SizeVar, Var, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.access_regions import BufferRegion, block_regions
from ekiden.tir.expr import Buffer
from ekiden.tir.expression_text import RESERVED_NAMES, ExpressionPrinter, NameScope, quote_string
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
)

SCRIPT_HEADER = "# from ekiden.script import tir as T"
_ITER_KIND_NAMES = {
    IterKind.SPATIAL: "spatial",
    IterKind.REDUCE: "reduce",
    IterKind.ORDERED: "scan",
    IterKind.OPAQUE: "opaque",
}
_FOR_KIND_NAMES = {**{k: k.value for k in ForKind}, ForKind.UNROLLED: "unroll"}


@dataclass(frozen=True, slots=True)
class _PendingLine:
    """A line that is waiting on the printer's stack."""

    text: str
    indent: int


_POP_SCOPE_MARKER = object()
_Task = tuple[Stmt, int, bool] | _PendingLine | object
"""Pending work of the printer: a statement with its indentation, a line, or the end of a scope."""


class _StmtPrinter:
    """A printer of statements with an explicit stack, so that depth does not recurse."""

    def __init__(self) -> None:
        self.names = NameScope()
        self.exprs = ExpressionPrinter(self.names)
        self.lines: list[str] = []
        self.line_by_stmt: dict[Stmt, int] = {}
        self._stack: list[_Task] = []
        self._loops: dict[Var, PrimExpr] = {}
        """Extents of the enclosing loops that start at 0, for T.axis.remap."""

    def print_line(self, text: str, indent: int) -> None:
        """Append a line, after those that its expressions need."""
        if self.exprs.preceding_lines:
            self.lines.extend("    " * indent + line for line in self.exprs.preceding_lines)
            self.exprs.preceding_lines.clear()
        self.lines.append("    " * indent + text)

    def print_stmts(self, root: Stmt, indent: int) -> None:
        """Print a statement and everything inside."""
        stack = self._stack
        stack.append((root, indent, True))
        while stack:
            task = stack.pop()
            if isinstance(task, tuple):
                self._print_stmt(*task)
            elif isinstance(task, _PendingLine):
                self.print_line(task.text, task.indent)
            else:
                self.names.pop_scope()

    def _push_body(self, body: Stmt, indent: int) -> None:
        """Push a body to be printed as a nested block; names made until then belong to its
        scope.
        """
        self.names.push_scope()
        self._stack.append(_POP_SCOPE_MARKER)
        self._stack.append((body, indent, True))

    def _print_stmt(self, s: Stmt, indent: int, last: bool) -> None:
        e = self.exprs
        match s:
            case SeqStmt():
                count = len(s.seq) - 1
                for n in range(count, -1, -1):
                    self._stack.append((s.seq[n], indent, last and n == count))
                return
            case BufferStore():
                self._print_store(s, indent)
            case For():
                self._print_for(s, indent)
                return
            case BlockRealize():
                self._print_block(s, indent)
                return
            case IfThenElse():
                self._print_if(s, indent)
                return
            case While():
                self._print_nested(s, f"while {e.print_expr(s.condition)}:", indent)
                self._push_body(s.body, indent + 1)
                return
            case LetStmt():
                self._print_let(s, indent, last)
                return
            case Allocate():
                self._print_allocate(s, indent, last)
                return
            case DeclBuffer():
                self._print_decl_buffer(s, indent, last)
                return
            case AttrStmt():
                self._print_attribute_stmt(s, indent, last)
                return
            case Evaluate():
                self._print_evaluate(s, indent)
            case AssertStmt():
                message = quote_string(s.message)
                shown = [*map(e.print_expr, s.values)]
                plain = s.kind == "RunError" and not shown
                failure = (
                    message if plain else f"({', '.join([quote_string(s.kind), message, *shown])})"
                )
                self.print_line(f"assert {e.print_expr(s.condition)}, {failure}", indent)
            case Prefetch():
                element = e.print_element(s.buffer, s.indices, s.buffer.dtype)
                self.print_line(f"T.prefetch({element}, {s.locality})", indent)
            case Block():
                self._stack.append((s.body, indent, last))
                return
            case _:
                self.print_line(f"T.{type(s).__name__}()", indent)
        self.line_by_stmt.setdefault(s, len(self.lines))

    def _print_nested(self, s: Stmt, head: str, indent: int) -> None:
        self.print_line(head, indent)
        self.line_by_stmt.setdefault(s, len(self.lines))

    def _print_store(self, s: BufferStore, indent: int) -> None:
        e = self.exprs
        kind = "uint8" if s.value.dtype == "uint8" else s.buffer.dtype
        value = e.print_typed(s.value, kind)
        if s.predicate is None:
            self.print_line(
                f"{e.print_element(s.buffer, s.indices, s.value.dtype)} = {value}", indent
            )
            return
        location = f"{e.names.name_of(s.buffer)}.vstore([{e.print_exprs(s.indices)}], {value}"
        self.print_line(f"{location}, predicate={e.print_expr(s.predicate)})", indent)

    def _print_evaluate(self, s: Evaluate, indent: int) -> None:
        if is_const(s.value, 0) and s.value.dtype == "int64":
            self.print_line("pass", indent)
            return
        text = self.exprs.print_expr(s.value)
        self.print_line(text if isinstance(s.value, Intrinsic) else f"T.evaluate({text})", indent)

    def _print_let(self, s: LetStmt, indent: int, last: bool) -> None:
        value = self.exprs.print_expr(s.value)
        if last:
            name = self.names.define(s.var, s.var.name)
            self._print_nested(s, f"{name}: T.{s.var.dtype} = {value}", indent)
            self._stack.append((s.body, indent, True))
            return
        self._push_body(s.body, indent + 1)
        name = self.names.define(s.var, s.var.name)
        dtype = "" if s.var.dtype == s.value.dtype else f', "{s.var.dtype}"'
        self._print_nested(s, f"with T.LetStmt({value}{dtype}) as {name}:", indent)

    def _print_attribute_stmt(self, s: AttrStmt, indent: int, last: bool) -> None:
        node = self.exprs.print_attribute(s.node) if not isinstance(s.node, Buffer) else ""
        node = node or self.names.name_of(s.node)  # type: ignore[arg-type]
        if isinstance(s.node, Target):
            node = f"T.target({quote_string(str(s.node))})"
        constructor = (
            f"T.attr({node}, {quote_string(s.attr_key)}, {self.exprs.print_expr(s.value)})"
        )
        if last:
            self._print_nested(s, constructor, indent)
            self._stack.append((s.body, indent, True))
        else:
            self._push_body(s.body, indent + 1)
            self._print_nested(s, f"with {constructor}:", indent)

    def _print_allocate(self, s: Allocate, indent: int, last: bool) -> None:
        self._print_buffer_definition(
            s, f"T.alloc_buffer({self.exprs.print_buffer_args(s.buffer)})", indent, last
        )

    def _print_decl_buffer(self, s: DeclBuffer, indent: int, last: bool) -> None:
        for v in (*s.buffer.strides, s.buffer.elem_offset):
            if isinstance(v, Var):
                self.print_line(f"{self.names.define(v, v.name)} = T.{v.dtype}()", indent)
        arguments = self.exprs.print_buffer_args(s.buffer)
        if s.region:
            region = self.exprs.print_region(BufferRegion(s.source, s.region))
            constructor = f"T.match_buffer({region}, {arguments})"
        else:
            constructor = f"T.decl_buffer({arguments}, data={self.names.name_of(s.source)}.data)"
        self._print_buffer_definition(s, constructor, indent, last)

    def _print_buffer_definition(
        self, s: Allocate | DeclBuffer, constructor: str, indent: int, last: bool
    ) -> None:
        """Print `name = constructor(...)` at the end of a block, `with constructor(...) as name`
        elsewhere.
        """
        if last:
            name = self.names.define(s.buffer, s.buffer.name)
            self._print_nested(s, f"{name} = {constructor}", indent)
            self._stack.append((s.body, indent, True))
            return
        self._push_body(s.body, indent + 1)
        name = self.names.define(s.buffer, s.buffer.name)
        self._print_nested(s, f"with {constructor} as {name}:", indent)

    def _print_if(self, s: IfThenElse, indent: int) -> None:
        self._print_nested(s, f"if {self.exprs.print_expr(s.condition)}:", indent)
        if s.else_case is not None:
            self._stack.append(_POP_SCOPE_MARKER)
            self._stack.append((s.else_case, indent + 1, True))
            self._stack.append(_PendingLine("else:", indent))
            self.names.push_scope()
        self._push_body(s.then_case, indent + 1)

    # Loops.

    def _print_for(self, s: For, indent: int) -> None:
        nest = _match_grid(s)
        extents = [self.exprs.print_expr(f.extent) for f in nest]
        # Bounds are printed before the loop variables get names: they are outside their scope.
        lows = [self.exprs.print_expr(f.min) for f in nest]
        kind = self._loop_header(nest[0], lows[0], extents[0])
        self._push_body(nest[-1].body, indent + 1)
        names = []
        for loop in nest:
            names.append(self.names.define(loop.loop_var, loop.loop_var.name))
            self.line_by_stmt.setdefault(
                loop, len(self.lines) + len(self.exprs.preceding_lines) + 1
            )
            if is_const(loop.min, 0):
                self._loops[loop.loop_var] = loop.extent
        head = f"T.grid({', '.join(extents)})" if len(nest) > 1 else kind
        self.print_line(f"for {', '.join(names)} in {head}:", indent)

    def _loop_header(self, s: For, low: str, extent: str) -> str:
        notes = dict(s.annotations or {})
        more = ""
        if s.kind is ForKind.THREAD_BINDING and "thread" in notes:
            more = f', thread="{notes.pop("thread")}"'
        if notes or (s.annotations is not None and not s.annotations):
            more += f", annotations={self.exprs.print_dict(notes)}"
        if is_const(s.min, 0) and s.min.dtype == s.extent.dtype:
            bounds = extent
        elif isinstance(s.min, IntImm) and isinstance(s.extent, IntImm) and s.min.dtype == "int64":
            bounds = f"{low}, {s.min.value + s.extent.value}"
        else:
            bounds = f"{low}, extent={extent}"
        if s.kind is ForKind.SERIAL and not more and "extent=" not in bounds:
            return f"range({bounds})"
        return f"T.{_FOR_KIND_NAMES[s.kind]}({bounds}{more})"

    # Blocks.

    def _print_block(self, s: BlockRealize, indent: int) -> None:
        b = s.block
        self._print_nested(s, f"with T.block({quote_string(b.name)}):", indent)
        self.line_by_stmt.setdefault(b, len(self.lines))
        self.names.push_scope()
        self._stack.append(_POP_SCOPE_MARKER)
        indent += 1
        self._print_block_axes(s, indent)
        if not (isinstance(s.predicate, IntImm) and s.predicate.value):
            self.print_line(f"T.where({self.exprs.print_expr(s.predicate)})", indent)
        reads, writes = block_regions(b)
        for word, regions in (("reads", reads), ("writes", writes)):
            text = ", ".join([self.exprs.print_region(r) for r in regions])
            self.print_line(f"T.{word}({text})", indent)
        if b.annotations is not None:
            self.print_line(f"T.block_attr({self.exprs.print_dict(b.annotations)})", indent)
        self._stack.append((b.body, indent, True))
        if b.init is not None:
            self.names.push_scope()
            self._stack.append(_POP_SCOPE_MARKER)
            self._stack.append((b.init, indent + 1, True))
            self.print_line("with T.init():", indent)

    def _print_block_axes(self, s: BlockRealize, indent: int) -> None:
        pairs = list(zip(s.block.iter_vars, s.iter_values, strict=False))  # verify's to refuse
        begin = 0
        while begin < len(pairs):
            end = begin
            while end < len(pairs) and self._is_remapped_loop(*pairs[end]):
                end += 1
            if end - begin > 1:
                run = pairs[begin:end]
                kinds = "".join(v.kind.value[0].upper() for v, _ in run)
                values = ", ".join([self.exprs.print_expr(value) for _, value in run])
                names = ", ".join([self.names.define(v.var, v.var.name) for v, _ in run])
                self.print_line(f'{names} = T.axis.remap("{kinds}", [{values}])', indent)
                begin = end
                continue
            iter_var, value = pairs[begin]
            bound = f"{self.exprs.print_expr(iter_var.extent)}, {self.exprs.print_expr(value)}"
            name = self.names.define(iter_var.var, iter_var.var.name)
            self.print_line(f"{name} = T.axis.{_ITER_KIND_NAMES[iter_var.kind]}({bound})", indent)
            begin += 1

    def _is_remapped_loop(self, iter_var: IterVar, value: PrimExpr) -> bool:
        """Return whether a block iterator is bound to a loop of the same extent, so that
        T.axis.remap can print it.
        """
        if iter_var.kind is IterKind.ORDERED:
            return False  # remap has no letter for T.axis.scan
        extent = self._loops.get(value) if isinstance(value, Var) else None
        own = iter_var.extent
        return extent is not None and (
            extent is own
            or (
                isinstance(extent, IntImm)
                and isinstance(own, IntImm)
                and (extent.value, extent.dtype) == (own.value, own.dtype)
            )
        )

    # Functions.

    def print_function(self, func: PrimFunc, indent: int = 0, own_name: str | None = None) -> None:
        """Print a whole function; `own_name` is its name in a module."""
        attrs = dict(func.attrs) if func.attrs is not None else None
        symbol = None if attrs is None else attrs.get("global_symbol")
        name = own_name or (symbol if _is_operator_name(symbol) else "main")
        if attrs is not None and symbol == name:
            del attrs["global_symbol"]
        symbols = _symbolic_sizes(func)
        handles: list[tuple[Buffer, str]] = []
        params = []
        for b in func.params:
            if isinstance(b, Var):
                own = self.names.define(b, b.name)
                params.append(f"{own}: {_format_var_declaration(b).removesuffix('()')}")
            elif free_vars(*b.sizes()):
                handle = self.names.define(object(), f"{b.name}_handle")
                handles.append((b, handle))
                params.append(f"{handle}: T.handle")
                self.names.define(b, b.name)
            else:
                own = self.names.define(b, b.name)
                params.append(f"{own}: T.Buffer({self.exprs.print_buffer_args(b)})")
        private = symbol is None
        self.print_line("@T.prim_func(private=True)" if private else "@T.prim_func", indent)
        self._print_signature(name, params, indent)
        if attrs or (attrs is not None and private):
            self.print_line(f"T.func_attr({self.exprs.print_dict(attrs)})", indent + 1)
        for var in symbols:
            own = self.names.define(var, var.name)
            self.print_line(f"{own} = {_format_var_declaration(var)}", indent + 1)
        for b, handle in handles:
            arguments = self.exprs.print_buffer_args(b)
            self.print_line(
                f"{self.names.name_of(b)} = T.match_buffer({handle}, {arguments})", indent + 1
            )
        self.print_stmts(func.body, indent + 1)

    def _print_signature(self, name: object, params: Sequence[str], indent: int) -> None:
        line = f"def {name}({', '.join(params)}):"
        if len(line) + 4 * indent <= 100:
            self.print_line(line, indent)
            return
        self.print_line(f"def {name}(", indent)
        for param in params:
            self.print_line(f"{param},", indent + 1)
        self.print_line("):", indent)


def _is_operator_name(symbol: object) -> bool:
    return isinstance(symbol, str) and symbol.isidentifier() and symbol not in RESERVED_NAMES


def _format_var_declaration(var: Var) -> str:
    if not isinstance(var, SizeVar):
        return f"T.{var.dtype}()"
    upper = "" if var.upper is None else f", upper={var.upper}"
    return f"T.{var.dtype}(is_size_var=True{upper})"


def _symbolic_sizes(func: PrimFunc) -> dict[Var, None]:
    """Return the variables in parameters' sizes that are not parameters, in order of first use."""
    size_vars = dict.fromkeys(v for b in func.buffers for v in free_vars(*b.sizes()))
    return {v: None for v in size_vars if v not in func.scalars}


def _match_grid(s: For) -> list[For]:
    """Return the perfect nest of plain loops that starts here and can be printed as T.grid; an
    extent must not use the nest's variables.
    """
    nest = [s]
    if not _is_unannotated_serial_loop(s):
        return nest
    bound = {s.loop_var}
    while isinstance(inner := nest[-1].body, For) and _is_unannotated_serial_loop(inner):
        if not isinstance(inner.extent, IntImm) and bound & set(free_vars(inner.extent)):
            break
        nest.append(inner)
        bound.add(inner.loop_var)
    return nest


def _is_unannotated_serial_loop(s: For) -> bool:
    return (
        s.kind is ForKind.SERIAL
        and s.annotations is None
        and is_const(s.min, 0)
        and s.min.dtype == s.extent.dtype
    )


def print_with_lines(func: PrimFunc) -> tuple[str, dict[Stmt, int]]:
    """Return the text and the line (from 1) of each statement, for debug information and errors."""
    printer = _StmtPrinter()
    printer.lines += [SCRIPT_HEADER, ""]
    printer.print_function(func)
    return "\n".join(printer.lines) + "\n", printer.line_by_stmt


def astext(func: PrimFunc) -> str:
    """Return the function as Python text that `ekiden.tir.parse` reads back.

    Names are made unique within their scope. Which long sub-expressions are named depends on which
    nodes are shared, so equivalent functions may differ in that.
    """
    return print_with_lines(func)[0]


def format_stmt(stmt: Stmt) -> str:
    """Return the text of a single statement, for messages; names from outside are free in it."""
    printer = _StmtPrinter()
    printer.print_stmts(stmt, 0)
    return "\n".join(printer.lines)


def print_module(module: IRModule, name: str = "Module") -> str:
    """Return a module as a Python class with loop programs as methods.

    Relay functions and types, and loop programs whose name is not a Python identifier, are embedded
    as Relay text in a string. Raises ValueError for such a name before `ekiden.relay` is loaded.
    """
    functions = {g.name_hint: f for g, f in module.functions.items()}
    loops = {n: f for n, f in functions.items() if isinstance(f, PrimFunc) and _is_operator_name(n)}
    lines = [
        SCRIPT_HEADER.replace("tir as T", "ir as I, tir as T"),
        "",
        "@I.ir_module",
        f"class {name}:",
    ]
    if module.attrs:
        attrs = ExpressionPrinter(NameScope()).print_dict(module.attrs)
        lines += [f"    I.module_attrs({attrs})", ""]
    for symbol, func in loops.items():
        printer = _StmtPrinter()
        printer.print_function(func, 1, symbol)
        lines += [*printer.lines, ""]
    relay_functions = {g: f for g, f in module.functions.items() if g.name_hint not in loops}
    if relay_functions or module.type_definitions:
        if IRModule.printer is None:
            raise ValueError(
                f"module script: {next(iter(relay_functions))} is no Python name: import "
                "ekiden.relay"
            )
        text = IRModule(dict(relay_functions.items()), module.type_definitions).astext()
        escaped = text.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        lines += [f'    relay = I.relay("""\n{escaped}\n""")', ""]
    if len(lines) == 4:
        lines.append("    pass")
    return "\n".join(lines).rstrip() + "\n"
