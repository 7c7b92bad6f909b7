# Tensors, and the two ways in and out: NumPy and DLPack.

cdef class Tensor(Object):
    """Tensor of the runtime, created by `tensor`, `empty`, `from_dlpack` and runs of programs.
    Arrays from `numpy()` and DLPack exports share its memory, which lives as long as any of them.
    """

    cdef inline ek_dltensor *dl(self) noexcept:
        return &(<ek_tensor *>self.handle).dl

    @property
    def shape(self):
        """Return the length of each dimension."""
        return _dims(self.dl().shape, self.dl().ndim)

    @property
    def strides(self):
        """Return the stride of each dimension in elements."""
        return _dims(self.dl().strides, self.dl().ndim)

    @property
    def ndim(self):
        """Return the number of dimensions."""
        return self.dl().ndim

    @property
    def dtype(self):
        """Return the dtype of the elements in NumPy's spelling."""
        return _dtype_name(self.dl().dtype)

    @property
    def nbytes(self):
        """Return the size of all elements in bytes."""
        return ek_dltensor_nbytes(self.dl())

    @property
    def device(self):
        """Return the device of the data."""
        return Device(self.dl().device.type, self.dl().device.id)

    @property
    def readonly(self):
        """Return whether the elements must not be written, as those of an executable's
        constants."""
        return bool((<ek_tensor *>self.handle).flags & EK_DLPACK_READ_ONLY)

    @property
    def is_contiguous(self):
        """Return whether the elements are in row-major order without gaps."""
        return bool(ek_dltensor_is_contiguous(self.dl()))

    def numpy(self):
        """Return the elements as a NumPy array that shares this tensor's memory. Sub-byte
        elements, which NumPy does not pack, and elements on other devices are copied to a
        read-only array.
        """
        return _to_numpy(self)

    def asnumpy(self):
        """Return `numpy()` (TVM's older name)."""
        return _to_numpy(self)

    def contiguous(self):
        """Return this tensor if it is contiguous, else a contiguous copy."""
        return self if ek_dltensor_is_contiguous(self.dl()) else self.copyto(self.device)

    def copy_from(self, source):
        """Copy the elements of a tensor or array of this shape and dtype into this one."""
        if self.readonly:
            raise ValueError("copy_from: the tensor is read-only")
        cdef Tensor other = source if isinstance(source, Tensor) else tensor(source)
        cdef int status
        with nogil:
            status = ek_tensor_copy(&(<ek_tensor *>other.handle).dl,
                                    &(<ek_tensor *>self.handle).dl)
        _check(status)

    def copyfrom(self, source_array):
        """Copy from an array, converted to this dtype, and return this tensor (TVM's name)."""
        if not isinstance(source_array, Tensor):
            source_array = numpy.asarray(source_array, dtype=_numpy_dtype(self.dtype))
        self.copy_from(source_array)
        return self

    def copyto(self, target, mem_scope=None):
        """Copy the elements to a tensor, or to a new tensor on a device, and return that tensor."""
        cdef Tensor to
        if isinstance(target, Device):
            to = _new_tensor(self.dl().shape, self.dl().ndim, self.dl().dtype, target)
            (<ek_tensor *>to.handle).flags = 0
        else:
            to = target
        to.copy_from(self)
        return to

    def view(self, shape):
        """Return the elements in another shape, without copying. Raises ValueError if their number
        differs."""
        lengths = tuple(shape)
        if math.prod(lengths) != math.prod(self.shape):
            raise ValueError(f"view: {self.shape} and {lengths} have different numbers of elements")
        return _view_bytes(self, lengths, self.dl().dtype)

    def reinterpret(self, dtype, shape):
        """Return the bytes of this tensor as elements of another dtype, without copying. Raises
        ValueError if the number of bytes differs.
        """
        return _view_bytes(self, tuple(shape), _dtype_from(dtype))

    def __array__(self, dtype=None, copy=None):
        array = _to_numpy(self)
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"array: a copy is needed to convert {self.dtype} to {dtype}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Export through DLPack; copies to another device, if `copy` is True, and a read-only
        tensor, since not all consumers heed that it is (PyTorch does not).

        Raises BufferError where `copy` is False and a copy is needed.
        """
        if stream is not None and self.dl().device.type == EK_CPU:
            raise BufferError(f"dlpack: data on the host has no stream, got {stream!r}")
        target = self.device if dl_device is None else Device(*dl_device)
        if copy is False and target != self.device:
            raise BufferError(f"dlpack: a copy is needed to move data to {target}")
        if copy is False and self.readonly:
            raise BufferError("dlpack: the tensor is read-only, as constants of a program are: "
                              "consumers get a copy; numpy() shares its memory and is read-only")
        if copy or self.readonly or target != self.device:
            return _export_copy(self.copyto(target), max_version)
        return _export(self, max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self):
        """Return the device type and id in DLPack's numbers."""
        return (self.dl().device.type, self.dl().device.id)

    def __len__(self):
        if self.dl().ndim == 0:
            raise TypeError("len of a tensor without dimensions")
        return self.dl().shape[0]

    def __getitem__(self, index):
        return _to_numpy(self)[index]

    def __setitem__(self, index, value):
        _to_numpy(self)[index] = value.numpy() if isinstance(value, Tensor) else value

    def __repr__(self):
        return f"Tensor(shape={self.shape}, dtype={self.dtype!r})"

    def __str__(self):
        return str(self.numpy())

    def __reduce__(self):
        return tensor, (numpy.array(self.numpy()),)

    __hash__ = Object.__hash__


