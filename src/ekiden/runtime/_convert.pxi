# Values: Python objects to C and back, by exact type first.

class ADT(tuple):
    """A value of an algebraic data type: its fields, and the tag of its constructor.

    Plain tuples have tag 0 and cross as tuples.
    """

    def __new__(cls, tag, fields=()):
        """The value that constructor number `tag` makes of `fields`."""
        self = super().__new__(cls, fields)
        self.tag = tag
        return self

    def __repr__(self):
        return f"ADT({self.tag}, {tuple(self)!r})"

    def __eq__(self, other):
        return tuple.__eq__(self, other) and self.tag == getattr(other, "tag", 0)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash((self.tag, tuple(self)))


cdef inline void _set_int(ek_value *out, int64_t number) noexcept:
    out.type_index = EK_INT
    out.v.i64 = number


cdef inline void _set_object(ek_value *out, ek_object *object) noexcept:
    out.type_index = object.type_index
    out.v.obj = object


cdef int _set_python_int(object source, ek_value *out) except -1:
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(source, &overflow)
    if overflow:
        raise OverflowError(f"expected an integer of 64 bits, got {source}")
    _set_int(out, number)
    return 0


cdef int _set_text(str source, ek_value *out) except -1:
    cdef Py_ssize_t size = 0
    cdef const char *data = PyUnicode_AsUTF8AndSize(source, &size)
    return _check(ek_string_new(EK_STR, data, size, out))


# Fills '*out', which is zeroed. It owns what it refers to, also where C would be content to borrow:
# one rule, and a reference more costs a few nanoseconds.
cdef int _to_value(object source, ek_value *out) except -1:
    cls = type(source)
    if cls is np.ndarray:
        _set_object(out, _import_array(_contiguous(<np.ndarray>source)))
    elif cls is int:
        _set_python_int(source, out)
    elif cls is Tensor or isinstance(source, Object):
        ek_object_retain((<Object>source).handle)
        _set_object(out, (<Object>source).handle)
    elif cls is float:
        out.type_index = EK_FLOAT
        out.v.f64 = PyFloat_AS_DOUBLE(source)
    elif source is None:
        pass
    elif cls is bool:
        out.type_index = EK_BOOL
        out.v.i64 = source is True
    elif cls is str:
        _set_text(source, out)
    elif cls is tuple:
        _set_fields(0, source, out)
    else:
        _to_value_rare(source, out)
    return 0


cdef np.ndarray _contiguous(np.ndarray array):
    """The array itself: a copy would hide from the caller what is written into it."""
    if not _is_direct(array):
        raise ValueError("expected a contiguous, aligned array in this machine's byte order; "
                         "numpy.ascontiguousarray makes one")
    return array


cdef int _to_value_rare(object source, ek_value *out) except -1:
    cdef ek_object *made = NULL
    if isinstance(source, ADT):
        _set_fields(source.tag, tuple(source), out)
    elif isinstance(source, Device):
        out.type_index = EK_DEVICE
        out.v.device.type, out.v.device.id = source
    elif isinstance(source, tuple):
        _set_fields(0, tuple(source), out)
    elif isinstance(source, list):
        _set_items(tuple(source), out)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        _check(ek_string_new(EK_BYTES, PyBytes_AS_STRING(data), len(data), out))
    elif isinstance(source, str):
        _set_text(str(source), out)
    elif isinstance(source, (bool, numpy.bool_)):
        out.type_index = EK_BOOL
        out.v.i64 = bool(source)
    elif isinstance(source, numpy.dtype):
        out.type_index = EK_DTYPE
        out.v.dtype = _dtype_from(source)
    elif isinstance(source, (float, numpy.floating)):
        out.type_index = EK_FLOAT
        out.v.f64 = float(source)
    elif isinstance(source, (int, numpy.integer)):
        _set_python_int(operator.index(source), out)
    elif isinstance(source, np.ndarray):
        _set_object(out, _import_array(_contiguous(source)))
    elif hasattr(source, "__dlpack__"):
        _set_object(out, _import_dlpack(source))
    elif callable(source):
        made = _function_from(source)
        _set_object(out, made)
    else:
        raise TypeError("expected None, a bool, int, float, str, bytes, tuple, list, function, "
                        f"NumPy array, DLPack producer or runtime object, got {cls_name(source)}")
    return 0


