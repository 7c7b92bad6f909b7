/* Functions that compiled code may import, among them the allocator of scratch memory. */
#include "ek_vm.h"

#include <stdio.h>

/* Errors --------------------------------------------------------------------------------------- */

int ek_kernel_error(const char *kind, const char *message) { return ek_error(kind, "%s", message); }

enum { LONGEST_MESSAGE = 2000, LONGEST_VALUE = 24 };

/* Set an error from a kernel's format without printf: kernels, and 'format' with them, may come
** from an untrusted file. Only %lld and %% are interpreted, and every value is written with a fixed
** format. Excess text is truncated. */
int ek_kernel_error_values(const char *kind, const char *format, const int64_t *values) {
  char text[LONGEST_MESSAGE + LONGEST_VALUE];
  size_t size = 0;
  while (*format != '\0' && size < LONGEST_MESSAGE) {
    if (strncmp(format, "%lld", 4) == 0) {
      size += (size_t)snprintf(text + size, LONGEST_VALUE, "%lld", (long long)*values++);
      format += 4;
    } else {
      format += format[0] == '%' && format[1] == '%';
      text[size++] = *format++;
    }
  }
  text[size] = '\0';
  return ek_error(kind, "%s", text);
}

/* Workspace --------------------------------------------------------------------------------------
**
** Each thread has a stack of chunks, each a stack of blocks. A chunk that empties goes back to the
** pool unless it is the last one, which is kept for the next call. While memory is lent to a thread,
** it is a stack of its own, which is asked first.
**
** Blocks are freed in the reverse order of their allocation, as they are those of calls inside of
** calls. That makes both a few instructions and leaves no gaps; the assertions hold callers to it.
** Memory is the thread's own: a kernel's parallel parts have parts of what was lent, or their own
** chunks. */

enum { LINE = 64, CHUNK_SIZE = 1 << 20 };

typedef struct chunk {         /* starts the chunk, in a cache line of its own */
  struct chunk *below;
  size_t actual;
  size_t top;                  /* offset of the first free byte */
} chunk;

typedef struct block {         /* in the cache line before each block */
  chunk *in;                   /* NULL for what was lent */
  size_t old_top;
} block;

static_assert((int)LINE == (int)EK_SCRATCH_UNIT, "blocks in lent memory are aligned");

static EK_THREAD_LOCAL chunk *current;
static EK_THREAD_LOCAL bool is_registered;
static EK_THREAD_LOCAL ek_scratch lent;

ek_scratch ek_workspace_lend(ek_scratch scratch) {
  ek_scratch before = lent;
  lent = scratch;
  return before;
}

ek_scratch ek_scratch_part(ek_scratch whole, int64_t index, int64_t count) {
  size_t size = (whole.size - whole.top) / (size_t)count / LINE * LINE;
  if (size == 0) return (ek_scratch){NULL, 0, 0};
  return (ek_scratch){whole.begin + whole.top + (size_t)index * size, size, 0};
}

static void pop_chunk(void) {
  chunk *empty = current;
  current = empty->below;
  ek_buffer_free(empty, empty->actual);
}

void ek_workspace_drop(void) {
  while (current != NULL) pop_chunk();
  is_registered = false;
}

static chunk *new_chunk(size_t size) {
  size_t actual;
  chunk *fresh = ek_buffer_alloc(size, &actual);
  if (fresh != NULL) *fresh = (chunk){NULL, actual, LINE};
  return fresh;
}

static void keep_until_exit(void) {
  if (!is_registered) ek_thread_on_exit(ek_workspace_drop);
  is_registered = true;
}

/* An empty chunk that is too small goes before a larger one is asked for: else a thread would keep
** one of each size that it ever needed. */
static chunk *push_chunk(size_t needed) {
  if (current != NULL && current->top == LINE) pop_chunk();
  chunk *fresh = new_chunk(needed + LINE > CHUNK_SIZE ? needed + LINE : CHUNK_SIZE);
  if (fresh == NULL) return NULL;
  fresh->below = current;
  current = fresh;
  keep_until_exit();
  return fresh;
}

void *ek_workspace_prepare(void) { return new_chunk(CHUNK_SIZE); }

void ek_workspace_adopt(void *prepared) {
  if (prepared == NULL) return;
  assert(current == NULL && "a thread adopts its workspace before it uses any");
  current = prepared;
  keep_until_exit();
}

void ek_workspace_discard(void *prepared) {
  chunk *unused = prepared;
  if (unused != NULL) ek_buffer_free(unused, unused->actual);
}

static void *take_lent(size_t needed) {
  char *at = lent.begin + lent.top;
  *(block *)(void *)at = (block){NULL, lent.top};
  lent.top += needed;
  return at + LINE;
}

void *ek_workspace_alloc(int64_t nbytes) {
  if (nbytes < 0 || nbytes > PTRDIFF_MAX / 4) {
    ek_error("MemoryError", "allocate workspace: the size must be in range, got %lld",
             (long long)nbytes);
    return NULL;
  }
  size_t needed = LINE + ((size_t)nbytes + LINE - 1) / LINE * LINE;
  if (lent.size - lent.top >= needed) return take_lent(needed);
  chunk *in = current;
  if (in == NULL || in->actual - in->top < needed) in = push_chunk(needed);
  if (in == NULL) {
    ek_error_memory((size_t)nbytes);
    return NULL;
  }
  char *at = (char *)in + in->top;
  *(block *)(void *)at = (block){in, in->top};
  in->top += needed;
  return at + LINE;
}

