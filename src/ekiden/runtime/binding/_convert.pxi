# Values: Python objects to C and back, by exact type first.

# What a call needs beyond its values: what it must settle when the callee has returned. Arguments
# are borrowed, as the ABI allows: the caller's Python objects live longer than the call.
ctypedef struct Kept:
    ek_object *object              # made for this call, which owns a reference
    PyObject *source               # whose memory the object (a tensor) borrows, or NULL

ctypedef struct Call:
    ek_value *values
    Kept *kept
    int32_t kept_count

ctypedef int (*SetArgument)(Call *call, PyObject *source, ek_value *out) noexcept

cdef enum:
    INPLACE = 8                    # arguments of a call that need no memory of their own


cdef inline void _set_int(ek_value *out, int64_t number) noexcept:
    out.type_index = EK_INT
    out.v.i64 = number


cdef inline void _set_object(ek_value *out, ek_object *object) noexcept:
    out.type_index = object.type_index
    out.v.obj = object


cdef inline void _set_made(Call *call, ek_value *out, ek_object *object, PyObject *source) noexcept:
    """Set an argument to an object that was created for this call alone."""
    call.kept[call.kept_count].object = object
    call.kept[call.kept_count].source = source
    call.kept_count += 1
    _set_object(out, object)


cdef int _set_python_int(PyObject *source, ek_value *out) except -1:
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow_(source, &overflow)
    if overflow:
        raise OverflowError(f"expected an integer of 64 bits, got {<object>source}")
    _set_int(out, number)
    return 0


cdef int _set_text(Call *call, object source, ek_value *out) except -1:
    cdef Py_ssize_t size = 0
    cdef const char *data = PyUnicode_AsUTF8AndSize(source, &size)
    _check(ek_string_new(EK_STR, data, size, out))
    if out.type_index >= EK_OBJECT:
        _set_made(call, out, out.v.obj, NULL)
    return 0


cdef inline int _set_argument(Call *call, PyObject *source, ek_value *out) except -1:
    """Fills '*out', which is zeroed, with what an argument refers to while the call lasts."""
    cdef PyTypeObject *cls = Py_TYPE(source)
    if cls == _TENSOR_TYPE:
        out.type_index = EK_TENSOR
        out.v.obj = (<Object>source).handle
    elif cls == &PyLong_Type:
        _set_python_int(source, out)
    elif cls == _ARRAY_TYPE:
        _set_made(call, out, _lend_array(_contiguous(<np.ndarray>source)), source)
    elif cls == &PyFloat_Type:
        out.type_index = EK_FLOAT
        out.v.f64 = PyFloat_AS_DOUBLE_(source)
    elif source == Py_None:
        pass
    elif cls == &PyBool_Type:
        out.type_index = EK_BOOL
        out.v.i64 = source == Py_True
    elif cls == _exchange_type:
        _set_made(call, out, _lend_exchanged(_exchange, source), source)
    elif cls == &PyUnicode_Type:
        _set_text(call, <object>source, out)
    elif cls == _FUNCTION_TYPE:
        _set_object(out, (<Object>source).handle)
    elif cls == &PyTuple_Type:
        _set_fields(call, <object>source, out)
    else:
        _set_rare(call, source, out)
    return 0


cdef np.ndarray _contiguous(np.ndarray array):
    """Return the array itself, which must be contiguous: writes to a copy would be lost."""
    if not _is_direct(array):
        raise ValueError("expected a contiguous, aligned array in this machine's byte order; "
                         "numpy.ascontiguousarray makes one")
    return array