cdef str cls_name(object source):
    return f"{type(source).__module__}.{type(source).__qualname__}"


cdef int _set_fields(int32_t tag, tuple fields, ek_value *out) except -1:
    cdef Arguments items = Arguments(fields)
    cdef ek_object *made = NULL
    _check(ek_adt_new(tag, items.values, items.count, &made))
    _set_object(out, made)
    return 0


cdef int _set_items(tuple source, ek_value *out) except -1:
    cdef Arguments items = Arguments(source)
    cdef ek_object *made = NULL
    _check(ek_array_new(items.values, items.count, &made))
    _set_object(out, made)
    return 0


@cython.freelist(8)
@cython.final
cdef class Arguments:
    """The values of a tuple, as many as fit in place and else in memory of their own."""

    cdef ek_value inplace[8]
    cdef ek_value *values
    cdef int32_t count

    def __cinit__(self, tuple source):
        self.count = <int32_t>PyTuple_GET_SIZE(source)
        self.values = self.inplace
        if self.count > 8:
            self.values = <ek_value *>malloc(self.count * sizeof(ek_value))
            if self.values == NULL:
                self.count = 0
                raise MemoryError
        memset(self.values, 0, self.count * sizeof(ek_value))
        _fill_values(source, self.values)

    def __dealloc__(self):
        _release_values(self.values, self.count)
        if self.values != self.inplace:
            free(self.values)


cdef int _fill_values(tuple source, ek_value *values) except -1:
    """One zeroed value per item; an error names the item."""
    cdef Py_ssize_t i = 0
    try:
        for i in range(PyTuple_GET_SIZE(source)):
            _to_value(<object>PyTuple_GET_ITEM(source, i), &values[i])
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(f"argument {i}: {error}") from error.__cause__
    return 0


cdef inline void _release_values(ek_value *values, int32_t count) noexcept:
    for i in range(count):
        if values[i].type_index >= EK_OBJECT:
            ek_object_release(values[i].v.obj)


cdef object _move_out(ek_value *value):
    """The Python object of an owned value, which is left NONE."""
    cdef int32_t index = value.type_index
    cdef ek_object *object = value.v.obj
    if index == EK_TENSOR:
        value.type_index = EK_NONE
        return _wrap(Tensor, object)
    if index == EK_NONE:
        return None
    try:
        return _to_python(value)
    finally:
        ek_value_release(value)


cdef object _to_python(const ek_value *value):
    """The Python object of a borrowed value."""
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
        return _copy_borrowed(<const ek_dltensor *>value.v.ptr)
    if index == EK_DTYPE:
        return _dtype_name(value.v.dtype)
    if index == EK_DEVICE:
        return Device(value.v.device.type, value.v.device.id)
    if index == EK_OPAQUE_PTR:
        return <size_t>value.v.ptr
    raise TypeError(f"cannot convert a value of type index {index} to Python")


cdef object _copy_borrowed(const ek_dltensor *source):
    """A tensor of what is only lent for a call."""
    cdef ek_object *out = NULL
    _check(ek_tensor_new(source.shape, source.ndim, source.dtype, source.device, &out))
    made = _wrap(Tensor, out)
    _check(ek_tensor_copy(source, &(<ek_tensor *>out).dl))
    return made


cdef object _object_to_python(ek_object *object):
    cdef int32_t index = object.type_index
    cdef ek_shape *shape
    if index == EK_ADT:
        return _adt_to_python(<ek_adt *>object)
    if index == EK_ARRAY:
        return [_to_python(&(<ek_array *>object).data[i])
                for i in range((<ek_array *>object).size)]
    if index == EK_SHAPE:
        shape = <ek_shape *>object
        return _dims(shape.data, <int>shape.size)
    if index == EK_ERROR:
        return _exception_from(object)
    ek_object_retain(object)
    return _wrap(_CLASSES.get(index, Object), object)


cdef object _adt_to_python(ek_adt *adt):
    cdef tuple fields = PyTuple_New(adt.size)
    cdef object item
    for i in range(adt.size):
        item = _to_python(&adt.fields[i])
        Py_INCREF(item)
        PyTuple_SET_ITEM(fields, i, item)
    return fields if adt.tag == 0 else ADT(adt.tag, fields)


_CLASSES[EK_TENSOR] = Tensor
