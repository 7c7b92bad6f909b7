/* Modules of kernels for devices: source text or binaries, each built by its device's driver when it
** is first called. docs/artifact-format.md describes their bytes.
**
** A kernel is called by code of the host with the number of the device, three numbers of blocks and
** three of threads, then what it is given. A kernel with checks gets one more argument: memory in
** which its threads say what is wrong. Of several that fail the first in order is to tell, as on the
** host: the first launch finds out which one that is, a second has it write what it knows. */
#include "ek_internal.h"

#include <stdio.h>

enum { MAX_ARGS = EK_DEVICE_MAX_ARGS, MAX_DEVICES = 16, GIVEN = 7, STATUS_WORDS = 16, NOBODY = 0x7fffffff };

static const char magic[8] = {'E', 'K', 'D', 'E', 'V', 'C', 0, 1};

typedef struct kernel_check {
  ek_bytes kind, format;
} kernel_check;

typedef struct device_kernel {
  ek_bytes format, name, args, code;       /* in the bytes of the module */
  kernel_check *checks;
  int32_t n_checks, type;
  void *built[MAX_DEVICES];                /* atomic: of each device, or NULL */
  void *modules[MAX_DEVICES];
} device_kernel;

typedef struct device_code {
  ek_object *owner;                        /* owned: keeps the bytes, or NULL */
  void *copy;                              /* of the bytes, where nobody keeps them */
  ek_bytes bytes;
  device_kernel *kernels;
  int32_t n;
  ek_mutex lock;                           /* guards building */
} device_code;

/* Reading -------------------------------------------------------------------------------------- */

typedef struct reader {
  const unsigned char *at, *end;
  bool failed;
} reader;

