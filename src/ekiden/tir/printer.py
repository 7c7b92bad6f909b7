"""Printing of PrimFuncs as Python text that `ekiden.tir.script` parses back, in the style of
TVMScript.

`astext` returns the text, `text_and_lines` also the line of each statement; `expression_text`
prints the expressions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, SizeVar, Var, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.expression_text import RESERVED, ExpressionPrinter, NameScope, quoted
from ekiden.tir.regions import BufferRegion, block_regions
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
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
)

SCRIPT_HEADER = "# from ekiden.script import tir as T"
_AXIS_NAMES = {IterKind.SPATIAL: "spatial", IterKind.REDUCE: "reduce", IterKind.OPAQUE: "opaque"}
_LOOP_NAMES = {**{k: k.value for k in ForKind}, ForKind.UNROLLED: "unroll"}


@dataclass(frozen=True, slots=True)
class _PendingLine:
    """A line that is waiting on the printer's stack."""

    text: str
    indent: int


_LEAVE_SCOPE = object()
_Task = tuple[Stmt, int, bool] | _PendingLine | object
"""A statement with its indentation and whether it ends its block; a line; or a scope's end."""


class _StmtPrinter:
    """A printer of statements with an explicit stack, so that depth does not recurse."""

    def __init__(self) -> None:
        self.names = NameScope()
        self.exprs = ExpressionPrinter(self.names)
        self.lines: list[str] = []
        self.line_of: dict[Stmt, int] = {}
        self._stack: list[_Task] = []
        self._loops: dict[Var, PrimExpr] = {}
        """Extents of the loops from 0 around the statement, for T.axis.remap."""

    def put(self, text: str, indent: int) -> None:
        """Append a line, after those that its expressions need."""
        if self.exprs.before:
            self.lines.extend("    " * indent + line for line in self.exprs.before)
            self.exprs.before.clear()
        self.lines.append("    " * indent + text)

    def run(self, root: Stmt, indent: int) -> None:
        """Print a statement and everything inside."""
        stack = self._stack
        stack.append((root, indent, True))
        while stack:
            task = stack.pop()
            if isinstance(task, tuple):
                self._statement(*task)
            elif isinstance(task, _PendingLine):
                self.put(task.text, task.indent)
            else:
                self.names.leave()

    def _inside(self, body: Stmt, indent: int) -> None:
        """Push a body to be printed as a nested block; names made until then belong to its
        scope.
        """
        self.names.enter()
        self._stack.append(_LEAVE_SCOPE)
        self._stack.append((body, indent, True))

    def _statement(self, s: Stmt, indent: int, last: bool) -> None:
        e = self.exprs
        match s:
            case SeqStmt():
                count = len(s.seq) - 1
                for n in range(count, -1, -1):
                    self._stack.append((s.seq[n], indent, last and n == count))
                return
            case BufferStore():
                self._store(s, indent)
            case For():
                self._loop(s, indent)
                return
            case BlockRealize():
                self._block(s, indent)
                return
            case IfThenElse():
                self._branch(s, indent)
                return
            case While():
                self._opened(s, f"while {e.text(s.condition)}:", indent)
                self._inside(s.body, indent + 1)
                return
            case LetStmt():
                self._let(s, indent, last)
                return
            case Allocate():
                self._allocate(s, indent, last)
                return
            case DeclBuffer():
                self._declare(s, indent, last)
                return
            case AttrStmt():
                self._attribute(s, indent, last)
                return
            case Evaluate():
                self._evaluate(s, indent)
            case AssertStmt():
                message = quoted(s.message)
                shown = [*map(e.text, s.values)]
                plain = s.kind == "RunError" and not shown
                failure = message if plain else f"({', '.join([quoted(s.kind), message, *shown])})"
                self.put(f"assert {e.text(s.condition)}, {failure}", indent)
            case Prefetch():
                element = e.element(s.buffer, s.indices, s.buffer.dtype)
                self.put(f"T.prefetch({element}, {s.locality})", indent)
            case Block():
                self._stack.append((s.body, indent, last))
                return
            case _:
                self.put(f"T.{type(s).__name__}()", indent)
        self.line_of.setdefault(s, len(self.lines))

    def _opened(self, s: Stmt, head: str, indent: int) -> None:
        self.put(head, indent)
        self.line_of.setdefault(s, len(self.lines))

    def _store(self, s: BufferStore, indent: int) -> None:
        e = self.exprs
        kind = "uint8" if s.value.dtype == "uint8" else s.buffer.dtype
        value = e.stored(s.value, kind)
        if s.predicate is None:
            self.put(f"{e.element(s.buffer, s.indices, s.value.dtype)} = {value}", indent)
            return
        at = f"{e.names.of(s.buffer)}.vstore([{e.many(s.indices)}], {value}"
        self.put(f"{at}, predicate={e.text(s.predicate)})", indent)

    def _evaluate(self, s: Evaluate, indent: int) -> None:
        if is_const(s.value, 0) and s.value.dtype == "int64":
            self.put("pass", indent)
            return
        text = self.exprs.text(s.value)
        self.put(text if isinstance(s.value, Intrinsic) else f"T.evaluate({text})", indent)

    def _let(self, s: LetStmt, indent: int, last: bool) -> None:
        value = self.exprs.text(s.value)
        if last:
            name = self.names.make(s.var, s.var.name)
            self._opened(s, f"{name}: T.{s.var.dtype} = {value}", indent)
            self._stack.append((s.body, indent, True))
            return
        self._inside(s.body, indent + 1)
        name = self.names.make(s.var, s.var.name)
        dtype = "" if s.var.dtype == s.value.dtype else f', "{s.var.dtype}"'
        self._opened(s, f"with T.LetStmt({value}{dtype}) as {name}:", indent)

    def _attribute(self, s: AttrStmt, indent: int, last: bool) -> None:
        node = self.exprs.attribute(s.node) if not isinstance(s.node, Buffer) else ""
        node = node or self.names.of(s.node)  # type: ignore[arg-type]
        if isinstance(s.node, Target):
            node = f"T.target({quoted(str(s.node))})"
        constructor = f"T.attr({node}, {quoted(s.attr_key)}, {self.exprs.text(s.value)})"
        if last:
            self._opened(s, constructor, indent)
            self._stack.append((s.body, indent, True))
        else:
            self._inside(s.body, indent + 1)
            self._opened(s, f"with {constructor}:", indent)

    def _allocate(self, s: Allocate, indent: int, last: bool) -> None:
        self._new_buffer(s, f"T.alloc_buffer({self.exprs.buffer(s.buffer)})", indent, last)

    def _declare(self, s: DeclBuffer, indent: int, last: bool) -> None:
        for v in (*s.buffer.strides, s.buffer.elem_offset):
            if isinstance(v, Var):
                self.put(f"{self.names.make(v, v.name)} = T.{v.dtype}()", indent)
        arguments = self.exprs.buffer(s.buffer)
        if s.region:
            region = self.exprs.region(BufferRegion(s.source, s.region))
            constructor = f"T.match_buffer({region}, {arguments})"
        else:
            constructor = f"T.decl_buffer({arguments}, data={self.names.of(s.source)}.data)"
        self._new_buffer(s, constructor, indent, last)

    def _new_buffer(
        self, s: Allocate | DeclBuffer, constructor: str, indent: int, last: bool
    ) -> None:
        """Print `name = constructor(...)` at the end of a block, `with constructor(...) as name`
        elsewhere.
        """
        if last:
            name = self.names.make(s.buffer, s.buffer.name)
            self._opened(s, f"{name} = {constructor}", indent)
            self._stack.append((s.body, indent, True))
            return
        self._inside(s.body, indent + 1)
        name = self.names.make(s.buffer, s.buffer.name)
        self._opened(s, f"with {constructor} as {name}:", indent)

    def _branch(self, s: IfThenElse, indent: int) -> None:
        self._opened(s, f"if {self.exprs.text(s.condition)}:", indent)
        if s.else_case is not None:
            self._stack.append(_LEAVE_SCOPE)
            self._stack.append((s.else_case, indent + 1, True))
            self._stack.append(_PendingLine("else:", indent))
            self.names.enter()
        self._inside(s.then_case, indent + 1)

    # Loops.

    def _loop(self, s: For, indent: int) -> None:
        nest = _grid(s)
        extents = [self.exprs.text(f.extent) for f in nest]
        # Bounds are printed before the loop variables get names: they are outside their scope.
        lows = [self.exprs.text(f.min) for f in nest]
        kind = self._kind(nest[0], lows[0], extents[0])
        self._inside(nest[-1].body, indent + 1)
        names = []
        for loop in nest:
            names.append(self.names.make(loop.loop_var, loop.loop_var.name))
            self.line_of.setdefault(loop, len(self.lines) + len(self.exprs.before) + 1)
            if is_const(loop.min, 0):
                self._loops[loop.loop_var] = loop.extent
        head = f"T.grid({', '.join(extents)})" if len(nest) > 1 else kind
        self.put(f"for {', '.join(names)} in {head}:", indent)

    def _kind(self, s: For, low: str, extent: str) -> str:
        notes = dict(s.annotations or {})
        more = ""
        if s.kind is ForKind.THREAD_BINDING and "thread" in notes:
            more = f', thread="{notes.pop("thread")}"'
        if notes or (s.annotations is not None and not s.annotations):
            more += f", annotations={self.exprs.mapping(notes)}"
        if is_const(s.min, 0) and s.min.dtype == s.extent.dtype:
            bounds = extent
        elif isinstance(s.min, IntImm) and isinstance(s.extent, IntImm) and s.min.dtype == "int64":
            bounds = f"{low}, {s.min.value + s.extent.value}"
        else:
            bounds = f"{low}, extent={extent}"
        if s.kind is ForKind.SERIAL and not more and "extent=" not in bounds:
            return f"range({bounds})"
        return f"T.{_LOOP_NAMES[s.kind]}({bounds}{more})"

    # Blocks.

    def _block(self, s: BlockRealize, indent: int) -> None:
        b = s.block
        self._opened(s, f"with T.block({quoted(b.name)}):", indent)
        self.line_of.setdefault(b, len(self.lines))
        self.names.enter()
        self._stack.append(_LEAVE_SCOPE)
        indent += 1
        self._axes(s, indent)
        if not (isinstance(s.predicate, IntImm) and s.predicate.value):
            self.put(f"T.where({self.exprs.text(s.predicate)})", indent)
        reads, writes = block_regions(b)
        for word, regions in (("reads", reads), ("writes", writes)):
            text = ", ".join([self.exprs.region(r) for r in regions])
            self.put(f"T.{word}({text})", indent)
        if b.annotations is not None:
            self.put(f"T.block_attr({self.exprs.mapping(b.annotations)})", indent)
        self._stack.append((b.body, indent, True))
        if b.init is not None:
            self.names.enter()
            self._stack.append(_LEAVE_SCOPE)
            self._stack.append((b.init, indent + 1, True))
            self.put("with T.init():", indent)

    def _axes(self, s: BlockRealize, indent: int) -> None:
        pairs = list(zip(s.block.iter_vars, s.iter_values, strict=False))  # verify's to refuse
        begin = 0
        while begin < len(pairs):
            end = begin
            while end < len(pairs) and self._is_loop(*pairs[end]):
                end += 1
            if end - begin > 1:
                run = pairs[begin:end]
                kinds = "".join(v.kind.value[0].upper() for v, _ in run)
                values = ", ".join([self.exprs.text(value) for _, value in run])
                names = ", ".join([self.names.make(v.var, v.var.name) for v, _ in run])
                self.put(f'{names} = T.axis.remap("{kinds}", [{values}])', indent)
                begin = end
                continue
            iter_var, value = pairs[begin]
            bound = f"{self.exprs.text(iter_var.extent)}, {self.exprs.text(value)}"
            name = self.names.make(iter_var.var, iter_var.var.name)
            self.put(f"{name} = T.axis.{_AXIS_NAMES[iter_var.kind]}({bound})", indent)
            begin += 1

    def _is_loop(self, iter_var: object, value: PrimExpr) -> bool:
        """Return whether a block iterator is bound to a loop of the same extent, so that
        T.axis.remap can print it.
        """
        extent = self._loops.get(value) if isinstance(value, Var) else None
        own = iter_var.extent  # type: ignore[attr-defined]
        return extent is not None and (
            extent is own
            or (
                isinstance(extent, IntImm)
                and isinstance(own, IntImm)
                and (extent.value, extent.dtype) == (own.value, own.dtype)
            )
        )

    # Functions.

    def function(self, func: PrimFunc, indent: int = 0, own_name: str | None = None) -> None:
        """Print a whole function; `own_name` is its name in a module."""
        attrs = dict(func.attrs) if func.attrs is not None else None
        symbol = None if attrs is None else attrs.get("global_symbol")
        name = own_name or (symbol if _is_name(symbol) else "main")
        if attrs is not None and symbol == name:
            del attrs["global_symbol"]
        symbols = _symbols(func)
        handles: list[tuple[Buffer, str]] = []
        params = []
        for b in func.params:
            if isinstance(b, Var):
                own = self.names.make(b, b.name)
                params.append(f"{own}: {_declared(b).removesuffix('()')}")
            elif free_vars(*b.sizes()):
                handle = self.names.make(object(), f"{b.name}_handle")
                handles.append((b, handle))
                params.append(f"{handle}: T.handle")
                self.names.make(b, b.name)
            else:
                own = self.names.make(b, b.name)
                params.append(f"{own}: T.Buffer({self.exprs.buffer(b)})")
        private = symbol is None
        self.put("@T.prim_func(private=True)" if private else "@T.prim_func", indent)
        self._signature(name, params, indent)
        if attrs or (attrs is not None and private):
            self.put(f"T.func_attr({self.exprs.mapping(attrs)})", indent + 1)
        for var in symbols:
            own = self.names.make(var, var.name)
            self.put(f"{own} = {_declared(var)}", indent + 1)
        for b, handle in handles:
            arguments = self.exprs.buffer(b)
            self.put(f"{self.names.of(b)} = T.match_buffer({handle}, {arguments})", indent + 1)
        self.run(func.body, indent + 1)

    def _signature(self, name: object, params: Sequence[str], indent: int) -> None:
        line = f"def {name}({', '.join(params)}):"
        if len(line) + 4 * indent <= 100:
            self.put(line, indent)
            return
        self.put(f"def {name}(", indent)
        for param in params:
            self.put(f"{param},", indent + 1)
        self.put("):", indent)


