"""In-place concatenation: producers write their operand directly into its slice of the result.

    let %a = memory.alloc_tensor(%s0, offset=0, shape=(4, 16)); invoke(f, (%x,), (%a,));
    let %b = memory.alloc_tensor(%s1, offset=0, shape=(8, 16)); invoke(g, (%x,), (%b,));
    let %y = memory.alloc_tensor(%s2, offset=0, shape=(12, 16)); invoke(join, (%a, %b), (%y,))
    ->  let %a = memory.alloc_tensor(%s2, offset=0, shape=(4, 16)); invoke(f, (%x,), (%a,));
        let %b = memory.alloc_tensor(%s2, offset=256, shape=(8, 16)); invoke(g, (%x,), (%b,));
        let %y = memory.alloc_tensor(%s2, offset=0, shape=(12, 16));

That holds where no axis before the concatenated one has more than one element. Along the last axis
(the channels of NHWC), operands are slices of the result's rows: their kernels get a tensor of its
shape that begins where the slice does, and write its first channels alone (`vm.part`); what else
reads such an operand takes these channels of it (`vm.prefix`). The storage is longer by how far the
last operand begins behind the first:

    let %a = alloc_tensor(%s2, offset=0, shape=(9, 9, 48)); invoke(vm.part(f), (%x,), (%a,));
    let %b = alloc_tensor(%s2, offset=64, shape=(9, 9, 48)); invoke(vm.part(g), (%x,), (%b,));

An operand may be a concatenation itself. One that is no kernel's only result, or is located
elsewhere already (a parameter, a constant, an operand of another concatenation, twice the same), or
whose other readers cannot take channels, is copied; where these are the majority of elements, all
stays as it is.

Operands begin at multiples of a cache line: a kernel whose rows begin within one writes lines that
its neighbour writes too, and its vectors cross them. Concatenations are decided from the last to
the first, so that an operand that is a concatenation itself is known to have a location already
when its own operands are considered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.prim import IntImm, PrimExpr, const, is_const
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import FuncType, TensorType
from ekiden.kernels.families import can_all_write_rows
from ekiden.relay import op
from ekiden.relay.expr import Call, Function, Tuple, Var
from ekiden.relay.op.join import ConcatenateAttrs
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs, alloc_tensor
from ekiden.relay.op.vm import InvokeAttrs, invoke_tvm_op, part, prefix
from ekiden.relay.transform.language.let_chains import LetBinding, LetChain, map_chains
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    infer_local_type,
    lift_body_rewrite,
    operands,
    replace_children,
)
from ekiden.relay.transform.memory_plan import known_at_entry
from ekiden.runtime.lazy_dataclass import dataclass

CACHE_LINE_BYTES = 64
"""Alignment of operands and rows within the result, so that vectors stay within cache lines."""


@dataclass(slots=True)
class _KernelCall:
    """Kernel call with a single result, at its position in the chain."""

    position: int
    function: Function
    inputs: tuple[RelayExpr, ...]
    output: Var


@dataclass(frozen=True, slots=True)
class _SliceLocation:
    """Location of a tensor in another's storage: byte offset, and the row length where rows are not
    contiguous.
    """

    root: Var
    offset: PrimExpr
    row_elements: PrimExpr | None = None


@dataclass(slots=True)
class _ConcatenationStorage:
    """Storage of an outermost concatenation: extra bytes, and the binding before which it is
    allocated.
    """

    first_use: int
    extra_bytes: int = 0


@dataclass(slots=True)
class _ChainInfo:
    """Storages, tensors, kernels and uses of a let chain."""

    chain: LetChain
    storages: dict[Var, int] = field(default_factory=dict)
    """Binding by storage."""
    tensors: dict[Var, int] = field(default_factory=dict)
    """Binding of each tensor that is alone in its storage."""
    kernels: dict[Var, _KernelCall] = field(default_factory=dict)
    """Kernel that writes each tensor."""
    users: dict[RelayExpr, list[int]] = field(default_factory=dict)
    """Bindings that use each variable, with repetitions; -1 is the result."""

    def __post_init__(self) -> None:
        for index, (variable, value) in enumerate(self.chain.bindings):
            for mentioned in _used_vars(value):
                self.users.setdefault(mentioned, []).append(index)
            if isinstance(value, Call):
                self._record_call(index, variable, value)
        assert self.chain.result is not None
        for mentioned in _used_vars(self.chain.result):
            self.users.setdefault(mentioned, []).append(-1)
        # Other tensors in the storage would be moved along with this one.
        single = {t: index for t, index in self.tensors.items() if self._is_sole_tensor(index)}
        self.tensors = single

    def _record_call(self, at: int, variable: Var, value: Call) -> None:
        if isinstance(value.attrs, AllocStorageAttrs) and not value.attrs.arena:
            self.storages[variable] = at
        elif isinstance(value.attrs, AllocTensorAttrs):
            self.tensors[variable] = at
        elif isinstance(value.attrs, InvokeAttrs):
            function, inputs, outputs, *scratch = value.args
            assert isinstance(inputs, Tuple) and isinstance(outputs, Tuple)
            if not isinstance(function, Function) or scratch or len(outputs.fields) != 1:
                return
            (output,) = outputs.fields
            assert isinstance(output, Var)
            self.kernels[output] = _KernelCall(at, function, inputs.fields, output)

    def _is_sole_tensor(self, at: int) -> bool:
        value = self.chain.bindings[at][1]
        assert isinstance(value, Call) and isinstance(value.attrs, AllocTensorAttrs)
        storage = value.args[0]
        # Another tensor in the same storage would have to move along.
        alone = storage in self.storages and self.users[storage] == [at]
        return alone and is_const(value.attrs.offset, 0)

    def tensor_device(self, tensor: Var) -> int:
        """Return the device of a tensor's storage."""
        alloc = self.chain.bindings[self.tensors[tensor]][1]
        assert isinstance(alloc, Call) and isinstance(alloc.args[0], Var)
        storage_call = self.chain.bindings[self.storages[alloc.args[0]]][1]
        assert isinstance(storage_call, Call) and isinstance(storage_call.attrs, AllocStorageAttrs)
        return storage_call.attrs.device


