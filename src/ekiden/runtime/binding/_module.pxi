# Modules: what gives functions by name.

cdef class Module(Object):
    """Module, a collection of functions: a shared library, native code in memory, an executable.

    A function keeps its module alive. `sources` is None, or what `get_source` reads.
    """

    cdef public object sources

    def get_function(self, str name not None, bint query_imports=True):
        """Return the function of a name, in this or an imported module. Raises AttributeError if
        there is none. Imported modules are always searched; `query_imports` exists for TVM's
        signature.
        """
        found = _find_function(self, name)
        if found is None:
            raise AttributeError(f"module: no function named {name!r}; there are "
                                 f"{', '.join(self.names()) or 'none that can be listed'}")
        return found

    def __getitem__(self, name):
        return self.get_function(name)

    def __contains__(self, str name not None):
        return _find_function(self, name) is not None

    def implements_function(self, name, bint query_imports=True):
        """Return whether this or an imported module has a function of that name."""
        return name in self

    @property
    def entry_name(self):
        """Return the name of the entry function: the only function, or `main`."""
        names = self.names()
        return names[0] if len(names) == 1 else "main"

    @property
    def entry_func(self):
        """Return the entry function, which calling the module calls."""
        return self[self.entry_name]

    def __call__(self, *arguments):
        return self.entry_func(*arguments)

    def get_source(self, str fmt not None=""):
        """Return the source text of the module in a format of `sources`, by default the first. A
        module of device kernels returns their code. Raises ValueError, which lists the formats,
        for another one.
        """
        if self.sources is None and self.kind == "device":
            self.sources = _device_code().sources_by_format(self.to_bytes())
        formats = self.sources or {}
        chosen = fmt or next(iter(formats), "")
        if chosen not in formats:
            raise ValueError(f"get_source: the module has no source {fmt!r}; there are "
                             f"{', '.join(formats) or 'none'}")
        text = formats[chosen]
        return text() if callable(text) else text

    def save(self, path, str fmt not None=""):
        """Write an object file (`.o`), C, or the text of a format of `get_source` (`.ll`, `.s`).
        `fmt` selects the format where the suffix does not.

        `contrib.cc.create_shared` makes a library of an object. Raises ExportError.
        """
        importlib.import_module("ekiden.compiler.export.library").save_module(self, path, fmt)

    @property
    def kind(self):
        """Return the kind of module: "library", "image", "executable" or a third party's."""
        return _module_part(self, EK_MODULE_KIND)

    @property
    def format(self):
        """Return the kind of module (TVM's name)."""
        return self.kind

    @property
    def type_key(self):
        """Return TVM's type key: "llvm" or "c" for native code in memory, the device type ("cuda")
        for device kernels, else the kind.
        """
        if self.kind == "device":
            return _device_code().device_type_of_kernels(self.to_bytes())
        if self.kind == "image":
            return "c" if "c" in (self.sources or {}) else "llvm"
        return self.kind

    def __repr__(self):
        if self.handle == NULL:
            return _repr_object(self, 0)
        return f"Module({self.type_key}, {<size_t>self.handle:x})"

    def names(self):
        """Return the names of this module's own functions; empty where the kind cannot list
        them."""
        return _module_part(self, EK_MODULE_NAMES)

    def to_bytes(self):
        """Serialise this module without its imports to bytes that `ek_module_from_bytes` reads.
        Raises ValueError for a kind that cannot be saved, such as a shared library.
        """
        return _module_part(self, EK_MODULE_BYTES)

    def export_library(self, path, *, cc=None, options=(), fcompile=None, name=""):
        """Write the module, with all that it imports, as one shared library (`.so`), an object, C
        or sources with a Makefile (`.o`, `.c`, `.tar`); needs a C compiler.

        `load_module` gives it back, with its imports. Raises ExportError.
        """
        # The writer stands on a higher floor, and is loaded when it is first used.
        importlib.import_module("ekiden.compiler.export.library").export_library(
            self, path, cc=cc, options=options, fcompile=fcompile, name=name)

    @property
    def imported_modules(self):
        """Return the imported modules, in search order."""
        return _module_part(self, EK_MODULE_IMPORTS)

    def import_module(self, Module module not None):
        """Import a module, which is searched after those imported before. Raises ValueError for an
        import cycle.
        """
        _check(ek_module_import(self.handle, module.handle))

    def clear_imports(self):
        """Remove all imports."""
        _check(ek_module_import(self.handle, NULL))

    def time_evaluator(self, func_name, dev=None, int number=10, int repeat=1, int min_repeat_ms=0,
                       int limit_zero_time_iterations=100, int cooldown_interval_ms=0,
                       int repeats_to_cooldown=1, Py_ssize_t cache_flush_bytes=0, f_preproc=""):
        """Return an evaluator that measures a function of this module when called with arguments.

        Runs once to warm up, then `repeat` times `number` calls in a row, without Python's lock;
        `number` grows until a repeat takes `min_repeat_ms`. Before each repeat as many bytes are
        written as `cache_flush_bytes`, to empty the caches, and the global function `f_preproc`
        is called. A time ends when `dev` and the devices of what the last call was given and gave
        have done what was queued.
        """
        if number < 1 or repeat < 1 or repeats_to_cooldown < 1:
            raise ValueError("time_evaluator: number, repeat and repeats_to_cooldown must be "
                             f"positive, got {number}, {repeat}, {repeats_to_cooldown}")
        where = None if dev is None else device(dev)
        if where is not None and not where.exist:
            raise ValueError(f"time_evaluator: expected a device that is here, got {where}")
        function = self.get_function(func_name)
        return importlib.import_module("ekiden.runtime.profile.timing").Evaluator(
            lambda args, count: _time_calls(function, args, count, cache_flush_bytes, where),
            get_global_func(f_preproc) if f_preproc else None, number, repeat, min_repeat_ms,
            limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown)


