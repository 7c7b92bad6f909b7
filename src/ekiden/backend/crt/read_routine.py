"""Read functions in A-normal form with explicit memory to statements and storage live ranges.

    def @f(%n, %x) { let %t = ..; invoke(greater, (%n,), (%t,));
                     let %y = if (%t) { ..; @f(%m, %z) } else { %x }; %y }
    ->  loop { greater(n, t)
               if (t) { ..; n, x = m, z; again } else { result = x; return } }

A tail call is a jump if it calls the function itself or one of its mutually recursive functions:
such functions are one routine. A conditional in tail position ends in each of its branches; any
other binds variables to the addresses of its branches' results. All other calls are calls in C: no
function calls itself, so that each has one frame.

Tuples, closures and data types are resolved here: what is left of a value are its leaves (layout).
Values without a static bound of their size are rejected, with the function, the node and the size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.backend.crt import micro_module as crt
from ekiden.backend.crt.match_compiler import read_match
from ekiden.backend.crt.micro_module import Location, MemorySpace
from ekiden.backend.crt.program import DYNAMIC_CALL_MESSAGE, ListStorage, RoutineSignature
from ekiden.backend.crt.read_value import ValueReader
from ekiden.backend.crt.value_layout import PARTIAL_EVALUATE_HINT, LeafKind, LeafType
from ekiden.backend.crt.value_locations import (
    NO_LEAF,
    LeafMove,
    ListClass,
    ParallelMoves,
    UnresolvedStatement,
    Value,
    ValueLeaf,
)
from ekiden.backend.vm.bytecode_emitter import ScopeIterator, emit_scope
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import const
from ekiden.relay.expr import Call, Constructor, Function, If, Match, Var
from ekiden.relay.transform.language.let_chains import parse_let_chain
from ekiden.relay.transform.memory.storage_lifetimes import LifetimeBlock, StorageRequest
from ekiden.runtime.errors import CompileError


class RoutineReader(ValueReader):
    """Reader of a group of mutually recursive functions, which form one routine."""

    def read(self) -> None:
        """Read all functions of the group. Raises CompileError for values of unbounded size."""
        self._declare_signatures()
        if self.is_loop:
            self.append_unresolved(crt.LoopHeader())
        if len(self.names) > 1:
            self.append_unresolved(crt.SwitchHeader())
        for entry, name in enumerate(self.names):
            self.name = name
            if len(self.names) > 1:
                self.append_unresolved(crt.CaseHeader(entry))
            body = self._lookup_function(name).body
            block = LifetimeBlock(parse_let_chain(body), body, self.root, 0, 0)
            emit_scope(self._read_let_chain(block, is_last=True))
            block.joined_at = self.now
            if len(self.names) > 1:
                self.append_unresolved(crt.BlockEnd())
        if len(self.names) > 1:
            self.append_unresolved(crt.BlockEnd())
        if self.is_loop:
            self.append_unresolved(crt.BlockEnd())
        self.root.end = self.next_position()

    # what is known before

    def _declare_signatures(self) -> None:
        """Declare the signature of each function and the leaves of each parameter."""
        for entry, name in enumerate(self.names):
            self.name = name
            function, first = self._lookup_function(name), len(self.params)
            params = tuple(self.leaf_types(p) for p in function.params)
            result = self.leaf_types(function.body)
            self._check_result(function, result)
            signature = RoutineSignature(self.names[0], entry, first, params, result, {}, {})
            signature.result_lists = {n: ListClass() for n, k in enumerate(result) if k.is_list}
            self.program.signatures[name] = signature
            for param, kinds in zip(function.params, params, strict=True):
                self.values[param] = tuple(self._declare_param(param, k, signature) for k in kinds)

    def _check_result(self, function: Function, result: Sequence[LeafType]) -> None:
        for kind in result:
            if kind.is_cell or kind.kind is LeafKind.FUNCTION:
                what = "reference" if kind.is_cell else "function"
                raise CompileError(
                    f"{self.error_prefix(function.body)}: its result holds a {what}, which needs "
                    "memory that outlives the call, and there is no allocator"
                )

    def _declare_param(self, param: Var, kind: LeafType, signature: RoutineSignature) -> ValueLeaf:
        if kind.kind is LeafKind.FUNCTION:
            raise CompileError(
                f"{self.error_prefix(param)}: the parameter '{param.name_hint}' is a function that "
                f"is known when it runs only; call it by its name, or {PARTIAL_EVALUATE_HINT}"
            )
        number = len(self.params)
        self.inputs.append(kind.is_cell)
        lists = signature.lists.setdefault(number, ListClass()) if kind.is_list else None
        if not self.is_loop:
            self.params.append(None)
            return ValueLeaf(Location(MemorySpace.INPUT, number), lists=lists)
        request = self._request_storage(kind, self.root, 0, 0, lists)
        self.params.append(request)
        self.locals.append(kind)  # its number is that of the parameter
        storages = frozenset((request.storage,))
        return ValueLeaf(Location(MemorySpace.LOCAL, number), storages, True, lists)

    # scopes

    def _read_let_chain(self, block: LifetimeBlock, *, is_last: bool) -> ScopeIterator:
        """Read a let-chain; its result goes to `ends`, or leaves the routine where the chain is the
        last.
        """
        chain = block.chain
        assert chain.result is not None
        tail = chain.tail_binding_index() if is_last else len(chain.bindings)
        for index, (variable, value) in enumerate(chain.bindings):
            is_tail = index == tail
            position = self._advance_position(block, index)
            if isinstance(value, (If, Match)):
                yield from self._read_branches(variable, value, is_last=is_tail)
                if is_tail:
                    block.end = self.next_position()
                    return
            elif is_tail and (callee := self._tail_call_target(value)) is not None:
                self._read_tail_call(value, callee)
                block.end = position
                return
            else:
                self.values[variable] = self.value(value)
        block.end = self._advance_position(block, len(chain.bindings), is_binding=False)
        result = self.value(chain.result)
        self.extend_live_ranges(result)
        if is_last:
            self._read_return(result, chain.result)
        else:
            self.ends[block] = result

    def _advance_position(
        self, block: LifetimeBlock, index: int, *, is_binding: bool = True
    ) -> int:
        """Advance to the next program point, which is a binding of a block."""
        position = self.next_position()
        self.block, self.index = block, index
        if is_binding:
            block.positions.append(position)
        return position

    def _read_branches(self, variable: Var, value: If | Match, *, is_last: bool) -> ScopeIterator:
        """Read the branches of a value; local variables hold the leaves of the result."""
        block, index, position = self.block, self.index, self.now - 1
        kinds = () if is_last else self.leaf_types(value)
        joins = tuple(self._new_local(kind) for kind in kinds)
        branches: list[LifetimeBlock] = []

        def read_branch(body: RelayExpr) -> ScopeIterator:
            """Read one branch, and assign its leaves to the local variables."""
            inner = LifetimeBlock(parse_let_chain(body), body, block, index, position)
            branches.append(inner)
            yield self._read_let_chain(inner, is_last=is_last)
            if not is_last:
                for number, leaf in zip(joins, self.ends[inner], strict=True):
                    if number is not None:
                        self.code.append(
                            UnresolvedStatement(crt.SetAddressStatement(number, ()), (leaf,))
                        )

        if isinstance(value, If):
            cond = self.value(value.cond)
            self.append_unresolved(crt.IfHeader(()), *cond)
            yield from read_branch(value.true_branch)
            self.append_unresolved(crt.ElseHeader())
            yield from read_branch(value.false_branch)
            self.append_unresolved(crt.BlockEnd())
        else:
            yield from read_match(self, value, self.value(value.data), read_branch)
        joined = self.next_position()
        for inner in branches:
            inner.joined_at = joined
        self.block, self.index = block, index
        if not is_last:
            ends = [self.ends[inner] for inner in branches]
            self.values[variable] = tuple(
                self._join_leaves(number, [end[n] for end in ends], value)
                for n, number in enumerate(joins)
            )

    def _new_local(self, kind: LeafType) -> int | None:
        """Return the number of a new variable for a leaf; None for one that has no address."""
        if kind.kind is LeafKind.FUNCTION:
            return None
        self.locals.append(kind)
        return len(self.locals) - 1

    def _join_leaves(
        self, number: int | None, leaves: Sequence[ValueLeaf], value: RelayExpr
    ) -> ValueLeaf:
        """Join the leaves that the branches computed for one local variable, keeping the facts
        common to all of them.
        """
        if not leaves:
            return NO_LEAF
        if number is None:
            first = leaves[0].function
            if first is None or not all(first.is_same(leaf.function) for leaf in leaves[1:]):
                raise CompileError(f"{self.error_prefix(value)}: {DYNAMIC_CALL_MESSAGE}")
            return leaves[0]
        lists = [leaf.lists for leaf in leaves if leaf.lists is not None]
        for more in lists[1:]:
            lists[0].unify(more)
        storages = frozenset(s for leaf in leaves for s in leaf.storages)
        is_whole = all(leaf.is_whole for leaf in leaves if leaf.storages)
        return ValueLeaf(
            Location(MemorySpace.LOCAL, number), storages, is_whole, lists[0] if lists else None
        )

    # the ends of a routine

    def _tail_call_target(self, value: RelayExpr) -> str | None:
        """Return the function of the group that a value tail-calls; None for any other value."""
        if not isinstance(value, Call) or isinstance(value.op, (Op, Constructor)):
            return None
        (callee,) = self.value(value.op)
        return (
            callee.function.name if callee.function and callee.function.name in self.names else None
        )

    def _read_tail_call(self, value: RelayExpr, callee: str) -> None:
        assert isinstance(value, Call)
        signature = self.program.signatures[callee]
        args = self._call_arguments(value, signature)
        self.extend_live_ranges([leaf for _, leaf, _ in args])
        leave = ParallelMoves(self.block, self.index, self.now - 1, entry=signature.entry)
        for number, leaf, kind in args:
            is_same = leaf.home == Location(MemorySpace.LOCAL, number)
            if kind.is_cell and not is_same:
                raise CompileError(
                    f"{self.error_prefix(value)}: each turn has another reference, whose memory "
                    "has no bound; a reference that stays the same can be changed by ref_write"
                )
            request = self.params[number]
            assert request is not None
            if not is_same:
                leave.moves.append(LeafMove(number, leaf, request))
        self.code.append(leave)

    def _read_return(self, value: Value, result: RelayExpr) -> None:
        signature = self.program.signatures[self.name]
        leave = ParallelMoves(self.block, self.index, self.now - 1)
        for number, (leaf, kind) in enumerate(zip(value, signature.result, strict=True)):
            if leaf.lists is not None:
                signature.result_lists[number].unify(leaf.lists)
            if leaf.home is not NO_LEAF.home:
                size = StorageRequest(Var("size"), const(kind.nbytes), self.block, self.index, 0)
                if leaf.lists is not None:
                    self.elements.append(
                        ListStorage(size, kind.nbytes, leaf.lists, self._current_error_prefix())
                    )
                leave.moves.append(LeafMove(number, leaf, size))
        self.code.append(leave)


__all__ = ["RoutineReader"]
