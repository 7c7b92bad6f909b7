/* Registry of device kinds other than the CPU: a function table per kind, registered by the
** application or by a driver library, which is loaded when its devices are first used; device
** names. */
#include "ek_internal.h"

#include <stdarg.h>
#include <stdio.h>

enum { KINDS = 64, DRIVER_VERSION = 1 };

static const ek_device_table *tables[KINDS];

/* The kinds that may have a driver, by DLPack's numbers. */
static const char *const driver_names[KINDS] = {
    [EK_CUDA] = "cuda", [EK_OPENCL] = "opencl", [7] = "vulkan", [8] = "metal", [10] = "rocm",
    [15] = "webgpu"};

/* Drivers are opened one at a time. */
static ek_mutex driver_lock = EK_MUTEX_INIT;

int ek_device_register(int32_t type, const ek_device_table *table) {
  const ek_device_table *known = NULL;
  if (type <= EK_CPU || type >= KINDS) {
    return ek_error("ValueError", "register device: a type from 2 to %d expected, got %d",
                    KINDS - 1, type);
  }
  if (!__atomic_compare_exchange_n(&tables[type], &known, table, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE) &&
      known != table) {
    return ek_error("ValueError", "register device: type %d is '%s' already, got '%s'", type,
                    known->name, table->name);
  }
  return 0;
}

ek_device_name ek_device_describe(ek_device device) {
  ek_device_name name;
  bool is_named = device.type > EK_CPU && device.type < KINDS && driver_names[device.type] != NULL;
  const char *kind = device.type == EK_CPU ? "cpu" : is_named ? driver_names[device.type] : NULL;
  if (kind != NULL) snprintf(name.text, sizeof name.text, "%s(%d)", kind, device.id);
  else snprintf(name.text, sizeof name.text, "device %d(%d)", device.type, device.id);
  return name;
}

/* Drivers -------------------------------------------------------------------------------------- */

void *ek_driver_library(const char *kind) {
  char folder[512], path[640];
  const char *said = getenv("EKIDEN_DRIVERS"), *reason;
  ek_dl_folder(folder, sizeof folder);
  const char *const folders[] = {said, folder, ""};
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
    if (folders[i] == NULL || (i < 2 && folders[i][0] == '\0')) continue;
    const char *slash = folders[i][0] == '\0' ? "" : "/";
    snprintf(path, sizeof path, "%s%slibekiden_%s." EK_LIBRARY_SUFFIX, folders[i], slash, kind);
    void *library = ek_dl_open(path, &reason);
    if (library != NULL) return library;
  }
  return NULL;
}

/* The driver has registered a table when this gives 0. Under the lock. */
static int open_driver(ek_device device, const char *doing) {
  static const ek_driver_host host = {DRIVER_VERSION, ek_error, ek_device_register};
  const char *kind = driver_names[device.type];
  ek_device_name name = ek_device_describe(device);
  ek_driver_open_t open;
  void *library = ek_driver_library(kind);
  if (library == NULL) {
    return ek_error("DeviceError", "%s: %s: there is no driver libekiden_%s." EK_LIBRARY_SUFFIX " here: Ekiden "
                    "brings those of CUDA, OpenCL and Vulkan; EKIDEN_DRIVERS names the folder of others",
                    doing, name.text, kind);
  }
  void *found = ek_dl_symbol(library, "ek_driver_open");
  memcpy(&open, &found, sizeof open);
  if (found != NULL) return open(&host); /* stays loaded: its table lives as long as the process */
  return ek_error("DeviceError", "%s: %s: libekiden_%s." EK_LIBRARY_SUFFIX " is no driver: it has no 'ek_driver_open'",
                  doing, name.text, kind);
}

