# Tensors, and the two ways in and out: NumPy and DLPack.

ctypedef struct ImportedArray:
    ek_managed_versioned managed
    int64_t dims[2 * EK_MAX_NDIM]


cdef class Tensor(Object):
    """An array of the runtime.

    Made by `tensor`, `empty` and `from_dlpack`, and by running programs. Its memory is shared with
    whatever `numpy()` or DLPack hand out, and lives as long as any of them.
    """

    cdef inline ek_dltensor *dl(self) noexcept:
        return &(<ek_tensor *>self.handle).dl

    @property
    def shape(self):
        """Length of each dimension."""
        return _dims(self.dl().shape, self.dl().ndim)

    @property
    def strides(self):
        """Steps of each dimension, in elements."""
        return _dims(self.dl().strides, self.dl().ndim)

    @property
    def ndim(self):
        """Number of dimensions."""
        return self.dl().ndim

    @property
    def dtype(self):
        """Type of the elements in NumPy's spelling."""
        return _dtype_name(self.dl().dtype)

    @property
    def nbytes(self):
        """Bytes of all elements."""
        return ek_dltensor_nbytes(self.dl())

    @property
    def device(self):
        """Where the data lies."""
        return Device(self.dl().device.type, self.dl().device.id)

    @property
    def readonly(self):
        """Whether the elements may not be written: constants of an executable, for one."""
        return bool((<ek_tensor *>self.handle).flags & EK_DLPACK_READ_ONLY)

    @property
    def is_contiguous(self):
        """Whether the elements lie in row-major order without gaps."""
        return bool(ek_dltensor_is_contiguous(self.dl()))

    def numpy(self):
        """The elements as a NumPy array that shares this tensor's memory."""
        return _to_numpy(self)

    def contiguous(self):
        """This tensor if its elements lie in row-major order without gaps, else such a copy."""
        return self if ek_dltensor_is_contiguous(self.dl()) else tensor(self.numpy().copy())

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

    def __array__(self, dtype=None, copy=None):
        array = _to_numpy(self)
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"array: a copy is needed to convert {self.dtype} to {dtype}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Export through DLPack, without copying unless `copy` is True."""
        if stream is not None:
            raise BufferError(f"dlpack: data on the host has no stream, got {stream!r}")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"dlpack: cannot move data to device {tuple(dl_device)!r}")
        if copy:
            return tensor(self.numpy().copy()).__dlpack__(max_version=max_version)
        versioned = max_version is not None and max_version[0] >= 1
        if self.readonly and not versioned:
            raise BufferError("dlpack: the tensor is read-only; ask for max_version=(1, 0) or a copy")
        return _export(self, versioned)

    def __dlpack_device__(self):
        """Device type and id, in DLPack's numbers."""
        return (self.dl().device.type, self.dl().device.id)

    def __len__(self):
        if self.dl().ndim == 0:
            raise TypeError("len of a tensor without dimensions")
        return self.dl().shape[0]

    def __getitem__(self, index):
        return _to_numpy(self)[index]

    def __repr__(self):
        return f"Tensor(shape={self.shape}, dtype={self.dtype!r})"

    def __reduce__(self):
        return tensor, (self.numpy().copy(),)

    __hash__ = Object.__hash__


cdef tuple _dims(const int64_t *dims, int ndim):
    cdef tuple result = PyTuple_New(ndim)
    cdef object item
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
    if dl.device.type != EK_CPU:
        raise ValueError(f"numpy: the tensor lies on device {self.__dlpack_device__()}")
    descr = _NUMPY_DTYPES.get(_dtype_name(dl.dtype))
    if descr is None:
        raise TypeError(f"numpy: no such dtype in NumPy: {self.dtype}")
    cdef int flags = 0 if self.readonly else np.NPY_ARRAY_WRITEABLE
    cdef int64_t itemsize = dl.dtype.bits // 8
    for i in range(dl.ndim):
        strides[i] = dl.strides[i] * itemsize
    Py_INCREF(descr)               # PyArray_NewFromDescr steals it
    array = PyArray_NewFromDescr(
        np.ndarray, <np.dtype>descr, dl.ndim, <np.npy_intp *>dl.shape, strides,
        ek_dltensor_data(dl), flags, <object>NULL)
    np.set_array_base(array, self)
    return array


cdef void _imported_delete(ek_managed_versioned *managed) noexcept nogil:
    if Py_IsInitialized():
        with gil:
            Py_XDECREF(<PyObject *>managed.context)
    free(managed)


