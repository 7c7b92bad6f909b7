# Executables and the virtual machine.

cdef class Executable(Object):
    """Compiled program: bytecode, constants, names of primitives, native code, metadata.
    Immutable; any number of virtual machines share it.
    """

    cdef dict _indices
    cdef dict _metadata
    cdef str _source

    def __init__(self, module):
        """Wrap the program of a module that `export_library` wrote (TVM's form)."""
        if not isinstance(module, Module):
            raise TypeError(f"Executable: expected a module, got {type(module).__name__}")
        self.__init_handle_by_constructor__(module["get_executable"])

    def load_late_bound_consts(self, path):
        """Bind the late-bound constants from a file, which is mapped. Raises LoadError for missing
        or unknown names, ValueError for another shape or dtype.
        """
        get_global_func("ek.program.load_late_bound_consts")(self, os.fsdecode(path))

    def load_late_bound_consts_from_map(self, constants):
        """Bind the late-bound constants from arrays or tensors by name."""
        given = {n: v if isinstance(v, Tensor) else tensor(v) for n, v in constants.items()}
        get_global_func("ek.program.load_late_bound_consts_from_map")(self, given)

    @staticmethod
    def load(path):
        """Load the program in a file, which is mapped and must not be rewritten in place. Runs
        after a truncation raise LoadError.
        """
        cdef ek_object *out = NULL
        cdef bytes name = os.fsencode(path)
        cdef const char *text = name
        cdef int status
        with nogil:
            status = ek_executable_load(text, &out)
        _check(status)
        return _checked(out, f"'{os.fsdecode(path)}'")

    @staticmethod
    def from_bytes(data):
        """Load the program in the bytes of its file, which are copied."""
        cdef const unsigned char[::1] view = memoryview(data).cast("B")
        cdef ek_object *out = NULL
        cdef size_t size = view.shape[0]
        cdef const void *start = &view[0] if size else NULL
        cdef int status
        with nogil:
            status = ek_executable_from_bytes(start, size, 1, &out)
        _check(status)
        return _checked(out, "executable")

    @staticmethod
    def load_exec(bytecode, Module lib=None):
        """Load bytecode and the module of its kernels, as the compiler's `save()` returned them.
        Without a module, the kernels are registered functions of those names.
        """
        made = Executable.from_bytes(bytecode)
        if lib is not None:
            get_global_func("ek.executable.link")(made, lib)
        return made

    def to_bytes(self):
        """Return the bytes of the program's file."""
        return get_global_func("ek.executable.file")(self).numpy().tobytes()

    @property
    def globals(self):
        """Return the names of the functions."""
        return list(self._names())

    def params(self, name):
        """Return the names of a function's parameters."""
        return _part(self.handle, EK_PART_PARAMS, self.index(name))

    @property
    def constants(self):
        """Return the constants as read-only tensors that share the program's memory."""
        return _parts(self.handle, EK_PART_CONSTANT)

    @property
    def primitives(self):
        """Return the names of the primitives: kernels and other functions that the program
        calls."""
        return _parts(self.handle, EK_PART_PRIMITIVE)

    @property
    def devices(self):
        """Return the devices that the program uses, the host first."""
        return _parts(self.handle, EK_PART_DEVICE)

    def code(self, name):
        """Return the number of registers of a function, and its instructions as 32-bit words."""
        index = self.index(name)
        words = numpy.frombuffer(_part(self.handle, EK_PART_CODE, index), dtype="<i4")
        return _part(self.handle, EK_PART_REGISTERS, index), words.tolist()

    @property
    def source(self):
        """Return the program's name in messages: its file, if it was loaded from one."""
        return self._source or "executable"

    @property
    def metadata(self):
        """Return the compiler's metadata of the program (inputs, outputs, target, producer), which
        must not be modified. It was validated by the schema in `ekiden.runtime.artifact.metadata`.
        """
        if self._metadata is None:
            params = {name: len(self.params(name)) for name in self._names()}
            counts = _parts(self.handle, EK_PART_INSTRUCTIONS)
            instructions = dict(zip(self._names(), counts, strict=True))
            tables = Tables(params, instructions, frozenset(self.primitives))
            text = _part(self.handle, EK_PART_METADATA, 0)
            self._metadata = read_metadata(text, self.source, tables)
        return self._metadata

    @property
    def num_threads(self):
        """Return the maximum number of threads of a run, the caller's included: that of the
        process unless set. Setting it raises ValueError unless it is from 1 to 256.
        """
        return get_global_func("ek.executable.num_threads")(self) or num_threads()

    @num_threads.setter
    def num_threads(self, value):
        number = operator.index(value)
        if number < 1:
            raise ValueError(f"num_threads: a number from 1 to 256 expected, got {number}")
        get_global_func("ek.executable.num_threads")(self, number)

    def index(self, name):
        """Return the number of a function. Raises InputError, which lists the known names, for
        another name."""
        found = self._names().get(name)
        if found is None:
            raise errors.InputError(f"executable: no function named {name!r}; there are "
                                    f"{', '.join(self._names())}")
        return found

    cdef dict _names(self):
        """Return the numbers of functions by name."""
        if self._indices is None:
            names = _parts(self.handle, EK_PART_GLOBAL)
            self._indices = {name: index for index, name in enumerate(names)}
        return self._indices

    def __reduce__(self):
        return Executable.from_bytes, (self.to_bytes(),)