def _used_vars(value: RelayExpr) -> Iterator[Var]:
    """Yield the variables that a value uses, once per occurrence; those of branch bodies once."""
    if not isinstance(value, Call):
        yield from (e for e in evaluation_order(value) if isinstance(e, Var))
        return
    for operand in operands(value):
        for leaf in operand.fields if isinstance(operand, Tuple) else (operand,):
            if isinstance(leaf, Var):
                yield leaf
            elif not isinstance(leaf, Function):
                yield from (e for e in evaluation_order(leaf) if isinstance(e, Var))


def _tensor_shape(value: RelayExpr) -> tuple[PrimExpr, ...]:
    kind = value.checked_type
    assert isinstance(kind, TensorType)
    return kind.shape


def concatenated_axis(function: Function) -> int | None:
    """Return the axis of a function that only concatenates its parameters in order, or None."""
    body = function.body
    if not (isinstance(body, Call) and isinstance(body.attrs, ConcatenateAttrs)):
        return None
    (operand,) = body.args
    if not isinstance(operand, Tuple) or operand.fields != function.params:
        return None
    return body.attrs.axis % len(_tensor_shape(body))


def _supports_strided_rows(function: Function, writes_rows: bool = False) -> bool:
    """Return whether a kernel's operators are injective, or can write strided rows."""
    if function.attr("Compiler") is not None:
        return False
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    return all(
        isinstance(c.op, Op)
        and (
            c.op.definition.pattern <= OpPattern.INJECTIVE
            or (writes_rows and can_all_write_rows(c.op.definition.kernels))
        )
        for c in calls
    )


def _typed_function(params: tuple[Var, ...], body: RelayExpr, like: Function) -> Function:
    kind = body.checked_type
    func = Function(params, body, kind, (), like.attrs, span=like.span)
    func.set_checked_type(FuncType(tuple(p.checked_type for p in params), kind))
    return func


def _write_to_slice(function: Function, shape: tuple[PrimExpr, ...]) -> Function:
    """Return the function with its result written to a slice of a larger tensor."""
    return _typed_function(function.params, infer_local_type(part(function.body, shape)), function)