cdef tuple _dims(const int64_t *dims, int ndim):
    cdef tuple result = PyTuple_New(ndim)
    cdef object item
    cdef int i
    for i in range(ndim):
        item = dims[i]
        Py_INCREF(item)
        PyTuple_SET_ITEM(result, i, item)
    return result


cdef extern from *:
    object PyArray_NewFromDescr(object cls, np.dtype descr, int nd, np.npy_intp *dims,
                                np.npy_intp *strides, void *data, int flags, object obj)


cdef object _to_numpy(Tensor self):
    cdef ek_dltensor *dl = self.dl()
    cdef np.npy_intp strides[EK_MAX_NDIM]
    cdef np.ndarray array
    if dl.device.type != EK_CPU or dl.device.id != 0:
        array = _to_numpy(self.copyto(Device(EK_CPU, 0)))
        np.PyArray_CLEARFLAGS(array, np.NPY_ARRAY_WRITEABLE)
        return array
    descr = _numpy_dtype(_dtype_name(dl.dtype))
    if descr is None:
        raise TypeError(missing_numpy_dtype_message(self.dtype))
    if _is_packed(dl.dtype):
        return _unpack(_packed_bytes(self.contiguous()), descr, dl.dtype.bits, self.shape)
    cdef int flags = 0 if self.readonly else np.NPY_ARRAY_WRITEABLE
    cdef int64_t itemsize = dl.dtype.bits // 8
    cdef int32_t i
    for i in range(dl.ndim):
        strides[i] = dl.strides[i] * itemsize
    _hand_out(self)
    Py_INCREF(descr)               # PyArray_NewFromDescr steals it
    array = PyArray_NewFromDescr(
        np.ndarray, <np.dtype>descr, dl.ndim, <np.npy_intp *>dl.shape, strides,
        ek_dltensor_data(dl), flags, <object>NULL)
    np.set_array_base(array, self)
    return array


cdef Tensor _view_bytes(Tensor self, tuple shape, ek_dtype dtype):
    cdef int64_t dims[EK_MAX_NDIM]
    cdef ek_object *out = NULL
    cdef ek_dltensor *dl = self.dl()
    cdef Tensor made
    if not ek_dltensor_is_contiguous(dl):
        raise ValueError("view: the tensor's elements do not lie in row-major order without "
                         "gaps; contiguous() makes such a copy")
    _check(ek_tensor_view(self.handle, ek_dltensor_data(dl), dims, _set_dims(dims, shape),
                          dtype, dl.device, 0, &out))
    made = _wrap_tensor(out)
    if made.nbytes != self.nbytes:
        raise ValueError(f"reinterpret: expected {self.nbytes} bytes, got {made.nbytes} of "
                         f"{made.dtype}{list(shape)}")
    _hand_out(self)
    return made


