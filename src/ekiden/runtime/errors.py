"""All errors that users of Ekiden can see.

    EkidenError
    ├── LoadError            a file or byte string is not a valid artifact
    │   └── MissingSymbolError     code calls a C function that is not loaded
    ├── RunError             a compiled program failed while running
    │   ├── InputError       an argument has the wrong name, dtype, rank or dimension
    │   ├── IndexRangeError  an index in the data is out of range (also an IndexError)
    │   ├── LinAlgError      a matrix has no inverse, no decomposition (also a ValueError)
    │   ├── BoundsError      a kernel accessed a buffer outside its extent (also an IndexError)
    │   ├── DeviceError      a device, its driver or the code for it fails, or is not there
    │   ├── MemoryLimitError memory beyond the limit was asked for (also a MemoryError)
    │   └── RunLimitError    a run took more steps or time than it may (also a TimeoutError)
    ├── CompileError         a program cannot be compiled
    │   ├── ImportModelError a model file cannot be imported
    │   │   ├── UnsupportedError   it uses operators, opsets or attributes Ekiden does not have
    │   │   └── UnrankedInputError inputs of it have no rank, and none was given
    │   ├── TypeInferenceError     types do not agree
    │   ├── ParseError       Relay text cannot be parsed (carries line and column)
    │   ├── ScheduleError    a schedule primitive refuses
    │   ├── VerifyError      a loop program is not well formed
    │   ├── DifferentiationError   a program has no gradient
    │   ├── PassError        a pass or its context is used wrongly
    │   ├── CompileLimitError      it took more time than it may (also a TimeoutError)
    │   └── MissingCompilerError   ekiden-runtime is asked for more (also an ImportError)
    ├── RPCError             a session cannot be had, has ended, or what was called there failed
    │   ├── RPCSessionTimeoutError a session or an answer took too long (also a TimeoutError)
    │   └── FrameError       the other side sent what is no message
    ├── ServeError           a server cannot start: its configuration, models or files
    │   └── RequestError     a server refuses a request; `reason` says which way
    └── InternalError        Ekiden broke one of its own rules; please report it

C code names the class by its `kind`; a kind without a class here becomes the Python builtin of that
name, or RunError.
"""


class EkidenError(RuntimeError):
    """Base class of all errors that Ekiden raises deliberately."""


class LoadError(EkidenError):
    """Error of an artifact that is truncated, corrupted, foreign, or of another format version."""


class MissingSymbolError(LoadError):
    """Error of compiled code that calls a C function (`tir.call_extern`) that neither its library
    nor the process has.
    """


class RunError(EkidenError):
    """Error of a compiled program while running."""


class InputError(RunError, ValueError):
    """Error of a run's argument: wrong name, dtype, rank or dimension."""


class IndexRangeError(RunError, IndexError):
    """Error of data that addresses elements out of range: an index, a coordinate, a length. The
    message names the node, the value, its position and what is valid.
    """


class LinAlgError(RunError, ValueError):
    """Error of a matrix without an inverse or decomposition. The message names the node, the pivot
    or minor, and the matrix of a batch.
    """


class BoundsError(RunError, IndexError):
    """Error of an out-of-bounds access in a kernel compiled with `bounds="check"`. The message
    names kernel, buffer, index and extent.
    """


class MemoryLimitError(RunError, MemoryError):
    """Error of an allocation beyond the memory limit; the message names the requested, used and
    allowed bytes.
    """


class RunLimitError(RunError, TimeoutError):
    """Error of a run that was stopped at its limit of steps or time; the message names the limit
    and the function. The program can be run again.
    """


class DeviceError(RunError):
    """Error of a device that is missing, or whose driver is missing, rejects code or fails; the
    message names the device, and the kernel or what to install. Other devices continue.
    """


class CompileError(EkidenError):
    """Error of a program that cannot be compiled; the message names the model node."""


class CompileLimitError(CompileError, TimeoutError):
    """Error of a compilation that was stopped at its time limit; the message names the limit."""


class ImportModelError(CompileError):
    """Error of a model file that cannot be imported: broken file, cycle, missing initializer."""


class UnsupportedError(ImportModelError):
    """Error of a model with operators, opsets or attributes that Ekiden does not support; it lists
    every such node.

    inputs: the model's inputs that would have to be constants, where that is what is missing.
    nodes: a line for each node.
    """

    def __init__(
        self, message: str, inputs: tuple[str, ...] = (), nodes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.inputs = inputs
        self.nodes = nodes


class UnrankedInputError(ImportModelError):
    """Error of model inputs without a rank, if the import was given none.

    model_inputs: (name, dtype, shape) of each input of the model; the shape is None for those
        without a rank.
    model_outputs: (name, dtype) of each output.
    """

    def __init__(
        self,
        message: str,
        model_inputs: tuple[tuple[str, str, tuple[int | str, ...] | None], ...] = (),
        model_outputs: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.model_inputs = model_inputs
        self.model_outputs = model_outputs


class TypeInferenceError(CompileError):
    """Error of a program whose types do not agree. `span` is the source location, if known."""

    def __init__(self, message: str, span: object = None) -> None:
        super().__init__(message)
        self.span = span


class ParseError(CompileError):
    """Error of Relay text or a script that cannot be parsed; the message shows line and column."""

    span: object = None
    """Place in the text, a `relay.Span`."""


class ExpressionError(CompileError, ValueError, TypeError):
    """Error of an invalid scalar expression: a number that its dtype cannot represent, lanes of no
    vector.
    """


class ScheduleError(CompileError):
    """Error of a schedule primitive that would change the program's meaning."""


class ExportError(EkidenError):
    """Error of an export to a shared library."""


class DifferentiationError(CompileError):
    """Error of a program that cannot be differentiated; the message names the operator or
    expression.
    """


class VerifyError(CompileError):
    """Error of a loop program that is not well formed; the message names the line of its text."""


class PassError(CompileError):
    """Error of a pass, a pass context or one of its options that is used incorrectly."""


class MissingCompilerError(CompileError, ImportError):
    """Error of a deployment package (ekiden-runtime) that is asked to compile."""


class RPCError(EkidenError):
    """Error of a session that cannot be opened or has ended, or of a remote call. A remote error is
    also an instance of the class raised there, with the remote traceback as a note.
    """


class RPCSessionTimeoutError(RPCError, TimeoutError):
    """Error of a session, or an answer, beyond its time limit; the session is over."""


class FrameError(RPCError):
    """Error of a peer that sent an invalid message; the session is over."""


class ServeError(EkidenError):
    """Error of a server that cannot start or stop as requested; the message names the file, option
    or model.
    """


class RequestError(ServeError):
    """Error of a request that a server rejects. `reason` is a row of
    `ekiden.serve.failure_reasons`, which has each protocol's status; `retry_after` is the number of
    seconds to wait, 0 if unspecified.
    """

    def __init__(self, message: str, reason: str = "malformed", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class InternalError(EkidenError):
    """Error of a violated invariant of Ekiden; the message names the pass."""
