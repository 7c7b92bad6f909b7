# Functions, and the registry of global ones.

cdef class PackedFunc(Object):
    """Packed function of the runtime, callable from Python.

    Arguments may be None, bool, int, float, str, bytes, dtypes, devices, tuples, lists, Python
    functions, NumPy arrays (shared, not copied), DLPack producers, exceptions and objects of the
    runtime. Python's lock is released during the call.
    """

    cdef vectorcallfunc entry

    def __cinit__(self):
        self.entry = <vectorcallfunc>_call_packed

    def __call__(self, *args):
        return _call_packed(<PyObject *>self, (<PyTupleObject *>args).ob_item,
                            PyTuple_GET_SIZE(args), NULL)

    def __tvm_ffi_object__(self):
        """Return this function as one of the TVM-FFI package, which calls this method."""
        return _their_function(self)

    def __repr__(self):
        return f"<PackedFunc at {<size_t>self.handle:#x}>"


cdef object _call_packed(PyObject *self, PyObject **sources, size_t nargsf, PyObject *names):
    """Implement calls of a PackedFunc by CPython's vectorcall protocol (PEP 590), which builds no
    tuple."""
    cdef ek_object *function = (<Object>self).handle
    cdef Py_ssize_t count = nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET
    cdef ek_value values[INPLACE]
    cdef Kept kept[INPLACE]
    cdef Call call
    if names != NULL and PyTuple_GET_SIZE(<object>names) != 0:
        raise TypeError("a PackedFunc takes no keyword arguments, got "
                        + ", ".join(<object>names))
    if count > INPLACE:
        return _call_many(function, _tuple_of(sources, count))
    call.values = values
    call.kept = kept
    _fill_call(&call, sources, count)
    return _call(function, &call, <int32_t>count)


cdef tuple _tuple_of(PyObject **items, Py_ssize_t count):
    cdef Py_ssize_t i
    cdef tuple result = PyTuple_New(count)
    for i in range(count):
        Py_INCREF_(items[i])
        PyTuple_SET_ITEM(result, i, <object>items[i])
    return result


cdef object _call_many(ek_object *function, tuple args):
    cdef Arguments arguments = Arguments(args)
    return _call(function, &arguments.call, arguments.count)


cdef inline object _call(ek_object *function, Call *call, int32_t count):
    """Call a function, then settle the call."""
    cdef ek_value result = ek_value_none()
    cdef int status
    cdef PyThreadState *mine
    cdef PyThreadState *outer
    if (<ek_function *>function).call == _call_python:     # no detour through C
        status = _enter_python(<PythonFunction *>function, call.values, count, &result)
    else:
        outer = get_released()
        mine = PyEval_SaveThread()
        set_released(mine)
        status = ek_function_call(function, call.values, count, &result)
        set_released(outer)
        PyEval_RestoreThread(mine)
    if call.kept_count != 0:
        _settle(call)
    if status != 0:
        _raise_pending()
    return _move_out(&result)


ctypedef int (*EnterPython)(PythonFunction *function, const ek_value *args, int32_t nargs,
                            ek_value *ret) noexcept nogil


cdef int _use_vectorcall() except -1:
    cdef PackedFunc probe = PackedFunc.__new__(PackedFunc)
    cdef PyTypeObject *cls = <PyTypeObject *>PackedFunc
    cls.tp_vectorcall_offset = <char *>&probe.entry - <char *><PyObject *>probe
    cls.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL
    PyType_Modified(PackedFunc)
    return 0


_use_vectorcall()
cdef PyTypeObject *_FUNCTION_TYPE = <PyTypeObject *>PackedFunc
_CLASSES[EK_FUNCTION] = PackedFunc

# Functions of Python ------------------------------------------------------------------------------

ctypedef struct PythonFunction:
    ek_function function
    PyObject *callable


cdef void _delete_python(void *self, int flags) noexcept nogil:
    if flags & EK_DELETE_CONTENT and Py_IsInitialized():
        with gil:
            Py_XDECREF((<PythonFunction *>self).callable)
    if flags & EK_DELETE_MEMORY:
        free(self)


cdef ek_object *_function_from(object callable) except NULL:
    """Return a function object that calls a Python callable. The caller owns the reference."""
    cdef PythonFunction *made = <PythonFunction *>malloc(sizeof(PythonFunction))
    if made == NULL:
        raise MemoryError
    memset(made, 0, sizeof(PythonFunction))
    made.function.base.refs = EK_REFS_NEW
    made.function.base.type_index = EK_FUNCTION
    made.function.base.deleter = _delete_python
    made.function.call = _call_python
    made.callable = <PyObject *>callable
    Py_INCREF(callable)
    return <ek_object *>made


