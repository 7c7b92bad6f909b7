# Data types and devices. A dtype is a string in NumPy's spelling; "float32x4" has four lanes.

cdef dict _CODES = {
    "int": EK_DTYPE_INT, "uint": EK_DTYPE_UINT, "float": EK_DTYPE_FLOAT,
    "bfloat": EK_DTYPE_BFLOAT, "complex": EK_DTYPE_COMPLEX,
}
# DLPack numbers its floats of 8 bits and less one by one.
cdef dict _SMALL_FLOATS = {
    "float8_e3m4": 7, "float8_e4m3": 8, "float8_e4m3b11fnuz": 9, "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11, "float8_e5m2": 12, "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14,
    "float6_e2m3fn": 15, "float6_e3m2fn": 16, "float4_e2m1fn": 17,
}
cdef str _NUMBERS = ("int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
                     "complex64 complex128 bfloat16 int1 int2 int4 uint1 uint2 uint4")

# Those of ml_dtypes, which takes its time to be imported, are added by `_numpy_dtype` when one comes.
cdef dict _NUMPY_DTYPES = {}       # name -> NumPy's dtype; those below 8 bits take a byte there
cdef dict _DTYPES = {}             # name -> the four bytes of an ek_dtype as an integer
cdef dict _DTYPE_NAMES = {}        # the inverse
cdef dict _DTYPE_BY_NUMPY = {}     # type number of NumPy -> the four bytes
cdef uint32_t _BUILTIN_DTYPES[32]  # the same for NumPy's own types; 0 where there is none

cdef union DTypeBits:
    ek_dtype dtype
    uint32_t bits


cdef int _register_dtype(str name, int code, int bits) except -1:
    cdef DTypeBits packed
    packed.dtype = ek_dtype(code, bits, 1)
    _DTYPES[name] = packed.bits
    _DTYPE_NAMES[packed.bits] = name
    home = getattr(numpy, name, None)
    if home is not None:
        _add_numpy_dtype(name, home)
    return 0


cdef object _add_numpy_dtype(str name, object home):
    found = _NUMPY_DTYPES[name] = numpy.dtype(home)
    _DTYPE_BY_NUMPY[found.num] = _DTYPES[name]
    return found


cdef object _numpy_dtype(str name):
    """Return the dtype of NumPy or ml_dtypes; None if neither has it."""
    found = _NUMPY_DTYPES.get(name)
    if found is not None or name not in _DTYPES:
        return found
    home = numpy_type(name)
    return None if home is None else _add_numpy_dtype(name, home)


cdef int _register_dtypes() except -1:
    for name in _NUMBERS.split():
        kind = name.rstrip("0123456789")
        _register_dtype(name, _CODES[kind], int(name[len(kind):]))
    for name, code in _SMALL_FLOATS.items():
        _register_dtype(name, code, int(name[5]))
    _register_dtype("bool", EK_DTYPE_BOOL, 8)
    _register_dtype("handle", EK_DTYPE_OPAQUE, 64)
    for name in ("longlong", "ulonglong"):     # other numbers for the types of 64 bits
        dtype = numpy.dtype(name)
        _DTYPE_BY_NUMPY.setdefault(dtype.num, _DTYPES[dtype.name])
    for number, bits in _DTYPE_BY_NUMPY.items():
        if 0 <= number < 32:
            _BUILTIN_DTYPES[<int>number] = bits
    return 0


memset(_BUILTIN_DTYPES, 0, sizeof(_BUILTIN_DTYPES))
_register_dtypes()


cdef ek_dtype _dtype_of_array(np.ndarray array) except *:
    cdef DTypeBits packed
    cdef int number = np.PyArray_TYPE(array)
    packed.bits = _BUILTIN_DTYPES[number] if 0 <= number < 32 else 0
    if packed.bits == 0:           # one of ml_dtypes, which NumPy numbers as they come
        bits = _DTYPE_BY_NUMPY.get(number)
        if bits is None and _numpy_dtype(array.dtype.name) is not None:
            bits = _DTYPE_BY_NUMPY.get(number)
        if bits is None:
            raise TypeError(f"tensor: expected an array of numbers, got one of {array.dtype}")
        packed.bits = bits
    return packed.dtype


