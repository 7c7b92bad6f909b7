"""From functions in A-normal form with explicit memory to statements, and to when each storage is
alive.

    def @f(%n, %x) { let %t = ..; invoke(greater, (%n,), (%t,));
                     let %y = if (%t) { ..; @f(%m, %z) } else { %x }; %y }
->  loop { greater(n, t)
           if (t) { ..; n, x = m, z; again } else { result = x; return } }

A call whose result is the function's own result is a jump where it calls the function itself, or
one of those that call each other so: such functions are one routine. A choice in that place ends
in each of its branches; any other one lets variables stand for the addresses of what its branches
give. All other calls are calls in C: no function calls itself, so that each has one frame.

Tuples, closures and data are resolved here: what is left of a value are its leaves (layout). What
may be of any size is refused, with the function, the node and the size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden.backend.crt import module as crt
from ekiden.backend.crt.kernels import Kernels
from ekiden.backend.crt.layout import Layouts, LeafKind, LeafType, tensor_bytes, unbounded
from ekiden.backend.crt.match import read_match
from ekiden.backend.crt.module import Home, Place
from ekiden.backend.crt.values import (
    ABSENT,
    Draft,
    Known,
    Leaf,
    Leave,
    Lists,
    Move,
    Offset,
    Value,
)
from ekiden.backend.vm.emit import Scope, emit_scope
from ekiden.ir import dtype as dt
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import Array, Op
from ekiden.ir.prim import IntImm, PrimExpr, const
from ekiden.ir.type import TensorType
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Function,
    If,
    Match,
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
from ekiden.relay.transform.chains import Chain, op_name, unchain
from ekiden.relay.transform.storage_in_place import Operand, Replacement
from ekiden.relay.transform.storage_lifetimes import Block, Request
from ekiden.runtime.errors import CompileError
from ekiden.runtime.late_methods import dataclass

RUNTIME = "compile: runtime 'crt'"
VIEWS = frozenset(("vm.reshape_tensor", "vm.match_shape", "vm.forget_shape", "vm.bind_dims"))
NO_VALUE = frozenset(("memory.kill",))


@dataclass(slots=True)
class Signature:
    """What callers need to know of a function: its routine, its number in the group of that, and
    the leaves of its parameters (whose first address is number `first` of the routine's inputs) and
    of its result."""

    routine: str
    entry: int
    first: int
    params: tuple[tuple[LeafType, ...], ...]
    result: tuple[LeafType, ...]
    lists: dict[int, Lists]
    """Of parameters: number of the address -> its lists."""
    result_lists: dict[int, Lists]


@dataclass(slots=True)
class Program:
    """What the routines of a program share."""

    kernels: Kernels
    layouts: Layouts
    functions: Mapping[str, Function]
    """By name, each with what it captures as its first parameters."""
    closures: frozenset[str]
    """Those that capture something."""
    signatures: dict[str, Signature] = field(default_factory=dict)
    constants: dict[int, tuple[int, Array]] = field(default_factory=dict)
    """Identity of an array -> its number, and the array."""
    frames: dict[str, int] = field(default_factory=dict)
    """Routine -> bytes of its frame, of those that are planned."""

    def constant(self, data: Array) -> Leaf:
        """Return where a constant lies."""
        number, _ = self.constants.setdefault(id(data), (len(self.constants), data))
        return Leaf(Place(Home.CONSTANT, number))


@dataclass(slots=True)
class Elements:
    """The storage of a list: bytes of an element, the lists that have the same room, and where the
    model makes it."""

    request: Request
    nbytes: int
    lists: Lists
    where: str


@dataclass(slots=True)
class Frame:
    """The memory that a call of a routine takes."""

    request: Request
    routine: str


class Reader:
    """Reads the functions of a group, which is one routine."""

    def __init__(self, program: Program, names: Sequence[str], *, is_loop: bool) -> None:
        self.program = program
        self.names = names
        self.is_loop = is_loop
        self.code: list[Draft | Leave] = []
        self.requests: dict[Var, Request] = {}
        self.elements: list[Elements] = []
        self.replacements: list[Replacement] = []
        self.frames: list[Frame] = []
        self.values: dict[RelayExpr, Value] = {}
        self.locals: list[LeafType] = []
        self.inputs: list[bool] = []
        """Of each address that the routine is given: whether it is written through."""
        self.params: list[Request | None] = []
        """Of each address that the routine is given: what a turn of its loop leaves there."""
        self.matches = 0
        self.name = ""
        """The function that is read."""
        self.root = Block(Chain(), self._function(names[0]).body, positions=[0])
        self.block, self.index, self.now = self.root, 0, 1
        self.ends: dict[Block, Value] = {}

    def _function(self, name: str) -> Function:
        return self.program.functions[name]

    def read(self) -> None:
        """Read all functions of the group. Raises CompileError for what has no bound."""
        self._declare()
        if self.is_loop:
            self.put(crt.Loop())
        if len(self.names) > 1:
            self.put(crt.Switch())
        for entry, name in enumerate(self.names):
            self.name = name
            if len(self.names) > 1:
                self.put(crt.Case(entry))
            body = self._function(name).body
            block = Block(unchain(body), body, self.root, 0, 0)
            emit_scope(self._scope(block, is_last=True))
            block.joined = self.now
            if len(self.names) > 1:
                self.put(crt.End())
        if len(self.names) > 1:
            self.put(crt.End())
        if self.is_loop:
            self.put(crt.End())
        self.root.end = self.tick()

    # what is known before

    def _declare(self) -> None:
        """Give each function its signature, and each parameter its leaves."""
        for entry, name in enumerate(self.names):
            self.name = name
            function, first = self._function(name), len(self.params)
            params = tuple(self.leaf_types(p) for p in function.params)
            result = self.leaf_types(function.body)
            self._check_result(function, result)
            made = Signature(self.names[0], entry, first, params, result, {}, {})
            made.result_lists = {n: Lists() for n, k in enumerate(result) if _is_list(k)}
            self.program.signatures[name] = made
            for param, kinds in zip(function.params, params, strict=True):
                self.values[param] = tuple(self._param(param, k, made) for k in kinds)

    def _check_result(self, function: Function, result: Sequence[LeafType]) -> None:
        for kind in result:
            if kind.is_cell or kind.kind is LeafKind.FUNCTION:
                what = "reference" if kind.is_cell else "function"
                raise CompileError(
                    f"{self.where(function.body)}: its result holds a {what}, which needs memory "
                    "that outlives the call, and there is no allocator"
                )

    def _param(self, param: Var, kind: LeafType, signature: Signature) -> Leaf:
        if kind.kind is LeafKind.FUNCTION:
            raise CompileError(
                f"{self.where(param)}: the parameter '{param.name_hint}' is a function that is "
                "known when it runs only; functions that are called must be known"
            )
        number = len(self.params)
        self.inputs.append(kind.is_cell)
        lists = signature.lists.setdefault(number, Lists()) if _is_list(kind) else None
        if not self.is_loop:
            self.params.append(None)
            return Leaf(Place(Home.INPUT, number), lists=lists)
        request = self._request(kind, self.root, 0, 0, lists)
        self.params.append(request)
        self.locals.append(kind)  # its number is that of the parameter
        storages = frozenset((request.storage,))
        return Leaf(Place(Home.LOCAL, number), storages, True, lists)

    def where(self, value: RelayExpr | None) -> str:
        """Return how an error about a value begins."""
        node = f", {value.span}" if value is not None and value.span else ""
        return f"{RUNTIME}: function '{self.name}'{node}"

    def _here(self) -> str:
        """Return how an error about the binding that is read begins."""
        bindings = self.block.chain.bindings
        return self.where(bindings[self.index][1] if self.index < len(bindings) else None)

    def leaf_types(self, value: RelayExpr) -> tuple[LeafType, ...]:
        """Return the leaves of a value's type."""
        return self.program.layouts.leaves(value.checked_type, self.where(value))

    # storages

    def tick(self) -> int:
        """Return the next position."""
        self.now += 1
        return self.now - 1

    def _request(
        self, kind: LeafType, block: Block, index: int, at: int, lists: Lists | None
    ) -> Request:
        request = Request(Var("storage"), const(kind.nbytes), block, index, at)
        self.requests[request.storage] = request
        if lists is not None:
            self.elements.append(Elements(request, kind.nbytes, lists, self._here()))
        return request

    def storage(self, kind: LeafType, lists: Lists | None = None) -> Leaf:
        """Return a leaf in a storage of its own, from the position that is read on."""
        if kind.kind is LeafKind.FUNCTION:
            return ABSENT
        lists = Lists() if _is_list(kind) and lists is None else lists
        request = self._request(kind, self.block, self.index, self.now - 1, lists)
        return Leaf(Offset(request.storage), frozenset((request.storage,)), True, lists)

    def use(self, leaves: Sequence[Leaf]) -> None:
        """Note that leaves are read, or written, at the position that is read."""
        for leaf in leaves:
            for storage in leaf.storages:
                if storage in self.requests:
                    self.requests[storage].uses[self.block] = self.now - 1

    def put(self, statement: crt.Statement, *leaves: Leaf) -> None:
        """Add a statement over leaves."""
        self.use(leaves)
        self.code.append(Draft(statement, leaves))

    def copy(self, source: Leaf, target: Leaf, kind: LeafType, node: str = "") -> None:
        """Add a copy of a leaf."""
        if source.home is ABSENT.home:
            return
        self.put(crt.Step(None, (), kind.nbytes, node), source, target)

    # scopes

    def _scope(self, block: Block, *, is_last: bool) -> Scope:
        """Read a chain; what it gives is in `ends`, or leaves the routine where it is the last."""
        chain = block.chain
        assert chain.result is not None
        tail = chain.tail() if is_last else len(chain.bindings)
        for index, (variable, value) in enumerate(chain.bindings):
            is_tail = index == tail
            at = self._begin(block, index)
            if isinstance(value, (If, Match)):
                yield from self._choice(variable, value, is_last=is_tail)
                if is_tail:
                    block.end = self.tick()
                    return
            elif is_tail and (callee := self._jump(value)) is not None:
                self._again(value, callee)
                block.end = at
                return
            else:
                self.values[variable] = self.value(value)
        block.end = self._begin(block, len(chain.bindings), is_binding=False)
        found = self.value(chain.result)
        self.use(found)
        if is_last:
            self._return(found, chain.result)
        else:
            self.ends[block] = found

    def _begin(self, block: Block, index: int, *, is_binding: bool = True) -> int:
        """Go to the next position, at a binding of a block."""
        at = self.tick()
        self.block, self.index = block, index
        if is_binding:
            block.positions.append(at)
        return at

    def _choice(self, variable: Var, value: If | Match, *, is_last: bool) -> Scope:
        """Read the branches of a value; variables stand for what they give."""
        block, index, at = self.block, self.index, self.now - 1
        kinds = () if is_last else self.leaf_types(value)
        joins = tuple(self._local(kind) for kind in kinds)
        branches: list[Block] = []

        def branch(body: RelayExpr) -> Scope:
            """Read a branch, and let the variables stand for its leaves."""
            inner = Block(unchain(body), body, block, index, at)
            branches.append(inner)
            yield self._scope(inner, is_last=is_last)
            if not is_last:
                for number, leaf in zip(joins, self.ends[inner], strict=True):
                    if number is not None:
                        self.code.append(Draft(crt.SetAddress(number, ()), (leaf,)))

        if isinstance(value, If):
            cond = self.value(value.cond)
            self.put(crt.If(()), *cond)
            yield from branch(value.true_branch)
            self.put(crt.Else())
            yield from branch(value.false_branch)
            self.put(crt.End())
        else:
            yield from read_match(self, value, self.value(value.data), branch)
        joined = self.tick()
        for inner in branches:
            inner.joined = joined
        self.block, self.index = block, index
        if not is_last:
            ends = [self.ends[inner] for inner in branches]
            self.values[variable] = tuple(
                self._joined(number, [end[n] for end in ends], value)
                for n, number in enumerate(joins)
            )

    def _local(self, kind: LeafType) -> int | None:
        """Return the number of a new variable for a leaf; None for one that has no address."""
        if kind.kind is LeafKind.FUNCTION:
            return None
        self.locals.append(kind)
        return len(self.locals) - 1

    def _joined(self, number: int | None, leaves: Sequence[Leaf], value: RelayExpr) -> Leaf:
        """Return what is known of a leaf after branches that gave these."""
        if not leaves:
            return ABSENT
        if number is None:
            first = leaves[0].function
            if first is None or not all(first.is_same(leaf.function) for leaf in leaves[1:]):
                raise CompileError(f"{self.where(value)}: {WHICH_FUNCTION}")
            return leaves[0]
        lists = [leaf.lists for leaf in leaves if leaf.lists is not None]
        for other in lists[1:]:
            lists[0].join(other)
        storages = frozenset(s for leaf in leaves for s in leaf.storages)
        is_whole = all(leaf.is_whole for leaf in leaves if leaf.storages)
        return Leaf(Place(Home.LOCAL, number), storages, is_whole, lists[0] if lists else None)

    # the ends of a routine

    def _jump(self, value: RelayExpr) -> str | None:
        """Return the function of the group that a value calls; None for any other value."""
        if not isinstance(value, Call) or isinstance(value.op, (Op, Constructor)):
            return None
        (callee,) = self.value(value.op)
        return (
            callee.function.name if callee.function and callee.function.name in self.names else None
        )

    def _again(self, value: RelayExpr, callee: str) -> None:
        assert isinstance(value, Call)
        signature = self.program.signatures[callee]
        args = self._arguments(value, signature)
        self.use([leaf for _, leaf, _ in args])
        leave = Leave(self.block, self.index, self.now - 1, entry=signature.entry)
        for number, leaf, kind in args:
            is_same = leaf.home == Place(Home.LOCAL, number)
            if kind.is_cell and not is_same:
                raise CompileError(
                    f"{self.where(value)}: each turn has another reference, whose memory has no "
                    "bound; a reference that stays the same can be changed by ref_write"
                )
            request = self.params[number]
            assert request is not None
            if not is_same:
                leave.moves.append(Move(number, leaf, request))
        self.code.append(leave)

    def _return(self, value: Value, result: RelayExpr) -> None:
        signature = self.program.signatures[self.name]
        leave = Leave(self.block, self.index, self.now - 1)
        for number, (leaf, kind) in enumerate(zip(value, signature.result, strict=True)):
            if leaf.lists is not None:
                signature.result_lists[number].join(leaf.lists)
            if leaf.home is not ABSENT.home:
                size = Request(Var("size"), const(kind.nbytes), self.block, self.index, 0)
                if leaf.lists is not None:
                    self.elements.append(Elements(size, kind.nbytes, leaf.lists, self._here()))
                leave.moves.append(Move(number, leaf, size))
        self.code.append(leave)

    # values

    def value(self, expr: RelayExpr) -> Value:
        """Read a value, or look up that of an atom."""
        match expr:
            case _ if expr in self.values:
                return self.values[expr]
            case Constant(data=data):
                return (self.program.constant(data),)
            case Tuple(fields=fields):
                return tuple(leaf for each in fields for leaf in self.value(each))
            case TupleGetItem(tuple_value=of, index=index):
                row = self.program.layouts.fields(of.checked_type, None, self.where(expr))
                return self.value(of)[row[index].start : row[index].end]
            case GlobalVar(name_hint=name):
                return (Leaf(ABSENT.home, function=Known(name)),)
            case Call(op=Op()):
                return self._operator(expr)
            case Call(op=Constructor() as constructor, args=args):
                return self._construct(constructor, args, expr)
            case Call(op=GlobalVar(name_hint=name), args=args) if self._is_closure(name):
                known = Known(name, tuple(self.value(a) for a in args))
                return (Leaf(ABSENT.home, function=known),)
            case Call():
                return self._call(expr)
            case RefCreate(value=held):
                kinds, value = self.leaf_types(held), self.value(held)
                return self._snapshot(value, kinds, expr)
            case RefRead(ref=ref):
                return self._snapshot(self.value(ref), self.leaf_types(expr), expr)
            case RefWrite(ref=ref, value=held):
                self._write(self.value(ref), self.value(held), self.leaf_types(held), expr)
                return ()
            case _:
                raise CompileError(
                    f"{self.where(expr)}: {type(expr).__name__} is no kernel on tensors of known "
                    "shapes, and needs the runtime"
                )

    def _is_closure(self, name: str) -> bool:
        """Return whether calling a function gives a function over what it captures."""
        return name in self.program.closures

    def _snapshot(self, value: Value, kinds: Sequence[LeafType], expr: RelayExpr) -> Value:
        """Copy a value: into a reference, or out of one."""
        self._check_held(value, kinds, expr)
        found = tuple(map(self.storage, kinds))
        for source, target, kind in zip(value, found, kinds, strict=True):
            self.copy(source, target, kind)
        return found

    def _write(
        self, cells: Value, value: Value, kinds: Sequence[LeafType], expr: RelayExpr
    ) -> None:
        self._check_held(value, kinds, expr)
        for source, target, kind in zip(value, cells, kinds, strict=True):
            self.copy(source, target, kind)

    def _check_held(self, value: Value, kinds: Sequence[LeafType], expr: RelayExpr) -> None:
        for kind in kinds:
            if kind.kind is not LeafKind.TENSOR or kind.is_cell:
                raise CompileError(
                    f"{self.where(expr)}: a reference that holds something else than tensors of "
                    "constant shapes has memory without a bound, and there is no allocator"
                )

    # operators

    def _operator(self, call: Call) -> Value:
        name = op_name(call)
        match name, call.attrs:
            case "memory.alloc_storage", AllocStorageAttrs(size=size):
                request = Request(Var("storage"), const(0), self.block, self.index, self.now - 1)
                request.size = self._constant(size, call)
                self.requests[request.storage] = request
                return (Leaf(Offset(request.storage), frozenset((request.storage,)), True),)
            case "memory.alloc_tensor", AllocTensorAttrs() as attrs:
                return (self._tensor(call, attrs),)
            case "vm.invoke_tvm_op", _:
                self._kernel(call)
                return ()
            case "sequence.stack", SequenceStackAttrs() as stack:
                return self._stack(call, stack)
            case _ if name in NO_VALUE:
                return ()
            case _ if name in VIEWS:
                return self._view(call)
            case _:
                raise CompileError(
                    f"{self.where(call)}: {name} is no kernel on tensors of known shapes, and "
                    "needs the runtime"
                )

    def _constant(self, size: PrimExpr, call: Call) -> PrimExpr:
        if isinstance(size, IntImm):
            return size
        kind = self._allocated(call)
        what = unbounded(kind) if kind is not None else f"{size} bytes are known when it runs only"
        raise CompileError(f"{self.where(call)}: {what}")

    def _allocated(self, storage: Call) -> TensorType | None:
        """Return the type of the first tensor in a storage."""
        chain = self.block.chain.bindings
        variable = chain[self.index][0]
        for _, value in chain[self.index + 1 :]:
            if not isinstance(value, Call) or not isinstance(value.attrs, AllocTensorAttrs):
                continue
            if value.args[0] is variable:
                return TensorType(value.attrs.shape, value.attrs.dtype)
        return None

    def _tensor(self, call: Call, attrs: AllocTensorAttrs) -> Leaf:
        (leaf,) = self.value(call.args[0])
        assert isinstance(leaf.home, Offset)
        nbytes = tensor_bytes(TensorType(attrs.shape, attrs.dtype), self.where(call))
        offset = attrs.offset
        assert isinstance(offset, IntImm), "of tensors of constant shapes"
        size = self.requests[leaf.home.storage].size
        assert isinstance(size, IntImm)
        is_whole = offset.value == 0 and size.value == nbytes
        return Leaf(Offset(leaf.home.storage, offset.value), leaf.storages, is_whole)

    def _view(self, call: Call) -> Value:
        """Read a tensor under another shape; which says what is unbounded before kernels do."""
        if isinstance(call.attrs, (ReshapeTensorAttrs, MatchShapeAttrs)):
            tensor_bytes(TensorType(call.attrs.shape, "uint8"), self.where(call))
        return self.value(call.args[0])

    def _kernel(self, call: Call) -> None:
        """Read a call of a kernel; its working memory is one more storage, which lives for the
        call."""
        function, *groups = call.args
        assert isinstance(function, Function)
        kernel = self.program.kernels.kernel(function)
        inputs, outputs = (self.value(each) for each in groups[:2])
        self.replace(inputs, outputs, self.program.kernels.in_place(function))
        memory = (
            (self.storage(LeafType(LeafKind.TENSOR, kernel.workspace)),) if kernel.workspace else ()
        )
        step = crt.Step(kernel, (), source=str(call.span or ""))
        self.put(step, *inputs, *outputs, *memory)

    def replace(self, inputs: Value, outputs: Value, allowed: Sequence[int]) -> None:
        """Note that the one output may lie in the bytes of one of the inputs `allowed`."""
        if not allowed:
            return
        (output,) = outputs
        operands = [Operand(leaf.storages, leaf.is_whole) for leaf in inputs]
        whole = Operand(output.storages, output.is_whole)
        self.replacements.append(Replacement(self.now - 1, operands, whole, allowed))

    # data

    def _construct(self, constructor: Constructor, args: Sequence[RelayExpr], call: Call) -> Value:
        kinds = self.leaf_types(call)
        if len(kinds) > 1 and _is_list(kinds[1]):
            return (
                self._cons(args, kinds) if args else (_number(0), Leaf(ABSENT.home, lists=Lists()))
            )
        found: list[Leaf] = [_number(constructor.tag), *(ABSENT for _ in kinds[1:])]
        row = self.program.layouts.fields(call.checked_type, constructor, self.where(call))
        for part, arg in zip(row, args, strict=True):
            found[part.start : part.end] = self.value(arg)
        return tuple(found)

    def _cons(self, args: Sequence[RelayExpr], kinds: Sequence[LeafType]) -> Value:
        """Append an element: in the bytes of the list, where nothing reads it later."""
        (element,), (count, elements) = self.value(args[0]), self.value(args[1])
        assert elements.lists is not None
        after, grown = self.storage(kinds[0]), self.storage(kinds[1], elements.lists)
        self.replace((count,), (after,), (0,))
        self.replace((elements,), (grown,), (0,))
        self.copy(elements, grown, kinds[1])
        size = kinds[1].nbytes
        self.put(crt.Append(0, size, ()), count, grown, element, after)
        return after, grown

    def _stack(self, call: Call, attrs: SequenceStackAttrs) -> Value:
        """Read the elements of a list as one tensor, which they are."""
        length, kind = attrs.length, call.checked_type
        assert isinstance(kind, TensorType)
        if not isinstance(length, IntImm):
            self.leaf_types(call)  # raises, as its result has no constant size
        assert isinstance(length, IntImm)
        count, elements = self.value(call.args[0])
        assert elements.lists is not None
        root = elements.lists.root()
        root.capacity = max(root.capacity or 0, length.value)
        self.put(crt.Expect(length.value, ()), count)
        sizes = [d.value for d in kind.shape[1:] if isinstance(d, IntImm)]
        nbytes = math.prod(sizes) * dt.itemsize(kind.dtype)
        if not attrs.reverse:
            return (Leaf(elements.home, elements.storages, elements.is_whole),)
        made = self.storage(LeafType(LeafKind.TENSOR, nbytes * length.value))
        self.put(crt.Reverse(length.value, nbytes, ()), elements, made)
        return (made,)

    # calls

    def _call(self, call: Call) -> Value:
        """Read a call of another routine: its results and its frame are storages of this one."""
        (leaf,) = self.value(call.op)
        known = leaf.function
        if known is None:
            raise CompileError(f"{self.where(call)}: {WHICH_FUNCTION}")
        if known.name in self.names:
            again = "itself" if known.name == self.name else f"'{known.name}', which calls it"
            raise CompileError(
                f"{self.where(call)}: it calls {again} and goes on after that call: nothing bounds "
                "how many calls wait for each other, each with memory of its own, and there is no "
                "allocator; a call whose result is the function's own result becomes a loop"
            )
        signature = self.program.signatures[known.name]
        args = self._arguments(call, signature)
        given: list[Leaf] = [ABSENT] * self._inputs(signature)
        for number, arg, _ in args:
            given[number] = arg
        results = tuple(
            self.storage(k, signature.result_lists.get(n)) for n, k in enumerate(signature.result)
        )
        frame = self.storage(LeafType(LeafKind.TENSOR))
        assert isinstance(frame.home, Offset)
        self.frames.append(Frame(self.requests[frame.home.storage], signature.routine))
        statement = crt.Invoke(signature.routine, signature.entry, (), str(call.span or ""))
        self.put(statement, *given, *results, frame)
        return results

    def _inputs(self, signature: Signature) -> int:
        """Return how many addresses the routine of a function is given."""
        group = [s for s in self.program.signatures.values() if s.routine == signature.routine]
        return sum(len(kinds) for s in group for kinds in s.params)

    def _arguments(self, call: Call, signature: Signature) -> list[tuple[int, Leaf, LeafType]]:
        """Return for each address of a call its number in the routine, the leaf, and its type."""
        (callee,) = self.value(call.op)
        assert callee.function is not None
        values = (*callee.function.captured, *(self.value(a) for a in call.args))
        leaves = [leaf for value in values for leaf in value]
        kinds = [kind for row in signature.params for kind in row]
        found = []
        for number, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True), signature.first):
            if leaf.lists is not None:
                signature.lists[number].join(leaf.lists)
            found.append((number, leaf, kind))
        return found


WHICH_FUNCTION = (
    "which function is called is known when it runs only; call the functions in the branches of an "
    "if in place of choosing one by it"
)


def _is_list(kind: LeafType) -> bool:
    return kind.kind is LeafKind.ELEMENTS


def _number(value: int) -> Leaf:
    return Leaf(Place(Home.NUMBER, value))


__all__ = ["RUNTIME", "Frame", "Program", "Reader", "Signature"]
