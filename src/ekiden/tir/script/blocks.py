"""Blocks of a script: their head (axes, predicate, regions, attributes), init and body."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden.arith import Analyzer, simplify
from ekiden.ir.dtype import lanes
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.regions import BufferRegion, block_regions
from ekiden.tir.script import builtins as script
from ekiden.tir.script.evaluate import Evaluator, Source
from ekiden.tir.stmt import Block, BlockRealize, IterKind, IterVar, Stmt

_AXES = {
    "spatial": IterKind.SPATIAL,
    "S": IterKind.SPATIAL,
    "reduce": IterKind.REDUCE,
    "R": IterKind.REDUCE,
    "opaque": IterKind.OPAQUE,
    "O": IterKind.OPAQUE,
    "scan": IterKind.OPAQUE,
}


@dataclass(slots=True)
class BlockState:
    """What the head of a block says, while its body is read."""

    name: str
    axes: list[tuple[IterVar, PrimExpr]] = field(default_factory=list)
    predicate: PrimExpr | None = None
    annotations: dict[str, object] | None = None
    init: Stmt | None = None
    declared: dict[str, tuple[ast.AST, list[BufferRegion]]] = field(default_factory=dict)
    """"reads" and "writes", where the text has them."""


@dataclass(slots=True)
class Arguments:
    """The arguments of a form, by position and by name, not evaluated."""

    args: list[ast.expr]
    keywords: dict[str, ast.expr]

    def take(self, at: int, name: str) -> ast.expr | None:
        """An argument by its place or its name."""
        return self.args[at] if at < len(self.args) else self.keywords.get(name)


class BlockReader:
    """Reads blocks; what reads whole functions is its subclass."""

    def __init__(self, source: Source, names: Mapping[str, object]) -> None:
        self.source = source
        self.evaluator = Evaluator(source, names)
        self.names = self.evaluator.names
        self.fail = source.fail
        self.loops: dict[Var, tuple[PrimExpr, PrimExpr]] = {}
        """(start, extent) of the loops met."""
        self.blocks: list[BlockState] = []

    def body(self, nodes: Sequence[ast.stmt]) -> Stmt:
        """The statements of one indented block."""
        raise NotImplementedError

    def _block(self, node: ast.With, given: Arguments) -> Stmt:
        label = self.evaluator.value(given.args[0]) if given.args else ""
        state = BlockState(str(label))
        self.blocks.append(state)
        body = self.body(node.body)
        self.blocks.pop()
        block = Block(
            state.name, tuple(v for v, _ in state.axes), body, state.init, state.annotations
        )
        self._check_regions(state, block)
        predicate = const(True) if state.predicate is None else state.predicate
        return BlockRealize(tuple(v for _, v in state.axes), predicate, block)

    def _axis(self, node: ast.AST, target: ast.expr, kind: str, given: Arguments) -> None:
        if not self.blocks:
            self.fail(node, f"T.axis.{kind} stands in a block")
        if kind == "remap":
            self._remap(node, target, given)
            return
        if kind not in _AXES:
            self.fail(node, f"T.axis has no '{kind}'; it has spatial, reduce, opaque, remap")
        if not isinstance(target, ast.Name) or len(given.args) != 2:
            self.fail(node, f"expected 'name = T.axis.{kind}(extent, value)'")
        domain = self.evaluator.value(given.args[0])
        value = self.evaluator.expr(given.args[1], "int64")
        low: object = 0
        if isinstance(domain, (tuple, list)) and len(domain) == 2:
            low, high = (self.evaluator.scalar(given.args[0], d, value.dtype) for d in domain)
            domain = high if is_const(low, 0) else simplify(high - low)
        extent = self.evaluator.scalar(given.args[0], domain, value.dtype)
        start = self.evaluator.scalar(given.args[0], low, value.dtype)
        self._add_axis(target.id, (start, extent), _AXES[kind], value)

    def _remap(self, node: ast.AST, target: ast.expr, given: Arguments) -> None:
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if len(given.args) != 2:
            self.fail(node, 'expected T.axis.remap("SR", [i, k])')
        kinds = str(self.evaluator.value(given.args[0]))
        values = self.evaluator.value(given.args[1])
        if not isinstance(values, (list, tuple)) or not len(kinds) == len(values) == len(targets):
            self.fail(node, f"{len(targets)} axes need as many kinds and loops")
        for each, kind, value in zip(targets, kinds, values, strict=True):
            if not isinstance(value, Var) or value not in self.loops:
                self.fail(node, "T.axis.remap takes variables of loops")
            if kind not in _AXES or not isinstance(each, ast.Name):
                self.fail(node, f"an axis is S (spatial), R (reduce) or O (opaque), not {kind!r}")
            self._add_axis(each.id, self.loops[value], _AXES[kind], value)

    def _add_axis(
        self, name: str, domain: tuple[PrimExpr, PrimExpr], kind: IterKind, value: PrimExpr
    ) -> None:
        """An axis over (start, extent). Iterators of blocks begin at 0: one that begins elsewhere
        is its distance from there."""
        start, extent = domain
        var = Var(name, value.dtype)
        self.names[name] = var
        if not is_const(start, 0):
            self.names[name] = var + start
            value = value - start
        self.blocks[-1].axes.append((IterVar(var, extent, kind), value))

    def _in_block(self, node: ast.AST, name: str) -> BlockState:
        if not self.blocks:
            self.fail(node, f"T.{name} stands in a block")
        return self.blocks[-1]

    def _where(self, node: ast.Call, given: Arguments) -> None:
        state = self._in_block(node, "where")
        if len(given.args) != 1 or state.predicate is not None:
            self.fail(node, "a block has one T.where(condition)")
        state.predicate = self.evaluator.expr(given.args[0])

    def _reads(self, node: ast.Call, given: Arguments) -> None:
        self._declare("reads", node, given)

    def _writes(self, node: ast.Call, given: Arguments) -> None:
        self._declare("writes", node, given)

    def _declare(self, word: str, node: ast.Call, given: Arguments) -> None:
        state = self._in_block(node, word)
        nodes: list[ast.expr] = []
        for each in given.args:
            nodes += each.elts if isinstance(each, (ast.List, ast.Tuple)) else [each]
        state.declared[word] = node, [self.evaluator.region(n) for n in nodes]

    def _block_attr(self, node: ast.Call, given: Arguments) -> None:
        state = self._in_block(node, "block_attr")
        state.annotations = {**(state.annotations or {}), **self._mapping(node, given)}

    def _mapping(self, node: ast.Call, given: Arguments) -> dict[str, object]:
        value = self.evaluator.value(given.args[0]) if given.args else None
        if not isinstance(value, dict):
            self.fail(node, "expected a dictionary")
        return script.attrs_of(value)

    def _check_regions(self, state: BlockState, block: Block) -> None:
        """What T.reads and T.writes say should hold what the body touches, which is what counts:
        a region that is too small is warned of. (TVM believes it.)
        """
        if not state.declared or (state.name == "root" and not block.iter_vars):
            return
        found = dict(zip(("reads", "writes"), block_regions(block), strict=True))
        analyzer = Analyzer()
        for each in block.iter_vars:
            analyzer.bind(each.var, const(0, each.extent.dtype), each.extent)
        for word, (node, declared) in state.declared.items():
            for region in found[word]:
                same = [d for d in declared if d.buffer is region.buffer]
                verb = word[:-1]
                if not same:
                    self.source.warn(
                        node,
                        f"block '{block.name}' {word} buffer '{region.buffer.name}', "
                        f"which T.{word} does not name",
                    )
                elif all(_is_outside(region.region, d.region, analyzer) for d in same):
                    self.source.warn(
                        node,
                        f"block '{block.name}' {word} elements of '{region.buffer.name}' "
                        f"outside the region that T.{word} gives ({verb} past its bounds)",
                    )


def _is_outside(inner: Sequence[Range], outer: Sequence[Range], analyzer: Analyzer) -> bool:
    """Whether a box is known not to lie in another."""
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