_CLASSES[EK_EXECUTABLE] = Executable


cdef Executable _checked(ek_object *handle, str source):
    """Return the executable of a handle, which it takes over, after validating its metadata."""
    cdef Executable made = _wrap(Executable, handle)
    made._source = source
    made.metadata
    return made


cdef object _part(ek_object *executable, int32_t part, int64_t index):
    cdef ek_value value = ek_value_none()
    _check(ek_executable_item(executable, part, index, &value))
    return _move_out(&value)


cdef list _parts(ek_object *executable, int32_t part):
    cdef int64_t count = ek_executable_count(executable, part)
    if count < 0:
        _raise_pending()
    return [_part(executable, part, index) for index in range(count)]


cdef class VirtualMachine(Object):
    """Virtual machine that runs an executable for one caller at a time; create one per thread. The
    GIL is released during a run.
    """

    cdef readonly Executable executable
    """Program that this machine runs."""

    def __init__(self, Executable executable not None, executor="vm"):
        """Create a machine. `executor` "async" runs independent kernels concurrently, "vm" one
        after another."""
        if self.handle != NULL:
            raise RuntimeError("VirtualMachine: initialised twice")
        if executor not in ("vm", "async"):
            raise ValueError(f"VirtualMachine: executor 'vm' or 'async' expected, got {executor!r}")
        _check(ek_vm_new(executable.handle, &self.handle))
        self.executable = executable
        if executor == "async":
            get_global_func("ek.vm.module")(self)["async"](1)

    def limit(self, steps=None, seconds=None):
        """Limit later runs to a number of instructions or seconds; None for no limit except
        EKIDEN_MAX_STEPS. Limited runs interpret the bytecode even where native code exists. A run
        that reaches the limit raises RunLimitError. Raises ValueError for what is not positive.
        """
        if steps is not None and not 0 < operator.index(steps) < 2**63:
            raise ValueError(f"steps: a positive number expected, got {steps}")
        if seconds is not None and not 0 < seconds < 2**33:
            raise ValueError(f"timeout: a positive number of seconds expected, got {seconds}")
        nanoseconds = 0 if seconds is None else max(1, int(seconds * 1e9))
        get_global_func("ek.vm.limit")(self, steps or 0, nanoseconds)

    def invoke(self, name, *args):
        """Run a function of the program by its name.

        Arguments are tensors, arrays (copied only where they are not contiguous), integers and
        tuples of these. Returns a Tensor, or a tuple for a tuple.
        """
        cdef Arguments arguments = Arguments(_run_arguments(args))
        return _invoke(self.handle, self.executable.index(name), arguments)


def run_arguments(given):
    """Convert arguments for a run: arrays and tensors that compiled code can read in place stay as
    they are, other values are converted by `tensor`.
    """
    return [source if _is_lendable(source) else tensor(source) for source in given]