cdef inline bint _is_common(np.ndarray array) noexcept:
    """Return whether an array has one of NumPy's own dtypes that exist here, none of which is
    packed."""
    cdef int number = np.PyArray_TYPE(array)
    return 0 <= number < 32 and _BUILTIN_DTYPES[number] != 0


cdef bint _is_packed(ek_dtype dtype) noexcept:
    """Return whether several elements share a byte."""
    return dtype.bits * dtype.lanes % 8 != 0


# Elements of less than a byte follow each other without gaps, low bits first, as DLPack says. NumPy
# gives each a byte, of which the low bits count.

cdef np.ndarray _pack(np.ndarray array, int bits):
    """Return an array of sub-byte elements packed into bytes."""
    codes = numpy.ascontiguousarray(array).view(numpy.uint8).reshape(-1, 1)
    return numpy.packbits(numpy.unpackbits(codes, axis=1, count=bits, bitorder="little"),
                          bitorder="little")


cdef np.ndarray _unpack(np.ndarray data, object dtype, int bits, tuple shape):
    """Return packed elements as an array: a read-only copy, since writes would not reach the
    tensor."""
    single = numpy.unpackbits(data, count=math.prod(shape) * bits, bitorder="little")
    codes = numpy.packbits(single.reshape(-1, bits), axis=1, bitorder="little")
    array = codes.view(dtype).reshape(shape)
    array.flags.writeable = False
    return array


cdef ek_dtype _dtype_from(object name) except *:
    """Return the dtype of a name, a NumPy dtype or scalar type, or another library's dtype."""
    cdef DTypeBits packed
    bits = _DTYPES.get(name) if type(name) is str else None
    if bits is None:
        bits = _dtype_of_other(name)
    packed.bits = bits
    return packed.dtype


cdef object _dtype_of_other(object name):
    cdef DTypeBits packed
    if hasattr(name, "__dlpack_data_type__"):
        packed.dtype.code, packed.dtype.bits, packed.dtype.lanes = name.__dlpack_data_type__()
        return packed.bits
    if isinstance(name, str):
        return _dtype_of_text(str.__str__(name))
    if type(name).__module__ == "torch":
        return _dtype_of_text(str(name).removeprefix("torch."))
    return _dtype_of_text(numpy.dtype(name).name)


cdef object _dtype_of_text(str text):
    """Parse a type name, with the number of lanes behind the last x, to the four bytes of a
    dtype."""
    cdef DTypeBits packed
    if text in _DTYPES:
        return _DTYPES[text]
    base, _, lanes = text.rpartition("x")
    if base not in _DTYPES or not lanes.isdecimal() or not 1 < int(lanes) < 65536:
        near = importlib.import_module("difflib").get_close_matches(text, _DTYPES, n=4) or ["float32", "int64", "bool"]
        raise TypeError(f"dtype: expected a name such as {', '.join(near)}, got {text!r}")
    packed.bits = _DTYPES[base]
    packed.dtype.lanes = int(lanes)
    return packed.bits


cdef str _dtype_name(ek_dtype dtype):
    cdef DTypeBits packed
    cdef int lanes = dtype.lanes
    packed.dtype = dtype
    packed.dtype.lanes = 1
    name = _DTYPE_NAMES.get(packed.bits)
    if name is None:
        name = f"dtype({dtype.code}, {dtype.bits})"
    return name if lanes == 1 else f"{name}x{lanes}"


