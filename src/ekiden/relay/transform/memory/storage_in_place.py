"""Results in the bytes of what their kernels read last.

    let %b = add(%a, %x); let %c = nn.relu(%b); ...      %b and %c are one request if nothing reads
                                                         %b later; so is %a if it dies in the add

An input that lies in these bytes a second time (a view of the same tensor) must be one that the
kernel may replace as well: it would read what is overwritten. A part of a storage neither replaces
nor is replaced.

Legal are kernels each element of whose result depends on that one element of the input alone (facts
of the kernel say which inputs): the element is read before it is written, in the same iteration.
Sizes are to be the same for every value of symbols, so `prove_equal` and not a typical value
decides. In program order each result takes the first input that fits; chains merge into one
request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Tuple, Var
from ekiden.relay.transform.memory.manifest_alloc import size_in_bytes
from ekiden.relay.transform.memory.storage_lifetimes import Lifetimes, Request


def merge_in_place(
    lifetimes: Lifetimes,
    requests: Sequence[Request],
    may_replace: Callable[[RelayExpr], Sequence[int]],
) -> list[Request]:
    """The requests of one arena, without those that became `shares` of others. `may_replace` gives
    the numbers of the inputs that the output of a kernel may replace.
    """
    owners = {r.storage: r for r in requests}
    for at, call in lifetimes.invocations:
        kernel, inputs, outputs = call.args[:3]
        assert isinstance(inputs, Tuple) and isinstance(outputs, Tuple)
        allowed = may_replace(kernel)
        if not allowed or not all(isinstance(i.checked_type, TensorType) for i in inputs.fields):
            continue
        (output,) = outputs.fields
        made = _owner(owners, _home(lifetimes, output))
        for number in allowed:
            owner = _owner(owners, _replaced(lifetimes, call, at, number, allowed))
            if made is None or owner is None or not prove_equal(made.size, owner.size):
                continue
            if not (_fills(output, made) and _fills(inputs.fields[number], owner)):
                continue
            owner.shares += [made, *made.shares]
            owners.update((r.storage, owner) for r in (made, *made.shares))
            break
    return list(dict.fromkeys(owners.values()))


def _fills(value: RelayExpr, request: Request) -> bool:
    """Whether a tensor is all of its storage, not a part of a concatenation in it."""
    kind = value.checked_type
    return isinstance(kind, TensorType) and prove_equal(size_in_bytes(kind), request.size)


def _owner(owners: Mapping[Var, Request], storage: Var | None) -> Request | None:
    return None if storage is None else owners.get(storage)


def _replaced(
    lifetimes: Lifetimes, call: Call, at: int, number: int, allowed: Sequence[int]
) -> Var | None:
    """The storage of an input that is read last here, by inputs that may be replaced."""
    inputs = call.args[1]
    assert isinstance(inputs, Tuple)
    home = _home(lifetimes, inputs.fields[number])
    if home is None or not lifetimes.requests[home].is_dead_after(at):
        return None
    readers = [n for n, v in enumerate(inputs.fields) if home in lifetimes.home.get(v, frozenset())]
    return home if all(n in allowed for n in readers) else None


def _home(lifetimes: Lifetimes, value: RelayExpr) -> Var | None:
    """The one storage that a value lies in; None where it lies elsewhere, or may lie in several."""
    homes = lifetimes.home.get(value, frozenset())
    return next(iter(homes)) if len(homes) == 1 else None
