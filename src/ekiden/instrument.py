"""Pass instruments, at TVM's module path: `tvm.instrument`."""

from ekiden.ir.instrument import (
    DumpIR,
    PassInstrument,
    PassPrintingInstrument,
    PassTimingInstrument,
    PrintAfterAll,
    PrintBeforeAll,
    StopAfter,
    Verify,
    find_breaking_pass,
    pass_instrument,
)

__all__ = [
    "DumpIR",
    "PassInstrument",
    "PassPrintingInstrument",
    "PassTimingInstrument",
    "PrintAfterAll",
    "PrintBeforeAll",
    "StopAfter",
    "Verify",
    "find_breaking_pass",
    "pass_instrument",
]
