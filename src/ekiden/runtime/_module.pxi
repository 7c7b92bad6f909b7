# Modules: what gives functions by name.

cdef class Module(Object):
    """A collection of functions: a shared library or native code in memory.

    A function keeps its module alive. `sources` is None, or what `get_source` reads.
    """

    cdef public object sources

    def get_function(self, str name not None):
        """The function of that name, here or in an imported module; None when there is none."""
        cdef ek_object *found = NULL
        _check(ek_module_get(self.handle, name.encode(), &found))
        return None if found == NULL else _wrap(PackedFunc, found)

    def __getitem__(self, str name not None):
        found = self.get_function(name)
        if found is None:
            raise AttributeError(f"module: no function named {name!r}; there are "
                                 f"{', '.join(self.names()) or 'none that can be listed'}")
        return found

    def __contains__(self, str name not None):
        return self.get_function(name) is not None

    @property
    def entry_func(self):
        """The function that calling the module calls: its only one, or the one named `main`."""
        names = self.names()
        if len(names) == 1:
            return self[names[0]]
        return self["main"]

    def __call__(self, *arguments):
        """Call the entry function."""
        return self.entry_func(*arguments)

    def get_source(self, str fmt not None=""):
        """The text the module was made from, in a format of `sources`; the first by default.

        A ValueError lists the formats there are.
        """
        formats = self.sources or {}
        chosen = fmt or next(iter(formats), "")
        if chosen not in formats:
            raise ValueError(f"get_source: the module has no source {fmt!r}; there are "
                             f"{', '.join(formats) or 'none'}")
        text = formats[chosen]
        return text() if callable(text) else text

    def names(self):
        """Names of the functions of this module alone; empty for shared libraries."""
        cdef ek_object *names = NULL
        _check(ek_module_names(self.handle, &names))
        return _take_list(names)

    def import_module(self, Module other not None):
        """Look for functions also in another module, after those imported before."""
        _check(ek_module_import(self.handle, other.handle))


_CLASSES[EK_MODULE] = Module


def load_image(data):
    """The module of a native code image. Damaged bytes are a LoadError."""
    cdef const unsigned char[::1] view = memoryview(data).cast("B")
    cdef ek_object *out = NULL
    cdef const void *start = &view[0] if view.shape[0] else NULL
    cdef size_t size = view.shape[0]
    _check(ek_image_load(start, size, &out))
    return _wrap(Module, out)


def load_module(path):
    """The module of a shared library whose functions are exported as `__tvm_ffi_<name>`."""
    cdef ek_object *out = NULL
    _check(ek_library_load(os.fsencode(path), &out))
    return _wrap(Module, out)


def service_address(str name not None):
    """Address of a service of the runtime to compiled code, such as 'ek_parallel_for'."""
    cdef ek_address address = ek_service(name.encode())
    if address == NULL:
        raise ValueError(f"service_address: the runtime has no service {name!r}")
    return <size_t>address


def num_threads(int n=0):
    """Number of threads that share a parallel loop; first set to n if that is positive."""
    cdef int result
    with nogil:
        result = ek_num_threads(n)
    if result < 0:
        _raise_pending()
    return result


def allocation_count():
    """How often the runtime asked the system for memory since the process began."""
    return ek_pool_get_stats().system_allocations


def pool_stats():
    """Requests to the system, bytes held from it, and bytes of these that are free."""
    cdef ek_pool_stats stats = ek_pool_get_stats()
    return stats.system_allocations, stats.bytes_held, stats.bytes_free


def trim_pools():
    """Give memory that is kept for reuse back to the system."""
    with nogil:
        ek_pool_trim()