void ek_workspace_free(void *memory) {
  if (memory == NULL) return;
  block *freed = (block *)(void *)((char *)memory - LINE);
  chunk *in = freed->in;
  if (in == NULL) {
    assert(freed->old_top < lent.top && "freed out of order, or on another thread");
    lent.top = freed->old_top;
    return;
  }
  assert(in == current && freed->old_top < in->top && "freed out of order, or on another thread");
  in->top = freed->old_top;
  if (in->top == LINE && in->below != NULL) pop_chunk();
}

/* Calls by name -------------------------------------------------------------------------------- */

static int find_function(const ek_call_site *site, ek_object **out) {
  if (site->image != NULL && ek_module_get(site->image, site->name, out) != 0) return -1;
  if (*out == NULL) *out = ek_registry_get(site->name);
  if (*out != NULL) return 0;
  return ek_error("KeyError", "call '%s': there is no global function of that name", site->name);
}

/* The name is looked up once for each place in the code. Threads that come at the same time may
** both look; the first to store wins, and the other gives its reference back. A function registered
** under the name later is not seen by a site that has found one. */
int ek_call_packed(ek_call_site *site, const ek_value *args, int32_t nargs, ek_value *ret) {
  ek_object *function = __atomic_load_n(&site->function, __ATOMIC_ACQUIRE), *known = NULL;
  if (function != NULL) return ek_function_call(function, args, nargs, ret);
  if (find_function(site, &function) != 0) return -1;
  if (!__atomic_compare_exchange_n(&site->function, &known, function, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    ek_release(function); /* another thread was first */
    function = known;
  }
  return ek_function_call(function, args, nargs, ret);
}

void ek_value_drop(ek_value *value) { ek_value_release(value); }

#if defined(__arm__)
/* Helpers for operations without an instruction: the compiler's own, by the names of the Arm
** run-time ABI (RTABI32), whose calling convention differs from C's. */
void __aeabi_d2lz(void), __aeabi_d2ulz(void), __aeabi_f2lz(void), __aeabi_f2ulz(void);
void __aeabi_idiv(void), __aeabi_idivmod(void), __aeabi_l2d(void), __aeabi_l2f(void);
void __aeabi_ldivmod(void), __aeabi_uidiv(void), __aeabi_uidivmod(void);
void __aeabi_ul2d(void), __aeabi_ul2f(void), __aeabi_uldivmod(void);
#endif

/* The table ------------------------------------------------------------------------------------ */

static const struct {
  const char *name;
  ek_address address;
} services[] = {
#define EK_OPCODE(name, text, format, operands, properties, meaning) \
  {"ek_op_" #name, (ek_address)ek_op_##name},
#include "vm_opcodes.def"
#undef EK_OPCODE
    {"ek_call_packed", (ek_address)ek_call_packed},
    {"ek_device_workspace_alloc", (ek_address)ek_device_workspace_alloc},
    {"ek_device_workspace_free", (ek_address)ek_device_workspace_free},
    {"ek_kernel_error", (ek_address)ek_kernel_error},
    {"ek_kernel_error_values", (ek_address)ek_kernel_error_values},
    {"ek_parallel_for", (ek_address)ek_parallel_for},
    {"ek_workspace_alloc", (ek_address)ek_workspace_alloc},
    {"ek_workspace_free", (ek_address)ek_workspace_free},
    {"ek_value_drop", (ek_address)ek_value_drop},
    {"memcpy", (ek_address)memcpy},
    {"memmove", (ek_address)memmove},
    {"memset", (ek_address)memset},
    {"ek_native_choose", (ek_address)ek_native_choose},
    {"ek_native_poll", (ek_address)ek_native_poll},
    {"ek_object_release", (ek_address)ek_object_release},
#if defined(__arm__)
    {"__aeabi_d2lz", __aeabi_d2lz},
    {"__aeabi_d2ulz", __aeabi_d2ulz},
    {"__aeabi_f2lz", __aeabi_f2lz},
    {"__aeabi_f2ulz", __aeabi_f2ulz},
    {"__aeabi_idiv", __aeabi_idiv},
    {"__aeabi_idivmod", __aeabi_idivmod},
    {"__aeabi_l2d", __aeabi_l2d},
    {"__aeabi_l2f", __aeabi_l2f},
    {"__aeabi_ldivmod", __aeabi_ldivmod},
    {"__aeabi_uidiv", __aeabi_uidiv},
    {"__aeabi_uidivmod", __aeabi_uidivmod},
    {"__aeabi_ul2d", __aeabi_ul2d},
    {"__aeabi_ul2f", __aeabi_ul2f},
    {"__aeabi_uldivmod", __aeabi_uldivmod},
#endif
};

/* Look a service up by a linear search, which runs once per import of an image at load time. */
ek_address ek_service(const char *name) {
  for (size_t i = 0; i < sizeof services / sizeof services[0]; i++) {
    if (strcmp(services[i].name, name) == 0) return services[i].address;
  }
  return NULL;
}
