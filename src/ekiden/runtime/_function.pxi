# Functions, and the registry of global ones.

cdef class PackedFunc(Object):
    """A function of the runtime, callable from Python.

    Arguments may be None, bool, int, float, str, bytes, tuples, lists, Python functions, NumPy
    arrays (shared, not copied), DLPack producers and objects of the runtime. Python's lock is
    released during the call.
    """

    def __call__(self, *args):
        cdef ek_value inplace[8]
        cdef Py_ssize_t count = PyTuple_GET_SIZE(args)
        if count > 8:
            return _call_many(self.handle, args)
        memset(inplace, 0, count * sizeof(ek_value))
        try:
            _fill_values(args, inplace)
            return _call(self.handle, inplace, <int32_t>count)
        finally:
            _release_values(inplace, <int32_t>count)

    def __repr__(self):
        return f"<PackedFunc at {<size_t>self.handle:#x}>"


cdef object _call(ek_object *function, const ek_value *values, int32_t count):
    cdef ek_value result = ek_value_none()
    cdef int status
    with nogil:
        status = ek_function_call(function, values, count, &result)
    if status != 0:
        _raise_pending()
    return _move_out(&result)


cdef object _call_many(ek_object *function, tuple args):
    cdef Arguments arguments = Arguments(args)
    return _call(function, arguments.values, arguments.count)


_CLASSES[EK_FUNCTION] = PackedFunc


cdef void _forget_callable(void *self) noexcept nogil:
    if Py_IsInitialized():
        with gil:
            Py_XDECREF(<PyObject *>self)


cdef int _call_python(void *self, const ek_value *args, int32_t nargs,
                      ek_value *ret) noexcept nogil:
    with gil:
        return _call_python_locked(<object>self, args, nargs, ret)


cdef int _call_python_locked(object function, const ek_value *args, int32_t nargs,
                             ek_value *ret) noexcept:
    cdef ek_value result = ek_value_none()
    try:
        try:
            _to_value(function(*[_to_python(&args[i]) for i in range(nargs)]), &result)
        except BaseException as error:
            return _set_error(error)
    except BaseException:          # even making the error failed
        return ek_error(b"InternalError", b"a Python function failed, and so did its error")
    ret[0] = result
    return 0


cdef ek_object *_function_from(object callable) except NULL:
    """A function object that calls a Python callable. The caller owns the reference."""
    cdef ek_object *out = NULL
    _check(ek_function_new(<void *>callable, _call_python, _forget_callable, &out))
    Py_INCREF(callable)
    return out


def convert_to_function(function):
    """The PackedFunc of a Python callable; a PackedFunc stays what it is."""
    if isinstance(function, PackedFunc):
        return function
    if not callable(function):
        raise TypeError(f"expected a function, got {cls_name(function)}")
    return _wrap(PackedFunc, _function_from(function))


def register_func(str name not None, f=None, bint override=False):
    """Make a function known to all languages under a name.

    Without `f` this is a decorator, which leaves the function as it is. A name that is taken is a
    ValueError unless `override`.
    """

    def register(function):
        cdef PackedFunc packed = convert_to_function(function)
        _check(ek_registry_set(name.encode(), packed.handle, override))
        return function

    return register if f is None else register(f)


def get_global_func(str name not None, bint allow_missing=False):
    """The function of that name. If there is none: None if allow_missing, else a ValueError."""
    cdef ek_object *found = ek_registry_get(name.encode())
    if found != NULL:
        return _wrap(PackedFunc, found)
    if allow_missing:
        return None
    raise ValueError(f"get_global_func: no function is registered as {name!r}")


def remove_global_func(str name not None):
    """Take a name out of the registry; whether it was there."""
    return bool(ek_registry_remove(name.encode()))


def list_global_func_names():
    """The names of all global functions, sorted."""
    cdef ek_object *names = NULL
    _check(ek_registry_names(&names))
    return _take_list(names)


cdef list _take_list(ek_object *array):
    try:
        return _object_to_python(array)
    finally:
        ek_object_release(array)
