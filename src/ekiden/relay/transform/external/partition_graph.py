"""Partition annotated regions into global functions of their external compilers.

    end(nn.relu(begin(%x, "test")), "test")
->  def @tvmgen_default_test_main_0(%test_0_i0, Compiler="test", Primitive=1, Inline=1,
                                    global_symbol="tvmgen_default_test_main_0") { nn.relu(..) }
    and   @tvmgen_default_test_main_0(%x)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.span import Span
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem, Var
from ekiden.relay.transform.external.annotate_target import DEFAULT_TARGET
from ekiden.relay.transform.external.compiler_regions import (
    CompilerRegion,
    data_operands,
    find_regions,
    is_compiler_annotation,
    strip_annotations,
)
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    operands,
    replace_children,
)
from ekiden.relay.visitor import children
from ekiden.runtime import get_global_func
from ekiden.runtime.errors import PassError


class _RegionPartitioner:
    """Partitioner of one function, with the region functions that it creates."""

    def __init__(self, mod_name: str, function: str, bind_constants: bool) -> None:
        self.mod_name, self.function = mod_name, function
        self.bind_constants = bind_constants
        self.partitioned_functions: dict[GlobalVar, Function] = {}

    def run(self, root: RelayExpr) -> RelayExpr:
        """Replace each region of `root` by a call, after its inputs are rewritten."""
        all_regions = find_regions(root).items()
        # What the default compiler takes stays in place.
        region_of = {
            expr: region
            for expr, region in all_regions
            if region.target != DEFAULT_TARGET and not _release_projection(expr, region)
        }
        used_outside = _region_outputs(evaluation_order(root), root, region_of)
        new: dict[RelayExpr, RelayExpr] = {}
        stack: list[tuple[RelayExpr, bool]] = [(strip_annotations(root), False)]
        while stack:
            expr, ready = stack.pop()
            if expr in new:
                continue
            region = region_of.get(expr)
            members = [expr] if region is None else list(region.members)
            if not ready:
                stack.append((expr, True))
                below = [strip_annotations(c) for m in members for c in (*operands(m), *bodies(m))]
                # A region becomes one call, so all of its inputs come before any of its members.
                outside = (c for c in below if region is None or region_of.get(c) is not region)
                stack.extend((c, False) for c in outside)
            elif region is not None:
                self._outline_region(region, [m for m in members if m in used_outside], new)
            else:
                new[expr] = replace_children(
                    expr, {c: new.get(strip_annotations(c), c) for c in children(expr)}
                )
        return new[strip_annotations(root)]

    def _outline_region(
        self, region: CompilerRegion, outputs: list[RelayExpr], new: dict[RelayExpr, RelayExpr]
    ) -> None:
        """Outline a region into a function, and record the rewritten values of its outputs."""
        number = len(self.partitioned_functions)
        words = f"tvmgen_{self.mod_name}_{region.target}_{self.function}_{number}"
        name = re.sub(r"\W", "_", words, flags=re.ASCII)  # the name of a function in C too
        # Each source is one parameter, however many members read it.
        params: dict[RelayExpr, Var] = {}
        inner: dict[RelayExpr, RelayExpr] = {}
        for member in region.members:
            for child in data_operands(member):
                source = strip_annotations(child)
                if source in region.members:
                    inner[child] = inner[source]
                elif self.bind_constants and (bound := _as_constant(source)) is not None:
                    inner[child] = bound
                else:
                    inner[child] = self._region_param(source, params, region.target, number)
            inner[member] = replace_children(member, inner)
        # External compilers return a flat list of tensors.
        results = outputs if _is_flat_result(outputs) else _flatten_outputs(outputs, region)
        body = inner[results[0]] if len(results) == 1 else Tuple(tuple(inner[o] for o in results))
        attrs = {"Compiler": region.target, "Primitive": 1, "Inline": 1, "global_symbol": name}
        var = GlobalVar(name)
        self.partitioned_functions[var] = Function(tuple(params.values()), body, None, attrs=attrs)
        call = Call(var, tuple(new.get(a, a) for a in params), span=_region_span(region))
        for i, output in enumerate(results):
            new[output] = call if len(results) == 1 else TupleGetItem(call, i)
        # Nested tuples exist outside of the function alone.
        for output in outputs:
            new[output] = _rebuild_tuple(output, new)

    @staticmethod
    def _region_param(
        source: RelayExpr, params: dict[RelayExpr, Var], target: str, number: int
    ) -> Var:
        if source not in params:
            params[source] = Var(f"{target}_{number}_i{len(params)}", source.checked_type)
        return params[source]


def _release_projection(expr: RelayExpr, region: CompilerRegion) -> bool:
    """Remove a member that projects a tuple from outside its region, and return whether it was one:
    external compilers take tensors. Members are visited in order of evaluation.
    """
    if not isinstance(expr, TupleGetItem) or strip_annotations(expr.tuple_value) in region.members:
        return False
    del region.members[expr]
    return True


def _is_flat_result(outputs: Sequence[RelayExpr]) -> bool:
    """Return whether a region's outputs are tensors or one tuple of tensors, as external compilers
    require.
    """
    inner = outputs[0].fields if len(outputs) == 1 and isinstance(outputs[0], Tuple) else outputs
    return not any(isinstance(strip_annotations(field), Tuple) for field in inner)


def _flatten_outputs(outputs: Sequence[RelayExpr], region: CompilerRegion) -> list[RelayExpr]:
    """Return the distinct members that make up a region's outputs, with tuples flattened."""
    leaves: dict[RelayExpr, None] = {}
    stack = [*reversed(outputs)]
    while stack:
        expr = stack.pop()
        if isinstance(expr, Tuple):
            stack.extend(strip_annotations(field) for field in reversed(expr.fields))
        elif expr in region.members:
            leaves[expr] = None
    return [*leaves]


