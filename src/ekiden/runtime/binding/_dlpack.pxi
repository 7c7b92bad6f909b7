# DLPack: tensors from and for other libraries, without copying.
#
# A class may offer the C functions of DLPack 1.2 (`__dlpack_c_exchange_api__`), as PyTorch's does;
# they cost nanoseconds. Every other producer goes through its `__dlpack__`.

cdef dict _EXCHANGES = {}          # class -> address of its functions; 0 if it has none
cdef PyTypeObject *_exchange_type = NULL           # the class that was asked last and has some
cdef DLPackExchange *_exchange = NULL


cdef DLPackExchange *_exchange_of(PyTypeObject *cls) except? NULL:
    """Return the DLPack exchange table of a class, or NULL. Classes are kept alive, so that no
    other class gets the address of one."""
    global _exchange_type, _exchange
    cdef DLPackExchange *found
    cdef PyObject *known = PyDict_GetItem_(_EXCHANGES, <PyObject *>cls)
    address = _look_up_exchange(<object><PyObject *>cls) if known == NULL else <object>known
    found = <DLPackExchange *><size_t>address
    if found != NULL:
        _exchange_type, _exchange = cls, found
    return found


cdef object _look_up_exchange(object cls):
    capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        if not hasattr(cls, "__dlpack__"):         # classes without end: not worth remembering
            return 0
        _EXCHANGES[cls] = 0
        return 0
    cdef DLPackExchange *table = <DLPackExchange *>PyCapsule_GetPointer(
        capsule, b"dlpack_exchange_api")
    while table != NULL and table.major != 1:
        table = <DLPackExchange *>table.older
    _EXCHANGES[cls] = <size_t>table
    return _EXCHANGES[cls]


cdef ek_object *_lend_exchanged(DLPackExchange *exchange, PyObject *source) except NULL:
    """Return a tensor that borrows the memory of another library's tensor."""
    cdef ek_dltensor dl
    cdef ek_managed_versioned *managed = NULL
    cdef ek_object *out = NULL
    if exchange.lend != NULL:
        if exchange.lend(source, &dl) != 0:
            _raise_python()
        _check_resolved(<object>source, dl.dtype.code == EK_DTYPE_COMPLEX)
        return _view_of(&dl, 0)
    _check_resolved(<object>source, True)
    if exchange.export_tensor(source, &managed) != 0:
        _raise_python()
    if ek_tensor_from_dlpack(managed, 1, &out) != 0:
        managed.deleter(managed)
        _raise_pending()
    return out


cdef int _check_resolved(object source, bint is_complex) except -1:
    """Refuse PyTorch's lazy negated or conjugated views, which its C functions export
    unresolved."""
    is_negated = getattr(source, "is_neg", None)
    if is_negated is not None and is_negated():
        raise BufferError("its memory holds the negatives of its elements: resolve_neg() makes a "
                          "tensor of them")
    if is_complex:
        is_conjugated = getattr(source, "is_conj", None)
        if is_conjugated is not None and is_conjugated():
            raise BufferError("its memory holds the conjugates of its elements: resolve_conj() "
                              "makes a tensor of them")


cdef int _raise_python() except -1:
    """Raises the exception that a C function of another library has set."""
    if PyErr_Occurred() == NULL:
        raise BufferError("the producer failed without saying why")
    return -1


cdef void _capsule_delete(object capsule) noexcept:
    """Release an export that no consumer took, or that one took without renaming the capsule."""
    cdef void *managed = PyCapsule_GetContext(capsule)
    cdef ek_managed_versioned *versioned
    cdef ek_managed *legacy
    if PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        versioned = <ek_managed_versioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        versioned.deleter(versioned)
    elif PyCapsule_IsValid(capsule, b"dltensor"):
        legacy = <ek_managed *>PyCapsule_GetPointer(capsule, b"dltensor")
        legacy.deleter(legacy)
    ek_dlpack_drop(managed)


cdef object _export(Tensor self, bint versioned):
    cdef void *managed = NULL
    _check(ek_tensor_to_dlpack(self.handle, versioned, &managed))
    _hand_out(self)
    capsule = PyCapsule_New(managed, b"dltensor_versioned" if versioned else b"dltensor",
                            _capsule_delete)
    PyCapsule_SetContext(capsule, managed)
    ek_dlpack_hold(managed)
    return capsule


cdef object _export_copy(Tensor copied, max_version):
    """Return a capsule with the flag that its data is a copy (DLPACK_FLAG_BITMASK_IS_COPIED)."""
    cdef bint versioned = max_version is not None and max_version[0] >= 1
    capsule = _export(copied, versioned)
    if versioned:
        (<ek_managed_versioned *>PyCapsule_GetPointer(
            capsule, b"dltensor_versioned")).flags |= EK_DLPACK_IS_COPIED
    return capsule


cdef ek_object *_import_capsule(object capsule) except NULL:
    cdef ek_object *out = NULL
    cdef bint versioned = PyCapsule_IsValid(capsule, b"dltensor_versioned")
    if not versioned and not PyCapsule_IsValid(capsule, b"dltensor"):
        raise TypeError("from_dlpack: expected a fresh DLPack capsule, "
                        f"got {type(capsule).__name__}")
    cdef const char *name = b"dltensor_versioned" if versioned else b"dltensor"
    if versioned and _is_padded(<ek_managed_versioned *>PyCapsule_GetPointer(capsule, name)):
        return _pack_foreign(capsule)
    _check(ek_tensor_from_dlpack(PyCapsule_GetPointer(capsule, name), versioned, &out))
    PyCapsule_SetName(capsule, b"used_dltensor_versioned" if versioned else b"used_dltensor")
    return out