cdef inline bint _is_lendable(object source):
    """Return whether a value is an array or tensor that can be borrowed: readable in place, with a
    runtime dtype."""
    cls = type(source)
    if cls is np.ndarray:
        return _is_direct(<np.ndarray>source) and _is_common(<np.ndarray>source)
    return cls is Tensor and ek_dltensor_is_contiguous((<Tensor>source).dl())


cdef tuple _run_arguments(tuple args):
    """Return the arguments, with copies in place of those that compiled code cannot read in
    place."""
    for source in args:
        if not _is_readable(source):
            return tuple([_readable(item) for item in args])
    return args


cdef inline bint _is_readable(object source):
    cls = type(source)
    if cls is np.ndarray:
        return _is_direct(<np.ndarray>source)
    if cls is Tensor:
        return ek_dltensor_is_contiguous((<Tensor>source).dl())
    return cls is int or (cls is ADT and source._made is not None)


cdef object _readable(object root):
    """Return a value whose arrays and tensors compiled code can read, without recursion over
    nested tuples."""
    cdef dict made = {}            # id of a tuple -> what it becomes; the root keeps all ids alive
    cdef list stack = [root]
    while stack:
        at = stack[len(stack) - 1]
        inner = at if isinstance(at, tuple) and not _is_readable(at) else ()
        missing = [each for each in inner if isinstance(each, tuple) and id(each) not in made]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        made[id(at)] = _readable_one(at, made)
    return made[id(root)]


cdef object _readable_one(object source, dict made):
    """Convert a value whose nested tuples have been converted."""
    if _is_readable(source):
        return source
    if isinstance(source, tuple):
        fields = [made[id(f)] if isinstance(f, tuple) else _readable_one(f, made) for f in source]
        if all([new is old for new, old in zip(fields, source)]):
            return source
        return ADT(source.tag, fields) if isinstance(source, ADT) else tuple(fields)
    if isinstance(source, (np.ndarray, np.generic, Tensor)) or hasattr(source, "__dlpack__"):
        return tensor(source)
    return source


cdef object _invoke(ek_object *vm, int32_t index, Arguments arguments):
    cdef ek_value result = ek_value_none()
    cdef int status
    with nogil:
        status = ek_vm_invoke(vm, index, arguments.call.values, arguments.count, &result)
    if status != 0:
        _raise_pending()
    return _move_out(&result)


cdef unsigned long _main_thread = 0
"""Id of the thread on which Python handles signals."""


def _note_main_thread():
    global _main_thread
    _main_thread = threading.main_thread().ident or 0


cdef int _handle_signals() noexcept nogil:
    """Call the handlers of pending signals; an exception from one ends the run. Threads other than
    the main one do not acquire the GIL."""
    if PyThread_get_thread_ident() != _main_thread or not Py_IsInitialized():
        return 0
    with gil:
        return _set_error(_take_exception()) if PyErr_CheckSignals_() != 0 else 0


_note_main_thread()
if hasattr(os, "register_at_fork"):  # the thread that forks is the child's main one
    os.register_at_fork(after_in_child=_note_main_thread)
ek_interrupt_check_set(_handle_signals)


cdef class Ref(Object):
    """Mutable reference, the value of `ref(x)` in a program.

    It can be an argument of programs; those share it with their caller and with each other. Values
    are as arguments are: a Tensor, an array (of which a Tensor is made), data, a tuple.
    """

    def __init__(self, value):
        if self.handle != NULL:
            raise RuntimeError("Ref: initialised twice")
        cdef Object made = get_global_func("ek.reference.new")(_readable(value))
        ek_object_retain(made.handle)
        self.handle = made.handle

    @property
    def value(self):
        """Return the current value."""
        return get_global_func("ek.reference.read")(self)

    @value.setter
    def value(self, value):
        get_global_func("ek.reference.write")(self, _readable(value))

    def __repr__(self):
        kind = type(self.value).__name__
        return f"Ref({kind} at {<size_t>self.handle:#x})"


_CLASSES[EK_REFERENCE] = Ref
