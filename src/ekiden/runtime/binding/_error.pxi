# Errors: from C to Python and back.
#
# A Python exception that crosses C travels inside an error object of ours, recognised by its
# deleter, and comes out as the same exception with its traceback. Every other error becomes the
# class its kind names, with the C side's backtrace as a note.

ctypedef struct PythonError:
    ek_error_object error
    PyObject *exception
    PyObject *texts                # a tuple of bytes that kind, message and backtrace point into


cdef void _python_error_delete(void *self, int flags) noexcept nogil:
    cdef PythonError *error = <PythonError *>self
    if flags & EK_DELETE_CONTENT and Py_IsInitialized():
        with gil:
            Py_XDECREF(error.exception)
            Py_XDECREF(error.texts)
    if flags & EK_DELETE_MEMORY:
        free(self)


cdef void _add_backtrace(void *self, const ek_bytes *text, int32_t append) noexcept nogil:
    """Append C frames as a note of the exception; the traceback holds the Python frames."""
    cdef PythonError *error = <PythonError *>self
    with gil:
        try:
            (<object>error.exception).add_note(_native_note(text))
        except BaseException:      # a note is not worth losing the error for
            pass


cdef str _native_note(const ek_bytes *text):
    return "in native code, most recent call first:\n" + _text(text)


cdef void _fill_bytes(ek_bytes *out, bytes text) noexcept:
    out.data = PyBytes_AS_STRING(text)
    out.size = PyBytes_GET_SIZE(text)


cdef enum:
    TRACE_DEPTH = 20               # innermost frames that other languages see


def _backtrace(exception):
    """Format the innermost frames, most recent call first, without source lines, which would read
    files."""
    frames = []
    at = exception.__traceback__
    while at is not None:
        frames.append(f'  File "{at.tb_frame.f_code.co_filename}", line {at.tb_lineno}, '
                      f"in {at.tb_frame.f_code.co_name}\n")
        if len(frames) > 2 * TRACE_DEPTH:
            del frames[:TRACE_DEPTH]
        at = at.tb_next
    frames.reverse()
    return "".join(frames[:TRACE_DEPTH])


cdef bytes _safely(function, exception):
    """Return a text about an exception; empty if formatting fails, as at the recursion limit."""
    try:
        return function(exception).encode("utf-8", "backslashreplace")
    except BaseException:
        return b""


cdef ek_object *_error_from(object exception) except NULL:
    """Return an error object that carries the exception. The caller owns the reference."""
    cdef PythonError *error = <PythonError *>malloc(sizeof(PythonError))
    if error == NULL:
        raise MemoryError
    memset(error, 0, sizeof(PythonError))
    error.error.base.refs = EK_REFS_NEW
    error.error.base.type_index = EK_ERROR
    error.error.base.deleter = _python_error_delete
    error.error.update_backtrace = _add_backtrace
    texts = (_kind_of(exception).encode(), _safely(_message, exception),
             _safely(_backtrace, exception))
    _fill_bytes(&error.error.kind, texts[0])
    _fill_bytes(&error.error.message, texts[1])
    _fill_bytes(&error.error.backtrace, texts[2])
    Py_INCREF(exception)
    Py_INCREF(texts)
    error.exception = <PyObject *>exception
    error.texts = <PyObject *>texts
    return <ek_object *>error


cdef object _take_exception():
    """Clear the pending Python exception and return it with its traceback."""
    cdef PyObject *cls = NULL
    cdef PyObject *value = NULL
    cdef PyObject *trace = NULL
    PyErr_Fetch(&cls, &value, &trace)
    PyErr_NormalizeException(&cls, &value, &trace)
    error = <object>value
    if trace != NULL:
        PyException_SetTraceback(error, <object>trace)
    Py_XDECREF(cls)
    Py_XDECREF(value)
    Py_XDECREF(trace)
    return error


cdef int _set_error(object exception) noexcept:
    """Set the exception as this thread's error, and return -1."""
    cdef ek_object *error
    try:
        error = _error_from(exception)
    except BaseException:
        return ek_error(b"InternalError", b"a Python function failed, and so did its error")
    ek_error_set(error)
    ek_object_release(error)
    return -1


def _message(exception):
    """Return the message of an exception, which str() of a KeyError would quote."""
    if isinstance(exception, KeyError) and len(exception.args) == 1:
        return str(exception.args[0])
    return str(exception)


cdef str _text(const ek_bytes *bytes):
    return bytes.data[:bytes.size].decode("utf-8", "replace") if bytes.size else ""


cdef dict _ERROR_CLASSES = {}      # kind -> class, as users registered them
cdef dict _ERROR_KINDS = {}        # the inverse


def register_error(name_or_cls=None, cls=None):
    """Register an exception class for a kind of native errors; also a class decorator.

    `register_error(MyError)` takes the class's name as the kind, `register_error("kind")(MyError)`
    and `register_error("kind", MyError)` another. Python exceptions of the class are known to other
    languages by that kind.
    """
    if isinstance(name_or_cls, type):
        return register_error(name_or_cls.__name__, name_or_cls)

    def register(chosen):
        if not (isinstance(chosen, type) and issubclass(chosen, BaseException)):
            raise TypeError(f"register_error: expected an exception class, got {chosen!r}")
        kind = name_or_cls or chosen.__name__
        _ERROR_CLASSES[kind] = chosen
        _ERROR_KINDS[chosen] = kind
        return chosen

    return register if cls is None else register(cls)


def kind_of_error(exception):
    """Return the error kind of an exception in other languages, and its message."""
    return _kind_of(exception), _message(exception)


def error_from(str kind not None, str message not None):
    """Return the exception for an error of another language."""
    cls = _exception_class(kind)
    if cls is errors.RunError and kind != "RunError":
        message = f"{kind}: {message}"
    try:
        return cls(message)
    except TypeError:              # UnicodeDecodeError and its like want more than a message
        return errors.RunError(f"{kind}: {message}")


cdef str _kind_of(object exception):
    return _ERROR_KINDS.get(type(exception)) or type(exception).__name__


cdef object _exception_class(str kind):
    """Return the class registered for a kind, or Ekiden's or Python's class of that name, else
    RunError."""
    if kind in _ERROR_CLASSES:
        return _ERROR_CLASSES[kind]
    for home in (errors, builtins):
        found = getattr(home, kind, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return errors.RunError


cdef object _exception_from(ek_object *object):
    cdef ek_error_object *error = <ek_error_object *>object
    if object.deleter == _python_error_delete:
        return <object>(<PythonError *>object).exception
    exception = error_from(_text(&error.kind), _text(&error.message))
    if error.backtrace.size:
        exception.add_note(_native_note(&error.backtrace))
    if error.cause != NULL and error.cause.type_index == EK_ERROR:
        exception.__cause__ = _exception_from(error.cause)
    return exception


cdef int _raise_pending() except -1:
    """Raise this thread's error."""
    cdef ek_object *error = ek_error_take()
    if error == NULL:
        raise errors.InternalError("native code failed without saying why")
    try:
        raise _exception_from(error)
    finally:
        ek_object_release(error)


cdef inline int _check(int status) except -1:
    """Raise this thread's error if a status is not 0."""
    if status != 0:
        _raise_pending()
    return 0