cdef bint _is_padded(ek_managed_versioned *managed) noexcept:
    return managed.flags & EK_DLPACK_SUBBYTE_PADDED and _is_packed(managed.tensor.dtype)


cdef ek_object *_pack_foreign(object capsule) except NULL:
    """Return a packed copy of a tensor that stores sub-byte elements in a byte each; the capsule
    is not consumed."""
    cdef ek_managed_versioned *managed = <ek_managed_versioned *>PyCapsule_GetPointer(
        capsule, b"dltensor_versioned")
    cdef ek_dltensor dl = managed.tensor
    cdef ek_dtype dtype = dl.dtype
    cdef Tensor codes
    cdef Tensor made
    dl.dtype = ek_dtype(EK_DTYPE_UINT, 8, 1)
    codes = _wrap_tensor(_view_of(&dl, 0))
    made = _new_tensor(dl.shape, dl.ndim, dtype, None)
    _packed_bytes(made)[:] = _pack(codes.numpy(), dtype.bits)
    ek_object_retain(made.handle)
    return made.handle


cdef ek_object *_import_dlpack(object producer) except NULL:
    if not hasattr(producer, "__dlpack__"):
        return _import_capsule(producer)
    try:
        capsule = producer.__dlpack__(max_version=(1, 0))
    except TypeError:              # producers older than DLPack 1.0 do not know the argument
        capsule = producer.__dlpack__()
    return _import_capsule(capsule)


def from_dlpack(producer, *, device=None, copy=None):
    """Return a tensor that shares the memory of an object with `__dlpack__`, with any strides.

    Also takes a DLPack capsule, once. Copies only to another device, if `copy` is True, and where
    the producer does not pack elements of less than a byte; where that needs a copy and `copy` is
    False, and for what the producer cannot share, raises BufferError.
    """
    cdef Tensor made = _from_dlpack(producer)
    if device is None and copy is None:
        return made
    target = made.device if device is None else device
    if copy is False and target != made.device:
        raise BufferError(f"from_dlpack: a copy is needed to move data to {target}")
    return made.copyto(target) if copy or target != made.device else made


cdef Tensor _from_dlpack(object producer):
    cdef PyObject *source = <PyObject *>producer
    cdef DLPackExchange *exchange = _exchange
    cdef ek_object *made = NULL
    if isinstance(producer, Tensor):       # of ours: what may not be written stays so
        _check(ek_tensor_strided((<Tensor>producer).handle, (<Tensor>producer).dl(), 0, &made))
        _hand_out(<Tensor>producer)
        return _wrap_tensor(made)
    if type(producer) is np.ndarray:       # NumPy itself would refuse the types of ml_dtypes
        if np.PyArray_ISBEHAVED_RO(<np.ndarray>producer):
            return _tensor_of_array(<np.ndarray>producer)
    if Py_TYPE(source) != _exchange_type:
        exchange = _exchange_of(Py_TYPE(source))
    if exchange == NULL:
        return _wrap_tensor(_import_dlpack(producer))
    made = _lend_exchanged(exchange, source)
    _own_memory(<ek_tensor *>made, source)
    return _wrap_tensor(made)


# What Ekiden's own class offers ------------------------------------------------------------------

cdef int _exchange_export(PyObject *source, ek_managed_versioned **out) noexcept:
    return (<ExchangeCall>_export_checked)(source, <void **>out)


cdef int _export_checked(PyObject *source, void **out) except -1:
    cdef Tensor exported = <Tensor>source
    if exported.readonly:          # consumers may not heed the flag: `Tensor.__dlpack__`
        exported = exported.copyto(exported.device)
    _check(ek_tensor_to_dlpack(exported.handle, 1, out))
    _hand_out(exported)
    return 0


cdef int _exchange_import(ek_managed_versioned *managed, PyObject **out) noexcept:
    return (<ExchangeCall>_import_checked)(<PyObject *>managed, <void **>out)


cdef int _import_checked(PyObject *managed, void **out) except -1:
    cdef ek_object *made = NULL
    _check(ek_tensor_from_dlpack(managed, 1, &made))
    result = _wrap_tensor(made)
    Py_INCREF(result)
    out[0] = <void *>result
    return 0


cdef int _exchange_lend(PyObject *source, ek_dltensor *out) noexcept:
    out[0] = (<Tensor>source).dl()[0]
    return 0


cdef int _exchange_allocate(ek_dltensor *prototype, ek_managed_versioned **out, void *context,
                            DLPackFail fail) noexcept nogil:
    cdef ek_object *made = NULL
    cdef int status = ek_tensor_new(prototype.shape, prototype.ndim, prototype.dtype,
                                    prototype.device, &made)
    if status == 0:
        status = ek_tensor_to_dlpack(made, 1, <void **>out)
        ek_object_release(made)    # the export holds it
    if status != 0:
        ek_object_release(ek_error_take())
        fail(context, b"MemoryError", b"Ekiden cannot allocate such a tensor")
    return status


cdef int _exchange_stream(int device_type, int32_t device_id, void **out) noexcept nogil:
    out[0] = NULL
    return 0


ctypedef int (*ExchangeCall)(PyObject *source, void **out) noexcept

cdef DLPackExchange _own_exchange
_own_exchange.major = 1
_own_exchange.minor = 2
_own_exchange.older = NULL
_own_exchange.allocate = _exchange_allocate
_own_exchange.export_tensor = _exchange_export
_own_exchange.import_tensor = _exchange_import
_own_exchange.lend = _exchange_lend
_own_exchange.stream = _exchange_stream
(<dict>(<PyTypeObject *>Tensor).tp_dict)["__dlpack_c_exchange_api__"] = PyCapsule_New(
    &_own_exchange, b"dlpack_exchange_api", NULL)
PyType_Modified(Tensor)