cdef object _device_code():
    """Import the reader of device kernels on first use."""
    return importlib.import_module("ekiden.runtime.artifact.device_code")


cdef object _find_function(Module self, str name):
    cdef ek_object *found = NULL
    _check(ek_module_get(self.handle, name.encode(), &found))
    return None if found == NULL else _wrap(PackedFunc, found)


cdef object _module_part(Module self, int32_t part):
    cdef ek_value value = ek_value_none()
    _check(ek_module_part(self.handle, part, &value))
    return _move_out(&value)


cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *out)


cdef double _now() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <double>now.tv_sec + <double>now.tv_nsec * 1e-9


cdef object _time_calls(PackedFunc function, tuple args, int64_t count, Py_ssize_t flush, where):
    """Return the seconds of consecutive calls, including the work that they queued on devices."""
    cdef Arguments arguments = Arguments(args)
    cdef ek_value result = ek_value_none()
    cdef int status = 0
    cdef double begin
    cdef int64_t i
    cdef bytearray dirt = bytearray(flush)
    cdef char *memory = dirt
    with nogil:
        for i in range(0, flush, 64):
            (<volatile char *>memory)[i] = 1
        begin = _now()
        for i in range(count):
            status = ek_function_call(function.handle, arguments.call.values, arguments.count,
                                      &result)
            if status != 0:
                break
            if i + 1 < count:
                ek_value_release(&result)
    _check(status)
    wait_for((_move_out(&result), args, where))
    return _now() - begin


_CLASSES[EK_MODULE] = Module


def load_image(data):
    """Load a native code image as a module. Raises LoadError for damaged bytes."""
    cdef const unsigned char[::1] view = memoryview(data).cast("B")
    cdef ek_object *out = NULL
    cdef const void *start = &view[0] if view.shape[0] else NULL
    cdef size_t size = view.shape[0]
    _check(ek_image_load(start, size, &out))
    return _wrap(Module, out)


def module_from_bytes(data):
    """The module that bytes hold, with what it imports: an executable, native code, or several
    modules as an exported library has them. They stay as they are, and begin at a multiple of 64,
    as long as the process. Damaged ones are a LoadError.
    """
    cdef const unsigned char[::1] view = memoryview(data).cast("B")
    cdef ek_object *out = NULL
    cdef const void *start = &view[0] if view.shape[0] else NULL
    _check(ek_module_from_bytes(start, view.shape[0], &out))
    return _wrap(Module, out)


def load_device_code(data):
    """Load a module of device kernels from the bytes of an artifact's section. Raises LoadError
    for damaged bytes.
    """
    cdef const unsigned char[::1] view = memoryview(data).cast("B")
    cdef ek_object *out = NULL
    if bytes(view[:6]) != b"EKDEVC":
        raise errors.LoadError("load code of devices: its bytes are damaged")
    _check(ek_module_from_bytes(&view[0], view.shape[0], &out))
    return _wrap(Module, out)


def load_module(path):
    """The module in a file, by the suffix of its name.

    `.so` is a shared library whose functions are exported as `__tvm_ffi_<name>`, or one that
    `export_library` made; `.eki` an executable; for any other, what the global function
    `ek.module.load.<suffix>` makes of the path. Raises OSError, LoadError, or ValueError for a
    suffix that nobody knows.
    """
    cdef ek_object *out = NULL
    cdef bytes name = os.fsencode(path)
    cdef const char *text = name
    cdef int status
    with nogil:
        status = ek_module_load(text, &out)
    _check(status)
    return _wrap(Module, out)


def service_address(str name not None):
    """Return the address of a runtime service of compiled code, such as 'ek_parallel_for'."""
    cdef ek_address address = ek_service(name.encode())
    if address == NULL:
        raise ValueError(f"service_address: the runtime has no service {name!r}")
    return <size_t>address


def num_threads(n=0):
    """Return the number of threads of parallel loops, after setting it to n if that is positive."""
    cdef int result
    cdef int number = <int>min(max(operator.index(n), 0), INT_MAX)
    with nogil:
        result = ek_num_threads(number)
    if result < 0:
        _raise_pending()
    return result


def allocation_count():
    """Return the number of allocations requested from the system since the process began."""
    return ek_pool_get_stats().system_allocations


def _pool_stats():
    """Return the fields of ek_pool_stats in order; runtime.memory_stats names them."""
    cdef ek_pool_stats stats = ek_pool_get_stats()
    return (stats.system_allocations, stats.bytes_held, stats.bytes_free, stats.bytes_in_use,
            stats.bytes_peak, stats.bytes_limit)


def trim_pools():
    """Return cached memory to the system."""
    with nogil:
        ek_pool_trim()