class DataType(str):
    """Data type as a value: its name, such as "float32", "bfloat16" or "int8x4". It is passed to
    other languages as a data type; a plain str is passed as a string.
    """

    def __new__(cls, name):
        """Return the type of a name, a NumPy dtype or a NumPy scalar type. Raises TypeError if
        there is none."""
        return super().__new__(cls, _dtype_name(_dtype_from(name)))

    @property
    def type_code(self):
        """Return DLPack's type code."""
        return _dtype_from(self).code

    @property
    def bits(self):
        """Return the bits of one lane."""
        return _dtype_from(self).bits

    @property
    def lanes(self):
        """Return the number of vector lanes, 1 for a scalar type."""
        return _dtype_from(self).lanes

    @property
    def itemsize(self):
        """Return the bytes of one element, rounded up."""
        return (self.bits * self.lanes + 7) // 8

    @property
    def numpy_dtype(self):
        """Return NumPy's dtype of the elements. Raises TypeError if NumPy has none."""
        found = _numpy_dtype(str(self))
        if found is None:
            raise TypeError(missing_numpy_dtype_message(str(self)))
        return found

    def __repr__(self):
        return f"DataType({str(self)!r})"

    def __str__(self):
        return str.__str__(self)


# DLPack's numbers of devices. Two names may share a number; the first is the one that is printed.
cdef dict _DEVICE_TYPES = {
    "cpu": 1, "cuda": 2, "cuda_host": 3, "opencl": 4, "vulkan": 7, "metal": 8, "vpi": 9, "rocm": 10,
    "rocm_host": 11, "ext_dev": 12, "cuda_managed": 13, "oneapi": 14, "webgpu": 15, "hexagon": 16,
    "maia": 17, "trn": 18, "llvm": 1, "c": 1, "cl": 4, "gpu": 2, "nvptx": 2,
}
cdef dict _DEVICE_NAMES = {}
for _name, _number in _DEVICE_TYPES.items():
    _DEVICE_NAMES.setdefault(_number, _name)


class Device(NamedTuple):
    """Device in DLPack's numbers: device type (1 is the host) and device id."""

    type: int
    id: int

    @property
    def device_type(self):
        """Return the device type (TVM's name for `type`)."""
        return self.type

    @property
    def device_id(self):
        """Return the device id (TVM's name for `id`)."""
        return self.id

    @property
    def exist(self):
        """Return whether this runtime can use the device."""
        if self.type == EK_CPU:
            return True
        try:
            return self.id < get_global_func("ek.device.count")(self)
        except (RuntimeError, ValueError):
            return False

    def sync(self, stream=None):
        """Wait for what runs on the device. Calls on the host are done when they return."""
        if self.type != EK_CPU:
            get_global_func("ek.device.sync")(self)

    def __str__(self):
        return f"{_DEVICE_NAMES.get(self.type, self.type)}({self.id})"


def device(dev=None, int index=0, *, dev_type=None, dev_id=None):
    """Return the device of a name with an optional number ("cpu", "cuda:1"), or of DLPack's number.

    The text of a target names the device of its kind: "llvm -mcpu=haswell" is the host. `dev_type`
    and `dev_id` are TVM's names of the two arguments. Raises ValueError for an unknown name, with
    the known ones.
    """
    dev = dev_type if dev is None else dev
    index = index if dev_id is None else dev_id
    if isinstance(dev, Device):
        return dev
    if isinstance(dev, int):
        return Device(dev, index)
    if not isinstance(dev, str):
        raise TypeError(f"device: expected a name, a number or a device, got {type(dev).__name__}")
    name, _, number = (dev.split() or [""])[0].partition(":")
    if name not in _DEVICE_TYPES:
        raise ValueError(f"device: expected one of {', '.join(_DEVICE_TYPES)}, got {dev!r}")
    return Device(_DEVICE_TYPES[name], int(number) if number else index)


def cpu(int dev_id=0):
    """Return the host device."""
    return Device(EK_CPU, dev_id)


cdef ek_device _host() noexcept nogil:
    cdef ek_device device
    device.type = EK_CPU
    device.id = 0
    return device