def _rebuild_tuple(expr: RelayExpr, new: Mapping[RelayExpr, RelayExpr]) -> RelayExpr:
    """Return the rewritten output; tuples are rebuilt outside the region."""
    if expr in new or not isinstance(expr, Tuple):
        return new.get(expr, expr)
    return Tuple(
        tuple(_rebuild_tuple(strip_annotations(field), new) for field in expr.fields),
        span=expr.span,
    )


def _as_constant(expr: RelayExpr) -> RelayExpr | None:
    """Return the expression if it is a constant or a tuple of constants, else None."""
    if isinstance(expr, Tuple):
        fields = [_as_constant(strip_annotations(field)) for field in expr.fields]
        constants = tuple(field for field in fields if field is not None)
        return Tuple(constants, span=expr.span) if len(constants) == len(fields) else None
    return expr if isinstance(expr, Constant) else None


def _run_compiler_passes(module: IRModule, cut_functions: Mapping[GlobalVar, Function]) -> IRModule:
    """Run the external compilers' own passes (`relay.ext.NAME.optimize`) on the partitioned
    functions.

    The global function relay.ext.<compiler>.optimize gets a module of one function alone, without
    its attributes.
    """
    for var, function in cut_functions.items():
        name = f"relay.ext.{function.attr('Compiler')}.optimize"
        optimize = get_global_func(name, True)
        if optimize is None:
            continue
        # Without attributes, so that the passes see an ordinary function.
        plain = Function(function.params, function.body)
        optimized = optimize(InferType()(IRModule({var: plain}, module.type_definitions)))
        # The optimizer is a user's function, so its result is checked.
        if not isinstance(optimized, IRModule) or var.name_hint not in optimized:
            raise PassError(f"PartitionGraph: {name}: a module with {var.name_hint!r} expected")
        better = optimized[var.name_hint]
        assert isinstance(better, Function)
        module = module.with_function(var, better.with_fields(attrs=function.attrs))
    return module


def _region_span(region: CompilerRegion) -> Span | None:
    """Return the joined spans of a region's calls."""
    spans = (
        member.span
        for member in region.members
        if isinstance(member, Call) and not is_compiler_annotation(member)
    )
    names = dict.fromkeys(str(span) for span in spans if span is not None)
    return Span(", ".join(names)) if names else None


def _region_outputs(
    order: list[RelayExpr], root: RelayExpr, region_of: dict[RelayExpr, CompilerRegion]
) -> set[RelayExpr]:
    """Return the members of regions that have users outside."""
    outputs = {strip_annotations(root)}
    for expr in order:
        if not is_compiler_annotation(expr):
            own_region = region_of.get(expr)
            outputs.update(
                strip_annotations(c)
                for c in children(expr)
                if own_region is None or region_of.get(strip_annotations(c)) is not own_region
            )
    return outputs


def PartitionGraph(mod_name: str = "default", bind_constants: bool = True) -> Pass:  # noqa: N802
    """Return a pass that partitions annotated regions into global functions (TVM's PartitionGraph).

    Where there is a global function relay.ext.<compiler>.optimize, it optimizes the compiler's
    functions.

    Args:
        mod_name: A part of the names of the functions.
        bind_constants: Whether constants, and tuples of them, move into the functions instead of
            being
            arguments.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Partition the functions of a module, and run the external compilers' own passes on the
        results.

        Functions that have a compiler already stay.
        """
        functions: dict[GlobalVar, BaseFunc] = {}
        cut_out: dict[GlobalVar, Function] = {}
        for var, function in module.functions.items():
            if not isinstance(function, Function) or function.attr("Compiler") is not None:
                functions[var] = function
                continue
            partitioner = _RegionPartitioner(mod_name, var.name_hint, bind_constants)
            functions[var] = function.with_fields(body=partitioner.run(function.body))
            functions.update(partitioner.partitioned_functions)
            cut_out.update(partitioner.partitioned_functions)
        return InferType()(_run_compiler_passes(module.with_functions(functions), cut_out))

    return Pass("PartitionGraph", transform, 0, (InferType(),))