def _read_from_slices(function: Function, shapes: Mapping[int, tuple[PrimExpr, ...]]) -> Function:
    """Return the function with the numbered parameters read as slices of larger tensors."""
    params = list(function.params)
    new: dict[RelayExpr, RelayExpr] = {}
    for number, shape in shapes.items():
        old = params[number]
        kind = old.checked_type
        assert isinstance(kind, TensorType)
        params[number] = _tensor_var(old.name_hint, shape, kind.dtype)
        # Only the leading part of each row belongs to the tensor.
        new[old] = infer_local_type(prefix(params[number], kind.shape))
    for expr in evaluation_order(function.body):
        if expr not in new:
            new[expr] = replace_children(expr, new)
    return _typed_function(tuple(params), new[function.body], function)


def _tensor_var(name: str, shape: tuple[PrimExpr, ...], dtype: str) -> Var:
    kind = TensorType(shape, dtype)
    variable = Var(name, kind)
    variable.set_checked_type(kind)
    return variable


def _copy_kernel(kind: TensorType, like: Function) -> Function:
    """Return a kernel function that copies a tensor."""
    param = _tensor_var("p0", kind.shape, kind.dtype)
    return _typed_function((param,), infer_local_type(op.copy(param)), like)


class _ConcatenationRewriter:
    """Rewriter that places the concatenations of one chain."""

    def __init__(self, chain: LetChain, entry_symbols: set[Symbol]) -> None:
        self.chain_info = _ChainInfo(chain)
        self.entry_symbols = entry_symbols
        self.locations: dict[Var, _SliceLocation] = {}
        self.roots: dict[Var, _ConcatenationStorage] = {}
        self.copies: dict[int, list[tuple[Var, _SliceLocation, Function]]] = {}
        """Remaining copies of each elided concatenation."""

    def rewrite_chain(self) -> LetChain:
        """Return the chain with concatenations in place where possible."""
        # From the last one up: an operand may itself be a concatenation, whose place is then known.
        for kernel in sorted(self.chain_info.kernels.values(), key=lambda k: -k.position):
            axis = concatenated_axis(kernel.function)
            if axis is not None:
                self._place_operands(kernel, axis)
        return self._emit_chain() if self.roots else self.chain_info.chain

    # Decisions.

    def _place_operands(self, kernel: _KernelCall, axis: int) -> None:
        """Assign slice locations to the operands of one concatenation."""
        shape, output_location = _tensor_shape(kernel.output), self.locations.get(kernel.output)
        home = output_location or self._new_location(kernel.output)
        if home is None or any(not isinstance(p, Var) for p in kernel.inputs):
            return
        is_last = axis == len(shape) - 1
        row: PrimExpr | None = home.row_elements
        # Each operand is one contiguous part.
        if all(is_const(d, 1) for d in shape[:axis]) and row is None:
            pass
        elif is_last and isinstance(shape[-1], IntImm):
            row = shape[-1] if row is None else row
        else:
            return
        starts = self._operand_offsets(kernel, axis, row is not None)
        if starts is None:
            return
        moved = [p for p in kernel.inputs if self._is_placeable(kernel, p, row is not None)]
        copied_elements = sum(map(_num_elements, kernel.inputs)) - sum(map(_num_elements, moved))
        # Separate copies cost more calls than the one kernel that copies all of it.
        if 2 * copied_elements > sum(map(_num_elements, kernel.inputs)):
            return
        root = self.roots.setdefault(
            home.root, _ConcatenationStorage(self.chain_info.tensors[home.root])
        )
        self.copies[kernel.position] = []
        for operand, start in zip(kernel.inputs, starts, strict=True):
            assert isinstance(operand, Var)
            location = _SliceLocation(home.root, simplify(home.offset + start), row)
            if row is not None:
                assert isinstance(location.offset, IntImm)
                # A view in rows that begins at an offset ends as far behind the result.
                root.extra_bytes = max(root.extra_bytes, location.offset.value)
            if operand in moved:
                self.locations[operand] = location
                # The storage must exist before the first operand that is written to it.
                root.first_use = min(root.first_use, self.chain_info.tensors[operand])
            else:
                self.copies[kernel.position].append((operand, location, kernel.function))

    def _new_location(self, output: Var) -> _SliceLocation | None:
        """Return the location of a concatenation whose storage can be allocated earlier,
        or None.
        """
        is_movable = output in self.chain_info.tensors and all(
            self.entry_symbols.issuperset(free_vars(d)) for d in _tensor_shape(output)
        )
        return _SliceLocation(output, const(0)) if is_movable else None

    def _operand_offsets(
        self, kernel: _KernelCall, axis: int, in_rows: bool
    ) -> list[PrimExpr] | None:
        """Return the byte offset of each operand, or None where one is not aligned to a
        cache line.
        """
        kind = kernel.output.checked_type
        assert isinstance(kind, TensorType)
        unit: PrimExpr = const(dt.itemsize(kind.dtype))
        for dim in kind.shape[axis + 1 :]:
            unit = unit * dim
        starts: list[PrimExpr] = []
        position: PrimExpr = const(0)
        for operand in kernel.inputs:
            extent = _tensor_shape(operand)[axis]
            size = simplify(extent * unit)
            is_whole = is_const(simplify(size % CACHE_LINE_BYTES), 0)
            if not (is_whole or (operand is kernel.inputs[-1] and not in_rows)):
                return None
            # Views in rows are declared with constant offsets.
            if is_const(size, 0) or (in_rows and not isinstance(size, IntImm)):
                return None
            starts.append(position)
            position = simplify(position + size)
        return starts

    def _is_placeable(self, kernel: _KernelCall, value: RelayExpr, in_rows: bool) -> bool:
        """Return whether an operand can be written directly into the concatenation."""
        facts = self.chain_info
        if not isinstance(value, Var) or value not in facts.tensors or value in self.locations:
            return False
        writer = facts.kernels.get(value)
        # A value that occurs twice has two places in the result but only one writer.
        if writer is None or kernel.inputs.count(value) != 1 or value in self.roots:
            return False
        # A storage is on one device.
        if facts.tensor_device(value) != facts.tensor_device(kernel.output):
            return False
        if not in_rows:
            return True
        if not _supports_strided_rows(writer.function, writes_rows=True):
            return False
        readers = [k for k in facts.kernels.values() if k is not kernel and value in k.inputs]
        other_users = (
            set(facts.users[value])
            - {writer.position, kernel.position}
            - {r.position for r in readers}
        )
        return not other_users and all(_supports_strided_rows(r.function) for r in readers)

    # The new chain.

    def _emit_chain(self) -> LetChain:
        chain = self.chain_info.chain
        replaced: dict[Var, Var] = {}
        for tensor, home in self.locations.items():
            kind = tensor.checked_type
            assert isinstance(kind, TensorType)
            if home.row_elements is not None:
                shape = (*kind.shape[:-1], home.row_elements)
                replaced[tensor] = _tensor_var(tensor.name_hint, shape, kind.dtype)
        made_at: dict[int, list[LetBinding]] = {}
        # The storages of roots are made again, earlier and larger.
        dropped = {self._storage_of(t) for t in (*self.locations, *self.roots)}
        for output, root in self.roots.items():
            made_at.setdefault(root.first_use, []).append(self._enlarged_storage(output, root))
        bindings: list[LetBinding] = []
        for index, binding in enumerate(chain.bindings):
            bindings += made_at.get(index, ())
            if index in self.copies:
                bindings += [b for c in self.copies[index] for b in self._emit_copy(*c, replaced)]
            elif binding[0] not in dropped:
                bindings.append(self._emit_binding(binding, replaced))
        return LetChain(bindings, chain.result)

    def _storage_of(self, tensor: Var) -> Var:
        alloc = self.chain_info.chain.bindings[self.chain_info.tensors[tensor]][1]
        assert isinstance(alloc, Call) and isinstance(alloc.args[0], Var)
        return alloc.args[0]

    def _enlarged_storage(self, output: Var, root: _ConcatenationStorage) -> LetBinding:
        storage = self._storage_of(output)
        value = self.chain_info.chain.bindings[self.chain_info.storages[storage]][1]
        assert isinstance(value, Call) and isinstance(value.attrs, AllocStorageAttrs)
        attrs = value.attrs.with_fields(size=simplify(value.attrs.size + root.extra_bytes))
        return storage, value.with_fields(attrs=attrs)

    def _emit_copy(
        self, value: Var, home: _SliceLocation, like: Function, replaced: Mapping[Var, Var]
    ) -> list[LetBinding]:
        """Emit the copy of an operand into its slice."""
        kind = value.checked_type
        assert isinstance(kind, TensorType)
        function = _copy_kernel(kind, like)
        shape = kind.shape
        if home.row_elements is not None:
            shape = (*shape[:-1], home.row_elements)
            function = _write_to_slice(function, shape)
        to = _tensor_var("part", shape, kind.dtype)
        invoke = invoke_tvm_op(function, (value,), (to,), self.chain_info.tensor_device(home.root))
        alloc = alloc_tensor(self._storage_of(home.root), home.offset, shape, kind.dtype)
        invoke = self._rewrite_invoke(invoke.with_fields(span=like.span), replaced)
        return [(to, alloc), (Var("_"), invoke)]

    def _emit_binding(self, binding: LetBinding, replaced: Mapping[Var, Var]) -> LetBinding:
        variable, value = binding
        home = self.locations.get(variable)
        if home is not None:
            new = replaced.get(variable, variable)
            kind = new.checked_type
            assert isinstance(kind, TensorType)
            storage = self._storage_of(home.root)
            return new, alloc_tensor(storage, home.offset, kind.shape, kind.dtype)
        if isinstance(value, Call) and isinstance(value.attrs, InvokeAttrs):
            return variable, self._rewrite_invoke(value, replaced)
        return binding

    def _rewrite_invoke(self, call: Call, replaced: Mapping[Var, Var]) -> Call:
        """Rewrite a kernel call whose tensors became slices of larger ones."""
        function, inputs, outputs = call.args[:3]
        assert isinstance(inputs, Tuple) and isinstance(outputs, Tuple)
        if not any(isinstance(e, Var) and e in replaced for e in (*inputs.fields, *outputs.fields)):
            return call
        assert isinstance(function, Function)
        shapes = {
            n: _tensor_shape(replaced[e])
            for n, e in enumerate(inputs.fields)
            if isinstance(e, Var) and e in replaced
        }
        if shapes:
            function = _read_from_slices(function, shapes)
        (output,) = outputs.fields
        if output in replaced:
            assert isinstance(output, Var)
            function = _write_to_slice(function, _tensor_shape(replaced[output]))
        new_inputs = Tuple(tuple(_replaced_var(e, replaced) for e in inputs.fields))
        new_outputs = Tuple((_replaced_var(output, replaced),))
        return call.with_fields(args=(function, new_inputs, new_outputs, *call.args[3:]))


