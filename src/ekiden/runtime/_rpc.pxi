# Sessions with other machines, from the side that serves: runtime/rpc over what Python has connected.

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

cdef extern from "ek_rpc.h" nogil:
    ctypedef struct ek_rpc_stream:
        void *self
        int (*read)(void *self, void *data, size_t size) noexcept
        int (*write)(void *self, const void *data, size_t size) noexcept
    ctypedef struct ek_rpc_ends:
        pass
    ek_rpc_stream ek_rpc_stream_of(ek_rpc_ends *ends)
    ctypedef struct ek_rpc_options:
        const char *key
        const char *folder
        uint32_t limit
        void *self
        void (*find)(void *self, const char *name, ek_object **found) noexcept
        uint32_t heard
    int ek_rpc_serve(const ek_rpc_stream *stream, const ek_rpc_options *options)

cdef extern from *:
    """static inline ek_rpc_ends ends_of(int number) { return (ek_rpc_ends){number, number}; }"""
    ek_rpc_ends ends_of(int number)


cdef int _read_stream(void *self, void *data, size_t size) noexcept nogil:
    """Fills memory from an object with `recv_into`, such as a socket under TLS."""
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
    cdef ek_rpc_ends ends
    cdef ek_rpc_stream served
    cdef ek_rpc_options options
    cdef int status
    if type(stream) is int:
        ends = ends_of(stream)
        served = ek_rpc_stream_of(&ends)
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
