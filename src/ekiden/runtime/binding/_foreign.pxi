# Functions of the published TVM-FFI package, and ours for it.
#
# Layouts are the same, so numbers, text, shapes, errors and our tensors cross as they are. What
# must not cross as it is: functions (each side keeps its errors to itself), their tensors (ours
# have more behind the DLTensor), maps and modules (their layouts differ), and objects of types
# registered at run time (each side numbers its own). The package is never imported here: without
# it there is no such function to meet.

ctypedef int (*FunctionCreate)(void *self, ek_packed call, void (*deleter)(void *) noexcept nogil,
                               ek_object **out) noexcept nogil
ctypedef int (*FunctionGetGlobal)(const ek_bytes *name, ek_object **out) noexcept nogil
ctypedef void (*ErrorMove)(ek_object **out) noexcept nogil
ctypedef void (*ErrorSet)(ek_object *error) noexcept nogil
ctypedef int (*Convert)(const ek_value *value, ek_value *out) noexcept nogil

cdef FunctionCreate _their_function_create = NULL
cdef FunctionGetGlobal _their_global = NULL
cdef ErrorMove _their_error_move = NULL
cdef ErrorSet _their_error_set = NULL


cdef object _their_core():
    """Return the extension of the apache-tvm-ffi package if the user has imported it, else None."""
    core = sys.modules.get("tvm_ffi.core")
    return core if core is None or _their_error_set != NULL or _find_their_functions() else None


cdef bint _find_their_functions() except -1:
    global _their_function_create, _their_global, _their_error_move, _their_error_set
    library = getattr(sys.modules.get("tvm_ffi"), "LIB", None)
    if library is None:
        return False
    _their_function_create = <FunctionCreate>_address(library.TVMFFIFunctionCreate)
    _their_global = <FunctionGetGlobal>_address(library.TVMFFIFunctionGetGlobal)
    _their_error_move = <ErrorMove>_address(library.TVMFFIErrorMoveFromRaised)
    _their_error_set = <ErrorSet>_address(library.TVMFFIErrorSetRaised)
    return True


cdef void *_address(object symbol) except NULL:
    return <void *><size_t>ctypes.cast(symbol, ctypes.c_void_p).value


cdef bint _is_theirs(object source) except -1:
    if "tvm_ffi" not in sys.modules:
        return False
    core = _their_core()
    return core is not None and isinstance(source, core.CObject)


cdef bint _is_their_shape(object source) except -1:
    package = sys.modules.get("tvm_ffi")
    return package is not None and isinstance(source, getattr(package, "Shape", ()))


cdef int _set_foreign(Call *call, object source, ek_value *out) except -1:
    """Convert an argument that is an object of the package."""
    cdef ek_value theirs
    theirs.v.ptr = <void *><size_t>source.__chandle__()
    theirs.small_len = 0
    theirs.type_index = theirs.v.obj.type_index
    _check(_adopt(&theirs, out))
    if out.type_index >= EK_OBJECT:
        _set_made(call, out, out.v.obj, NULL)
    return 0


# Values -------------------------------------------------------------------------------------------

cdef bint _is_plain(int32_t index) noexcept nogil:
    """Return whether both runtimes represent values of a type alike."""
    return (index < EK_OBJECT and index != EK_OBJECT_RVALUE_REF) or index == EK_STR or \
        index == EK_BYTES or index == EK_SHAPE or index == EK_ERROR


cdef int _adopt(const ek_value *value, ek_value *out) noexcept nogil:
    """Convert a value of the other runtime to ours, owned."""
    cdef int32_t index = value.type_index
    out[0] = value[0]
    if _is_plain(index):
        ek_value_retain(out)
        return 0
    if index == EK_TENSOR:
        return _adopt_tensor(value.v.obj, out)
    if index == EK_FUNCTION:
        return _adopt_function(value.v.obj, out)
    if index == EK_ARRAY:
        return _convert_items(<ek_array *>value.v.obj, _adopt, out)
    if index == EK_MAP:
        return _adopt_map(value, out)
    if index == EK_MODULE:
        return _adopt_module(value.v.obj, out)
    out.type_index = EK_NONE
    return ek_error(b"TypeError", b"convert a value of tvm_ffi: an object of type index %d means "
                    b"nothing outside of it", index)


cdef int _offer(const ek_value *value, ek_value *out) noexcept nogil:
    """Convert our value to one of the other runtime, owned."""
    cdef int32_t index = value.type_index
    out[0] = value[0]
    if _is_plain(index) or index == EK_TENSOR:
        ek_value_retain(out)
        return 0
    if index == EK_FUNCTION:
        return _offer_function(value.v.obj, out)
    if index == EK_ARRAY:
        return _convert_items(<ek_array *>value.v.obj, _offer, out)
    if index == EK_MAP and (<ek_map *>value.v.obj).slots & EK_MAP_IN_ORDER:
        return _convert_pairs(<ek_map *>value.v.obj, out)
    if index == EK_ADT:
        return _convert_values((<ek_adt *>value.v.obj).fields, (<ek_adt *>value.v.obj).size,
                               EK_ARRAY, _offer, out)
    out.type_index = EK_NONE
    return ek_error(b"TypeError", b"convert a value for tvm_ffi: an object of type '%s' means "
                    b"nothing to it", ek_type_key(index))


