"""In-place slicing: slices become views into the storage of their source, without a copy.

    let %t = memory.alloc_tensor(%s0, offset=0, shape=(3, n, 16)); invoke(f, (%x,), (%t,));
    let %a = memory.alloc_tensor(%s1, offset=0, shape=(1, n, 16)); invoke(slice, (%t,), (%a,));
    ->  let %t = memory.alloc_tensor(%s0, offset=0, shape=(3, n, 16)); invoke(f, (%x,), (%t,));
        let %a = memory.alloc_tensor(%s0, offset=n * 64, shape=(1, n, 16));

That holds for kernels that do nothing but cut boxes (the column `boxes` of operators) which are
contiguous: no axis before the one that is cut has more than one element. The source has a storage
of this function alone, and so have the slices: a result does not keep its source alive. Nor does a
small slice that is used longer than the rest: together, the slices of a storage are at least half
of it, or none is used after it.

Begun for recurrent networks that were unrolled: 188 of 250 kernels of an LSTM tagger did nothing
but cut one step out of a sequence. Row-major, a box is contiguous iff all axes before the first
that is cut have one element, and all behind it are complete.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import field

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, PrimExpr, const, is_const
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Function, Tuple, Var
from ekiden.relay.op.memory import AllocTensorAttrs, alloc_tensor
from ekiden.relay.transform.language.let_chains import (
    LetBinding,
    LetChain,
    called_op_name,
    map_chains,
)
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions
from ekiden.relay.transform.memory.storage_lifetimes import StorageLifetimes
from ekiden.relay.transform.memory_plan import known_at_entry
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.slice import SliceRange


@dataclass(frozen=True, slots=True)
class _StorageLocation:
    """Location of a tensor: its storage and the byte offset in it."""

    storage: Var
    offset: PrimExpr


@dataclass(slots=True)
class _SliceKernel:
    """Slicing kernel with the locations that its results take in the source's storage."""

    call: Call
    source: Var
    """Storage of the sliced tensor."""
    result_locations: list[tuple[Var, Var, _StorageLocation]] = field(default_factory=list)
    """Result, its storage, and its location in the source."""


class _SliceFinder:
    """Finder of a function's slicing kernels that need no copy; `entry_symbols` are the symbols
    determined at entry.
    """

    def __init__(self, body: RelayExpr, entry_symbols: Set[Symbol]) -> None:
        self.lifetimes = StorageLifetimes(body, lambda _: False)
        self.entry_symbols = entry_symbols
        self.locations: dict[RelayExpr, _StorageLocation] = {}
        self.views: dict[RelayExpr, RelayExpr] = {}
        """Tensor that each reshaped view refers to."""
        self.tensor_counts: dict[Var, int] = {}
        """Number of tensors in each storage."""
        self.slice_kernels: list[_SliceKernel] = []
        for block in self.lifetimes.blocks:
            for variable, value in block.chain.bindings:
                if isinstance(value, Call):
                    self._record_tensor(variable, value)
        for _, call in self.lifetimes.invocations:
            self._record_slice_kernel(call)
        # All cuts of a source count together, so they are recorded before any is judged.
        self.slice_kernels = [c for c in self.slice_kernels if self._is_profitable(c.source)]

    def _record_tensor(self, variable: Var, value: Call) -> None:
        if isinstance(value.attrs, AllocTensorAttrs):
            (storage,) = value.args
            assert isinstance(storage, Var)
            self.locations[variable] = _StorageLocation(storage, value.attrs.offset)
            self.tensor_counts[storage] = self.tensor_counts.get(storage, 0) + 1
        elif called_op_name(value) == "vm.reshape_tensor":
            self.views[variable] = value.args[0]

    def _location_of(self, value: RelayExpr) -> _StorageLocation | None:
        while value in self.views:
            value = self.views[value]
        return self.locations.get(value)

    def _record_slice_kernel(self, call: Call) -> None:
        """Record a kernel whose results can be views of its input."""
        kernel, inputs, outputs = call.args[:3]
        assert isinstance(inputs, Tuple) and isinstance(outputs, Tuple)
        boxes = _slice_ranges(kernel)
        if boxes is None or len(call.args) > 3 or len(outputs.fields) != len(boxes):
            return
        (data,) = inputs.fields
        source_location = self._location_of(data)
        if source_location is None or not self._is_planned(source_location.storage):
            return
        kind = data.checked_type
        assert isinstance(kind, TensorType)
        cut = _SliceKernel(call, source_location.storage)
        for output, box in zip(outputs.fields, boxes, strict=True):
            start = _box_offset(box, kind)
            assert isinstance(output, Var)
            output_storage = self.locations[output].storage
            # One result that must be copied keeps the whole kernel.
            if (
                start is None
                or not self._is_planned(output_storage)
                or self.tensor_counts[output_storage] != 1
            ):
                return
            if (
                self.lifetimes.requests[output_storage].device
                != self.lifetimes.requests[cut.source].device
            ):
                return
            position = _StorageLocation(
                source_location.storage, simplify(source_location.offset + start)
            )
            cut.result_locations.append((output, output_storage, position))
        self.slice_kernels.append(cut)
        self.locations.update(
            (output, position) for output, _, position in cut.result_locations
        )  # which may be cut again

    def _is_planned(self, storage: Var) -> bool:
        """Return whether a storage does not escape and its size is known at entry, so that
        MemoryPlan places it.
        """
        request = self.lifetimes.requests[storage]
        escaped = storage in self.lifetimes.escaped
        return not escaped and self.entry_symbols >= set(free_vars(request.size))

    def _is_profitable(self, source: Var) -> bool:
        """Return whether views of a storage may extend its lifetime: they live no longer, or cover
        half of it.
        """
        source_request, total = self.lifetimes.requests[source], const(0)
        is_longest = True
        for own in (
            own
            for cut in self.slice_kernels
            if cut.source is source
            for _, own, _ in cut.result_locations
        ):
            slice_request = self.lifetimes.requests[own]
            total = total + slice_request.size
            is_longest &= all(
                position <= source_request.uses.get(b, -1)
                for b, position in slice_request.uses.items()
            )
        # Slices that are at least half of the source waste less than their copies would take.
        return is_longest or is_const(simplify(total * 2 >= source_request.size), 1)


