/* Functions for JavaScript beside those of runtime.h: memory for its data, and functions written in it. */
#include "ek_internal.h"

#define HOST(name) __attribute__((import_module("ek"), import_name(#name)))
#define SHOWN __attribute__((visibility("default")))

/* Calls function 'number' of the host; 0, or -1 with an error set. */
HOST(call) int32_t host_call(int32_t number, const ek_value *args, int32_t nargs, ek_value *ret);
HOST(forget) void host_forget(int32_t number);

SHOWN void *ek_web_alloc(size_t size, size_t alignment);
SHOWN void ek_web_free(void *memory);
SHOWN int ek_web_function(int32_t number, ek_object **out);
SHOWN int ek_web_error(const char *kind, const char *message);
SHOWN uint32_t ek_web_pages(void);

void *ek_web_alloc(size_t size, size_t alignment) { return ek_system_alloc(size, alignment); }

void ek_web_free(void *memory) { ek_system_free(memory); }

static int call_host(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  return host_call((int32_t)(uintptr_t)self, args, nargs, ret);
}

static void forget(void *self) { host_forget((int32_t)(uintptr_t)self); }

/* A function object over one of the host. */
int ek_web_function(int32_t number, ek_object **out) {
  return ek_function_new((void *)(uintptr_t)number, call_host, forget, out);
}

/* ek_error, whose variable arguments a host cannot pass. */
int ek_web_error(const char *kind, const char *message) { return ek_error(kind, "%s", message); }

/* Returns the size of memory in WebAssembly pages. */
uint32_t ek_web_pages(void) { return (uint32_t)__builtin_wasm_memory_size(0); }
