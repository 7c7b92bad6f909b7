"""Let kernels that change places of a tensor change it where it lies, if nobody else needs it.

    let %s = memory.alloc_storage(size=...); let %y = memory.alloc_tensor(%s, offset=0, ...);
    let %_ = vm.invoke_tvm_op(fn ... scatter_nd ..., (%x, %i, %u), (%y,));
->  let %y = memory.own(%x);
    let %_ = vm.invoke_tvm_op(fn ..., (%y, %i, %u), (%y,));

Whether somebody else needs it is seen when the program runs, by counts of references, so that it
holds through calls, loops written as recursion, data and references: what a loop carries is changed
in place from its second turn on (as in Reinking and others, "Perceus: Garbage Free Reference
Counting with Reuse", PLDI 2021). A tensor that the caller of the program has, a constant and one
that is used later are copied, as the kernel would have done; the kernel does it where that is known
in advance. Follows MemoryPlan, which finds the places of tensors whose lives are known in advance:
what has a place in an arena stays there.
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
from ekiden.relay.transform.language.chains import Binding, Chain, all_bindings, map_chains, op_name
from ekiden.relay.transform.language.scopes import map_functions, on_body
from ekiden.relay.transform.memory_plan import Kernels

Updated = Callable[[RelayExpr], int | None]
"""A kernel -> the number of the input that it changes."""


def UpdateInPlace(kernels: Kernels | None = None) -> Pass:  # noqa: N802
    """The pass described at the top of this file; nothing is known of `kernels` left out."""
    facts: Kernels = {} if kernels is None else kernels

    def updated(kernel: RelayExpr) -> int | None:
        found = facts.get(kernel)
        return found.in_place[0] if found is not None and found.updates else None

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """The module; as it is where no kernel updates what it reads."""
        if not any(each.updates for each in facts.values()):
            return module
        graph = CallGraph(module)
        roots = {module[g] for g in module.functions if graph.ref_count(g) == 0}

        def one(function: Function) -> Function:
            """One function. The parameters of functions that nothing in the module calls belong to
            the user, and storages that several tensors lie in may hold what is still read: neither
            is written over.
            """
            kept = frozenset(function.params) if function in roots else frozenset[Var]()
            cut = Counter(
                value.args[0]
                for _, value in all_bindings(function.body)
                if isinstance(value, Call) and isinstance(value.attrs, AllocTensorAttrs)
            )
            shared = frozenset(storage for storage, tensors in cut.items() if tensors > 1)

            def rewrite(chain: Chain, is_function_body: bool) -> Chain:
                return _rewritten(chain, updated, kept, shared)

            return on_body(lambda body: map_chains(body, rewrite))(function)

        return map_functions(module, one)

    return Pass("UpdateInPlace", transform)


def _rewritten(
    chain: Chain, updated: Updated, kept: Collection[Var], shared: Collection[RelayExpr]
) -> Chain:
    """The chain; `kept` are variables whose values someone outside has, `shared` storages that
    other tensors lie in as well."""
    values = dict(chain.bindings)
    owned: dict[Var, Call] = {}
    """Results that are made of what they update."""
    gone: set[Var] = set()
    calls: dict[Call, Call] = {}
    for _, value in chain.bindings:
        found = _update(value, values, updated)
        if found is None:
            continue
        call, number, result, storage = found
        inputs, outputs = call.args[1:3]
        assert isinstance(inputs, Tuple) and isinstance(call.attrs, InvokeAttrs)
        if storage in shared or inputs.fields[number] in kept:
            continue
        if not isinstance(inputs.fields[number], Var):
            continue
        given = own(inputs.fields[number], call.attrs.device)
        given.set_checked_type(result.checked_type)
        owned[result] = given
        gone.add(storage)
        fields = (*inputs.fields[:number], result, *inputs.fields[number + 1 :])
        args = (call.args[0], inputs.with_fields(fields=fields), outputs, *call.args[3:])
        calls[call] = call.with_fields(args=args)
    if not owned:
        return chain
    bindings: list[Binding] = [
        (v, owned.get(v) or (calls.get(value, value) if isinstance(value, Call) else value))
        for v, value in chain.bindings
        if v not in gone
    ]
    return Chain(bindings, chain.result)


def _update(
    value: RelayExpr, values: Mapping[Var, RelayExpr], updated: Updated
) -> tuple[Call, int, Var, Var] | None:
    """An update whose result has a storage of its own: the call, the number of what it updates, the
    result and its storage.
    """
    if not isinstance(value, Call) or op_name(value) != "vm.invoke_tvm_op":
        return None
    number = updated(value.args[0])
    outputs = value.args[2]
    assert isinstance(outputs, Tuple)
    (result,) = outputs.fields if number is not None else (None,)
    made = values.get(result) if isinstance(result, Var) else None
    if number is None or not (isinstance(made, Call) and isinstance(made.attrs, AllocTensorAttrs)):
        return None
    storage = made.args[0]
    source = values.get(storage) if isinstance(storage, Var) else None
    attrs = source.attrs if isinstance(source, Call) else None
    is_own = isinstance(attrs, AllocStorageAttrs) and not attrs.arena
    assert isinstance(result, Var)
    return (value, number, result, storage) if is_own and isinstance(storage, Var) else None


__all__ = ["UpdateInPlace"]
