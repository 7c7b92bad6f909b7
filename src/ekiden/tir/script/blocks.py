"""Parsing of blocks in scripts: axes, predicate, regions, attributes, init and body."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden.arith import Analyzer, simplify
from ekiden.ir.dtype import lanes
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.access_regions import BufferRegion, block_regions
from ekiden.tir.script import builtins as script
from ekiden.tir.script.evaluate import Evaluator, ScriptSource
from ekiden.tir.stmt import Block, BlockRealize, IterKind, IterVar, Stmt

_ITER_KINDS_BY_NAME = {
    "spatial": IterKind.SPATIAL,
    "S": IterKind.SPATIAL,
    "reduce": IterKind.REDUCE,
    "R": IterKind.REDUCE,
    "opaque": IterKind.OPAQUE,
    "O": IterKind.OPAQUE,
    "scan": IterKind.ORDERED,
}


@dataclass(slots=True)
class BlockState:
    """The declarations at the head of a block while its body is parsed."""

    name: str
    axes: list[tuple[IterVar, PrimExpr]] = field(default_factory=list)
    predicate: PrimExpr | None = None
    annotations: dict[str, object] | None = None
    init: Stmt | None = None
    declared_regions: dict[str, tuple[ast.AST, list[BufferRegion]]] = field(default_factory=dict)
    """Regions that T.reads and T.writes declare, where present."""


@dataclass(slots=True)
class CallArguments:
    """The unevaluated arguments of a form, by position and by name."""

    args: list[ast.expr]
    keywords: dict[str, ast.expr]

    def argument(self, position: int, name: str) -> ast.expr | None:
        """Return an argument by its position or its name, or None."""
        return self.args[position] if position < len(self.args) else self.keywords.get(name)


class BlockParser:
    """A parser of blocks; the parser of whole functions is its subclass."""

    def __init__(self, source: ScriptSource, names: Mapping[str, object]) -> None:
        self.source = source
        self.evaluator = Evaluator(source, names)
        self.names = self.evaluator.names
        self.raise_error = source.raise_error
        self.loops: dict[Var, tuple[PrimExpr, PrimExpr]] = {}
        """(start, extent) of the loops parsed so far, by variable."""
        self.blocks: list[BlockState] = []

    def parse_body(self, nodes: Sequence[ast.stmt]) -> Stmt:
        """Parse the statements of one indented block."""
        raise NotImplementedError

    def _parse_block(self, node: ast.With, arguments: CallArguments) -> Stmt:
        label = self.evaluator.evaluate(arguments.args[0]) if arguments.args else ""
        state = BlockState(str(label))
        self.blocks.append(state)
        body = self.parse_body(node.body)
        self.blocks.pop()
        block = Block(
            state.name, tuple(v for v, _ in state.axes), body, state.init, state.annotations
        )
        self._warn_of_undeclared_accesses(state, block)
        predicate = const(True) if state.predicate is None else state.predicate
        return BlockRealize(tuple(v for _, v in state.axes), predicate, block)

    def _parse_axis(
        self, node: ast.AST, target: ast.expr, kind: str, arguments: CallArguments
    ) -> None:
        if not self.blocks:
            self.raise_error(node, f"T.axis.{kind} stands in a block")
        if kind == "remap":
            self._parse_remap(node, target, arguments)
            return
        if kind not in _ITER_KINDS_BY_NAME:
            self.raise_error(
                node, f"T.axis has no '{kind}'; it has spatial, reduce, scan, opaque, remap"
            )
        if not isinstance(target, ast.Name) or len(arguments.args) != 2:
            self.raise_error(node, f"expected 'name = T.axis.{kind}(extent, value)'")
        domain = self.evaluator.evaluate(arguments.args[0])
        value = self.evaluator.evaluate_expr(arguments.args[1], "int64")
        low: object = 0
        if isinstance(domain, (tuple, list)) and len(domain) == 2:
            low, high = (
                self.evaluator.to_scalar(arguments.args[0], d, value.dtype) for d in domain
            )
            domain = high if is_const(low, 0) else simplify(high - low)
        extent = self.evaluator.to_scalar(arguments.args[0], domain, value.dtype)
        start = self.evaluator.to_scalar(arguments.args[0], low, value.dtype)
        self._add_axis(target.id, (start, extent), _ITER_KINDS_BY_NAME[kind], value)

    def _parse_remap(self, node: ast.AST, target: ast.expr, arguments: CallArguments) -> None:
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if len(arguments.args) != 2:
            self.raise_error(node, 'expected T.axis.remap("SR", [i, k])')
        kinds = str(self.evaluator.evaluate(arguments.args[0]))
        values = self.evaluator.evaluate(arguments.args[1])
        if not isinstance(values, (list, tuple)) or not len(kinds) == len(values) == len(targets):
            self.raise_error(node, f"{len(targets)} axes need as many kinds and loops")
        for target_name, kind, value in zip(targets, kinds, values, strict=True):
            if not isinstance(value, Var) or value not in self.loops:
                self.raise_error(node, "T.axis.remap takes variables of loops")
            if kind not in _ITER_KINDS_BY_NAME or not isinstance(target_name, ast.Name):
                self.raise_error(
                    node, f"an axis is S (spatial), R (reduce) or O (opaque), not {kind!r}"
                )
            self._add_axis(target_name.id, self.loops[value], _ITER_KINDS_BY_NAME[kind], value)

    def _add_axis(
        self, name: str, domain: tuple[PrimExpr, PrimExpr], kind: IterKind, value: PrimExpr
    ) -> None:
        """Add an axis over (start, extent). Block iterators begin at 0: an axis with another start
        is bound as its distance from there.
        """
        start, extent = domain
        var = Var(name, value.dtype)
        self.names[name] = var
        if not is_const(start, 0):
            self.names[name] = var + start
            value = value - start
        self.blocks[-1].axes.append((IterVar(var, extent, kind), value))

    def _require_block_state(self, node: ast.AST, name: str) -> BlockState:
        if not self.blocks:
            self.raise_error(node, f"T.{name} stands in a block")
        return self.blocks[-1]

    def _parse_where(self, node: ast.Call, arguments: CallArguments) -> None:
        state = self._require_block_state(node, "where")
        if len(arguments.args) != 1 or state.predicate is not None:
            self.raise_error(node, "a block has one T.where(condition)")
        state.predicate = self.evaluator.evaluate_expr(arguments.args[0])

    def _parse_reads(self, node: ast.Call, arguments: CallArguments) -> None:
        self._parse_declared_regions("reads", node, arguments)

    def _parse_writes(self, node: ast.Call, arguments: CallArguments) -> None:
        self._parse_declared_regions("writes", node, arguments)

    def _parse_declared_regions(self, word: str, node: ast.Call, arguments: CallArguments) -> None:
        state = self._require_block_state(node, word)
        nodes: list[ast.expr] = []
        for region_node in arguments.args:
            nodes += (
                region_node.elts
                if isinstance(region_node, (ast.List, ast.Tuple))
                else [region_node]
            )
        state.declared_regions[word] = node, [self.evaluator.evaluate_region(n) for n in nodes]

    def _parse_block_attr(self, node: ast.Call, arguments: CallArguments) -> None:
        state = self._require_block_state(node, "block_attr")
        state.annotations = {
            **(state.annotations or {}),
            **self._parse_dict_argument(node, arguments),
        }

    def _parse_dict_argument(self, node: ast.Call, arguments: CallArguments) -> dict[str, object]:
        value = self.evaluator.evaluate(arguments.args[0]) if arguments.args else None
        if not isinstance(value, dict):
            self.raise_error(node, "expected a dictionary")
        return script.convert_attrs(value)

    def _warn_of_undeclared_accesses(self, state: BlockState, block: Block) -> None:
        """Warn of declared regions (T.reads, T.writes) that do not contain what the body accesses;
        the body counts. (TVM trusts the declaration.)
        """
        # TVM prints empty regions for its implicit root block; a warning there would be noise.
        if not state.declared_regions or (state.name == "root" and not block.iter_vars):
            return
        actual = dict(zip(("reads", "writes"), block_regions(block), strict=True))
        analyzer = Analyzer()
        for iter_var in block.iter_vars:
            analyzer.bind(iter_var.var, const(0, iter_var.extent.dtype), iter_var.extent)
        for word, (node, declared) in state.declared_regions.items():
            for region in actual[word]:
                same = [d for d in declared if d.buffer is region.buffer]
                verb = word[:-1]
                if not same:
                    self.source.emit_warning(
                        node,
                        f"block '{block.name}' {word} buffer '{region.buffer.name}', "
                        f"which T.{word} does not name",
                    )
                elif all(_exceeds_box(region.region, d.region, analyzer) for d in same):
                    self.source.emit_warning(
                        node,
                        f"block '{block.name}' {word} elements of '{region.buffer.name}' "
                        f"outside the region that T.{word} gives ({verb} past its bounds)",
                    )


def _exceeds_box(inner: Sequence[Range], outer: Sequence[Range], analyzer: Analyzer) -> bool:
    """Return whether a box provably exceeds another."""
    for a, b in zip(inner, outer, strict=True):
        same = a.min is b.min and a.extent is b.extent
        if same or lanes(a.min.dtype) > 1 or lanes(b.min.dtype) > 1:
            continue
        if isinstance(a.min, IntImm) and isinstance(b.min, IntImm) and a.min.value < b.min.value:
            return True
        if analyzer.can_prove(a.min < b.min):
            return True
        if analyzer.can_prove(a.min + a.extent > b.min + b.extent):
            return True
    return False