cdef int _set_rare(Call *call, PyObject *pointer, ek_value *out) except -1:
    cdef object source = <object>pointer
    cdef DLPackExchange *exchange
    if isinstance(source, Object):
        if (<Object>source).handle == NULL:
            raise ValueError(f"expected a {cls_name(source)} that is initialised")
        _set_object(out, (<Object>source).handle)
        return 0
    if type(source) is list:
        _set_items(call, EK_ARRAY, tuple(source), out)
        return 0
    exchange = _exchange_of(Py_TYPE(pointer))
    if exchange != NULL:
        _set_made(call, out, _lend_exchanged(exchange, pointer), pointer)
    elif _is_theirs(source):
        _set_foreign(call, source, out)
    elif hasattr(type(source), "type_key"):
        _set_made(call, out, _node_from(source), NULL)
    elif isinstance(source, tuple):
        _set_tuple(call, source, out)
    elif isinstance(source, list):
        _set_items(call, EK_ARRAY, tuple(source), out)
    elif isinstance(source, dict):
        _set_items(call, EK_MAP, tuple([x for pair in source.items() for x in pair]), out)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        _check(ek_string_new(EK_BYTES, PyBytes_AS_STRING(data), len(data), out))
        if out.type_index >= EK_OBJECT:
            _set_made(call, out, out.v.obj, NULL)
    elif isinstance(source, (numpy.dtype, DataType)) or hasattr(source, "__dlpack_data_type__"):
        out.type_index = EK_DTYPE
        out.v.dtype = _dtype_from(source)
    elif isinstance(source, str):
        _set_text(call, source, out)
    elif isinstance(source, (bool, numpy.bool_)):
        out.type_index = EK_BOOL
        out.v.i64 = bool(source)
    elif isinstance(source, (float, numpy.floating)):
        out.type_index = EK_FLOAT
        out.v.f64 = float(source)
    elif isinstance(source, (int, numpy.integer)):
        number = operator.index(source)
        _set_python_int(<PyObject *>number, out)
    elif isinstance(source, np.ndarray):
        _set_made(call, out, _lend_array(_contiguous(source)), pointer)
    elif isinstance(source, ctypes.c_void_p):
        out.type_index = EK_OPAQUE_PTR
        out.v.ptr = <void *><size_t>(source.value or 0)
    elif isinstance(source, BaseException):
        _set_made(call, out, _error_from(source), NULL)
    elif hasattr(source, "__dlpack__"):
        _set_made(call, out, _import_dlpack(source), NULL)
    elif hasattr(source, "dlpack_device_type"):    # a device of tvm_ffi
        out.type_index = EK_DEVICE
        out.v.device.type, out.v.device.id = source.dlpack_device_type(), source.index
    elif callable(source):
        _set_made(call, out, _function_from(source), NULL)
    else:
        raise TypeError("expected None, a bool, int, float, str, bytes, tuple, list, dict, "
                        "function, NumPy array, DLPack producer or runtime object, got "
                        f"{cls_name(source)}")
    return 0


cdef int _set_tuple(Call *call, object source, ek_value *out) except -1:
    """Convert a tuple, or a subclass of tuple with a meaning of its own."""
    if isinstance(source, Device):
        out.type_index = EK_DEVICE
        out.v.device.type, out.v.device.id = source
        return 0
    if isinstance(source, Shape) or _is_their_shape(source):
        return _set_items(call, EK_SHAPE, tuple(source), out)
    return _set_fields(call, source, out)


cdef str cls_name(object source):
    return f"{type(source).__module__}.{type(source).__qualname__}"


cdef int _set_fields(Call *call, object source, ek_value *out) except -1:
    """Convert the fields of a tuple or an ADT value."""
    cdef Arguments items
    cdef Object deep
    cdef ek_object *made = NULL
    for field in source:
        if _is_adt(field):
            kept = type(source) is ADT and source._made is not None
            deep = source._made if kept else _deep_adt(source)
            ek_object_retain(deep.handle)
            _set_made(call, out, deep.handle, NULL)
            return 0
    items = Arguments(tuple(source))
    _check(ek_container_new(EK_ADT, getattr(source, "tag", 0), items.call.values, items.count,
                            &made))
    _set_made(call, out, made, NULL)
    return 0


cdef int _set_items(Call *call, int32_t type, tuple source, ek_value *out) except -1:
    """Create an array of items, a map from alternating keys and values, or a shape from ints."""
    cdef Arguments items = Arguments(source)
    cdef ek_object *made = NULL
    _check(ek_container_new(type, 0, items.call.values, items.count, &made))
    _set_made(call, out, made, NULL)
    return 0


cdef int _to_value(PyObject *source, ek_value *out) except -1:
    """Fills '*out', which is zeroed, with a value that owns what it refers to."""
    cdef Kept kept
    cdef Call call = Call(out, &kept, 0)
    _set_argument(&call, source, out)
    if call.kept_count == 0:
        ek_value_retain(out)
    elif kept.source != NULL:
        _own_memory(<ek_tensor *>kept.object, kept.source)
    return 0


@cython.freelist(8)
@cython.final
cdef class Arguments:
    """Converted values of a tuple, on the heap if they are many."""

    cdef ek_value values[INPLACE]
    cdef Kept kept[INPLACE]
    cdef Call call
    cdef int32_t count
    cdef object source             # what the values borrow from

    def __cinit__(self, tuple source):
        cdef Py_ssize_t count = PyTuple_GET_SIZE(source)
        self.call.values = self.values
        self.call.kept = self.kept
        if count > INPLACE:
            self.call.values = <ek_value *>malloc(count * (sizeof(ek_value) + sizeof(Kept)))
            if self.call.values == NULL:
                raise MemoryError
            self.call.kept = <Kept *>(self.call.values + count)
        self.source = source
        self.count = <int32_t>count
        enter_recursion()
        try:
            _fill_call(&self.call, (<PyTupleObject *>source).ob_item, count)
        finally:
            Py_LeaveRecursiveCall()

    def __dealloc__(self):
        _settle(&self.call)
        if self.call.values != self.values:
            free(self.call.values)


