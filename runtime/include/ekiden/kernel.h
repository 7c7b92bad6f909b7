/* Runtime services for code that is compiled from C.
**
** Generated C includes this header and nothing else of Ekiden's. Each function finds its service in
** the runtime when it is first called and keeps it, so that the runtime exports ek_service alone.
** With EK_KERNEL_IMAGE defined the code goes into an image (ek_image_load), which has no data to
** write to: then these are imports, bound by the loader. */
#ifndef EKIDEN_KERNEL_H_
#define EKIDEN_KERNEL_H_

#include "ekiden/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef EK_KERNEL_IMAGE

int ek_parallel_for(int (*body)(void *context, int64_t begin, int64_t end), void *context,
                    int64_t n, int64_t grain);
int ek_kernel_error(const char *kind, const char *message);
int ek_kernel_error_values(const char *kind, const char *format, const int64_t *values);
void *ek_workspace_alloc(int64_t nbytes);
void ek_workspace_free(void *memory);
void *ek_device_workspace_alloc(int64_t type, int64_t id, int64_t nbytes);
void ek_device_workspace_free(int64_t type, int64_t id, void *memory, int64_t nbytes);
int ek_call_packed(ek_call_site *site, const ek_value *args, int32_t nargs, ek_value *ret);
void ek_value_drop(ek_value *value);

/* Declares a call site: 'ek_call_packed(&variable, ...)' calls the function 'name', a literal. */
#ifdef __clang__
#define EK_CALL_SITE(variable, name) extern ek_call_site variable __asm__("packed:" name)
#else                                      /* GCC hands the label to the assembler as it is */
#define EK_CALL_SITE(variable, name) extern ek_call_site variable __asm__("\"packed:" name "\"")
#endif

#else

/* The service 'name', kept in '*known'. Several threads may find it at once: they find the same. */
static inline ek_address ek_find_service(ek_address *known, const char *name) {
  ek_address found = __atomic_load_n(known, __ATOMIC_RELAXED);
  if (found != NULL) return found;
  found = ek_service(name);
  __atomic_store_n(known, found, __ATOMIC_RELAXED);
  return found;
}

/* Splits [0, n) into contiguous chunks of at least 'grain' (below 1 counts as 1), at most as many
** as there are threads, calls body(context, begin, end) for each and returns when all are done: 0,
** or -1 if any body returned other than 0, with the error of the lowest failing chunk set in the
** calling thread. Chunk i goes to the same worker each time, unless that one is late: then the
** caller does it. Runs inline, as one chunk, when n < 2 * grain, when there is one thread, inside
** another ek_parallel_for, or while another caller has the pool; it then returns what body returns.
** n <= 0 calls nothing. Bodies run concurrently. */
static inline int ek_parallel_for(int (*body)(void *context, int64_t begin, int64_t end),
                                  void *context, int64_t n, int64_t grain) {
  typedef int (*service)(int (*)(void *, int64_t, int64_t), void *, int64_t, int64_t);
  static ek_address known;
  service call = (service)ek_find_service(&known, "ek_parallel_for");
  return call(body, context, n, grain);
}

/* ek_error with a ready message. Returns -1. */
static inline int ek_kernel_error(const char *kind, const char *message) {
  typedef int (*service)(const char *, const char *);
  static ek_address known;
  service call = (service)ek_find_service(&known, "ek_kernel_error");
  return call(kind, message);
}

/* ek_error with a format: each "%lld" in it is the next of the values, "%%" is "%". Text beyond
** 2000 bytes is left out. Returns -1. */
static inline int ek_kernel_error_values(const char *kind, const char *format,
                                         const int64_t *values) {
  typedef int (*service)(const char *, const char *, const int64_t *);
  static ek_address known;
  service call = (service)ek_find_service(&known, "ek_kernel_error_values");
  return call(kind, format, values);
}

/* Scratch memory of this thread, aligned to 64 bytes, from a stack of blocks that are kept between
** calls. Free in reverse order of allocation, on the same thread. NULL without memory or for a
** negative size, with the error set. ek_workspace_free(NULL) does nothing. */
static inline void *ek_workspace_alloc(int64_t nbytes) {
  typedef void *(*service)(int64_t);
  static ek_address known;
  service call = (service)ek_find_service(&known, "ek_workspace_alloc");
  return call(nbytes);
}

static inline void ek_workspace_free(void *memory) {
  typedef void (*service)(void *);
  static ek_address known;
  service call = (service)ek_find_service(&known, "ek_workspace_free");
  call(memory);
}

/* Scratch memory on a device, given by its type and number, for the duration of a call. NULL with
** the error set if there is no memory or no driver, or the runtime has no device support. */
static inline void *ek_device_workspace_alloc(int64_t type, int64_t id, int64_t nbytes) {
  typedef void *(*service)(int64_t, int64_t, int64_t);
  static ek_address known;
  service call = (service)ek_find_service(&known, "ek_device_workspace_alloc");
  return call(type, id, nbytes);
}

static inline void ek_device_workspace_free(int64_t type, int64_t id, void *memory,
                                            int64_t nbytes) {
  typedef void (*service)(int64_t, int64_t, void *, int64_t);
  static ek_address known;
  service call = (service)ek_find_service(&known, "ek_device_workspace_free");
  call(type, id, memory, nbytes);
}

/* Calls the function of a call site: one of a module that the code's module imports, else a global
** one. It is found by the first call and kept in the site; a KeyError when there is none. '*ret'
** arrives as NONE and leaves owned. 0 or -1. */
static inline int ek_call_packed(ek_call_site *site, const ek_value *args, int32_t nargs,
                                 ek_value *ret) {
  typedef int (*service)(ek_call_site *, const ek_value *, int32_t, ek_value *);
  static ek_address known;
  ek_object *function = __atomic_load_n(&site->function, __ATOMIC_ACQUIRE);
  if (function != NULL) return ek_function_call(function, args, nargs, ret);
  service call = (service)ek_find_service(&known, "ek_call_packed");
  return call(site, args, nargs, ret);
}

/* Releases what a result owns and leaves NONE. */
static inline void ek_value_drop(ek_value *value) { ek_value_release(value); }

/* Defines a call site: 'ek_call_packed(&variable, ...)' calls the function 'name', a literal. */
#define EK_CALL_SITE(variable, name) static ek_call_site variable = {NULL, name, NULL}

#endif

#ifdef __cplusplus
}
#endif
#endif /* EKIDEN_KERNEL_H_ */