cdef int _convert_items(ek_array *array, Convert convert, ek_value *out) noexcept nogil:
    return _convert_values(array.data, array.size, EK_ARRAY, convert, out)


cdef int _convert_pairs(ek_map *map, ek_value *out) noexcept nogil:
    return _convert_values(map.data, 2 * <int64_t>map.size, EK_MAP, _offer, out)


cdef int _convert_values(const ek_value *values, int64_t size, int32_t type, Convert convert,
                         ek_value *out) noexcept nogil:
    """Create a container of converted values."""
    cdef ek_value *made = <ek_value *>malloc((size + 1) * sizeof(ek_value))
    cdef ek_object *container = NULL
    cdef int64_t count = 0
    cdef int status = 0
    out.type_index = EK_NONE
    if made == NULL:
        return ek_error(b"MemoryError", b"convert %lld values: no memory", <long long>size)
    while count < size and status == 0:
        made[count] = ek_value_none()
        status = convert(&values[count], &made[count])
        count += 1
    if status == 0:
        status = ek_container_new(type, 0, made, size, &container)
    while count > 0:
        count -= 1
        ek_value_release(&made[count])
    free(made)
    if status == 0:
        out[0] = ek_value_object(container)
    return status


cdef void _release_theirs(void *object) noexcept nogil:
    ek_object_release(<ek_object *>object)


cdef int _adopt_tensor(ek_object *theirs, ek_value *out) noexcept nogil:
    """Create a tensor over the memory of the other runtime's tensor."""
    cdef ek_object *made = NULL
    out.type_index = EK_NONE
    if ek_tensor_strided(NULL, &(<ek_tensor *>theirs).dl, 0, &made) != 0:
        return -1
    ek_object_retain(theirs)
    (<ek_tensor *>made).managed = theirs
    (<ek_tensor *>made).dispose = _release_theirs
    out[0] = ek_value_object(made)
    return 0


cdef int _call_their_global(const char *name, const ek_value *args, int32_t nargs,
                            ek_value *ret) noexcept nogil:
    cdef ek_bytes text
    cdef ek_object *function = NULL
    cdef int status
    text.data = name
    text.size = strlen(name)
    ret[0] = ek_value_none()
    if _their_global(&text, &function) != 0 or function == NULL:
        return ek_error(b"RuntimeError", b"tvm_ffi has no function '%s'", name)
    status = ek_function_call(function, args, nargs, ret)
    ek_object_release(function)
    return 0 if status == 0 else _take_their_error()


cdef int _adopt_map(const ek_value *theirs, ek_value *out) noexcept nogil:
    """Convert the other runtime's map to ours by its iterator functions."""
    cdef ek_value size = ek_value_none()
    cdef ek_value iterator = ek_value_none()
    cdef ek_value theirs_array = ek_value_none()
    cdef ek_value *pairs
    cdef int64_t count
    cdef int status = -1
    out.type_index = EK_NONE
    if _call_their_global(b"ffi.MapSize", theirs, 1, &size) != 0:
        return -1
    if _call_their_global(b"ffi.MapForwardIterFunctor", theirs, 1, &iterator) != 0:
        return -1
    count = 2 * size.v.i64
    pairs = <ek_value *>malloc((count + 1) * sizeof(ek_value))
    if pairs == NULL:
        ek_value_release(&iterator)
        return ek_error(b"MemoryError", b"convert a map of tvm_ffi: no memory")
    memset(pairs, 0, count * sizeof(ek_value))
    status = _iterate_their_map(iterator.v.obj, pairs, count)
    if status == 0:
        status = _convert_values(pairs, count, EK_MAP, _adopt, out)
    for i in range(count):
        ek_value_release(&pairs[i])
    free(pairs)
    ek_value_release(&iterator)
    return status


cdef int _iterate_their_map(ek_object *iterator, ek_value *pairs, int64_t count) noexcept nogil:
    """Keys and values alternately: the iterator gives the key for 0, the value for 1, and moves on
    for 2."""
    cdef ek_value command = ek_value_none()
    cdef ek_value unused = ek_value_none()
    cdef int64_t i
    command.type_index = EK_INT
    for i in range(count):
        command.v.i64 = i % 2
        if ek_function_call(iterator, &command, 1, &pairs[i]) != 0:
            return _take_their_error()
        if command.v.i64 == 1:
            command.v.i64 = 2
            if ek_function_call(iterator, &command, 1, &unused) != 0:
                return _take_their_error()
            ek_value_release(&unused)
    return 0


# Errors -------------------------------------------------------------------------------------------

cdef int _take_their_error() noexcept nogil:
    """Move the other runtime's pending error to ours, and return -1."""
    cdef ek_object *error = NULL
    _their_error_move(&error)
    if error == NULL:
        return ek_error(b"RuntimeError", b"a function of tvm_ffi failed without saying why")
    ek_error_set(error)
    ek_object_release(error)
    return -1


