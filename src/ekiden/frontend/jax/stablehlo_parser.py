"""Parser of StableHLO text, MLIR bytecode and portable artifacts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from io import BytesIO

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo
from jaxlib.mlir.passmanager import PassManager

from ekiden.runtime.errors import ImportModelError

MLIR_BYTECODE_MAGIC = b"ML\xefR"
"""The magic number at the start of MLIR's bytecode, of portable artifacts too."""


def make_context() -> ir.Context:
    """Create an MLIR context with JAX's dialects."""
    mlir_context = mlir.make_ir_context()
    # Operations of unknown dialects are then reported by name instead of failing the parser.
    mlir_context.allow_unregistered_dialects = True
    return mlir_context


def parse_module(data: str | bytes, label: str, within: ir.Context) -> ir.Module:
    """Parse StableHLO text or bytecode as a module. Raises ImportModelError with the start of
    MLIR's message otherwise.
    """
    if isinstance(data, bytes) and data.startswith(MLIR_BYTECODE_MAGIC):
        return _parse_bytecode(data, label, within)
    try:
        # MLIR's bindings end the process where a message of theirs quotes what is no UTF-8
        text = data.decode() if isinstance(data, bytes) else data
        return ir.Module.parse(text, within)
    except Exception as error:  # MLIRError, or UnicodeDecodeError of bytes that are no text
        raise ImportModelError(f"import {label}: no StableHLO: {_error_reason(error)}") from error


def _parse_bytecode(data: bytes, label: str, within: ir.Context) -> ir.Module:
    """Parse a portable artifact, or plain MLIR bytecode."""
    try:
        return stablehlo.deserialize_portable_artifact(within, data)
    except Exception as first:
        try:
            return ir.Module.parse(data, within)
        except Exception:
            text = f"import {label}: no StableHLO: {_error_reason(first)}"
            raise ImportModelError(text) from first


def _error_reason(error: Exception) -> str:
    """Return the first informative line of an MLIR message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = (
        [line for line in lines if _ERROR_PATTERN.search(line)] or lines or [type(error).__name__]
    )
    return informative[0][:_MAX_MESSAGE_CHARS]


_ERROR_PATTERN = re.compile(r"\berror: ")
_MAX_MESSAGE_CHARS = 300
"""Characters of a foreign message that are shown: some quote a whole program."""


def decompose_operation(operation: ir.Operation) -> ir.Module | None:
    """Decompose a CHLO operation, or one on complex numbers, into simpler operations by jaxlib's
    passes; None where they leave it.
    """
    stablehlo.register_stablehlo_passes()
    with operation.context, ir.Location.unknown():
        module = ir.Module.create()
        takes, gives = (
            [v.type for v in values] for values in (operation.operands, operation.results)
        )
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ir.FunctionType.get(takes, gives))
        block = main.add_entry_block()
        with ir.InsertionPoint(block):
            func.return_(_clone_operation(operation, list(block.arguments)))
        PassManager.parse(_DECOMPOSITION_PIPELINE).run(module.operation)
        same = [o.operation for o in block.operations if o.operation.name == operation.name]
        kinds = [value.type for value in operation.operands]
        # A pass may leave the operation but on other operand types, such as the real parts: that is
        # progress.
        is_left = any([value.type for value in remaining.operands] == kinds for remaining in same)
        return None if is_left else module


def _clone_operation(operation: ir.Operation, operands: list[ir.Value]) -> list[ir.Value]:
    """Clone an operation with other operands at the insertion point; return its results."""
    copy = operation.clone()
    attributes = copy.attributes
    is_reverse = "is_reverse" in attributes and attributes["is_reverse"].value
    if is_reverse:  # which the pass leaves out
        axis = attributes["dimension"].value
        attributes["is_reverse"] = ir.BoolAttr.get(False)
        count = attributes["operandSegmentSizes"][0]
        moved = [stablehlo.reverse(operand, [axis]) for operand in operands[:count]]
        operands = [*moved, *operands[count:]]
        copy.move_after(moved[-1].owner)
    for index, operand in enumerate(operands):
        copy.operands[index] = operand
    results = list(copy.results)
    if is_reverse:
        count = attributes["resultSegmentSizes"][0]
        results[:count] = [stablehlo.reverse(result, [axis]) for result in results[:count]]
    return results


_DECOMPOSITION_PIPELINE = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-complex-math-expander,"
    "stablehlo-legalize-deprecated-ops{fail-on-unused=false}))"
)


def find_entry(module: ir.Module, requested: str, label: str) -> str:
    """Return the name of a program's entry function: the requested one, `main`, or the only public
    one.

    Raises ImportModelError, listing the functions, where there is none.
    """
    names = [function.attributes["sym_name"].value for function in defined_functions(module)]
    public = [
        function.attributes["sym_name"].value
        for function in defined_functions(module)
        if not _is_private(function)
    ]
    chosen = requested or ("main" if "main" in names else public[0] if len(public) == 1 else "")
    if chosen in names:
        return chosen
    listed = ", ".join(repr(name) for name in (public or names)[:_MAX_LISTED_FUNCTIONS]) or "none"
    missing = f"no function {requested!r}" if requested else "no function 'main'"
    raise ImportModelError(f"import {label}: {missing}; there are {listed}; signature= names one")


_MAX_LISTED_FUNCTIONS = 8
"""Functions that a message names."""


def defined_functions(module: ir.Module) -> Sequence[ir.Operation]:
    """Return the functions of a module that have a body."""
    return [
        op_view.operation
        for op_view in module.body.operations
        if op_view.operation.name == "func.func" and len(op_view.regions[0].blocks)
    ]


def _is_private(function: ir.Operation) -> bool:
    attributes = function.attributes
    return "sym_visibility" in attributes and attributes["sym_visibility"].value == "private"


def is_stablehlo(data: bytes) -> bool:
    """Return whether bytes are an MLIR program: bytecode, or text with a module or a function."""
    return data.startswith(MLIR_BYTECODE_MAGIC) or _MLIR_TEXT_PATTERN.match(data) is not None


_MLIR_TEXT_PATTERN = re.compile(
    rb"(\s|//[^\n]*\n|#\w+ = [^\n]*\n)*(\"builtin\.module\"|module\b|func\.func\b)"
)


def write_bytecode(module: ir.Module) -> bytes:
    """Serialize a module to bytecode, which another MLIR context can read."""
    buffer = BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file."""
    with open(path, "rb") as file:
        return file.read()
