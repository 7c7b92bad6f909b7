# Errors: from C to Python and back.
#
# A Python exception that crosses C travels inside an error object of ours, recognised by its deleter,
# and comes out as the same exception with its traceback. Every other error becomes the class its
# kind names, with the C side's backtrace as a note.

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int Py_IsInitialized() nogil

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


cdef void _keep_backtrace(void *self, const ek_bytes *text, int32_t append) noexcept nogil:
    # The traceback of the exception says where it came from; there is nothing to add.
    return


cdef void _fill_bytes(ek_bytes *out, bytes text) noexcept:
    out.data = PyBytes_AS_STRING(text)
    out.size = PyBytes_GET_SIZE(text)


cdef int _set_error(object exception) except -2:
    """Leaves the exception as this thread's error; returns -1."""
    cdef PythonError *error = <PythonError *>malloc(sizeof(PythonError))
    if error == NULL:
        return ek_error(b"MemoryError", b"no memory for the error of a Python function")
    memset(error, 0, sizeof(PythonError))
    lines = "".join(reversed(traceback.format_tb(exception.__traceback__)))
    texts = tuple(
        text.encode("utf-8", "backslashreplace")
        for text in (type(exception).__name__, _message(exception), lines)
    )
    error.error.base.refs = EK_REFS_NEW
    error.error.base.type_index = EK_ERROR
    error.error.base.deleter = _python_error_delete
    error.error.update_backtrace = _keep_backtrace
    _fill_bytes(&error.error.kind, texts[0])
    _fill_bytes(&error.error.message, texts[1])
    _fill_bytes(&error.error.backtrace, texts[2])
    Py_INCREF(exception)
    Py_INCREF(texts)
    error.exception = <PyObject *>exception
    error.texts = <PyObject *>texts
    ek_error_set(<ek_object *>error)
    ek_object_release(<ek_object *>error)
    return -1


cdef str _message(object exception):
    """What the exception says; KeyError alone would quote it."""
    if isinstance(exception, KeyError) and len(exception.args) == 1:
        return str(exception.args[0])
    return str(exception)


cdef str _text(const ek_bytes *bytes):
    return bytes.data[:bytes.size].decode("utf-8", "replace") if bytes.size else ""


cdef object _exception_class(str kind):
    """The class of Ekiden or of Python that a kind names; RunError for all others."""
    for home in (errors, builtins):
        found = getattr(home, kind, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return errors.RunError


cdef object _exception_from(ek_object *object):
    cdef ek_error_object *error = <ek_error_object *>object
    if object.deleter == _python_error_delete:
        return <object>(<PythonError *>object).exception
    kind = _text(&error.kind)
    cls = _exception_class(kind)
    message = _text(&error.message)
    if cls is errors.RunError and kind != "RunError":
        message = f"{kind}: {message}"
    try:
        exception = cls(message)
    except TypeError:              # UnicodeDecodeError and its like want more than a message
        exception = errors.RunError(f"{kind}: {message}")
    if error.backtrace.size:
        exception.add_note("in native code, most recent call first:\n" + _text(&error.backtrace))
    if error.cause != NULL and error.cause.type_index == EK_ERROR:
        exception.__cause__ = _exception_from(error.cause)
    return exception


cdef int _raise_pending() except -1:
    """Raises this thread's error."""
    cdef ek_object *error = ek_error_take()
    if error == NULL:
        raise errors.InternalError("native code failed without saying why")
    try:
        raise _exception_from(error)
    finally:
        ek_object_release(error)


cdef inline int _check(int status) except -1:
    """Raises this thread's error if a call returned other than 0."""
    if status != 0:
        _raise_pending()
    return 0