def _slice_ranges(kernel: RelayExpr) -> Sequence[Sequence[SliceRange]] | None:
    """Return the ranges that a pure slicing function extracts from its argument, or None."""
    if not isinstance(kernel, Function) or kernel.attr("Compiler") is not None:
        return None
    body = kernel.body
    if not (isinstance(body, Call) and isinstance(body.op, Op)) or body.args != kernel.params:
        return None
    boxes = body.op.definition.boxes
    if boxes is None:  # then there may be no argument either
        return None
    return boxes(body.attrs, _tensor_type(kernel.params[0].checked_type).shape)


def _tensor_type(kind: object) -> TensorType:
    assert isinstance(kind, TensorType)
    return kind


def _box_offset(box: Sequence[SliceRange], kind: TensorType) -> PrimExpr | None:
    """Return the byte offset of a contiguous slice of a tensor, or None.

    Returns:
        None where it is not contiguous, or where its offset or extent holds only if what is given
        at run time fits.
    """
    cut = [
        n
        for n, ((first, stride, extent), dim) in enumerate(zip(box, kind.shape, strict=True))
        if not (is_const(first, 0) and stride == 1 and is_const(simplify(extent - dim), 0))
    ]
    if not cut:
        return const(0)
    axis = cut[0]
    first, stride, extent = box[axis]
    numbers = isinstance(first, IntImm) and isinstance(extent, IntImm)
    if len(cut) > 1 or stride != 1 or not numbers or not isinstance(kind.shape[axis], IntImm):
        return None
    # A slice along an inner axis is not contiguous.
    if not all(is_const(d, 1) for d in kind.shape[:axis]):
        return None
    start: PrimExpr = first * dt.itemsize(kind.dtype)
    for dim in kind.shape[axis + 1 :]:
        start = start * dim
    return simplify(start)


def _rewrite_body(body: RelayExpr, entry_symbols: Set[Symbol]) -> RelayExpr:
    """Return a function's body without the slicing kernels that need no copy."""
    slices = _SliceFinder(body, entry_symbols)
    if not slices.slice_kernels:
        return body
    gone: set[RelayExpr] = {c.call for c in slices.slice_kernels}
    locations = {
        output: location for c in slices.slice_kernels for output, _, location in c.result_locations
    }
    # Storages of results that now lie in their source.
    dropped = {own for c in slices.slice_kernels for _, own, _ in c.result_locations}

    def rewrite_binding(binding: LetBinding) -> list[LetBinding]:
        """Replace a slice's result by a tensor over the source's storage.

        The kernel's call and its own storage go.
        """
        variable, value = binding
        location_here = locations.get(variable)
        if location_here is not None:
            kind = _tensor_type(variable.checked_type)
            return [
                (
                    variable,
                    alloc_tensor(
                        location_here.storage, location_here.offset, kind.shape, kind.dtype
                    ),
                )
            ]
        return [] if value in gone or variable in dropped else [binding]

    def rewrite_chain(chain: LetChain, _: bool) -> LetChain:
        """Rewrite the slices of a chain."""
        return LetChain(
            [b for binding in chain.bindings for b in rewrite_binding(binding)], chain.result
        )

    return map_chains(body, rewrite_chain)


def SliceInPlace() -> Pass:  # noqa: N802
    """Return a pass that turns slices into views of their source. It follows ConcatenateInPlace,
    before MemoryPlan.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite the functions of a module."""

        def rewrite_function(function: Function) -> Function:
            """Read slices in place, with the symbols that are known at entry."""
            entry_symbols = known_at_entry(function)
            return lift_body_rewrite(lambda body: _rewrite_body(body, entry_symbols))(function)

        return map_functions(module, rewrite_function)

    return Pass("SliceInPlace", transform)


__all__ = ["SliceInPlace"]
