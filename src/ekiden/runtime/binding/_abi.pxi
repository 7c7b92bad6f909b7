# What the binding uses of runtime.h; the header is the specification.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "ekiden/runtime.h" nogil:
    enum:
        EK_NONE, EK_INT, EK_BOOL, EK_FLOAT, EK_OPAQUE_PTR, EK_DTYPE, EK_DEVICE, EK_DLTENSOR_PTR
        EK_RAW_STR, EK_BYTE_ARRAY_PTR, EK_SMALL_STR, EK_SMALL_BYTES
        EK_OBJECT_RVALUE_REF
        EK_OBJECT, EK_STR, EK_BYTES, EK_ERROR, EK_FUNCTION, EK_SHAPE, EK_TENSOR, EK_ARRAY, EK_MAP
        EK_MODULE, EK_DYNAMIC, EK_ADT, EK_EXECUTABLE, EK_VM, EK_REFERENCE
        EK_DTYPE_INT, EK_DTYPE_UINT, EK_DTYPE_FLOAT, EK_DTYPE_OPAQUE, EK_DTYPE_BFLOAT
        EK_DTYPE_COMPLEX, EK_DTYPE_BOOL
        EK_CPU
        EK_DELETE_CONTENT, EK_DELETE_MEMORY
        EK_MAX_NDIM
        EK_PART_GLOBAL, EK_PART_PARAMS, EK_PART_CONSTANT, EK_PART_PRIMITIVE, EK_PART_CODE
        EK_PART_REGISTERS, EK_PART_METADATA, EK_PART_FILE, EK_PART_DEVICE
        EK_PART_INSTRUCTIONS
        EK_MODULE_KIND, EK_MODULE_NAMES, EK_MODULE_IMPORTS, EK_MODULE_BYTES
    uint64_t EK_REFS_NEW, EK_DLPACK_READ_ONLY, EK_DLPACK_IS_COPIED, EK_DLPACK_SUBBYTE_PADDED

    ctypedef struct ek_object:
        uint64_t refs
        int32_t type_index
        uint32_t pad
        void (*deleter)(void *self, int flags) noexcept
    ctypedef struct ek_dtype:
        uint8_t code
        uint8_t bits
        uint16_t lanes
    ctypedef struct ek_device:
        int32_t type
        int32_t id
    ctypedef struct ek_value_v:              # a union without a name; used through ek_value alone
        int64_t i64
        double f64
        void *ptr
        ek_object *obj
        ek_dtype dtype
        ek_device device
        char bytes[8]
    ctypedef struct ek_value:
        int32_t type_index
        uint32_t small_len
        ek_value_v v
    ctypedef int (*ek_packed)(void *self, const ek_value *args, int32_t nargs,
                              ek_value *ret) noexcept
    ctypedef struct ek_function:
        ek_object base
        ek_packed call
        void *cpp_call
    ctypedef struct ek_bytes:
        const char *data
        size_t size
    ctypedef struct ek_shape:
        const int64_t *data
        size_t size
    ctypedef struct ek_array:
        ek_value *data
        int64_t size
    ctypedef struct ek_map:
        ek_value *data
        uint64_t size
        uint64_t slots
    uint64_t EK_MAP_IN_ORDER
    ctypedef struct ek_adt:
        int32_t tag
        int32_t size
        ek_value *fields
    ctypedef struct ek_error_object:
        ek_object base
        ek_bytes kind
        ek_bytes message
        ek_bytes backtrace
        void (*update_backtrace)(void *self, const ek_bytes *text, int32_t append) noexcept
        ek_object *cause
        ek_object *context
    ctypedef struct ek_dltensor:
        void *data
        ek_device device
        int32_t ndim
        ek_dtype dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    ctypedef struct ek_managed:
        ek_dltensor tensor
        void *context
        void (*deleter)(ek_managed *self) noexcept
    ctypedef struct ek_managed_versioned:
        uint32_t major
        uint32_t minor
        void *context
        void (*deleter)(ek_managed_versioned *self) noexcept
        uint64_t flags
        ek_dltensor tensor
    ctypedef struct ek_tensor:
        ek_object base
        ek_dltensor dl
        uint64_t flags
        ek_object *owner
        void (*dispose)(void *managed) noexcept
        void *managed
    ctypedef struct ek_pool_stats:
        uint64_t system_allocations
        uint64_t bytes_held
        uint64_t bytes_free
        uint64_t bytes_in_use
        uint64_t bytes_peak
        uint64_t bytes_limit

    void ek_object_retain(ek_object *object)
    void ek_object_release(ek_object *object)
    ek_value ek_value_none()
    ek_value ek_value_object(ek_object *object)
    void ek_value_retain(const ek_value *value)
    void ek_value_release(ek_value *value)
    int ek_function_new(void *self, ek_packed call, void (*deleter)(void *self) noexcept,
                        ek_object **out)
    int ek_function_call(ek_object *function, const ek_value *args, int32_t nargs, ek_value *ret)
    int EK_ANY
    uint64_t EK_FIELD_READ_ONLY, EK_FIELD_DEFAULT, EK_FIELD_IGNORE
    ctypedef struct ek_field:
        const char *name
        const char *doc
        int32_t type
        int32_t size
        int64_t offset
        uint64_t flags
        void *get
        void *set
        ek_value standard
    ctypedef struct ek_method:
        const char *name
        const char *doc
        ek_object *function
    ctypedef struct ek_type_def:
        int64_t size
        void *create
        const char *doc
        const ek_field *fields
        const ek_method *methods
        int32_t n_fields
        int32_t n_methods
        int (*build)(const ek_type_info *type, const ek_value *values, int32_t n,
                     ek_object **out) noexcept nogil
    ctypedef struct ek_type_info:
        const char *key
        const char *doc
        int32_t index
        int32_t parent
        int32_t depth
        int32_t is_defined
        int64_t size
        const ek_field *fields
        const ek_method *methods
        int32_t n_fields
        int32_t n_methods
    int32_t ek_type_register(const char *key, int32_t parent)
    int ek_type_define(int32_t type_index, const ek_type_def *definition)
    const ek_type_info *ek_type_get(int32_t type_index)
    int32_t ek_type_index(const char *key)
    const char *ek_type_key(int32_t type_index)
    int ek_object_new(int32_t type_index, const ek_value *values, int32_t n, ek_object **out)
    int ek_field_get(const ek_object *object, const ek_field *field, ek_value *out)
    int ek_field_set(ek_object *object, const ek_field *field, const ek_value *value)
    int ek_value_equal(const ek_value *a, const ek_value *b)
    int ek_value_hash(const ek_value *value, uint64_t *out)
    void ek_weak_retain(ek_object *object)
    void ek_weak_release(ek_object *object)
    ek_object *ek_weak_lock(ek_object *object)
    int ek_string_new(int32_t type, const char *data, size_t size, ek_value *out)
    int ek_string_borrow(const ek_value *value, ek_bytes *out)
    int ek_container_new(int32_t type, int32_t tag, const ek_value *items, int64_t n,
                         ek_object **out)
    int ek_error(const char *kind, const char *format, ...)
    int ek_error_set(ek_object *error)
    ek_object *ek_error_take()
    int ek_registry_set(const char *name, ek_object *function, int override)
    ek_object *ek_registry_get(const char *name)
    int ek_registry_remove(const char *name)
    int ek_registry_names(ek_object **out)
    size_t ek_dltensor_nbytes(const ek_dltensor *tensor)
    void *ek_dltensor_data(const ek_dltensor *tensor)
    int ek_dltensor_is_contiguous(const ek_dltensor *tensor)
    int ek_tensor_new(const int64_t *shape, int32_t ndim, ek_dtype dtype, ek_device device,
                      ek_object **out)
    int ek_tensor_view(ek_object *owner, void *data, const int64_t *shape, int32_t ndim,
                       ek_dtype dtype, ek_device device, uint64_t flags, ek_object **out)
    int ek_tensor_strided(ek_object *owner, const ek_dltensor *like, uint64_t flags,
                          ek_object **out)
    int ek_tensor_from_dlpack(void *managed, int versioned, ek_object **out)
    int ek_tensor_to_dlpack(ek_object *tensor, int versioned, void **managed)
    void ek_dlpack_hold(void *managed) nogil
    void ek_dlpack_drop(void *managed) nogil
    int ek_tensor_copy(const ek_dltensor *source, const ek_dltensor *to)
    ctypedef struct ek_module_kind:
        const char *name
        int (*get)(void *self, ek_object *module, const char *name, ek_object **out) noexcept
        int (*names)(void *self, ek_object **out) noexcept
        int (*save)(void *self, const char *path) noexcept
        void (*destroy)(void *self) noexcept
    int ek_module_new(const ek_module_kind *kind, void *self, ek_object **out)
    int ek_module_get(ek_object *module, const char *name, ek_object **out)
    int ek_module_import(ek_object *module, ek_object *imported)
    int ek_module_part(ek_object *module, int32_t part, ek_value *out)
    int ek_module_load(const char *path, ek_object **out)
    int ek_image_load(const void *bytes, size_t size, ek_object **out)
    int ek_module_from_bytes(const void *bytes, size_t size, ek_object **out) nogil
    ctypedef void (*ek_address)() noexcept
    ek_address ek_service(const char *name)
    int ek_num_threads(int n)
    ek_pool_stats ek_pool_get_stats()
    void ek_pool_trim()
    int ek_executable_load(const char *path, ek_object **out)
    int ek_executable_from_bytes(const void *bytes, size_t size, int copy, ek_object **out)
    int64_t ek_executable_count(ek_object *executable, int32_t part)
    int ek_executable_item(ek_object *executable, int32_t part, int64_t index, ek_value *out)
    int ek_vm_new(ek_object *executable, ek_object **out)
    void ek_interrupt_check_set(int (*check)() noexcept nogil)
    int ek_vm_invoke(ek_object *vm, int32_t function, const ek_value *args, int32_t nargs,
                     ek_value *ret)