cdef int _call_python(void *self, const ek_value *args, int32_t nargs,
                      ek_value *ret) noexcept nogil:
    cdef PyThreadState *mine = get_released()
    cdef int status
    if mine == NULL or mine == current_state():
        with gil:
            return _enter_python(<PythonFunction *>self, args, nargs, ret)
    # The caller is C code that Python called on this thread: what the call above has let go of can
    # be taken up again without being looked for.
    PyEval_RestoreThread(mine)
    status = (<EnterPython><void *>_enter_python)(<PythonFunction *>self, args, nargs, ret)
    PyEval_SaveThread()
    return status


cdef int _enter_python(PythonFunction *function, const ek_value *args, int32_t nargs,
                       ek_value *ret) noexcept:
    """Call a Python callable. The caller holds the GIL."""
    cdef PyObject *inplace[INPLACE + 1]
    cdef PyObject **items = inplace
    cdef PyObject *callable = function.callable
    cdef int status = 0
    cdef int32_t i
    if nargs > INPLACE:
        items = <PyObject **>malloc((nargs + 1) * sizeof(PyObject *))
        if items == NULL:
            return ek_error(b"MemoryError", b"no memory for the arguments of a Python function")
    memset(items, 0, (nargs + 1) * sizeof(PyObject *))
    Py_INCREF_(callable)           # it may drop the last reference to itself
    if (<RunPython>_run_python)(callable, args, nargs, items + 1, ret) != 0:
        status = _set_error(_take_exception())
    for i in range(nargs):
        if args[i].type_index == EK_DLTENSOR_PTR and items[1 + i] != NULL:
            status = _reclaim_lent(<Tensor>items[1 + i], status, ret)
        Py_XDECREF(items[1 + i])
    Py_DECREF_(callable)
    if items != inplace:
        free(items)
    return status


ctypedef int (*RunPython)(PyObject *callable, const ek_value *args, int32_t nargs,
                          PyObject **items, ek_value *ret) noexcept


cdef int _run_python(PyObject *callable, const ek_value *args, int32_t nargs, PyObject **items,
                     ek_value *ret) except -1:
    """Store the owned result in '*ret', and in 'items' the objects that the caller must release."""
    cdef ek_value result = ek_value_none()
    cdef object item
    cdef int32_t i
    for i in range(nargs):
        item = _to_python(&args[i])
        Py_INCREF(item)
        items[i] = <PyObject *>item
    item = None
    returned = PyObject_Vectorcall(callable, items, nargs | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
    if returned is not None:
        _to_value(<PyObject *>returned, &result)
    ret[0] = result
    return 0


cdef int _reclaim_lent(Tensor tensor, int status, ek_value *ret) noexcept:
    """Give a lent tensor that the callee has retained memory of its own."""
    if Py_REFCNT(tensor) == 1 and EK_REFS(tensor.handle) == EK_REFS_NEW:
        return status
    try:
        _unlend(tensor)
    except BaseException as error:
        if status == 0:
            ek_value_release(ret)
            return _set_error(error)
    return status


def convert_to_function(function):
    """Return the PackedFunc of a Python callable, or a PackedFunc unchanged."""
    if isinstance(function, PackedFunc):
        return function
    if not callable(function):
        raise TypeError(f"expected a function, got {cls_name(function)}")
    return _wrap(PackedFunc, _function_from(function))


_callables = {}
"""Python callables by the name that they were last registered under."""


def register_func(func_name, f=None, bint override=False):
    """Register a global function for all languages. Without `f` this is a decorator that returns
    the function unchanged; without a name it uses the function's own. Raises ValueError for a
    registered name unless `override`.
    """
    if callable(func_name):
        return register_func(func_name.__name__, func_name, override)

    def register(function):
        cdef PackedFunc packed = convert_to_function(function)
        _check(ek_registry_set(func_name.encode(), packed.handle, override))
        _callables[func_name] = function
        return function

    return register if f is None else register(f)


def get_global_func(str name not None, bint allow_missing=False):
    """Return the global function of a name. If there is none, return None with `allow_missing`,
    else raise ValueError."""
    cdef ek_object *found = ek_registry_get(name.encode())
    if found == NULL:
        load_deferred()
        found = ek_registry_get(name.encode())
    if found != NULL:
        return _wrap(PackedFunc, found)
    if allow_missing:
        return None
    raise ValueError(f"get_global_func: no function is registered as {name!r}")


def remove_global_func(str name not None):
    """Remove a name from the registry, and return whether it was registered."""
    _callables.pop(name, None)
    return bool(ek_registry_remove(name.encode()))


def registered_callables():
    """Return the callables of Python that are registered, by name."""
    return dict(_callables)


def list_global_func_names():
    """Return the sorted names of all global functions."""
    cdef ek_object *names = NULL
    load_deferred()
    _check(ek_registry_names(&names))
    return _take_list(names)


cdef list _take_list(ek_object *array):
    try:
        return _object_to_python(array)
    finally:
        ek_object_release(array)
