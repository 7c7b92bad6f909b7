"""Passes of the QNN dialect.

qnn.quantize(%x, 0.5f, 3)   ->   cast(clip(add(round(divide(%x, 0.5f)), 3f), -128, 127), "int8")
"""

from __future__ import annotations

from ekiden.ir.transform import Pass
from ekiden.relay.qnn._declare import QNN_CANONICALIZE_TABLE
from ekiden.relay.transform.graph import legalize


def CanonicalizeOps() -> Pass:  # noqa: N802
    """Return a pass that expands qnn operators into Relay operators (TVM's CanonicalizeOps).

    It runs at every level: there are no kernels for the dialect itself.
    """
    return legalize.Legalize(QNN_CANONICALIZE_TABLE, "qnn.CanonicalizeOps", opt_level=0)


def Legalize() -> Pass:  # noqa: N802
    """Return a pass that applies user-registered legalisations to qnn calls.

    They are registered under "FTVMQnnLegalize" (TVM's name).
    """
    return legalize.Legalize("FTVMQnnLegalize", "qnn.Legalize")


__all__ = ["CanonicalizeOps", "Legalize"]
