# Sessions with other machines, from the side that serves: runtime/rpc over what Python has connected.

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

cdef extern from "ek_rpc.h" nogil:
    ctypedef struct ek_rpc_stream:
        void *self
        int (*read)(void *self, void *data, size_t size) noexcept
        int (*write)(void *self, const void *data, size_t size) noexcept
    ctypedef struct ek_rpc_fds:
        pass
    ek_rpc_stream ek_rpc_fd_stream(ek_rpc_fds *fds)
    ctypedef struct ek_rpc_options:
        const char *key
        const char *folder
        uint32_t limit
        void *self
        void (*find)(void *self, const char *name, ek_object **found) noexcept
        uint32_t heard
    int ek_rpc_serve(const ek_rpc_stream *stream, const ek_rpc_options *options)

cdef extern from "ek_rpc_sandbox.h" nogil:
    ctypedef struct rpc_program:
        const char **words
        const char **environment
        const char *folder
        const char **readable
        const int *descriptors
        int descriptor_count, output, has_sandbox, max_landlock, max_namespaces
    ctypedef struct rpc_limits:
        uint64_t memory, file
        uint32_t open_files, threads
    const char *rpc_lack()
    int rpc_start(const rpc_program *program, unsigned *walls, char *wrong, size_t size)
    const char *rpc_close(const rpc_limits *limits, unsigned walls, int has_devices)

cdef extern from *:
    """static inline ek_rpc_fds socket_fds(int number) { return (ek_rpc_fds){number, number}; }"""
    ek_rpc_fds socket_fds(int number)


cdef int _read_stream(void *self, void *data, size_t size) noexcept nogil:
    """Fill memory from an object with `recv_into`, such as a TLS socket."""
    with gil:
        try:
            left = PyMemoryView_FromMemory(<char *>data, size, PyBUF_WRITE)
            while len(left):
                got = (<object>self).recv_into(left)
                if got == 0:
                    return -1
                left = left[got:]
        except BaseException:      # the stream is over, whatever said so
            return -1
    return 0


cdef int _write_stream(void *self, const void *data, size_t size) noexcept nogil:
    with gil:
        try:
            (<object>self).sendall(PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ))
        except BaseException:
            return -1
    return 0


cdef void _find_own(void *self, const char *name, ek_object **found) noexcept nogil:
    with gil:
        function = (<dict>self).get(name.decode("utf-8", "surrogateescape"))
        if function is not None:
            found[0] = (<PackedFunc>function).handle
            ek_object_retain(found[0])


def serve_session(stream, bytes folder not None, bytes key not None, uint32_t limit, uint32_t heard,
                  dict functions not None):
    """Serve a session on a stream whose HELLO has been heard, until the other side ends it.

    A stream is a socket that blocks, by its number, or what has `recv_into` and `sendall`. `limit`
    is the largest message this side takes, `heard` that of the other; `functions` come before those
    that are registered, by name. Raises FrameError where the other side broke a rule.
    """
    cdef dict own = {name: convert_to_function(f) for name, f in functions.items()}
    cdef ek_rpc_fds fds
    cdef ek_rpc_stream served
    cdef ek_rpc_options options
    cdef int status
    if type(stream) is int:
        fds = socket_fds(stream)
        served = ek_rpc_fd_stream(&fds)
    else:
        served.self, served.read, served.write = <void *>stream, _read_stream, _write_stream
    memset(&options, 0, sizeof(options))
    options.key, options.folder, options.limit, options.heard = key, folder, limit, heard
    options.self, options.find = <void *>own, _find_own
    cdef PyThreadState *outer = get_released()
    cdef PyThreadState *mine = PyEval_SaveThread()
    set_released(mine)
    status = ek_rpc_serve(&served, &options)
    set_released(outer)
    PyEval_RestoreThread(mine)
    _check(status)


def sandbox_lack():
    """Return what this machine lacks for the sandbox of sessions, "" where it lacks nothing."""
    cdef const char *lack = rpc_lack()
    return "" if lack == NULL else lack.decode()


cdef const char **_texts(list texts) except NULL:
    """Return the addresses of byte strings, which their owner holds, and NULL behind them."""
    cdef const char **made = <const char **>malloc((len(texts) + 1) * sizeof(char *))
    if made == NULL:
        raise MemoryError
    for i, text in enumerate(texts):
        made[i] = <const char *>text
    made[len(texts)] = NULL
    return made


def start_session(list words not None, list environment not None, bytes folder not None,
                  list readable not None, tuple descriptors not None, int output,
                  bint has_sandbox, int max_landlock, int max_namespaces):
    """Start the program of a session behind its walls (runtime/rpc/ek_rpc_sandbox.h has the
    meaning of each argument): its process, or -1; the walls as bits; what went wrong.

    It ends with the thread that calls this.
    """
    cdef rpc_program program
    cdef int numbers[8]
    cdef char wrong[256]
    cdef unsigned walls = 0
    cdef int pid
    if len(descriptors) > 8:
        raise ValueError(f"start_session: at most 8 descriptors expected, got {len(descriptors)}")
    memset(&program, 0, sizeof(program))
    for i, number in enumerate(descriptors):
        numbers[i] = number
    program.folder, program.descriptors = folder, numbers
    program.descriptor_count, program.output = len(descriptors), output
    program.has_sandbox, program.max_landlock = has_sandbox, max_landlock
    program.max_namespaces = max_namespaces
    wrong[0] = 0
    try:
        program.words = _texts(words)
        program.environment = _texts(environment)
        program.readable = _texts(readable)
        with nogil:
            pid = rpc_start(&program, &walls, wrong, sizeof(wrong))
    finally:
        free(program.words)
        free(program.environment)
        free(program.readable)
    return pid, walls, wrong.decode("utf-8", "replace")


def close_sandbox(uint64_t memory, uint64_t file, uint32_t open_files, uint32_t threads,
                  unsigned walls, bint has_devices):
    """Close the last walls around this process: limits and the filter of system calls. Return ""
    or what the kernel refuses.
    """
    cdef rpc_limits limits = rpc_limits(memory, file, open_files, threads)
    cdef const char *wrong = rpc_close(&limits, walls, has_devices)
    return "" if wrong == NULL else wrong.decode()
