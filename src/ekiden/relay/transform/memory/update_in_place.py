"""In-place updates: scatter-like kernels overwrite their operand if it is uniquely referenced (copy
on write).

    let %s = memory.alloc_storage(size=...); let %y = memory.alloc_tensor(%s, offset=0, ...);
    let %_ = vm.invoke_tvm_op(fn ... scatter_nd ..., (%x, %i, %u), (%y,));
    ->  let %y = memory.own(%x);
        let %_ = vm.invoke_tvm_op(fn ..., (%y, %i, %u), (%y,));

Whether somebody else needs it is decided when the program runs, by reference counts, so that it
holds through calls, loops written as recursion, data and references: what a loop carries is changed
in place from its second iteration on (as in Reinking and others, "Perceus: Garbage Free Reference
Counting with Reuse", PLDI 2021). A tensor that the caller of the program has, a constant and one
that is used later are copied, as the kernel would have done; the kernel does it where that is known
in advance. Follows MemoryPlan, which places tensors whose lifetimes are known in advance: what is
in an arena stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.expr import Call, Function, Tuple, Var
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs, own
from ekiden.relay.op.vm import InvokeAttrs
from ekiden.relay.transform.language.let_chains import (
    LetBinding,
    LetChain,
    called_op_name,
    iter_bindings,
    map_chains,
)
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions
from ekiden.relay.transform.memory_plan import KernelInfoMap

UpdatedInputIndex = Callable[[RelayExpr], int | None]
"""Function: kernel -> index of the input that it updates, or None."""


def UpdateInPlace(kernels: KernelInfoMap | None = None) -> Pass:  # noqa: N802
    """Return a pass that updates uniquely referenced operands in place; kernels missing from
    `kernels` are left unchanged.
    """
    facts: KernelInfoMap = {} if kernels is None else kernels

    def updated_input(kernel: RelayExpr) -> int | None:
        """Return the index of the input that a kernel updates, or None."""
        kernel_facts = facts.get(kernel)
        return (
            kernel_facts.in_place[0]
            if kernel_facts is not None and kernel_facts.updates_input
            else None
        )

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite a module, unless no kernel updates an input."""
        if not any(kernel_facts.updates_input for kernel_facts in facts.values()):
            return module
        graph = CallGraph(module)
        # Functions that nobody calls are entry points: their parameters belong to the user.
        roots = {module[g] for g in module.functions if graph.ref_count(g) == 0}

        def rewrite_function(function: Function) -> Function:
            """Rewrite one function.

            The parameters of functions that nothing in the module calls belong to the user, and
            storages that several tensors are in may hold what is still read: neither is
            overwritten.
            """
            user_params = frozenset(function.params) if function in roots else frozenset[Var]()
            cut = Counter(
                value.args[0]
                for _, value in iter_bindings(function.body)
                if isinstance(value, Call) and isinstance(value.attrs, AllocTensorAttrs)
            )
            # The reference count of a storage does not tell slices of it apart.
            shared = frozenset(storage for storage, tensors in cut.items() if tensors > 1)

            def rewrite(chain: LetChain, is_function_body: bool) -> LetChain:
                """Rewrite the updates of one chain."""
                return _rewrite_chain(chain, updated_input, user_params, shared)

            return lift_body_rewrite(lambda body: map_chains(body, rewrite))(function)

        return map_functions(module, rewrite_function)

    return Pass("UpdateInPlace", transform)


def _rewrite_chain(
    chain: LetChain,
    updated: UpdatedInputIndex,
    user_params: Collection[Var],
    shared: Collection[RelayExpr],
) -> LetChain:
    """Rewrite the update kernels of a chain.

    Args:
        chain: The chain.
        updated: Returns the input that a kernel updates.
        user_params: Variables whose values someone outside has.
        shared: Storages that other tensors are in as well.
    """
    values = dict(chain.bindings)
    owned: dict[Var, Call] = {}
    """Results that overwrite the operand they update."""
    gone: set[Var] = set()
    calls: dict[Call, Call] = {}
    for _, value in chain.bindings:
        update = _match_update(value, values, updated)
        if update is None:
            continue
        call, number, result, storage = update
        inputs, outputs = call.args[1:3]
        assert isinstance(inputs, Tuple) and isinstance(call.attrs, InvokeAttrs)
        # A view or a value of the user must keep its elements, so such an update stays a copy.
        if storage in shared or inputs.fields[number] in user_params:
            continue
        # A constant is shared by all runs.
        if not isinstance(inputs.fields[number], Var):
            continue
        owned_call = own(inputs.fields[number], call.attrs.device)
        owned_call.set_checked_type(result.checked_type)
        owned[result] = owned_call
        gone.add(storage)
        fields = (*inputs.fields[:number], result, *inputs.fields[number + 1 :])
        args = (call.args[0], inputs.with_fields(fields=fields), outputs, *call.args[3:])
        calls[call] = call.with_fields(args=args)
    if not owned:
        return chain
    bindings: list[LetBinding] = [
        (v, owned.get(v) or (calls.get(value, value) if isinstance(value, Call) else value))
        for v, value in chain.bindings
        if v not in gone
    ]
    return LetChain(bindings, chain.result)


def _match_update(
    value: RelayExpr, values: Mapping[Var, RelayExpr], updated: UpdatedInputIndex
) -> tuple[Call, int, Var, Var] | None:
    """Match a kernel call that updates an input and whose result has its own storage; return (call,
    input index, result, storage).

    Returns:
        The call, the number of what it updates, the result and its storage.
    """
    if not isinstance(value, Call) or called_op_name(value) != "vm.invoke_tvm_op":
        return None
    number = updated(value.args[0])
    outputs = value.args[2]
    assert isinstance(outputs, Tuple)
    (result,) = outputs.fields if number is not None else (None,)
    tensor_call = values.get(result) if isinstance(result, Var) else None
    if number is None or not (
        isinstance(tensor_call, Call) and isinstance(tensor_call.attrs, AllocTensorAttrs)
    ):
        return None
    storage = tensor_call.args[0]
    source = values.get(storage) if isinstance(storage, Var) else None
    attrs = source.attrs if isinstance(source, Call) else None
    # Bytes in an arena have been planned, and have no reference count.
    is_own = isinstance(attrs, AllocStorageAttrs) and not attrs.arena
    assert isinstance(result, Var)
    return (value, number, result, storage) if is_own and isinstance(storage, Var) else None


__all__ = ["UpdateInPlace"]