cdef inline int _fill_call(Call *call, PyObject **sources, Py_ssize_t count) except -1:
    """Convert every argument. An error names the argument, and leaves nothing to settle."""
    memset(call.values, 0, count * sizeof(ek_value))
    call.kept_count = 0
    cdef Py_ssize_t i
    for i in range(count):
        if (<SetArgument>_set_argument)(call, sources[i], &call.values[i]) != 0:
            _settle(call)
            _name_argument(i)
    return 0


cdef int _name_argument(Py_ssize_t i) except -1:
    """Raises the pending exception again, with the number of the argument before its message."""
    error = _take_exception()
    if type(error) in (TypeError, ValueError, OverflowError):
        raise type(error)(f"argument {i}: {error}") from error.__cause__
    raise error


cdef inline void _settle(Call *call) noexcept:
    """Release the objects created for the call. Lent tensors that the callee retained get memory
    of their own."""
    cdef ek_object *object
    while call.kept_count > 0:
        call.kept_count -= 1
        object = call.kept[call.kept_count].object
        if call.kept[call.kept_count].source != NULL and EK_REFS(object) != EK_REFS_NEW:
            _own_memory(<ek_tensor *>object, call.kept[call.kept_count].source)
        ek_object_release(object)


cdef object _move_out(ek_value *value):
    """Return an owned value as a Python object, leaving NONE."""
    cdef int32_t index = value.type_index
    cdef ek_object *object = value.v.obj
    if index == EK_TENSOR:
        value.type_index = EK_NONE
        return _wrap_any_tensor(object)
    if index == EK_NONE:
        return None
    if index == EK_INT:
        return value.v.i64
    try:
        return _to_python(value)
    finally:
        ek_value_release(value)


cdef object _to_python(const ek_value *value):
    """Return a borrowed value as a Python object."""
    cdef int32_t index = value.type_index
    cdef ek_bytes text
    if index >= EK_OBJECT and index != EK_STR and index != EK_BYTES:
        return _object_to_python(value.v.obj)
    if index == EK_NONE:
        return None
    if index == EK_INT:
        return value.v.i64
    if index == EK_FLOAT:
        return value.v.f64
    if index == EK_BOOL:
        return value.v.i64 != 0
    if ek_string_borrow(value, &text):
        if index == EK_RAW_STR or index == EK_SMALL_STR or index == EK_STR:
            return text.data[:text.size].decode("utf-8")
        return PyBytes_FromStringAndSize(text.data, text.size)
    if index == EK_DLTENSOR_PTR:
        return _lend(<const ek_dltensor *>value.v.ptr)
    if index == EK_DTYPE:
        return DataType(_dtype_name(value.v.dtype))
    if index == EK_DEVICE:
        return Device(value.v.device.type, value.v.device.id)
    if index == EK_OPAQUE_PTR:
        return ctypes.c_void_p(<size_t>value.v.ptr)
    if index == EK_OBJECT_RVALUE_REF:
        return _object_to_python((<ek_object **>value.v.ptr)[0])
    raise TypeError(f"cannot convert a value of type index {index} to Python")


cdef object _object_to_python(ek_object *object):
    cdef int32_t index = object.type_index
    if index == EK_TENSOR:
        ek_object_retain(object)
        return _wrap_any_tensor(object)
    if index == EK_ADT:
        return _adt_to_python(<ek_adt *>object)
    if index == EK_ARRAY:
        return _items_to_python(<ek_array *>object)
    if index == EK_SHAPE:
        return Shape(_dims((<ek_shape *>object).data, <int>(<ek_shape *>object).size))
    if index == EK_MAP and (<ek_map *>object).slots & EK_MAP_IN_ORDER:
        return _map_to_python(<ek_map *>object)
    if index == EK_ERROR:
        return _exception_from(object)
    if index == _OPAQUE_TYPE:
        return <object>(<OpaqueObject *>object).source
    if object.deleter == _delete_node:
        return <object>(<PythonNode *>object).source
    ek_object_retain(object)
    return _wrap(_class_of(index), object)


cdef PyTypeObject *_TENSOR_TYPE = <PyTypeObject *>Tensor
cdef PyTypeObject *_ARRAY_TYPE = <PyTypeObject *>np.ndarray
_CLASSES[EK_TENSOR] = Tensor


def convert(value):
    """Convert a value as an argument of a runtime function is converted.

    A Python function becomes a PackedFunc, an array a Tensor that shares its memory; lists, tuples,
    dictionaries, scalars and nodes of the compiler stay what they are. Raises a TypeError for what
    cannot cross.
    """
    cdef ek_value crossed = ek_value_none()
    _to_value(<PyObject *>value, &crossed)
    return _move_out(&crossed)
