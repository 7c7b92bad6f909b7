# What lies in a folder, and when it was written: asked of the system by one call for each file.

from posix.fcntl cimport O_RDONLY, open as _open
from posix.unistd cimport close

cdef extern from * nogil:
    """
    #include <dirent.h>
    #include <errno.h>
    #include <fcntl.h>
    #include <sys/stat.h>

    typedef struct { int64_t device, node, size, written, changed; } file_state;

    /* Of a file, links followed; 0 where there is one, else what errno says. */
    static inline int state_at(int folder, const char *name, file_state *out) {
      struct stat s;
      if (fstatat(folder, name, &s, 0) != 0) return errno;
      *out = (file_state){(int64_t)s.st_dev, (int64_t)s.st_ino, (int64_t)s.st_size,
                          s.st_mtim.tv_sec * INT64_C(1000000000) + s.st_mtim.tv_nsec,
                          s.st_ctim.tv_sec * INT64_C(1000000000) + s.st_ctim.tv_nsec};
      return 0;
    }
    static inline int is_folder(int folder, const char *name, int kind) {
      struct stat s;
      if (kind != DT_UNKNOWN) return kind == DT_DIR;
      return fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(s.st_mode);
    }
    """
    ctypedef struct file_state:
        int64_t device, node, size, written, changed
    int state_at(int folder, const char *name, file_state *out)
    bint is_folder(int folder, const char *name, int kind)
    ctypedef struct DIR:
        pass
    struct dirent:
        char d_name[256]
        unsigned char d_type
    DIR *fdopendir(int folder)
    dirent *readdir(DIR *folder)
    int closedir(DIR *folder)
    int openat(int folder, const char *name, int flags)
    int errno
    int O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW
    int EACCES, ENOENT, ENOMEM, ENAMETOOLONG

cdef enum:
    DEEPEST = 4096       # bytes of a path, those of Linux

cdef struct Listing:
    char *data           # of each file its path below the root, 0, and a file_state
    size_t used, room
    int64_t latest
    char path[DEEPEST]


cdef int _append(Listing *found, const void *data, size_t size) noexcept nogil:
    """0, or ENOMEM."""
    cdef char *grown
    if found.used + size > found.room:
        found.room = 2 * found.room + size
        grown = <char *>realloc(found.data, found.room)
        if grown == NULL:
            return ENOMEM
        found.data = grown
    memcpy(found.data + found.used, data, size)
    found.used += size
    return 0


cdef bint _ends(const char *name, size_t length, const char *endings) noexcept nogil:
    """Return whether a name has one of the suffixes in `endings`, each preceded by its length."""
    cdef size_t size
    while endings[0]:
        size = endings[0]
        if length >= size and memcmp(name + length - size, endings + 1, size) == 0:
            return True
        endings += 1 + endings[0]
    return False


cdef int _list(Listing *found, int folder, size_t at, const char *endings) noexcept nogil:
    """Add the files of a folder, which is closed, whose path has `at` bytes; 0, or an error."""
    cdef DIR *entries = fdopendir(folder)
    cdef dirent *each
    cdef file_state state
    cdef size_t length
    cdef int failed = 0, below
    if entries == NULL:
        failed = errno
        close(folder)
        return failed
    each = readdir(entries)
    while each != NULL and failed == 0:
        length = strlen(each.d_name)
        if at + length + 2 > DEEPEST:
            failed = ENAMETOOLONG
            break
        memcpy(found.path + at, each.d_name, length + 1)
        if _ends(each.d_name, length, endings):
            failed = state_at(folder, each.d_name, &state)
            if failed == 0:
                found.latest = max(found.latest, state.written, state.changed)
                failed = (_append(found, found.path, at + length + 1)
                          or _append(found, &state, sizeof(state)))
            elif failed == ENOENT:       # it leads nowhere, or has gone
                failed = 0
        elif (each.d_name[0] != b"." and strcmp(each.d_name, "__pycache__") != 0
              and is_folder(folder, each.d_name, each.d_type)):
            below = openat(folder, each.d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
            if below < 0:                # it has gone, or nobody can import from it
                failed = 0 if errno == ENOENT or errno == EACCES else errno
            else:
                found.path[at + length] = b"/"
                failed = _list(found, below, at + length + 1, endings)
        each = readdir(entries)
    closedir(entries)
    return failed


def _states_below(str folder not None, tuple endings not None):
    """Implement `ekiden.runtime.files.folder_fingerprint`."""
    cdef Listing found
    cdef bytes name = os.fsencode(folder)
    cdef bytes ends = b"".join(bytes([len(e)]) + e.encode() for e in endings) + b"\0"
    cdef const char *given = name
    cdef const char *wanted = ends
    cdef int failed, handle
    found.data, found.used, found.room, found.latest = NULL, 0, 0, 0
    with nogil:
        handle = _open(given, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        failed = errno if handle < 0 else _list(&found, handle, 0, wanted)
    try:
        if failed:
            raise OSError(failed, os.strerror(failed), folder)
        return PyBytes_FromStringAndSize(found.data, found.used), found.latest
    finally:
        free(found.data)
