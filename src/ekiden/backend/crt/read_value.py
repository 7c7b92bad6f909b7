"""Reader of a program's values as leaves: operators, data, references, calls, and their storages.

let %o = Some(%t); let %l = Cons(%e, %k);    leaves (number 0, t); the list k with e behind it
let %y = @f(%x)                              a call of a routine: its result and its frame are
                                             storages of this one
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden.backend.crt import micro_module as crt
from ekiden.backend.crt.micro_module import Location, MemorySpace
from ekiden.backend.crt.program import (
    CRT_ERROR_PREFIX,
    DYNAMIC_CALL_MESSAGE,
    CallFrame,
    ListStorage,
    MicroProgram,
    RoutineSignature,
)
from ekiden.backend.crt.value_layout import LeafKind, LeafType, tensor_bytes, unbounded_message
from ekiden.backend.crt.value_locations import (
    NO_LEAF,
    KnownClosure,
    ListClass,
    ParallelMoves,
    StorageOffset,
    UnresolvedStatement,
    Value,
    ValueLeaf,
)
from ekiden.ir import dtype as dt
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, PrimExpr, const
from ekiden.ir.type import TensorType
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Function,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.op.sequence import SequenceStackAttrs
from ekiden.relay.op.vm import MatchShapeAttrs, ReshapeTensorAttrs
from ekiden.relay.transform.language.let_chains import LetChain, called_op_name
from ekiden.relay.transform.memory.storage_in_place import InPlaceCandidate, KernelOperand
from ekiden.relay.transform.memory.storage_lifetimes import LifetimeBlock, StorageRequest, is_alias
from ekiden.runtime.errors import CompileError

LIFTED_NAME_PREFIX = "lifted_"
"""Prefix that LambdaLift gives to nested functions."""


class ValueReader:
    """Reader of the values of one routine: operators, data, references and calls, without control
    flow.
    """

    def __init__(self, program: MicroProgram, names: Sequence[str], *, is_loop: bool) -> None:
        self.program = program
        self.names = names
        self.is_loop = is_loop
        self.code: list[UnresolvedStatement | ParallelMoves] = []
        self.requests: dict[Var, StorageRequest] = {}
        self.elements: list[ListStorage] = []
        self.replacements: list[InPlaceCandidate] = []
        self.frames: list[CallFrame] = []
        self.values: dict[RelayExpr, Value] = {}
        self.locals: list[LeafType] = []
        self.inputs: list[bool] = []
        """Whether each input address is written through."""
        self.params: list[StorageRequest | None] = []
        """New value of each loop parameter after an iteration."""
        self.matches = 0
        self.name = ""
        """The function that is read."""
        self.root = LifetimeBlock(LetChain(), self._lookup_function(names[0]).body, positions=[0])
        self.block, self.index, self.now = self.root, 0, 1
        self.ends: dict[LifetimeBlock, Value] = {}

    def _lookup_function(self, name: str) -> Function:
        return self.program.functions[name]

    def error_prefix(self, value: RelayExpr | None) -> str:
        """Return the error prefix that names a value's model node."""
        node = f", {value.span}" if value is not None and value.span else ""
        return f"{CRT_ERROR_PREFIX}: function '{self.name.removeprefix(LIFTED_NAME_PREFIX)}'{node}"

    def _current_error_prefix(self) -> str:
        """Return the error prefix that names the current binding."""
        bindings = self.block.chain.bindings
        return self.error_prefix(bindings[self.index][1] if self.index < len(bindings) else None)

    def leaf_types(self, value: RelayExpr) -> tuple[LeafType, ...]:
        """Return the leaves of a value's type."""
        return self.program.layouts.leaves(value.checked_type, self.error_prefix(value))

    # storages

    def next_position(self) -> int:
        """Return the next position."""
        self.now += 1
        return self.now - 1

    def _request_storage(
        self, kind: LeafType, block: LifetimeBlock, index: int, at: int, lists: ListClass | None
    ) -> StorageRequest:
        request = StorageRequest(Var("storage"), const(kind.nbytes), block, index, at)
        self.requests[request.storage] = request
        if lists is not None:
            self.elements.append(
                ListStorage(request, kind.nbytes, lists, self._current_error_prefix())
            )
        return request

    def new_storage(self, kind: LeafType, lists: ListClass | None = None) -> ValueLeaf:
        """Return a leaf in a new storage, live from the current position on."""
        if kind.kind is LeafKind.FUNCTION:
            return NO_LEAF
        lists = ListClass() if kind.is_list and lists is None else lists
        request = self._request_storage(kind, self.block, self.index, self.now - 1, lists)
        return ValueLeaf(StorageOffset(request.storage), frozenset((request.storage,)), True, lists)

    def extend_live_ranges(self, leaves: Sequence[ValueLeaf]) -> None:
        """Record that leaves are read or written at the current position."""
        for leaf in leaves:
            for storage in leaf.storages:
                if storage in self.requests:
                    self.requests[storage].uses[self.block] = self.now - 1

    def append_unresolved(self, statement: crt.Statement, *leaves: ValueLeaf) -> None:
        """Append a statement over value leaves, and extend their live ranges to it."""
        self.extend_live_ranges(leaves)
        self.code.append(UnresolvedStatement(statement, leaves))

    def copy(self, source: ValueLeaf, target: ValueLeaf, kind: LeafType, node: str = "") -> None:
        """Append a copy of a leaf's bytes."""
        if source.home is NO_LEAF.home:
            return
        self.append_unresolved(crt.KernelCallStatement(None, (), kind.nbytes, node), source, target)

    # values

    def value(self, expr: RelayExpr) -> Value:
        """Read a value, or look up that of an atom."""
        match expr:
            case _ if expr in self.values:
                return self.values[expr]
            case Constant(data=data):
                return (self.program.constant_leaf(data),)
            case Tuple(fields=fields):
                return tuple(leaf for component in fields for leaf in self.value(component))
            case TupleGetItem(tuple_value=of, index=index):
                row = self.program.layouts.fields(of.checked_type, None, self.error_prefix(expr))
                return self.value(of)[row[index].start : row[index].end]
            case GlobalVar(name_hint=name):
                return (ValueLeaf(NO_LEAF.home, function=KnownClosure(name)),)
            case Call(op=Op()):
                return self._read_operator(expr)
            case Call(op=Constructor() as constructor, args=args):
                return self._read_constructor(constructor, args, expr)
            case Call(op=GlobalVar(name_hint=name), args=args) if self._returns_closure(name):
                closure = KnownClosure(name, tuple(self.value(a) for a in args))
                return (ValueLeaf(NO_LEAF.home, function=closure),)
            case Call():
                return self._read_call(expr)
            case RefCreate(value=held):
                kinds, value = self.leaf_types(held), self.value(held)
                return self._copy_value(value, kinds, expr)
            case RefRead(ref=ref):
                return self._copy_value(self.value(ref), self.leaf_types(expr), expr)
            case RefWrite(ref=ref, value=held):
                self._write_cells(self.value(ref), self.value(held), self.leaf_types(held), expr)
                return ()
            case _:
                raise CompileError(
                    f"{self.error_prefix(expr)}: {type(expr).__name__} is no kernel on tensors of "
                    "known shapes, and needs the runtime"
                )

    def _returns_closure(self, name: str) -> bool:
        """Return whether a call of the function returns a closure."""
        return name in self.program.closures

    def _copy_value(self, value: Value, kinds: Sequence[LeafType], expr: RelayExpr) -> Value:
        """Copy a value: into a reference, or out of one."""
        self._check_cell_contents(value, kinds, expr)
        copies = tuple(map(self.new_storage, kinds))
        for source, target, kind in zip(value, copies, kinds, strict=True):
            self.copy(source, target, kind)
        return copies

    def _write_cells(
        self, cells: Value, value: Value, kinds: Sequence[LeafType], expr: RelayExpr
    ) -> None:
        self._check_cell_contents(value, kinds, expr)
        for source, target, kind in zip(value, cells, kinds, strict=True):
            self.copy(source, target, kind)

    def _check_cell_contents(
        self, value: Value, kinds: Sequence[LeafType], expr: RelayExpr
    ) -> None:
        for kind in kinds:
            if kind.kind is not LeafKind.TENSOR or kind.is_cell:
                raise CompileError(
                    f"{self.error_prefix(expr)}: a reference that holds something else than "
                    "tensors of constant shapes has memory without a bound, and there is no "
                    "allocator"
                )

    # operators

    def _read_operator(self, call: Call) -> Value:
        name = called_op_name(call)
        match name, call.attrs:
            case "memory.alloc_storage", AllocStorageAttrs(size=size):
                request = StorageRequest(
                    Var("storage"), const(0), self.block, self.index, self.now - 1
                )
                request.size = self._constant_size(size, call)
                self.requests[request.storage] = request
                return (
                    ValueLeaf(StorageOffset(request.storage), frozenset((request.storage,)), True),
                )
            case "memory.alloc_tensor", AllocTensorAttrs() as attrs:
                return (self._read_alloc_tensor(call, attrs),)
            case "vm.invoke_tvm_op", _:
                self._read_kernel_call(call)
                return ()
            case "sequence.stack", SequenceStackAttrs() as stack:
                return self._read_stack(call, stack)
            case "memory.kill", _:
                return ()
            case _ if is_alias(call):
                return self._read_reshape(call)
            case _:
                raise CompileError(
                    f"{self.error_prefix(call)}: {name} is no kernel on tensors of known shapes, "
                    "and needs the runtime"
                )

    def _constant_size(self, size: PrimExpr, call: Call) -> PrimExpr:
        if isinstance(size, IntImm):
            return size
        kind = self._first_tensor_type()
        what = (
            unbounded_message(kind)
            if kind is not None
            else f"{size} bytes are known when it runs only"
        )
        bindings = self.block.chain.bindings[self.index :]
        node = next((value for _, value in bindings if value.span), call)
        raise CompileError(f"{self.error_prefix(node)}: {what}")

    def _first_tensor_type(self) -> TensorType | None:
        """Return the type of the first tensor in the storage that is read."""
        chain = self.block.chain.bindings
        variable = chain[self.index][0]
        for _, value in chain[self.index + 1 :]:
            if not isinstance(value, Call) or not isinstance(value.attrs, AllocTensorAttrs):
                continue
            if value.args[0] is variable:
                return TensorType(value.attrs.shape, value.attrs.dtype)
        return None

    def _read_alloc_tensor(self, call: Call, attrs: AllocTensorAttrs) -> ValueLeaf:
        (leaf,) = self.value(call.args[0])
        assert isinstance(leaf.home, StorageOffset)
        nbytes = tensor_bytes(TensorType(attrs.shape, attrs.dtype), self.error_prefix(call))
        offset = attrs.offset
        assert isinstance(offset, IntImm), "of tensors of constant shapes"
        size = self.requests[leaf.home.storage].size
        assert isinstance(size, IntImm)
        is_whole = offset.value == 0 and size.value == nbytes
        return ValueLeaf(StorageOffset(leaf.home.storage, offset.value), leaf.storages, is_whole)

    def _read_reshape(self, call: Call) -> Value:
        """Read a reshape: the same leaf with another shape; unbounded shapes are reported here,
        before kernels do.
        """
        if isinstance(call.attrs, (ReshapeTensorAttrs, MatchShapeAttrs)):
            tensor_bytes(TensorType(call.attrs.shape, "uint8"), self.error_prefix(call))
        return self.value(call.args[0])

    def _read_kernel_call(self, call: Call) -> None:
        """Read a kernel call; its workspace is one more storage, live during the call."""
        function, *groups = call.args
        assert isinstance(function, Function)
        kernel = self.program.kernels.kernel(function)
        inputs, outputs = (self.value(group) for group in groups[:2])
        self.allow_in_place(inputs, outputs, self.program.kernels.in_place_inputs(function))
        memory = (
            (self.new_storage(LeafType(LeafKind.TENSOR, kernel.workspace)),)
            if kernel.workspace
            else ()
        )
        step = crt.KernelCallStatement(kernel, (), source=str(call.span or ""))
        self.append_unresolved(step, *inputs, *outputs, *memory)

    def allow_in_place(self, inputs: Value, outputs: Value, allowed: Sequence[int]) -> None:
        """Record that the output may share the bytes of one of the inputs `allowed`."""
        if not allowed:
            return
        (output,) = outputs
        operands = [KernelOperand(leaf.storages, leaf.is_whole) for leaf in inputs]
        destination = KernelOperand(output.storages, output.is_whole)
        self.replacements.append(InPlaceCandidate(self.now - 1, operands, destination, allowed))

    # data

    def _read_constructor(
        self, constructor: Constructor, args: Sequence[RelayExpr], call: Call
    ) -> Value:
        kinds = self.leaf_types(call)
        if len(kinds) > 1 and kinds[1].is_list:
            return (
                self._read_cons(args, kinds)
                if args
                else (_leaf_number(0), ValueLeaf(NO_LEAF.home, lists=ListClass()))
            )
        leaves: list[ValueLeaf] = [_leaf_number(constructor.tag), *(NO_LEAF for _ in kinds[1:])]
        row = self.program.layouts.fields(call.checked_type, constructor, self.error_prefix(call))
        for field, arg in zip(row, args, strict=True):
            leaves[field.start : field.end] = self.value(arg)
        return tuple(leaves)

    def _read_cons(self, args: Sequence[RelayExpr], kinds: Sequence[LeafType]) -> Value:
        """Append an element, in place if nothing reads the list later."""
        (element,), (count, elements) = self.value(args[0]), self.value(args[1])
        assert elements.lists is not None
        after, grown = self.new_storage(kinds[0]), self.new_storage(kinds[1], elements.lists)
        self.allow_in_place((count,), (after,), (0,))
        self.allow_in_place((elements,), (grown,), (0,))
        self.copy(elements, grown, kinds[1])
        size = kinds[1].nbytes
        self.append_unresolved(crt.ListAppend(0, size, ()), count, grown, element, after)
        return after, grown

    def _read_stack(self, call: Call, attrs: SequenceStackAttrs) -> Value:
        """Read a list as one tensor: its elements are contiguous already."""
        length, kind = attrs.length, call.checked_type
        assert isinstance(kind, TensorType)
        if not isinstance(length, IntImm):
            self.leaf_types(call)  # raises, as its result has no constant size
        assert isinstance(length, IntImm)
        count, elements = self.value(call.args[0])
        assert elements.lists is not None
        root = elements.lists.root()
        root.capacity = max(root.capacity or 0, length.value)
        self.append_unresolved(crt.CheckListLength(length.value, ()), count)
        sizes = [d.value for d in kind.shape[1:] if isinstance(d, IntImm)]
        nbytes = math.prod(sizes) * dt.itemsize(kind.dtype)
        if not attrs.reverse:
            return (ValueLeaf(elements.home, elements.storages, elements.is_whole),)
        reversed_elements = self.new_storage(LeafType(LeafKind.TENSOR, nbytes * length.value))
        self.append_unresolved(
            crt.ReverseList(length.value, nbytes, ()), elements, reversed_elements
        )
        return (reversed_elements,)

    # calls

    def _read_call(self, call: Call) -> Value:
        """Read a call of another routine: its results and its frame are storages of this one."""
        (leaf,) = self.value(call.op)
        callee = leaf.function
        if callee is None:
            raise CompileError(f"{self.error_prefix(call)}: {DYNAMIC_CALL_MESSAGE}")
        if callee.name in self.names:
            again = "itself" if callee.name == self.name else f"'{callee.name}', which calls it"
            raise CompileError(
                f"{self.error_prefix(call)}: it calls {again} and goes on after that call: nothing "
                "bounds how many calls wait for each other, each with memory of its own, and there "
                "is no allocator; a call whose result is the function's own result becomes a loop"
            )
        signature = self.program.signatures[callee.name]
        args = self._call_arguments(call, signature)
        inputs: list[ValueLeaf] = [NO_LEAF] * self._num_routine_inputs(signature)
        for number, arg, _ in args:
            inputs[number] = arg
        results = tuple(
            self.new_storage(k, signature.result_lists.get(n))
            for n, k in enumerate(signature.result)
        )
        frame = self.new_storage(LeafType(LeafKind.TENSOR))
        assert isinstance(frame.home, StorageOffset)
        self.frames.append(CallFrame(self.requests[frame.home.storage], signature.routine))
        statement = crt.RoutineCallStatement(
            signature.routine, signature.entry, (), str(call.span or "")
        )
        self.append_unresolved(statement, *inputs, *results, frame)
        return results

    def _num_routine_inputs(self, signature: RoutineSignature) -> int:
        """Return the number of input addresses of a function's routine."""
        group = [s for s in self.program.signatures.values() if s.routine == signature.routine]
        return sum(len(kinds) for s in group for kinds in s.params)

    def _call_arguments(
        self, call: Call, signature: RoutineSignature
    ) -> list[tuple[int, ValueLeaf, LeafType]]:
        """Return (input number, leaf, type) of each address that a call passes."""
        (callee,) = self.value(call.op)
        assert callee.function is not None
        values = (*callee.function.captured, *(self.value(a) for a in call.args))
        leaves = [leaf for value in values for leaf in value]
        kinds = [kind for row in signature.params for kind in row]
        arguments = []
        for number, (leaf, kind) in enumerate(
            zip(leaves, kinds, strict=True), signature.first_input
        ):
            if leaf.lists is not None:
                signature.lists[number].unify(leaf.lists)
            arguments.append((number, leaf, kind))
        return arguments


def _leaf_number(value: int) -> ValueLeaf:
    return ValueLeaf(Location(MemorySpace.NUMBER, value))


__all__ = ["ValueReader"]