# What CPython has and Cython does not declare, or declares with a price.
cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        Py_ssize_t tp_vectorcall_offset
        unsigned long tp_flags
        PyObject *tp_dict
    ctypedef PyObject *(*vectorcallfunc)(PyObject *callable, PyObject *const *args, size_t nargsf,
                                         PyObject *names) noexcept
    unsigned long Py_TPFLAGS_HAVE_VECTORCALL
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    PyObject *Py_None
    PyObject *Py_True
    PyTypeObject PyLong_Type, PyFloat_Type, PyBool_Type, PyUnicode_Type, PyTuple_Type
    PyTypeObject *Py_TYPE(void *object) nogil
    void Py_INCREF_ "Py_INCREF"(void *object) nogil
    void Py_DECREF_ "Py_DECREF"(void *object) nogil
    double PyFloat_AS_DOUBLE_ "PyFloat_AS_DOUBLE"(void *object) nogil
    long long PyLong_AsLongLongAndOverflow_ "PyLong_AsLongLongAndOverflow"(void *number,
                                                                         int *overflow)
    object PyObject_Vectorcall(PyObject *callable, PyObject **args, size_t nargsf, PyObject *names)
    PyObject *PyDict_GetItem_ "PyDict_GetItem"(dict table, PyObject *key)
    ctypedef struct PyTupleObject:
        PyObject **ob_item
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int Py_IsInitialized() nogil
    unsigned long PyThread_get_thread_ident() nogil
    int PyErr_CheckSignals_ "PyErr_CheckSignals"()
    void Py_LeaveRecursiveCall()
    int PyException_SetTraceback(object exception, object trace) except -1
    ctypedef struct PyThreadState
    PyThreadState *PyEval_SaveThread() nogil
    void PyEval_RestoreThread(PyThreadState *state) nogil