const ek_device_table *ek_device_table_of(ek_device device, const char *doing) {
  const ek_device_table *table = NULL;
  int status = 0;
  if (device.type >= 0 && device.type < KINDS) {
    table = __atomic_load_n(&tables[device.type], __ATOMIC_ACQUIRE);
    if (table == NULL && driver_names[device.type] != NULL) {
      ek_mutex_lock(&driver_lock);
      if (tables[device.type] == NULL) status = open_driver(device, doing);
      ek_mutex_unlock(&driver_lock);
      table = __atomic_load_n(&tables[device.type], __ATOMIC_ACQUIRE);
    }
  }
  if (table == NULL && status == 0) {
    ek_error("ValueError", "%s: expected the CPU (device type %d) or a registered device, got "
             "device type %d", doing, EK_CPU, device.type);
  }
  return table;
}

/* Working memory of kernels -------------------------------------------------------------------- */

void *ek_device_workspace_alloc(int64_t type, int64_t id, int64_t nbytes) {
  ek_device device = {(int32_t)type, (int32_t)id};
  const ek_device_table *table = ek_device_table_of(device, "working memory of a kernel");
  void *memory = NULL;
  if (table == NULL) return NULL;
  size_t size = nbytes < 1 ? 1 : (size_t)nbytes;
  return ek_device_memory(table, device, size, 0, &memory) == 0 ? memory : NULL;
}

void ek_device_workspace_free(int64_t type, int64_t id, void *memory, int64_t nbytes) {
  ek_device device = {(int32_t)type, (int32_t)id};
  const ek_device_table *table = ek_device_table_of(device, "working memory of a kernel");
  size_t size = nbytes < 1 ? 1 : (size_t)nbytes;
  if (table != NULL && memory != NULL) ek_device_memory_free(table, device, memory, size);
}

/* Registered functions ------------------------------------------------------------------------- */

/* The table of the device that is the first of 'n' arguments. */
static const ek_device_table *argument_table(const char *name, const ek_value *args, int32_t nargs,
                                             int32_t n) {
  if (nargs != n || args[0].type_index != EK_DEVICE) {
    ek_error("TypeError", "%s: wrong arguments, see runtime.h", name);
    return NULL;
  }
  return ek_device_table_of(args[0].v.device, name);
}

static int lacks(const ek_device_table *table, const char *what) {
  return ek_error("DeviceError", "device '%s': its driver has no %s", table->name, what);
}

static int device_open(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)ret;
  return argument_table("ek.device.open", args, nargs, 1) == NULL ? -1 : 0;
}

static int device_count(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  int32_t n = 0;
  (void)self;
  const ek_device_table *table = argument_table("ek.device.count", args, nargs, 1);
  if (table == NULL || (table->count == NULL ? lacks(table, "count") : table->count(&n)) != 0) {
    return -1;
  }
  *ret = ek_value_int(n);
  return 0;
}

static int device_attribute(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  char text[1024] = "";
  int64_t number = 0;
  (void)self;
  const ek_device_table *table = argument_table("ek.device.attribute", args, nargs, 2);
  if (table == NULL) return -1;
  if (table->attribute == NULL) return lacks(table, "attributes");
  int32_t which = args[1].type_index == EK_INT ? (int32_t)args[1].v.i64 : -1;
  if (which < 0 || which > EK_DEVICE_LOCAL) {
    return ek_error("ValueError", "ek.device.attribute: a number up to %d expected", EK_DEVICE_LOCAL);
  }
  if (table->attribute(args[0].v.device, which, &number, text, sizeof text) != 0) return -1;
  if (which <= EK_DEVICE_ABILITIES) return ek_string_new(EK_STR, text, strlen(text), ret);
  *ret = ek_value_int(number);
  return 0;
}

static int device_sync(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)ret;
  const ek_device_table *table = argument_table("ek.device.sync", args, nargs, 1);
  if (table == NULL) return -1;
  return table->synchronize == NULL ? 0 : table->synchronize(args[0].v.device, NULL);
}

const ek_builtin ek_device_builtins[EK_DEVICE_BUILTINS] = {{"ek.device.attribute", device_attribute},
                                                           {"ek.device.count", device_count},
                                                           {"ek.device.open", device_open},
                                                           {"ek.device.sync", device_sync}};