cdef np.ndarray _packed_bytes(Tensor self):
    """Return the bytes of a contiguous tensor of sub-byte elements."""
    cdef np.npy_intp size = ek_dltensor_nbytes(self.dl())
    array = np.PyArray_SimpleNewFromData(1, &size, np.NPY_UINT8, ek_dltensor_data(self.dl()))
    np.set_array_base(array, self)
    return array


cdef void _drop_source(void *source) noexcept nogil:
    if Py_IsInitialized():
        with gil:
            Py_XDECREF(<PyObject *>source)


cdef inline void _own_memory(ek_tensor *tensor, PyObject *source) noexcept:
    """Make the tensor own the Python object whose memory it shows."""
    if tensor.dispose == NULL:
        Py_INCREF_(source)
        tensor.managed = source
        tensor.dispose = _drop_source


cdef inline Tensor _wrap_tensor(ek_object *handle):
    """A handle that takes over one reference."""
    cdef Tensor self = Tensor.__new__(Tensor)
    self.handle = handle
    return self


# A tensor of another runtime has a DLTensor where ours has it, but nothing of ours behind it.
ctypedef void (*Deleter)(void *self, int flags) noexcept
cdef Deleter _OWN_TENSOR = NULL


cdef inline Tensor _wrap_any_tensor(ek_object *handle):
    """Return a handle that takes over one reference to a tensor of ours or of another library."""
    cdef ek_value adopted
    if handle.deleter == _OWN_TENSOR:
        return _wrap_tensor(handle)
    try:
        _check(_adopt_tensor(handle, &adopted))
    finally:
        ek_object_release(handle)
    return _wrap_tensor(adopted.v.obj)


cdef ek_object *_view_of(const ek_dltensor *dl, uint64_t flags) except NULL:
    """Return a tensor with any strides over memory that the caller keeps alive."""
    cdef ek_object *out = NULL
    _check(ek_tensor_strided(NULL, dl, flags, &out))
    return out


cdef ek_object *_lend_array(np.ndarray array) except NULL:
    """Return a tensor that borrows the array's memory, with any strides. The caller owns the
    reference."""
    cdef int64_t strides[EK_MAX_NDIM]
    cdef ek_dltensor dl
    cdef int64_t itemsize = np.PyArray_ITEMSIZE(array)
    cdef int32_t i
    dl.ndim = np.PyArray_NDIM(array)
    dl.dtype = _dtype_of_array(array)
    dl.data = np.PyArray_DATA(array)
    dl.device = _host()
    dl.byte_offset = 0
    dl.shape = <int64_t *>np.PyArray_DIMS(array)
    dl.strides = strides
    for i in range(dl.ndim):
        strides[i] = np.PyArray_STRIDES(array)[i] // itemsize
        if strides[i] * itemsize != np.PyArray_STRIDES(array)[i]:
            raise ValueError("expected strides of whole elements, got "
                             f"{(<object>array).strides} bytes")
    if _is_packed(dl.dtype):
        raise ValueError("expected elements of whole bytes: an array of "
                         f"{(<object>array).dtype} must be packed, which tensor() does")
    return _view_of(&dl, 0 if np.PyArray_ISWRITEABLE(array) else EK_DLPACK_READ_ONLY)


cdef Tensor _tensor_of_array(np.ndarray array):
    """Return a tensor that shares the array's memory and keeps it alive, with any strides."""
    cdef ek_object *made = _lend_array(array)
    _own_memory(<ek_tensor *>made, <PyObject *>array)
    return _wrap_tensor(made)


# A tensor that is lent for a call has no owner, and says here whether its memory was handed out.
cdef void *_LENT = <void *>1
cdef void *_HANDED_OUT = <void *>2


cdef Tensor _lend(const ek_dltensor *dl):
    """Return a tensor that borrows memory for the duration of a call."""
    cdef ek_object *made = _view_of(dl, 0)
    (<ek_tensor *>made).managed = _LENT
    return _wrap_tensor(made)


cdef inline void _hand_out(Tensor self) noexcept:
    """Record that the address of the elements has been handed out."""
    cdef ek_tensor *tensor = <ek_tensor *>self.handle
    if tensor.managed == _LENT:
        tensor.managed = _HANDED_OUT