cdef extern from *:
    """
    /* Values inside values: beyond Python's limit a RecursionError. */
    static inline int enter_recursion(void) {
      return Py_EnterRecursiveCall(" while converting a value") ? -1 : 0;
    }
    /* This thread's state if it has Python's lock; may be another thread's, or NULL, if not. */
    static inline PyThreadState *current_state(void) {
    #if PY_VERSION_HEX >= 0x030D0000
      return PyThreadState_GetUnchecked();
    #else
      return _PyThreadState_UncheckedGet();
    #endif
    }
    /* The state that this thread's innermost call into C has let go of, or NULL. */
    static _Thread_local PyThreadState *released;
    static inline PyThreadState *get_released(void) { return released; }
    static inline void set_released(PyThreadState *state) { released = state; }
    #define EK_REFS(object) __atomic_load_n(&(object)->refs, __ATOMIC_ACQUIRE)
    """
    int enter_recursion() except -1
    PyThreadState *current_state() nogil
    PyThreadState *get_released() nogil
    void set_released(PyThreadState *state) nogil
    uint64_t EK_REFS(ek_object *object) nogil

# The C functions by which a library offers its tensors, as DLPack 1.2 defines them.
ctypedef void (*DLPackFail)(void *context, const char *kind, const char *message) noexcept nogil
ctypedef struct DLPackExchange:
    uint32_t major
    uint32_t minor
    void *older
    int (*allocate)(ek_dltensor *prototype, ek_managed_versioned **out, void *context,
                    DLPackFail fail) noexcept
    int (*export_tensor)(PyObject *tensor, ek_managed_versioned **out) noexcept
    int (*import_tensor)(ek_managed_versioned *managed, PyObject **out) noexcept
    int (*lend)(PyObject *tensor, ek_dltensor *out) noexcept
    int (*stream)(int device_type, int32_t device_id, void **out) noexcept