def _replaced_var(value: RelayExpr, replaced: Mapping[Var, Var]) -> RelayExpr:
    return replaced.get(value, value) if isinstance(value, Var) else value


def _num_elements(value: RelayExpr) -> int:
    """Return the number of elements of a tensor; symbolic dimensions count as 1."""
    total = 1
    for dim in _tensor_shape(value):
        total *= dim.value if isinstance(dim, IntImm) else 1
    return total


def ConcatenateInPlace() -> Pass:  # noqa: N802
    """Return a pass that places the operands of concatenations in the result's storage. It follows
    ManifestAlloc, before MemoryPlan.
    """

    def rewrite(function: Function) -> Function:
        """Rewrite one function whose parameters determine the known sizes."""
        # A storage that is allocated earlier needs a size that is known there.
        entry_symbols = known_at_entry(function)

        def rewrite_chain(chain: LetChain, _: bool) -> LetChain:
            """Write the parts of the chain's concatenations into their results."""
            return _ConcatenationRewriter(chain, entry_symbols).rewrite_chain()

        return lift_body_rewrite(lambda body: map_chains(body, rewrite_chain))(function)

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite the functions of a module; kernel functions are left unchanged."""
        functions = dict(module.functions.items())
        for name, function in functions.items():
            if isinstance(function, Function):
                functions[name] = rewrite(function)
        return module.with_functions(functions)

    return Pass("ConcatenateInPlace", transform)
