"""In-place results: a kernel's output takes the storage of an input that it reads last.

    let %b = add(%a, %x); let %c = nn.relu(%b); ...      %b and %c are one request if nothing reads
                                                         %b later; so is %a if it dies in the add

An input that occupies these bytes a second time (a view of the same tensor) must be one that the
kernel may replace as well: it would read what is overwritten. A slice of a storage neither replaces
nor is replaced.

Legal are kernels each element of whose result depends on that one element of the input alone (facts
of the kernel say which inputs): the element is read before it is written, in the same iteration.
Sizes must be equal for every value of symbols, so `prove_equal` and not a typical value decides. In
program order each result takes the first input that fits; chains merge into one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Tuple, Var
from ekiden.relay.transform.memory.manifest_alloc import size_in_bytes
from ekiden.relay.transform.memory.storage_lifetimes import StorageLifetimes, StorageRequest
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class KernelOperand:
    """Tensor operand of a kernel: the storages it may be in, and whether it fills one entirely."""

    storages: frozenset[Var]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class InPlaceCandidate:
    """Kernel whose output may take the storage of one of its inputs numbered `allowed`."""

    position: int
    inputs: Sequence[KernelOperand]
    output: KernelOperand
    allowed: Sequence[int]


def merge_in_place(
    lifetimes: StorageLifetimes,
    requests: Sequence[StorageRequest],
    may_replace: Callable[[RelayExpr], Sequence[int]],
) -> list[StorageRequest]:
    """Merge the storage requests of one arena whose tensors are updated in place.

    Args:
        lifetimes: The storages of the function.
        requests: The requests of the arena.
        may_replace: Returns the numbers of the inputs that the output of a kernel may replace.
    """
    return merge_requests(
        requests, lifetimes.requests, _in_place_candidates(lifetimes, may_replace)
    )


def _in_place_candidates(
    lifetimes: StorageLifetimes, may_replace: Callable[[RelayExpr], Sequence[int]]
) -> Iterator[InPlaceCandidate]:
    """Yield the kernels of a function that may write over an input."""
    for position, call in lifetimes.invocations:
        kernel, inputs, outputs = call.args[:3]
        assert isinstance(inputs, Tuple) and isinstance(outputs, Tuple)
        allowed = may_replace(kernel)
        if allowed and all(isinstance(i.checked_type, TensorType) for i in inputs.fields):
            (output,) = outputs.fields
            operands = [_kernel_operand(lifetimes, i) for i in inputs.fields]
            yield InPlaceCandidate(position, operands, _kernel_operand(lifetimes, output), allowed)


def _kernel_operand(lifetimes: StorageLifetimes, value: RelayExpr) -> KernelOperand:
    storages = lifetimes.storages_by_value.get(value, frozenset())
    kind = value.checked_type
    assert isinstance(kind, TensorType)
    # A value of several branches may lie in any of their storages.
    request = lifetimes.requests[next(iter(storages))] if len(storages) == 1 else None
    is_whole = request is not None and prove_equal(size_in_bytes(kind), request.size)
    return KernelOperand(storages, is_whole)


def merge_requests(
    requests: Sequence[StorageRequest],
    known: Mapping[Var, StorageRequest],
    kernels: Iterable[InPlaceCandidate],
) -> list[StorageRequest]:
    """Merge requests into those whose bytes they reuse; `known` maps storages to requests,
    `kernels` are in program order.
    """
    owners = {r.storage: r for r in requests}
    ends: dict[Var, frozenset[int]] = {}
    for kernel in kernels:
        result_request = _owning_request(owners, kernel.output)
        for number in kernel.allowed:
            owner = _replaceable_request(owners, known, ends, kernel, number)
            if (
                result_request is None
                or owner is None
                or not prove_equal(result_request.size, owner.size)
            ):
                continue
            # A slice shares its storage with tensors that are still read.
            if not (kernel.output.is_whole and kernel.inputs[number].is_whole):
                continue
            # Chains collapse: all results of a chain have the first one's bytes.
            owner.in_place_successors += [result_request, *result_request.in_place_successors]
            owners.update(
                (r.storage, owner) for r in (result_request, *result_request.in_place_successors)
            )
            break
    return list(dict.fromkeys(owners.values()))


def _owning_request(
    owners: Mapping[Var, StorageRequest], value: KernelOperand
) -> StorageRequest | None:
    """Return the request of the single storage that a value is in; None where there are several or
    none.
    """
    return owners.get(next(iter(value.storages))) if len(value.storages) == 1 else None


def _replaceable_request(
    owners: Mapping[Var, StorageRequest],
    all_requests: Mapping[Var, StorageRequest],
    ends: dict[Var, frozenset[int]],
    kernel: InPlaceCandidate,
    number: int,
) -> StorageRequest | None:
    """Return the request of an input that dies at this kernel and may be overwritten, or None.
    `ends` are the last reads of storages that branches read, each found once.
    """
    owner = _owning_request(owners, kernel.inputs[number])
    if owner is None:
        return None
    (home,) = kernel.inputs[number].storages
    if not all_requests[home].is_dead_after(kernel.position):
        # Computed at most once for each storage, since it walks all blocks.
        if home not in ends:
            ends[home] = all_requests[home].last_reads()
        if kernel.position not in ends[home]:
            return None
    # Another input in the same bytes would see elements that are overwritten.
    readers = [n for n, operand in enumerate(kernel.inputs) if home in operand.storages]
    return owner if all(n in kernel.allowed for n in readers) else None