def _is_name(symbol: object) -> bool:
    return isinstance(symbol, str) and symbol.isidentifier() and symbol not in RESERVED


def _declared(var: Var) -> str:
    if not isinstance(var, SizeVar):
        return f"T.{var.dtype}()"
    upper = "" if var.upper is None else f", upper={var.upper}"
    return f"T.{var.dtype}(is_size_var=True{upper})"


def _symbols(func: PrimFunc) -> dict[Var, None]:
    """Return the variables in parameters' sizes that are not parameters, in order of first use."""
    size_vars = dict.fromkeys(v for b in func.buffers for v in free_vars(*b.sizes()))
    return {v: None for v in size_vars if v not in func.scalars}


def _grid(s: For) -> list[For]:
    """Return the perfect nest of plain loops that starts here and can be printed as T.grid; an
    extent must not use the nest's variables.
    """
    nest = [s]
    if not _is_plain(s):
        return nest
    bound = {s.loop_var}
    while isinstance(inner := nest[-1].body, For) and _is_plain(inner):
        if not isinstance(inner.extent, IntImm) and bound & set(free_vars(inner.extent)):
            break
        nest.append(inner)
        bound.add(inner.loop_var)
    return nest


def _is_plain(s: For) -> bool:
    return (
        s.kind is ForKind.SERIAL
        and s.annotations is None
        and is_const(s.min, 0)
        and s.min.dtype == s.extent.dtype
    )