cdef int _give_our_error() noexcept nogil:
    """Move our pending error to the other runtime, and return -1."""
    cdef ek_object *error = ek_error_take()
    if error == NULL:
        ek_error(b"InternalError", b"native code failed without saying why")
        error = ek_error_take()
    _their_error_set(error)
    ek_object_release(error)
    return -1


# Functions ----------------------------------------------------------------------------------------

cdef int _call_converted(ek_object *function, Convert convert_args, Convert convert_result,
                         const ek_value *args, int32_t nargs, ek_value *ret,
                         bint theirs) noexcept nogil:
    """Call with converted arguments and convert the result. Returns -1 with an error of ours."""
    cdef ek_value inplace[INPLACE]
    cdef ek_value *made = inplace
    cdef ek_value result = ek_value_none()
    cdef int32_t count = 0
    cdef int status = 0
    if nargs > INPLACE:
        made = <ek_value *>malloc(nargs * sizeof(ek_value))
        if made == NULL:
            return ek_error(b"MemoryError", b"convert %d arguments: no memory", nargs)
    while count < nargs and status == 0:
        made[count] = ek_value_none()
        status = convert_args(&args[count], &made[count])
        count += 1
    if status == 0:
        status = ek_function_call(function, made, nargs, &result)
        if status != 0 and theirs:
            status = _take_their_error()
    if status == 0:
        status = convert_result(&result, ret)
    ek_value_release(&result)
    while count > 0:
        count -= 1
        ek_value_release(&made[count])
    if made != inplace:
        free(made)
    return status


cdef int _call_theirs(void *self, const ek_value *args, int32_t nargs,
                      ek_value *ret) noexcept nogil:
    """Call the other runtime's function from ours (its ek_packed entry)."""
    return _call_converted(<ek_object *>self, _offer, _adopt, args, nargs, ret, True)


cdef int _call_ours(void *self, const ek_value *args, int32_t nargs, ek_value *ret) noexcept nogil:
    """Call our function from the other runtime (its safe_call entry)."""
    if _call_converted(<ek_object *>self, _adopt, _offer, args, nargs, ret, False) == 0:
        return 0
    return _give_our_error()


cdef int _adopt_function(ek_object *theirs, ek_value *out) noexcept nogil:
    cdef ek_object *made = NULL
    out.type_index = EK_NONE
    if ek_function_new(theirs, _call_theirs, _release_theirs, &made) != 0:
        return -1
    ek_object_retain(theirs)
    out[0] = ek_value_object(made)
    return 0


cdef int _offer_function(ek_object *ours, ek_value *out) noexcept nogil:
    cdef ek_object *made = NULL
    out.type_index = EK_NONE
    if _their_function_create(ours, _call_ours, _release_theirs, &made) != 0:
        return _take_their_error()
    ek_object_retain(ours)
    out[0] = ek_value_object(made)
    return 0


cdef int _serve_theirs(void *self, const ek_value *args, int32_t nargs,
                       ek_value *ret) noexcept nogil:
    """Create a function of the other runtime that keeps a PackedFunc alive."""
    return _call_ours((<Object><PyObject *>self).handle, args, nargs, ret)


cdef object _their_function(PackedFunc function):
    """Return a function of the package that calls ours."""
    return _their_core().Function.__from_extern_c__(<size_t><void *>_serve_theirs,
                                                    keep_alive_object=function)


# Modules ------------------------------------------------------------------------------------------

cdef int _their_module_get(void *self, ek_object *module, const char *name,
                           ek_object **out) noexcept nogil:
    cdef ek_value args[3]
    cdef ek_value found = ek_value_none()
    cdef ek_value adopted = ek_value_none()
    cdef int status
    memset(args, 0, sizeof(args))
    args[0] = ek_value_object(<ek_object *>self)
    args[1].type_index = EK_RAW_STR
    args[1].v.ptr = <void *>name
    args[2].type_index = EK_BOOL
    args[2].v.i64 = 1
    if _call_their_global(b"ffi.ModuleGetFunction", args, 3, &found) != 0:
        return -1
    status = _adopt(&found, &adopted)
    ek_value_release(&found)
    if status == 0 and adopted.type_index == EK_FUNCTION:
        out[0] = adopted.v.obj
    return status


cdef ek_module_kind _THEIR_MODULES
memset(&_THEIR_MODULES, 0, sizeof(_THEIR_MODULES))
_THEIR_MODULES.name = b"tvm_ffi"
_THEIR_MODULES.get = _their_module_get
_THEIR_MODULES.destroy = _release_theirs


cdef int _adopt_module(ek_object *theirs, ek_value *out) noexcept nogil:
    cdef ek_object *made = NULL
    out.type_index = EK_NONE
    if ek_module_new(&_THEIR_MODULES, theirs, &made) != 0:
        return -1
    ek_object_retain(theirs)
    out[0] = ek_value_object(made)
    return 0
