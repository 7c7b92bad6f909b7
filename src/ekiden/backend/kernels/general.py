"""General forms of kernels: bytecode for the runtime's kernel interpreter
(runtime/general/general.h), generated quickly from a primitive function's tensor expressions,
without a schedule or a code generator.

A sum of products whose factors split into rows and columns is a product of matrices, over weights
as they are packed for the kernel's own code; Winograd's convolutions are taken apart into stages.
What is written as statements is made of regions of stages that are repeated. All else is evaluated
in strips of elements, one instruction of the expression after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ekiden import te
from ekiden._lazy import LazyModule
from ekiden.backend.kernels.general_encoding import (
    CodeBuilder,
    NoGeneralFormError,
    SizeTable,
    element_type_number,
)
from ekiden.backend.kernels.general_kernel_stages import split_stages
from ekiden.backend.kernels.general_loop_splitting import split_into_boxes
from ekiden.backend.kernels.lower import operator_calls, te_graph
from ekiden.ir.op import Op
from ekiden.ir.pass_context import DENORMALS_OPTION, PassContext
from ekiden.ir.prim import Cast, FloorDiv, FloorMod, IntImm, Mul, PrimExpr, Var, is_const
from ekiden.ir.prim_visitor import chain_operands, free_vars, rewrite
from ekiden.relay.expr import Function
from ekiden.relay.op.strategy import version_of
from ekiden.runtime import PackedFunc, load_module
from ekiden.runtime.paths import general_kernels_path
from ekiden.target import Target
from ekiden.te.prim_func import group_by_operation
from ekiden.te.range_checks import RangeCheck, range_checks_of
from ekiden.te.reducer import REDUCERS, Reduce, ReduceAxis
from ekiden.tir.stmt import IterVar
from ekiden.topi.nn.weight_packing import DOT_WORD_CHANNELS, WORD_PAIR_ELEMENTS

if TYPE_CHECKING:
    from ekiden.backend.kernels import general_regions
    from ekiden.backend.kernels.general_regions import Region, RegionStep, ResultLayout
else:
    general_regions = LazyModule("ekiden.backend.kernels.general_regions")

MAGIC, VERSION = 0x454B4746, 4
MAP, REDUCE, PRODUCT, REPEAT, CHECK = range(5)
BATCH, ROWS, COLUMNS = range(3)
PANEL_LANES = 4
"""Columns of the narrowest vectors; weight panels of a multiple are read in place, by processor
class.
"""
PRODUCT_DTYPES = ("float32", "int32")
"""Element types of matrix products."""
BYTE_DTYPES = ("int8", "uint8")
PANEL_WORDS = {"int8": (DOT_WORD_CHANNELS, WORD_PAIR_ELEMENTS), "int16": (WORD_PAIR_ELEMENTS,)}
"""Elements per word of the weight panels that bytes are multiplied with, by element type."""
MIN_DOT_TERMS = 8
"""Minimum reduction length for which a matrix product pays off."""


@functools.cache
def _general_library() -> PackedFunc:
    return load_module(general_kernels_path())["kernel"]


def general_function(form: bytes) -> PackedFunc:
    """Return the function over tensors that a general form describes."""
    kernel = _general_library()(form)
    assert isinstance(kernel, PackedFunc)
    return kernel


def general_form(function: Function, target: Target) -> bytes | str:
    """Return the general form of a canonical primitive function, or the reason why it has none."""
    try:
        _refuse_options(function, target)
        with te.without_statements():
            inputs, outputs = te_graph(function, target)
        checks = list(
            dict.fromkeys(
                check
                for tensor in te.post_order_tensors(outputs)
                for check in range_checks_of(tensor.op)
            )
        )
        outputs, staged_ops = split_stages(outputs)
        checked = [_check_tensors(check) for check in checks]
        inlined = te.inline_injective(
            [*(t for group in checked for t in group), *outputs], staged_ops
        )
        return GeneralFormBuilder(
            inputs, inlined[-len(outputs) :], inlined[: -len(outputs)], checks
        ).encode()
    except NoGeneralFormError as error:
        return str(error)


def _refuse_options(function: Function, target: Target) -> None:
    """Raise NoGeneralFormError for options that general kernels do not implement."""
    if target.kind.has_threads:
        raise NoGeneralFormError(f"a kernel of {target.kind.name}")
    if target.bounds:
        raise NoGeneralFormError("bounds are checked")
    if PassContext.current().option(DENORMALS_OPTION) == "flush":
        raise NoGeneralFormError("subnormal numbers are flushed")
    for call in operator_calls(function):
        if isinstance(call.op, Op) and version_of(call.op.name) is not None:
            raise NoGeneralFormError(f"{call.op.name} has an implementation of the user's")


def _check_tensors(check: RangeCheck) -> tuple[te.Tensor, ...]:
    """Return the tensors that a check computes for each element: whether it holds, and the values
    of its message.
    """

    def check_values(*indices: Var) -> tuple[PrimExpr, ...]:
        assertion = check.create_assert(check.values[indices], indices)
        return (assertion.condition, *assertion.values)

    return te.compute_op(check.values.whole_shape, check_values, name="checked")


class GeneralFormBuilder:
    """Builder of a general form. `checked` are the results of `_checked` of all checks, which come
    first.
    """

    def __init__(
        self,
        inputs: Sequence[te.Tensor],
        outputs: Sequence[te.Tensor],
        checked: Sequence[te.Tensor] = (),
        checks: Sequence[RangeCheck] = (),
    ) -> None:
        self.params = [*inputs, *outputs]
        self.sizes = SizeTable()
        self.symbols: list[int] = []
        self.buffers: dict[te.Tensor, int] = {}
        self.temporaries: list[te.Tensor] = []
        for tensor in self.params:
            self.buffers[tensor] = len(self.buffers)
        if len(self.buffers) != len(self.params):
            raise NoGeneralFormError("a tensor is a parameter twice")
        for index, tensor in enumerate(self.params):
            for axis, dim in enumerate(tensor.whole_shape):
                if isinstance(dim, Var) and self.sizes.bind(dim):
                    self.symbols += [index, axis]
        self.stages: list[list[int]] = []
        waiting = {t.op: check for t, check in zip(_primary_results(checked), checks, strict=True)}
        groups = group_by_operation(te.post_order_tensors([*checked, *outputs]))
        for group in groups:
            op = group[0].op
            if op in waiting:
                self.stages.append(self._check_stage(group, waiting[op]))
            else:
                self._add_stages(group)
        self.memory_owners = assign_memory_owners(groups, self.temporaries)

    def _add_stages(self, group: Sequence[te.Tensor]) -> None:
        """Add the stages of an operation."""
        op = group[0].op
        if isinstance(op, te.PlaceholderOp):
            if group[0] not in self.buffers:
                raise NoGeneralFormError("an input that is no parameter")
            return
        for tensor in group:
            self._allocate_tensor(tensor)
        if isinstance(op, te.ComputeOp):
            self.stages += self._box_stages(
                group, [self._full_destination(tensor) for tensor in group]
            )
            return
        if not isinstance(op, te.ExternOp):
            raise NoGeneralFormError(f"{op.name} is made of statements")
        for region in general_regions.extern_op_regions(op, group):
            self._add_repeated_region(region)

    def _check_stage(self, group: Sequence[te.Tensor], check: RangeCheck) -> list[int]:
        """Return a stage that fails where a check does not hold."""
        op = group[0].op
        assert isinstance(op, te.ComputeOp)
        spatial = [a.var for a in op.axis]
        extents = [self.sizes.size_number(a.extent) for a in op.axis]
        code = CodeBuilder(spatial, self.sizes, self.buffers)
        body = code.encode(op.body)
        text = check.create_assert(check.values[tuple(spatial)], spatial)
        return [CHECK, len(spatial), 0, *extents, 0, len(op.body), *body, *encode_text(text.kind),
                *encode_text(text.format)]  # fmt: skip

    def _allocate_tensor(self, tensor: te.Tensor) -> None:
        """Allocate memory for a tensor."""
        if tensor not in self.buffers:
            self.buffers[tensor] = len(self.params) + len(self.temporaries)
            self.temporaries.append(tensor)

    def _add_repeated_region(self, region: Region) -> None:
        """Add the stages of a region after their repeat stage."""
        iterations = self.sizes.size_number(region.iterations)
        self.sizes.bind(region.iteration)
        symbol = len(self.symbols) // 2
        self.symbols += [-1, 0]
        steps = [
            s
            for step in region.steps
            for s in self._box_stages(step.computation, self._destinations(step))
        ]
        self.stages += [[REPEAT, iterations, symbol, len(steps)], *steps]

    def _destinations(self, step: RegionStep) -> list[list[int]]:
        for tensor in step.computation:
            for read in tensor.op.input_tensors:
                self._allocate_tensor(read)
        return [self._encode_destination(destination) for destination in step.destinations]

    def _encode_destination(self, destination: ResultLayout) -> list[int]:
        """Return the words of a result's destination."""
        self._allocate_tensor(destination.tensor)
        strides = [self.sizes.size_number(stride) for stride in destination.strides]
        return [
            self.buffers[destination.tensor],
            *strides,
            self.sizes.size_number(destination.offset),
        ]

    def _full_destination(self, tensor: te.Tensor) -> list[int]:
        strides = self.sizes.strides(tensor.whole_shape)
        return [self.buffers[tensor], *strides, self.sizes.constant(0)]

    def encode(self) -> bytes:
        """Encode the whole program."""
        params = [len(self.params)]
        for tensor in self.params:
            dims = [self.sizes.size_number(d) for d in tensor.whole_shape]
            params += [element_type_number(tensor.dtype), len(dims), *dims]
        buffers = [len(self.buffers)]
        for tensor in (*self.params, *self.temporaries):
            owner = self.memory_owners.get(tensor)
            owner_word = 0 if owner is None else -1 - self.buffers[owner]
            buffers += [
                element_type_number(tensor.dtype),
                self.sizes.num_elements(tensor.whole_shape),
                owner_word,
            ]
        stages = [word for stage in self.stages for word in stage]
        words = [
            MAGIC, VERSION, *params, len(self.symbols) // 2, *self.symbols, *self.sizes.encode(),
            *buffers, len(self.stages), *stages,
        ]  # fmt: skip
        return np.array(words, np.int64).tobytes()

    def _box_stages(
        self, group: Sequence[te.Tensor], destinations: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Return the stages of an operation: one, or one for each box of a value that depends on
        axis conditions.
        """
        op = group[0].op
        assert isinstance(op, te.ComputeOp)
        if len(group) > 1 or op.reduce_axis:
            return [self._encode_stage(group, destinations)]
        ((buffer, *strides, offset),) = destinations
        axes = [a.var for a in op.axis]
        boxes = split_into_boxes(op.body[group[0].value_index], axes, [a.extent for a in op.axis])
        stages = []
        for box in boxes:
            code = CodeBuilder(axes, self.sizes, self.buffers)
            position = offset
            for begin, stride in zip(box.begins, strides, strict=True):
                position = self.sizes.add(
                    position, self.sizes.mul(self.sizes.size_number(begin), stride)
                )
            extents = [self.sizes.size_number(e) for e in box.extents]
            body = code.encode([box.value])
            stages.append([MAP, len(axes), 0, *extents, 0, 1, buffer, *strides, position, *body])
        return stages

    def _encode_stage(
        self, group: Sequence[te.Tensor], destinations: Sequence[Sequence[int]]
    ) -> list[int]:
        op = group[0].op
        assert isinstance(op, te.ComputeOp)
        first = op.body[0]
        spatial = [a.var for a in op.axis]
        axes = [*spatial, *op.reduce_axis]
        extents = [self.sizes.size_number(e) for e in (*(a.extent for a in op.axis),
                                              *(r.extent for r in op.reduce_axis))]  # fmt: skip
        results = [len(group), *(word for destination in destinations for word in destination)]
        head = [len(spatial), len(op.reduce_axis), *extents]
        if not isinstance(first, Reduce):
            code = CodeBuilder(axes, self.sizes, self.buffers)
            body = code.encode([op.body[t.value_index] for t in group])
            return [MAP, *head, 0, *results, *body]
        if len(group) != 1 or first.kind not in REDUCERS:
            raise NoGeneralFormError("a reduction of one's own")
        reducer = REDUCERS.index(first.kind)
        factors = self._match_product(op, first)
        product = None if factors is None else self._encode_product(axes, op.axis, factors)
        if product is not None:
            return [PRODUCT, *head, reducer, *results, *product]
        code = CodeBuilder(axes, self.sizes, self.buffers)
        return [REDUCE, *head, reducer, *results, *code.encode([first.source])]

    # Products ------------------------------------------------------------------------------------

    def _match_product(self, op: te.ComputeOp, sum_of: Reduce) -> _ProductFactors | None:
        """Match a sum of products and return its factors. None where it is no sum of products of
        float32 or int32, or is too small or narrow to pay off without packed weights.
        """
        if sum_of.kind != "sum" or sum_of.dtype not in PRODUCT_DTYPES or not op.axis:
            return None
        depth = 1
        for axis in sum_of.axis:
            depth *= axis.extent.value if isinstance(axis.extent, IntImm) else MIN_DOT_TERMS
        factors = [(f, set(free_vars(f))) for f in chain_operands(sum_of.source, Mul)]
        split = (
            _split_factors(factors, n, op.axis, sum_of.axis) for n in reversed(range(len(op.axis)))
        )
        candidates = [option for option in split if option is not None]
        for candidate in candidates:
            if candidate.panels is not None:
                return candidate
        if depth < MIN_DOT_TERMS:
            return None
        wide = [n for n, a in enumerate(op.axis) if not _is_unit_extent(a.extent)]
        return next((matching for matching in candidates if [matching.column] == wide[-1:]), None)

    def _encode_product(
        self, axes: Sequence[Var], domain: Sequence[IterVar], factors: _ProductFactors
    ) -> list[int] | None:
        """Return the encoded product, or None where each right factor would be computed for a
        single row.
        """
        column, left_factor, right_factor, panels = factors
        used = set(free_vars(right_factor))
        roles = [
            COLUMNS if n == column else BATCH if a.var in used else ROWS
            for n, a in enumerate(domain)
        ]
        first = CodeBuilder(axes, self.sizes, self.buffers).encode([left_factor])
        second = CodeBuilder(axes, self.sizes, self.buffers).encode([right_factor])
        weights = self._encode_panels(axes, len(domain), column, panels)
        # of the first axis, the batch, most calls have one
        shared = (
            r == ROWS and n > 0 and not _is_unit_extent(domain[n].extent)
            for n, r in enumerate(roles)
        )
        if weights[0] == 0 and BATCH in roles and not any(shared):
            return None
        return [*first, *second, *roles, column, *weights]

    def _encode_panels(
        self, axes: Sequence[Var], n_spatial: int, column: int, lies: _PackedPanels | None
    ) -> list[int]:
        """Return the panel layout of packed weights; all 0 where they are not packed."""
        none = [0] * (4 + len(axes) + 1)
        if lies is None or lies.weight.producer not in self.buffers:
            return none
        code = CodeBuilder([*axes, lies.panel, lies.step], self.sizes, self.buffers)
        steps, offset, remaining_terms = code.address(
            lies.indices, lies.weight.producer.whole_shape
        )
        *along, of_panel, of_step = steps
        zero = self.sizes.constant(0)
        if (
            remaining_terms
            or along[column] != zero
            or (lies.elements_per_word > 1 and along[-1] != zero)
        ):
            return none
        if lies.elements_per_word > 1:
            along[-1] = of_step
        return [lies.tile, self.buffers[lies.weight.producer], of_panel, lies.elements_per_word,
                *along[n_spatial:], offset, *along[:n_spatial]]  # fmt: skip


def assign_memory_owners(
    groups: Sequence[Sequence[te.Tensor]], temporaries: Sequence[te.Tensor]
) -> dict[te.Tensor, te.Tensor]:
    """Assign each tensor a memory owner: an earlier tensor whose last read is over. Without it a
    staged convolution would hold all of its stages. Programs with statement regions are
    excluded: their reads are not known here.
    """
    if any(isinstance(group[0].op, te.ExternOp) for group in groups):
        return {}
    last = {t: index for index, group in enumerate(groups) for t in group[0].op.input_tensors}
    held, owner_of = set(temporaries), {}
    free: list[te.Tensor] = []
    busy: dict[te.Tensor, int] = {}  # an owner -> the last place where its memory is read
    for index, group in enumerate(groups):
        done = [owner for owner, until in busy.items() if until < index]
        for owner in done:
            del busy[owner]
        free += done
        for tensor in (t for t in group if t in held):
            owner = free.pop() if free else tensor
            if owner is not tensor:
                owner_of[tensor] = owner
            busy[owner] = last.get(tensor, index)
    return owner_of


class _PackedPanels(NamedTuple):
    """Weights packed in column panels, with a panel's load and the indices of its first column at
    the first element of a word.
    """

    weight: te.ProducerLoad
    indices: Sequence[PrimExpr]
    tile: int
    elements_per_word: int
    """Consecutive elements of the last reduction axis that are stored side by side."""
    panel: Var
    """Panel number, within the indices."""
    step: Var
    """Word number, within the indices."""

    @staticmethod
    def match(
        last: ReduceAxis, column: IterVar, left_factor: PrimExpr, right_factor: PrimExpr
    ) -> _PackedPanels | None:
        """Return the packed weight that a right factor reads, or None. `last` is the last reduction
        axis.
        """
        word = 1
        if (
            _is_widened_int16(left_factor)
            and isinstance(right_factor, Cast)
            and right_factor.value.dtype in PANEL_WORDS
        ):
            right_factor = right_factor.value
            word = _word_of(right_factor)
            if not word or not isinstance(last.extent, IntImm) or last.extent.value % word:
                return None  # words of which a part is beyond the sum
        num_word_axes = 0 if word == 1 else 1
        if not isinstance(right_factor, te.ProducerLoad):
            return None
        if len(right_factor.indices) <= num_word_axes:
            return None
        indices, shape = list(right_factor.indices), list(right_factor.producer.whole_shape)
        if word > 1:
            word_element, shape = indices.pop(), shape[:-1]
            if not _is_remainder_of(word_element, last, word):
                return None
        tile, column_index = shape[-1], indices.pop()
        if (
            not isinstance(tile, IntImm)
            or tile.value % PANEL_LANES
            or right_factor.dtype not in (PRODUCT_DTYPES if word == 1 else PANEL_WORDS)
        ):
            return None
        is_one = column_index is column.var and is_const(column.extent, tile.value)
        if not is_one and not _is_remainder_of(column_index, column.var, tile.value):
            return None
        panel, step = Var("panel"), Var("step")

        def substitute_quotient(e: PrimExpr) -> PrimExpr:
            """Replace the panel's and the word's quotient by variables of their own."""
            if _is_quotient_of(e, column.var, tile.value):
                return panel
            return step if word > 1 and _is_quotient_of(e, last, word) else e

        indices = [rewrite(i, substitute_quotient) for i in indices]
        zeros = [IntImm(0)] * (1 + num_word_axes)
        return _PackedPanels(right_factor, [*indices, *zeros], tile.value, word, panel, step)


def _word_of(factor: PrimExpr) -> int:
    """Return the elements of the words that a factor is loaded from, its last axis; 0 for none."""
    if not isinstance(factor, te.ProducerLoad):
        return 0
    size = factor.producer.whole_shape[-1]
    words = PANEL_WORDS[factor.dtype]
    return size.value if isinstance(size, IntImm) and size.value in words else 0


class _ProductFactors(NamedTuple):
    """Factors of a product: the column axis, the factor without and with it, and the latter's
    packing.
    """

    column: int
    left: PrimExpr
    right: PrimExpr
    panels: _PackedPanels | None


def _split_factors(
    factors: Sequence[tuple[PrimExpr, set[Var]]],
    column: int,
    domain: Sequence[IterVar],
    reduced: Sequence[ReduceAxis],
) -> _ProductFactors | None:
    """Split factors by whether they depend on the column axis; return None where a side is empty or
    not reduced.
    """
    axis = domain[column]
    by_side: tuple[list[PrimExpr], list[PrimExpr]] = ([], [])
    used: tuple[set[Var], set[Var]] = (set(), set())
    for factor, variables in factors:
        side = axis.var in variables
        by_side[side].append(factor)
        used[side].update(variables)
    if not all(by_side) or any(variables.isdisjoint(reduced) for variables in used):
        return None
    left_factor, right_factor = (
        functools.reduce(lambda a, b: a * b, side_factors) for side_factors in by_side
    )
    return _ProductFactors(
        column,
        left_factor,
        right_factor,
        _PackedPanels.match(reduced[-1], axis, left_factor, right_factor),
    )


def _is_remainder_of(e: PrimExpr, of: Var, by: int) -> bool:
    return isinstance(e, FloorMod) and e.a is of and is_const(e.b, by)


def _is_quotient_of(e: PrimExpr, of: Var, by: int) -> bool:
    return isinstance(e, FloorDiv) and e.a is of and is_const(e.b, by)


def _is_widened_int16(e: PrimExpr) -> bool:
    """Return whether a factor is int16 or a byte, cast to int32."""
    return isinstance(e, Cast) and e.dtype == "int32" and e.value.dtype in (*BYTE_DTYPES, "int16")


def _primary_results(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Return the first result of each operation."""
    return list({tensor.op: tensor for tensor in reversed(tensors)}.values())[::-1]


def encode_text(text: str) -> list[int]:
    """Encode a zero-terminated text as words, after their count."""
    data = text.encode()
    data += bytes(8 - len(data) % 8)
    return [len(data) // 8, *np.frombuffer(data, np.int64).tolist()]


def _is_unit_extent(extent: PrimExpr) -> bool:
    return isinstance(extent, IntImm) and extent.value == 1


__all__ = ["CHECK", "MAP", "GeneralFormBuilder", "encode_text", "general_form", "general_function"]