cdef ek_object *_import_array(np.ndarray array) except NULL:
    """A tensor that shares the array's memory; any strides. The caller owns the reference."""
    cdef ek_dtype dtype = _dtype_of_array(array)
    cdef int ndim = np.PyArray_NDIM(array)
    cdef ek_object *out = NULL
    cdef ImportedArray *imported = <ImportedArray *>malloc(
        sizeof(ek_managed_versioned) + 2 * ndim * sizeof(int64_t))
    if imported == NULL:
        raise MemoryError
    cdef ek_managed_versioned *managed = &imported.managed
    cdef int64_t itemsize = np.PyArray_ITEMSIZE(array)
    for i in range(ndim):
        imported.dims[i] = np.PyArray_DIMS(array)[i]
        imported.dims[ndim + i] = np.PyArray_STRIDES(array)[i] // itemsize
    memset(managed, 0, sizeof(ek_managed_versioned))
    managed.major = 1              # DLPack 1.0, which knows read-only tensors
    managed.deleter = _imported_delete
    managed.flags = 0 if np.PyArray_ISWRITEABLE(array) else EK_DLPACK_READ_ONLY
    managed.tensor.data = np.PyArray_DATA(array)
    managed.tensor.device = _host()
    managed.tensor.ndim = ndim
    managed.tensor.dtype = dtype
    managed.tensor.shape = &imported.dims[0]
    managed.tensor.strides = &imported.dims[ndim]
    managed.context = <void *>array
    if ek_tensor_from_dlpack(managed, 1, &out) != 0:
        free(imported)
        _raise_pending()
    Py_INCREF(array)
    return out


cdef inline bint _is_direct(np.ndarray array) noexcept:
    """Whether a kernel can read the array where it lies."""
    return np.PyArray_IS_C_CONTIGUOUS(array) and np.PyArray_ISBEHAVED_RO(array)


cdef np.ndarray _direct(np.ndarray array):
    """The array, or a copy of it in row-major order and this machine's byte order."""
    if _is_direct(array):
        return array
    return numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C")


cdef void _capsule_delete(object capsule) noexcept:
    """Gives an export back that no consumer took."""
    cdef ek_managed_versioned *versioned
    cdef ek_managed *legacy
    if PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        versioned = <ek_managed_versioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        versioned.deleter(versioned)
    elif PyCapsule_IsValid(capsule, b"dltensor"):
        legacy = <ek_managed *>PyCapsule_GetPointer(capsule, b"dltensor")
        legacy.deleter(legacy)


cdef object _export(Tensor self, bint versioned):
    cdef void *managed = NULL
    _check(ek_tensor_to_dlpack(self.handle, versioned, &managed))
    return PyCapsule_New(managed, b"dltensor_versioned" if versioned else b"dltensor",
                         _capsule_delete)


cdef ek_object *_import_capsule(object capsule) except NULL:
    cdef ek_object *out = NULL
    cdef bint versioned = PyCapsule_IsValid(capsule, b"dltensor_versioned")
    if not versioned and not PyCapsule_IsValid(capsule, b"dltensor"):
        raise TypeError("from_dlpack: expected a fresh DLPack capsule, "
                        f"got {type(capsule).__name__}")
    cdef const char *name = b"dltensor_versioned" if versioned else b"dltensor"
    _check(ek_tensor_from_dlpack(PyCapsule_GetPointer(capsule, name), versioned, &out))
    PyCapsule_SetName(capsule, b"used_dltensor_versioned" if versioned else b"used_dltensor")
    return out


cdef ek_object *_import_dlpack(object producer) except NULL:
    try:
        capsule = producer.__dlpack__(max_version=(1, 0))
    except TypeError:              # producers older than DLPack 1.0 do not know the argument
        capsule = producer.__dlpack__()
    return _import_capsule(capsule)


def from_dlpack(producer):
    """A tensor that shares the memory of any object with `__dlpack__`, whatever its strides."""
    return _wrap(Tensor, _import_dlpack(producer))


def tensor(source):
    """A contiguous tensor of an array, without copying where that is possible.

    Accepts a Tensor, a NumPy array, a DLPack producer, and what `numpy.asarray` accepts. Strided
    arrays, misaligned ones and those in the other byte order are copied.
    """
    cdef Tensor made
    if isinstance(source, Tensor):
        return (<Tensor>source).contiguous()
    if type(source) is np.ndarray and _is_direct(source):
        return _wrap(Tensor, _import_array(source))
    if not isinstance(source, np.ndarray) and hasattr(source, "__dlpack__"):
        made = from_dlpack(source)
        return made.contiguous()
    return _wrap(Tensor, _import_array(_direct(numpy.asarray(source))))


def empty(shape, dtype="float32"):
    """A new tensor whose elements are not set."""
    cdef int64_t dims[EK_MAX_NDIM]
    cdef ek_object *out = NULL
    lengths = tuple(shape)
    if len(lengths) > EK_MAX_NDIM:
        raise ValueError(f"empty: expected at most {EK_MAX_NDIM} dimensions, got {len(lengths)}")
    for i, length in enumerate(lengths):
        dims[i] = operator.index(length)
    _check(ek_tensor_new(dims, len(lengths), _dtype_from(dtype), _host(), &out))
    return _wrap(Tensor, out)
