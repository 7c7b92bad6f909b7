"""Every error a user of Ekiden can see.

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
    """Base of all errors that Ekiden raises on purpose."""


class LoadError(EkidenError):
    """An artifact is truncated, corrupted, foreign, or of another format version."""


class MissingSymbolError(LoadError):
    """Compiled code calls a C function (`tir.call_extern`) that neither its library nor the process
    has."""


class RunError(EkidenError):
    """A compiled program failed while running."""


class InputError(RunError, ValueError):
    """An argument of a run has the wrong name, dtype, rank or dimension."""


class IndexRangeError(RunError, IndexError):
    """Data that says where to read or write lies outside: an index, a coordinate, a length. The
    message names the node, the value, its position and what is valid."""


class LinAlgError(RunError, ValueError):
    """A matrix of the data has no inverse or no such decomposition. The message names the node, the
    pivot or minor, and the matrix of a batch."""


class BoundsError(RunError, IndexError):
    """A kernel compiled with `bounds="check"` was about to access a buffer outside its extent. The
    message names kernel, buffer, index and extent."""


class MemoryLimitError(RunError, MemoryError):
    """More memory was asked for than the limit allows; the message names the bytes of all three."""


class RunLimitError(RunError, TimeoutError):
    """A run was stopped at its limit of steps or time; the message names the limit and the function
    it was in. The program can be run again.
    """


class DeviceError(RunError):
    """A device is not there, its driver is missing, refuses code or fails; the message names the
    device, and the kernel or what is to be installed. Other devices go on."""


class CompileError(EkidenError):
    """A program cannot be compiled; the message names the node of the model."""


class CompileLimitError(CompileError, TimeoutError):
    """A compilation was stopped at its limit of time; the message names the limit."""


class ImportModelError(CompileError):
    """A model file cannot be imported: broken file, cycle, missing initializer."""


class UnsupportedError(ImportModelError):
    """A model uses operators, opsets or attributes that Ekiden lacks; lists every such node.

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
    """Inputs of a model have no rank, and the import was given none.

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
    """The types of a program do not agree. `span` is the place, where it is known."""

    def __init__(self, message: str, span: object = None) -> None:
        super().__init__(message)
        self.span = span


class ParseError(CompileError):
    """Relay text cannot be parsed; the message points at line and column."""


class ExpressionError(CompileError, ValueError, TypeError):
    """A scalar expression cannot be made: a number that its dtype has not, lanes of no vector."""


class ScheduleError(CompileError):
    """A schedule primitive refuses because the program would change meaning."""


class ExportError(EkidenError):
    """A shared library could not be made of an executable."""


class DifferentiationError(CompileError):
    """A program cannot be differentiated; the message names the operator or expression."""


class VerifyError(CompileError):
    """A loop program is not well formed; the message names the line of its text."""


class PassError(CompileError):
    """A pass, a pass context or an option of one is used wrongly."""


class MissingCompilerError(CompileError, ImportError):
    """The package ekiden-runtime, which only runs compiled models, is asked for more."""


class RPCError(EkidenError):
    """A session cannot be had, has ended, or what was called there failed. In the last case it is
    also of the class that was raised there, and a note has the remote traceback."""


class RPCSessionTimeoutError(RPCError, TimeoutError):
    """A session, or an answer, took longer than it may; the session is over."""


class FrameError(RPCError):
    """The other side sent what is no message; the session is over."""


class ServeError(EkidenError):
    """A server cannot start or stop as asked; the message names the file, option or model."""


class RequestError(ServeError):
    """A server refuses a request. `reason` is a row of `ekiden.serve.reasons`, which has the
    status of each protocol; `retry_after` in seconds is when to come again, 0 where that is not
    said."""

    def __init__(self, message: str, reason: str = "malformed", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class InternalError(EkidenError):
    """Ekiden broke one of its own rules; the message names the pass."""