def text_and_lines(func: PrimFunc) -> tuple[str, dict[Stmt, int]]:
    """Return the text and the line (from 1) of each statement, for debug information and errors."""
    printer = _StmtPrinter()
    printer.lines += [SCRIPT_HEADER, ""]
    printer.function(func)
    return "\n".join(printer.lines) + "\n", printer.line_of


def astext(func: PrimFunc) -> str:
    """Return the function as Python text that `ekiden.tir.parse` reads back.

    Names are made unique within their scope. Which long sub-expressions are named depends on which
    nodes are shared, so equivalent functions may differ in that.
    """
    return text_and_lines(func)[0]


def statement_text(stmt: Stmt) -> str:
    """Return the text of a single statement, for messages; names from outside are free in it."""
    printer = _StmtPrinter()
    printer.run(stmt, 0)
    return "\n".join(printer.lines)


def module_text(module: IRModule, name: str = "Module") -> str:
    """Return a module as a Python class with loop programs as methods.

    Relay functions and types, and loop programs whose name is not a Python identifier, are embedded
    as Relay text in a string. Raises ValueError for such a name before `ekiden.relay` is loaded.
    """
    functions = {g.name_hint: f for g, f in module.functions.items()}
    loops = {n: f for n, f in functions.items() if isinstance(f, PrimFunc) and _is_name(n)}
    lines = [
        SCRIPT_HEADER.replace("tir as T", "ir as I, tir as T"),
        "",
        "@I.ir_module",
        f"class {name}:",
    ]
    if module.attrs:
        attrs = ExpressionPrinter(NameScope()).mapping(module.attrs)
        lines += [f"    I.module_attrs({attrs})", ""]
    for symbol, func in loops.items():
        printer = _StmtPrinter()
        printer.function(func, 1, symbol)
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
