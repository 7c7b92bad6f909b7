"""What decides a case without running it: exact sizes of its tensors, and which cases are run too.

Compiling takes 20 to 50 times as long as importing a model and typing it, and programs that differ
in a number alone compile alike. So the types of all cases are compared with exact integers, and of
the distinct programs one in COMPILED is compiled with kernels that check their bounds, and run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ekiden.ir import structural_hash
from ekiden.ir.dtype import itemsize
from ekiden.ir.module import IRModule
from ekiden.ir.type import TensorType, TupleType
from ekiden.relay.visitor import post_order
from ekiden.topi.dimensions import known_int as number_of

COMPILED = 16
"""One distinct program in so many is compiled and run."""


class Sample:
    """The distinct programs of a worker that are compiled, chosen by their structural hash."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def takes(self, module: IRModule) -> bool:
        """Return whether a program is to be compiled now: chosen, and not compiled before."""
        digest = structural_hash(module)
        if digest % COMPILED or digest in self._hashes:
            return False
        self._hashes.add(digest)
        return True


def check_sizes(module: IRModule) -> None:
    """Raise AssertionError where an expression of a module has a tensor that no memory holds."""
    for tensor in _tensor_types(module):
        check_size(tensor)


def _tensor_types(module: IRModule) -> Iterator[TensorType]:
    """Give the types of all tensors that the functions of a module take, make and return."""
    for function in module.functions.values():
        for expr in post_order(function, into_functions=True):
            waiting = [expr.checked_type_or_none()]
            while waiting:
                match waiting.pop():
                    case TensorType() as kind:
                        yield kind
                    case TupleType() as kind:
                        waiting += kind.fields


def check_size(kind: TensorType) -> None:
    """Raise AssertionError for a tensor whose extents or bytes leave int64.

    What is admitted is planned, allocated and indexed in int64: an extent that wrapped on its way
    is negative here, or its product with the others is none that memory has.
    """
    extents = [n for d in kind.shape if (n := number_of(d)) is not None]
    if any(n < 0 for n in extents) or math.prod(extents) * itemsize(kind.dtype) >= 1 << 63:
        raise AssertionError(f"a tensor of {kind} was admitted")