cdef int _unlend(Tensor self) except -1:
    """Copy the elements of a retained lent tensor to memory of its own."""
    cdef ek_tensor *tensor = <ek_tensor *>self.handle
    cdef ek_object *made = NULL
    cdef ek_dltensor *to
    if tensor.managed == _HANDED_OUT:
        raise RuntimeError("a Python function kept an array of a tensor that was lent to it for "
                           "the call; it must copy what it keeps")
    _check(ek_tensor_new(tensor.dl.shape, tensor.dl.ndim, tensor.dl.dtype, tensor.dl.device, &made))
    to = &(<ek_tensor *>made).dl
    if ek_tensor_copy(&tensor.dl, to) != 0:
        ek_object_release(made)
        _raise_pending()
    memcpy(tensor.dl.strides, to.strides, to.ndim * sizeof(int64_t))
    tensor.dl.data = to.data
    tensor.dl.byte_offset = 0
    tensor.owner = made
    tensor.managed = NULL
    return 0


cdef inline bint _is_direct(np.ndarray array) noexcept:
    """Return whether a kernel can read the array in place."""
    return np.PyArray_IS_C_CONTIGUOUS(array) and np.PyArray_ISBEHAVED_RO(array)


cdef np.ndarray _direct(np.ndarray array):
    """Return the array, or a copy in row-major order and native byte order."""
    if _is_direct(array):
        return array
    return numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C")


cdef int _set_dims(int64_t *dims, tuple lengths) except -1:
    """Write a shape and return the number of its dimensions."""
    cdef int i
    cdef int ndim = <int>len(lengths)
    if ndim > EK_MAX_NDIM:
        raise ValueError(f"empty: expected at most {EK_MAX_NDIM} dimensions, got {ndim}")
    for i in range(ndim):
        dims[i] = operator.index(lengths[i])   # C's conversion would cut a fraction off
    return ndim


cdef Tensor _new_tensor(const int64_t *dims, int ndim, ek_dtype dtype, device):
    cdef ek_object *out = NULL
    cdef ek_device place = _host()
    if device is not None:
        place.type, place.id = device
    _check(ek_tensor_new(dims, ndim, dtype, place, &out))
    return _wrap_tensor(out)


cdef Tensor _packed_tensor(np.ndarray array):
    """Return a packed copy of an array of sub-byte elements."""
    cdef int64_t dims[EK_MAX_NDIM]
    cdef ek_dtype dtype = _dtype_of_array(array)
    made = _new_tensor(dims, _set_dims(dims, (<object>array).shape), dtype, None)
    _packed_bytes(made)[:] = _pack(array, dtype.bits)
    return made


def tensor(source):
    """Return a contiguous tensor of an array, without copying where possible.

    Accepts a Tensor, a NumPy array, a DLPack producer, and what `numpy.asarray` accepts. Strided
    arrays, misaligned ones, those in the other byte order, and those of elements of less than a
    byte, which the runtime packs, are copied.
    """
    cdef np.ndarray array
    if isinstance(source, Tensor):
        return (<Tensor>source).contiguous()
    if not isinstance(source, np.ndarray) and hasattr(source, "__dlpack__"):
        return from_dlpack(source).contiguous()
    array = _direct(numpy.asarray(source))
    if _is_packed(_dtype_of_array(array)):
        return _packed_tensor(array)
    return _tensor_of_array(array)


def wait_for(value):
    """Wait for the computation of a value: for the devices of its tensors, and those that it names.
    Tuples and lists stand for what is in them; all else is there already.
    """
    if isinstance(value, (tuple, list)):
        for each in value:
            wait_for(each)
    elif isinstance(value, Tensor):
        value.device.sync()
    elif isinstance(value, Device):
        value.sync()


def empty(shape, dtype="float32", device=None):
    """Return a new uninitialised tensor, on the host unless a device is given."""
    cdef int64_t dims[EK_MAX_NDIM]
    return _new_tensor(dims, _set_dims(dims, tuple(shape)), _dtype_from(dtype), device)


_OWN_TENSOR = (<Tensor>empty(())).handle.deleter