static uint32_t u32(reader *r) {
  if (r->failed || (size_t)(r->end - r->at) < 4) {
    r->failed = true;
    return 0;
  }
  const unsigned char *b = r->at;
  r->at += 4;
  return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static ek_bytes string(reader *r) {
  uint32_t size = u32(r);
  if (r->failed || size > (size_t)(r->end - r->at)) r->failed = true;
  ek_bytes found = {(const char *)r->at, r->failed ? 0 : size};
  r->at += found.size;
  return found;
}

static void *items(reader *r, uint32_t n, size_t least, size_t size) {
  if (r->failed || n > (size_t)(r->end - r->at) / least) {
    r->failed = true;
    return NULL;
  }
  void *memory = ek_alloc(n * size + 1);
  if (memory != NULL) memset(memory, 0, n * size + 1);
  else r->failed = true;
  return memory;
}

static void read_kernel(reader *r, device_kernel *k) {
  k->type = (int32_t)u32(r);
  k->format = string(r);
  k->name = string(r);
  k->args = string(r);
  uint32_t n = u32(r);
  k->checks = items(r, n, 8, sizeof *k->checks);
  for (uint32_t i = 0; i < n && !r->failed; i++) {
    k->checks[i].kind = string(r);
    k->checks[i].format = string(r);
    k->n_checks++;
  }
  k->code = string(r);
  if (k->args.size > MAX_ARGS - 1 || k->type <= EK_CPU) r->failed = true;
  for (size_t i = 0; i < k->args.size && !r->failed; i++) {
    if (k->args.data[i] != 'b' && k->args.data[i] != 'l') r->failed = true;
  }
}

static void code_destroy(void *self) {
  device_code *code = self;
  for (int32_t i = 0; i < code->n; i++) {
    device_kernel *k = &code->kernels[i];
    for (int32_t d = 0; d < MAX_DEVICES; d++) {
      ek_device device = {k->type, d};
      const ek_device_table *table = k->modules[d] == NULL ? NULL : ek_device_table_of(device, "free");
      if (table != NULL && table->unload != NULL) table->unload(device, k->modules[d]);
    }
    ek_free(k->checks);
  }
  ek_free(code->kernels);
  ek_object_release(code->owner);
  ek_free(code->copy);
  ek_free(code);
}

/* Building ------------------------------------------------------------------------------------- */

static char *terminated(ek_bytes text) {
  char *copy = ek_alloc_or_error(text.size + 1);
  if (copy == NULL) return NULL;
  memcpy(copy, text.data, text.size);
  copy[text.size] = '\0';
  return copy;
}

/* Under the lock. */
static int build(device_kernel *k, ek_device device, const ek_device_table *table) {
  void *module = NULL, *memory = NULL;
  char *format = terminated(k->format), *name = terminated(k->name);
  int status = format == NULL || name == NULL ? -1 : 0;
  if (status == 0) status = table->load(device, format, name, k->code.data, k->code.size, &module);
  if (status == 0) status = table->kernel(device, module, name, &memory);
  ek_free(format);
  ek_free(name);
  if (status != 0) return -1;
  k->modules[device.id] = module;
  __atomic_store_n(&k->built[device.id], memory, __ATOMIC_RELEASE);
  return 0;
}

/* Built once for each device, with a lock around it; after that the load is acquire and nothing
** else. Compiling takes a second or minutes, and other kernels wait meanwhile. */
static void *built(device_code *code, device_kernel *k, ek_device device,
                   const ek_device_table *table) {
  void *found = __atomic_load_n(&k->built[device.id], __ATOMIC_ACQUIRE);
  if (found != NULL) return found;
  ek_mutex_lock(&code->lock);
  int status = k->built[device.id] != NULL ? 0 : build(k, device, table);
  ek_mutex_unlock(&code->lock);
  return status == 0 ? k->built[device.id] : NULL;
}

/* Calling -------------------------------------------------------------------------------------- */

typedef struct kernel_function {
  ek_object *module;                       /* owned */
  device_code *code;
  device_kernel *kernel;
} kernel_function;

static int wrong_call(const device_kernel *k, const char *what) {
  int shown = ek_shown(k->name, 200);
  return ek_error("InternalError", "kernel '%.*s': %s", shown, k->name.data, what);
}

/* Reads the arguments of a call: 0, or -1; or 1 where a number of blocks is 0. */
static int read_call(const device_kernel *k, const ek_value *args, int32_t nargs, ek_launch *launch,
                     ek_launch_arg *given) {
  if (nargs != GIVEN + (int32_t)k->args.size) return wrong_call(k, "wrong number of arguments");
  for (int i = 0; i < GIVEN; i++) {
    if (args[i].type_index != EK_INT) return wrong_call(k, "its grid must be integers");
  }
  for (int i = 0; i < 3; i++) {
    launch->blocks[i] = args[1 + i].v.i64;
    launch->threads[i] = args[4 + i].v.i64;
    if (launch->blocks[i] <= 0 || launch->threads[i] <= 0) return 1;
  }
  for (size_t i = 0; i < k->args.size; i++) {
    const ek_value *value = &args[GIVEN + i];
    const ek_dltensor *tensor = ek_value_tensor(value);
    bool is_memory = k->args.data[i] == 'b';
    if (is_memory ? tensor == NULL : value->type_index != EK_INT) {
      return wrong_call(k, "an argument is of another kind");
    }
    given[i] = is_memory ? (ek_launch_arg){ek_dltensor_data(tensor), 0, 0}
                         : (ek_launch_arg){NULL, value->v.i64, 8};
  }
  return 0;
}

/* The message of the thread that failed. */
static int fail(const device_kernel *k, const int64_t *status) {
  int64_t which = status[1];
  if (which < 0 || which >= k->n_checks) return wrong_call(k, "a check failed that it has not");
  char *kind = terminated(k->checks[which].kind), *format = terminated(k->checks[which].format);
  int code = -1;
  if (kind != NULL && format != NULL) code = ek_kernel_error_values(kind, format, status + 2);
  ek_free(kind);
  ek_free(format);
  return code;
}

/* A launch of a kernel with checks: its threads have passed them when this gives 0. Threads of a
** device end in any order. In the first turn each that fails lowers one number, atomically, to its
** own place in the order; the second launch is told that number, and the thread that has it writes
** what its message shows. A kernel without a failure is launched once. */
static int launch_checked(const device_kernel *k, ek_device device, const ek_device_table *table,
                          void *result, ek_launch *launch, ek_launch_arg *given) {
  int64_t status[STATUS_WORDS] = {0};
  int32_t first[2] = {NOBODY, -1};
  const ek_device host = {EK_CPU, 0};
  void *memory = NULL;
  if (ek_device_memory(table, device, sizeof status, 0, &memory) != 0) return -1;
  given[launch->n_args++] = (ek_launch_arg){memory, 0, 0};
  int code = 0;
  for (int turn = 0; turn < 2 && code == 0; turn++) {
    memcpy(status, first, sizeof first);
    code = ek_device_upload(status, host, memory, device, sizeof status);
    if (code == 0) code = table->launch(device, NULL, result, launch);
    if (code == 0) code = table->copy(memory, device, status, host, sizeof status, NULL);
    if (code == 0) memcpy(first, status, sizeof first);
    if (code == 0 && first[0] == NOBODY) break;
    if (code == 0 && turn == 1) code = fail(k, status);
    first[1] = first[0];
  }
  ek_device_memory_free(table, device, memory, sizeof status);
  return code;
}

static int call_kernel(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  kernel_function *f = self;
  device_kernel *k = f->kernel;
  ek_launch_arg given[MAX_ARGS];
  ek_launch launch = {{1, 1, 1}, {1, 1, 1}, given, (int32_t)k->args.size};
  int read = read_call(k, args, nargs, &launch, given);
  if (read != 0) return read < 0 ? -1 : 0;
  int64_t number = args[0].v.i64;
  if (number < 0 || number >= MAX_DEVICES) return wrong_call(k, "there is no such device");
  ek_device device = {k->type, (int32_t)number};
  const ek_device_table *table = ek_device_table_of(device, "run a kernel");
  if (table == NULL) return -1;
  if (table->load == NULL || table->kernel == NULL || table->launch == NULL) {
    return ek_error("DeviceError", "device '%s': its driver runs no code", table->name);
  }
  void *memory = built(f->code, k, device, table);
  if (memory == NULL) return -1;
  *ret = ek_value_int(0);
  int status = k->n_checks != 0 ? launch_checked(k, device, table, memory, &launch, given)
                                : table->launch(device, NULL, memory, &launch);
  return status != 0 ? -1 : ek_device_launched(table, device, args + GIVEN, nargs - GIVEN);
}

static void delete_function(void *self) {
  kernel_function *f = self;
  ek_release(f->module);
  ek_free(f);
}

/* The kind ------------------------------------------------------------------------------------- */

static int code_get(void *self, ek_object *module, const char *name, ek_object **out) {
  device_code *code = self;
  size_t size = strlen(name);
  for (int32_t i = 0; i < code->n; i++) {
    device_kernel *k = &code->kernels[i];
    if (k->name.size != size || memcmp(k->name.data, name, size) != 0) continue;
    kernel_function *f = ek_alloc_or_error(sizeof *f);
    if (f == NULL) return -1;
    *f = (kernel_function){module, code, k};
    if (ek_function_new(f, call_kernel, delete_function, out) == 0) {
      ek_retain(module);
      return 0;
    }
    ek_free(f);
    return -1;
  }
  return 0;
}

static int code_names(void *self, ek_object **out) {
  const device_code *code = self;
  ek_array *array = ek_array_alloc(code->n);
  if (array == NULL) return -1;
  for (int32_t i = 0; i < code->n; i++) {
    ek_bytes name = code->kernels[i].name;
    if (ek_string_new(EK_STR, name.data, name.size, &array->data[i]) == 0) continue;
    ek_release(&array->base);
    return -1;
  }
  *out = &array->base;
  return 0;
}

static int code_bytes(void *self, ek_value *out) {
  const device_code *code = self;
  return ek_string_new(EK_BYTES, code->bytes.data, code->bytes.size, out);
}

static const ek_module_kind code_kind = {"device", code_get,     code_names,
                                         NULL,     code_destroy, code_bytes};

static int read_all(device_code *code) {
  const unsigned char *begin = (const unsigned char *)code->bytes.data;
  reader r = {begin + sizeof magic, begin + code->bytes.size, code->bytes.size < sizeof magic};
  if (!r.failed) r.failed = memcmp(begin, magic, sizeof magic) != 0;
  uint32_t n = u32(&r);
  code->kernels = items(&r, n, 24, sizeof *code->kernels);
  for (uint32_t i = 0; i < n && !r.failed; i++) {
    code->n++;
    read_kernel(&r, &code->kernels[i]);
  }
  if (!r.failed && r.at != r.end) r.failed = true;
  return r.failed ? ek_error("LoadError", "load code of devices: its bytes are damaged") : 0;
}

int ek_device_code_load(const void *bytes, size_t size, ek_object *owner, ek_object **out) {
  device_code *code = ek_alloc_or_error(sizeof *code);
  if (code == NULL) return -1;
  *code = (device_code){.bytes = {bytes, size}, .lock = (ek_mutex)EK_MUTEX_INIT};
  if (owner == NULL) {
    code->copy = ek_alloc_or_error(size + 1);
    if (code->copy != NULL) memcpy(code->copy, bytes, size);
    code->bytes.data = code->copy;
  }
  if ((owner != NULL || code->copy != NULL) && read_all(code) == 0 &&
      ek_module_new(&code_kind, code, out) == 0) {
    ek_object_retain(owner);
    code->owner = owner;
    return 0;
  }
  code_destroy(code);
  return -1;
}
