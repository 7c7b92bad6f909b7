# Files in memory as they are, which somebody may cut short meanwhile: whoever reads behind the new
# end gets SIGBUS, which ends the process. While files are mapped here, a handler puts zeros in the
# place of what has gone, and notes that; signals that are about anything else go where they went.

from cpython.buffer cimport PyBuffer_FillInfo

cdef extern from * nogil:
    """
    #include <signal.h>
    #include <sys/mman.h>
    #include <unistd.h>

    enum { MAPPED_FILES = 256 };
    typedef struct {
      uintptr_t begin;
      size_t size;    /* 0: the place is free */
      int is_cut;
    } mapped_range;
    static mapped_range mapped_ranges[MAPPED_FILES];
    static int mapped_count;
    static size_t page_size;  /* set before the handler is */
    static struct sigaction before_mapped;

    /* Async-signal-safe: it calls the kernel alone, and loads are of words that are written whole. */
    static void zeros_where_cut(int signal, siginfo_t *info, void *context) {
      uintptr_t at = (uintptr_t)info->si_addr;
      for (int i = 0; i < MAPPED_FILES; i++) {
        mapped_range *range = &mapped_ranges[i];
        if (info->si_code <= 0 || at - range->begin >= range->size) continue;
        uintptr_t page = at - at % page_size;
        int how = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
        size_t left = range->begin + range->size - page;
        if (mmap((void *)page, left, PROT_READ, how, -1, 0) == MAP_FAILED) break;
        __atomic_store_n(&range->is_cut, 1, __ATOMIC_RELAXED);
        return;
      }
      if (before_mapped.sa_flags & SA_SIGINFO) {
        before_mapped.sa_sigaction(signal, info, context);
      } else if (before_mapped.sa_handler != SIG_DFL && before_mapped.sa_handler != SIG_IGN) {
        before_mapped.sa_handler(signal);
      } else {
        sigaction(SIGBUS, &before_mapped, NULL); /* what was read is read again, and it counts */
      }
    }

    /* The place of a range, -1 where there is none left. Under the GIL. */
    static int watch_mapped(void *begin, size_t size) {
      struct sigaction now, mine = {.sa_sigaction = zeros_where_cut,
                                    .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
      for (int i = 0; i < MAPPED_FILES; i++) {
        if (mapped_ranges[i].size != 0) continue;
        sigaction(SIGBUS, NULL, &now);
        page_size = (size_t)sysconf(_SC_PAGESIZE);
        if (mapped_count == 0 && now.sa_sigaction != zeros_where_cut) {
          before_mapped = now;
          sigaction(SIGBUS, &mine, NULL);
        }
        mapped_count++;
        mapped_ranges[i].begin = (uintptr_t)begin;
        mapped_ranges[i].is_cut = 0;
        __atomic_store_n(&mapped_ranges[i].size, size, __ATOMIC_RELEASE);
        return i;
      }
      return -1;
    }

    /* Ends the watch; with the last one the handler goes, unless another stands over it. */
    static void leave_mapped(int place) {
      struct sigaction now;
      __atomic_store_n(&mapped_ranges[place].size, 0, __ATOMIC_RELEASE);
      if (--mapped_count > 0) return;
      sigaction(SIGBUS, NULL, &now);
      if (now.sa_sigaction == zeros_where_cut) sigaction(SIGBUS, &before_mapped, NULL);
    }

    static int is_mapped_cut(int place) {
      return __atomic_load_n(&mapped_ranges[place].is_cut, __ATOMIC_RELAXED);
    }

    /* Lets whole pages of a range that is watched go from memory; other addresses are left alone. */
    static void drop_mapped(uintptr_t begin, size_t size) {
      for (int i = 0; i < MAPPED_FILES; i++) {
        if (begin - mapped_ranges[i].begin >= mapped_ranges[i].size) continue;
        if (size > mapped_ranges[i].begin + mapped_ranges[i].size - begin) return;
        uintptr_t first = begin + (page_size - begin % page_size) % page_size;
        uintptr_t end = (begin + size) / page_size * page_size;
        if (end > first) madvise((void *)first, end - first, MADV_DONTNEED);
        return;
      }
    }
    static void *map_whole(int file, size_t size) {
      void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
      return data == MAP_FAILED ? NULL : data;
    }
    """
    void *map_whole(int file, size_t size)
    int watch_mapped(void *begin, size_t size)
    void leave_mapped(int place)
    int is_mapped_cut(int place)
    void drop_mapped(uintptr_t begin, size_t size)
    int munmap(void *data, size_t size)


cdef class _Mapped:
    """All of an open file of a size that is not 0, as bytes that nobody writes."""
    cdef void *data
    cdef Py_ssize_t size
    cdef int place

    def __cinit__(self, int file, Py_ssize_t size):
        self.place, self.size = -1, size
        self.data = map_whole(file, size)
        if self.data == NULL:
            raise OSError(errno, os.strerror(errno))
        self.place = watch_mapped(self.data, size)
        if self.place < 0:
            raise OSError("too many files are mapped")

    def __dealloc__(self):
        if self.place >= 0:
            leave_mapped(self.place)
        if self.data != NULL:
            munmap(self.data, self.size)

    @property
    def is_cut(self):
        """Whether something that was read had gone from the file."""
        return bool(is_mapped_cut(self.place))

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, True, flags)


def _drop_mapped(uintptr_t begin, size_t size):
    """As `ekiden.runtime.mapped.drop` says."""
    with nogil:
        drop_mapped(begin, size)
