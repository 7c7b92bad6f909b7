/* The driver of Vulkan's devices: a table of functions for the runtime over the system's libvulkan,
** which is looked for when this library is opened. It needs neither header nor library to be built.
**
** Memory. Kernels access memory by address (bufferDeviceAddress), so a tensor's address is a device
** address, and views are offsets from it. For copies, blocks are looked up by their first address.
** Host-visible memory is mapped once; other memory is copied through a host-visible staging block.
**
** Commands are recorded into one of a few slots (command buffers), which is submitted to the queue
** when it is full or a caller waits. A slot has memory for the arguments of its launches; a launch
** passes their address as a push constant. A barrier before each command orders it after all
** earlier ones. */
#include "ekiden/runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "driver_blocks.h"
#include "driver_spirv.h"
#include "vulkan_api.h"

enum {
  EK_VULKAN_TYPE = 7,
  MAX_DEVICES = 16,
  SLOTS = 4,
  SLOT_COMMANDS = 256,          /* of a slot before it goes to the queue */
  SLOT_BYTES = 64 << 10,        /* for arguments */
  STAGING_BYTES = 4 << 20,
  QUERIES = 4096,               /* times that are known: of the last events */
  AXES = 3
};

typedef struct block {
  driver_range range;          /* of its addresses on the device */
  vk_handle buffer, memory;
  unsigned char *mapped;       /* NULL where the host does not see it */
} block;

typedef struct slot {
  vk_commands commands;
  vk_handle fence;
  int n_commands;              /* that are recorded; 0: it is not begun */
  size_t used;                 /* bytes of arguments */
  bool is_queued;              /* its fence has not been waited for */
} slot;

typedef struct device_state {
  vk_physical physical;
  vk_properties properties;
  uint32_t subgroup, family;
  bool keeps_nan, has_float64, has_int16, has_int8, has_storage16, has_storage8;
  vk_device device;            /* NULL until it is first used */
  vk_queue queue;
  vk_handle layout, queries;
  vk_memory_properties memory;
  slot slots[SLOTS];
  int current;
  block arguments, staging;
  uint64_t n_events;
  driver_blocks blocks;
  pthread_mutex_t lock;        /* guards all of the above */
} device_state;

static const ek_driver_host *host;
static vulkan_api vk;
static device_state devices[MAX_DEVICES];
static int32_t n_devices;
static bool is_forked;         /* this process is a copy of one that had devices */

/* Errors --------------------------------------------------------------------------------------- */

static const char *name_of(vk_result code) {
  static const struct { vk_result code; const char *name; } names[] = {
      {-1, "VK_ERROR_OUT_OF_HOST_MEMORY"}, {-2, "VK_ERROR_OUT_OF_DEVICE_MEMORY"},
      {-3, "VK_ERROR_INITIALIZATION_FAILED"}, {-4, "VK_ERROR_DEVICE_LOST"},
      {-5, "VK_ERROR_MEMORY_MAP_FAILED"}, {-8, "VK_ERROR_FEATURE_NOT_PRESENT"},
      {-9, "VK_ERROR_INCOMPATIBLE_DRIVER"}, {-10, "VK_ERROR_TOO_MANY_OBJECTS"}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (names[i].code == code) return names[i].name;
  }
  return "VkResult";
}

static int fail(ek_device device, const char *doing, vk_result code) {
  bool is_memory = code == VK_OUT_OF_HOST_MEMORY || code == VK_OUT_OF_DEVICE_MEMORY || code == -10;
  return host->error(is_memory ? "MemoryError" : "DeviceError", "vulkan(%d): %s: %s (%s, error %d)",
                     device.id, doing,
                     is_memory ? "it has too little memory" : "the driver failed", name_of(code), code);
}

/* Memory --------------------------------------------------------------------------------------- */

/* The type of memory that has all of the flags, or -1. */
static int type_of_memory(const device_state *state, uint32_t allowed, uint32_t flags) {
  for (uint32_t i = 0; i < state->memory.n_types; i++) {
    if ((allowed >> i & 1) != 0 && (state->memory.types[i].flags & flags) == flags) return (int)i;
  }
  return -1;
}

static void release(const device_state *state, const block *b) {
  if (b->buffer != 0) vk.vkDestroyBuffer(state->device, b->buffer, NULL);
  if (b->memory != 0) vk.vkFreeMemory(state->device, b->memory, NULL); /* unmaps it */
}

/* A block of memory, which the host sees where 'is_host' or where that costs nothing: on devices that
** share the host's memory. */
static vk_result new_block(const device_state *state, size_t size, bool is_host, block *out) {
  enum { HOST = VK_MEMORY_HOST_VISIBLE | VK_MEMORY_HOST_COHERENT };
  bool shares = state->properties.type == VK_TYPE_CPU || state->properties.type == VK_TYPE_INTEGRATED;
  const uint32_t preferred[] = {is_host ? HOST : shares ? HOST | VK_MEMORY_DEVICE_LOCAL : VK_MEMORY_DEVICE_LOCAL,
                             is_host ? HOST : VK_MEMORY_DEVICE_LOCAL, 0};
  block made = {.range.size = size};
  vk_buffer_info about = {.kind = VK_BUFFER_CREATE_INFO, .size = size < 16 ? 16 : size,
                          .use = VK_USE_STORAGE | VK_USE_TRANSFER_SOURCE | VK_USE_TRANSFER_TARGET |
                                 VK_USE_ADDRESS};
  vk_requirements needs;
  vk_result code = vk.vkCreateBuffer(state->device, &about, NULL, &made.buffer);
  if (code != VK_SUCCESS) return code;
  vk.vkGetBufferMemoryRequirements(state->device, made.buffer, &needs);
  int type = -1;
  for (size_t i = 0; type < 0 && i < sizeof preferred / sizeof preferred[0]; i++) {
    type = type_of_memory(state, needs.types, preferred[i]);
  }
  vk_allocate_flags flags = {VK_MEMORY_ALLOCATE_FLAGS_INFO, NULL, VK_ALLOCATE_ADDRESS, 0};
  vk_allocate_info allocate = {VK_MEMORY_ALLOCATE_INFO, &flags, needs.size, (uint32_t)type};
  code = type < 0 ? VK_OUT_OF_DEVICE_MEMORY
                  : vk.vkAllocateMemory(state->device, &allocate, NULL, &made.memory);
  if (code == VK_SUCCESS) code = vk.vkBindBufferMemory(state->device, made.buffer, made.memory, 0);
  if (code == VK_SUCCESS && (state->memory.types[type].flags & HOST) == HOST) {
    void *mapped = NULL;
    code = vk.vkMapMemory(state->device, made.memory, 0, ~(vk_size)0, 0, &mapped);
    made.mapped = mapped;
  }
  if (code == VK_SUCCESS) {
    made.range.begin = (uintptr_t)vk.vkGetBufferDeviceAddress(
        state->device, &(vk_address_info){VK_BUFFER_DEVICE_ADDRESS_INFO, NULL, made.buffer});
    *out = made;
  } else {
    release(state, &made);
  }
  return code;
}

/* The block that holds 'size' bytes from an address on, or NULL with an error. Under the lock. */
static const block *find_block(ek_device device, const device_state *state, const void *at, size_t size) {
  const block *b = (const block *)driver_block_of(&state->blocks, sizeof *b, at, size);
  if (b != NULL) return b;
  host->error("DeviceError", "vulkan(%d): %zu bytes at %p are no memory of the device", device.id, size, at);
  return NULL;
}

/* Commands ------------------------------------------------------------------------------------- */

/* Waits for what a slot has on the queue. */
static vk_result drain(const device_state *state, slot *s) {
  if (!s->is_queued) return VK_SUCCESS;
  vk_result code = vk.vkWaitForFences(state->device, 1, &s->fence, 1, ~(uint64_t)0);
  if (code == VK_SUCCESS) code = vk.vkResetFences(state->device, 1, &s->fence);
  s->is_queued = false;
  s->n_commands = 0;
  s->used = 0;
  return code;
}

/* Hands what is recorded to the queue; the next slot is the current one. */
static vk_result flush(device_state *state) {
  slot *s = &state->slots[state->current];
  if (s->n_commands == 0) return VK_SUCCESS;
  vk_result code = vk.vkEndCommandBuffer(s->commands);
  vk_submit_info info = {.kind = VK_SUBMIT_INFO, .n_commands = 1, .commands = &s->commands};
  if (code == VK_SUCCESS) code = vk.vkQueueSubmit(state->queue, 1, &info, s->fence);
  if (code == VK_SUCCESS) s->is_queued = true;
  else s->n_commands = 0;
  state->current = (state->current + 1) % SLOTS;
  return code;
}

static vk_result finish(device_state *state) {
  vk_result code = flush(state);
  for (int i = 0; i < SLOTS; i++) {
    vk_result drained = drain(state, &state->slots[i]);
    if (code == VK_SUCCESS) code = drained;
  }
  return code;
}

/* The slot that takes one more command, with so many bytes for arguments; it is ordered behind all
** before. NULL with a code. */
static slot *next_command(device_state *state, size_t bytes, vk_result *code) {
  enum { STAGES = VK_AT_COMPUTE | VK_AT_TRANSFER };
  slot *s = &state->slots[state->current];
  *code = VK_SUCCESS;
  if (!s->is_queued && (s->n_commands >= SLOT_COMMANDS || s->used + bytes > SLOT_BYTES)) {
    *code = flush(state);
    s = &state->slots[state->current];
  }
  if (*code == VK_SUCCESS && s->is_queued) *code = drain(state, s);
  if (*code == VK_SUCCESS && s->n_commands == 0) {
    vk_begin_info begin = {.kind = VK_COMMAND_BUFFER_BEGIN_INFO, .flags = VK_BEGIN_ONCE};
    s->used = 0;
    *code = vk.vkBeginCommandBuffer(s->commands, &begin);
  }
  if (*code != VK_SUCCESS) return NULL;
  vk_barrier barrier = {VK_MEMORY_BARRIER, NULL, VK_SHADER_WRITE | VK_TRANSFER_WRITE | VK_HOST_WRITE,
                        VK_SHADER_READ | VK_SHADER_WRITE | VK_TRANSFER_READ | VK_TRANSFER_WRITE};
  vk.vkCmdPipelineBarrier(s->commands, STAGES | VK_AT_HOST, STAGES, 0, 1, &barrier, 0, NULL, 0, NULL);
  s->n_commands++;
  return s;
}

/* Devices -------------------------------------------------------------------------------------- */

static vk_result open_slots(device_state *state) {
  vk_handle pool;
  vk_pool_info about = {VK_COMMAND_POOL_CREATE_INFO, NULL, VK_POOL_RESET, state->family};
  vk_result code = vk.vkCreateCommandPool(state->device, &about, NULL, &pool);
  for (int i = 0; i < SLOTS && code == VK_SUCCESS; i++) {
    vk_commands_info commands = {VK_COMMAND_BUFFER_ALLOCATE_INFO, NULL, pool, 0, 1};
    vk_fence_info fence = {.kind = VK_FENCE_CREATE_INFO};
    code = vk.vkAllocateCommandBuffers(state->device, &commands, &state->slots[i].commands);
    if (code == VK_SUCCESS) code = vk.vkCreateFence(state->device, &fence, NULL, &state->slots[i].fence);
  }
  return code;
}

static vk_result open_device(device_state *state) {
  const float priority = 1;
  vk_features_1_2 later = {.kind = VK_VULKAN_1_2_FEATURES, .storage8 = state->has_storage8,
                           .int8 = state->has_int8, .address = 1};
  vk_features_1_1 next = {.kind = VK_VULKAN_1_1_FEATURES, .next = &later, .storage16 = state->has_storage16};
  vk_features_2 features = {VK_FEATURES_2, &next,
                            {.float64 = state->has_float64, .int64 = 1, .int16 = state->has_int16}};
  vk_queue_info queue = {VK_DEVICE_QUEUE_CREATE_INFO, NULL, 0, state->family, 1, &priority};
  vk_device_info about = {.kind = VK_DEVICE_CREATE_INFO, .next = &features, .n_queues = 1, .queues = &queue};
  vk_push_range range = {VK_STAGE_COMPUTE, 0, sizeof(uint64_t)};
  vk_layout_info layout = {.kind = VK_PIPELINE_LAYOUT_CREATE_INFO, .n_ranges = 1, .ranges = &range};
  vk_query_info queries = {VK_QUERY_POOL_CREATE_INFO, NULL, 0, VK_QUERY_TIMESTAMP, QUERIES, 0};
  vk_result code = vk.vkCreateDevice(state->physical, &about, NULL, &state->device);
  if (code != VK_SUCCESS) return code;
  vk.vkGetDeviceQueue(state->device, state->family, 0, &state->queue);
  vk.vkGetPhysicalDeviceMemoryProperties(state->physical, &state->memory);
  code = vk.vkCreatePipelineLayout(state->device, &layout, NULL, &state->layout);
  if (code == VK_SUCCESS) code = vk.vkCreateQueryPool(state->device, &queries, NULL, &state->queries);
  if (code == VK_SUCCESS) code = open_slots(state);
  if (code == VK_SUCCESS) code = new_block(state, SLOTS * SLOT_BYTES, true, &state->arguments);
  if (code == VK_SUCCESS) code = new_block(state, STAGING_BYTES, true, &state->staging);
  return code;
}

static device_state *device_at(ek_device device) {
  if (device.id >= 0 && device.id < n_devices) return &devices[device.id];
  host->error("DeviceError", "vulkan(%d): there is no such device: %d found here", device.id, n_devices);
  return NULL;
}

/* A fork copies what the system's library knows, but not its threads, for which it would wait. */
static void after_fork(void) { is_forked = true; }

/* The state of a device, ready for use and locked; NULL with an error. */
static device_state *locked(ek_device device) {
  device_state *state = device_at(device);
  vk_result code = VK_SUCCESS;
  if (state == NULL) return NULL;
  if (is_forked) {
    host->error("DeviceError", "vulkan(%d): this process was forked from one that had its devices, "
                "which cannot be used here: start it afresh (multiprocessing's 'spawn')", device.id);
    return NULL;
  }
  pthread_mutex_lock(&state->lock);
  if (state->staging.buffer == 0) code = open_device(state);
  if (code == VK_SUCCESS) return state;
  pthread_mutex_unlock(&state->lock);
  fail(device, "open the device", code);
  return NULL;
}

static int unlocked(device_state *state, ek_device device, const char *doing, vk_result code) {
  pthread_mutex_unlock(&state->lock);
  return code == VK_SUCCESS ? 0 : fail(device, doing, code);
}

static int device_count(int32_t *out) {
  *out = n_devices;
  return 0;
}

static void abilities(const device_state *state, char *text, size_t capacity) {
  const struct { bool has; const char *name; } known[] = {
      {state->has_float64, "fp64"}, {state->has_int16, "int16"}, {state->has_int8, "int8"},
      {state->has_storage16, "storage16"}, {state->has_storage8, "storage8"}};
  size_t used = (size_t)snprintf(text, capacity, "spirv");
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (known[i].has) used += (size_t)snprintf(text + used, capacity - used, " %s", known[i].name);
  }
}

static int64_t memory_of(const device_state *state) {
  vk_memory_properties memory;
  int64_t most = 0;
  vk.vkGetPhysicalDeviceMemoryProperties(state->physical, &memory);
  for (uint32_t i = 0; i < memory.n_heaps; i++) {
    bool is_own = (memory.heaps[i].flags & 1) != 0;
    if (is_own && (int64_t)memory.heaps[i].size > most) most = (int64_t)memory.heaps[i].size;
  }
  return most;
}

static int device_attribute(ek_device device, int32_t which, int64_t *number, char *text, size_t capacity) {
  const device_state *state = device_at(device);
  if (state == NULL) return -1;
  const vk_properties *about = &state->properties;
  bool is_processor = about->type == VK_TYPE_CPU;
  switch (which) {
    case EK_DEVICE_NAME: snprintf(text, capacity, "%s", about->name); break;
    case EK_DEVICE_VENDOR: snprintf(text, capacity, "vendor 0x%x", about->vendor); break;
    case EK_DEVICE_DRIVER: snprintf(text, capacity, "driver 0x%x", about->driver_version); break;
    case EK_DEVICE_VERSION:
      snprintf(text, capacity, "Vulkan %u.%u.%u", about->api_version >> 22 & 127,
               about->api_version >> 12 & 1023, about->api_version & 4095);
      break;
    case EK_DEVICE_ABILITIES: abilities(state, text, capacity); break;
    case EK_DEVICE_MAX_THREADS: *number = about->limits.max_threads; break;
    case EK_DEVICE_SHARED_MEMORY: *number = about->limits.shared_memory; break;
    case EK_DEVICE_UNITS: *number = is_processor ? sysconf(_SC_NPROCESSORS_ONLN) : 0; break;
    case EK_DEVICE_CLOCK: *number = 0; break;
    case EK_DEVICE_MEMORY: *number = memory_of(state); break;
    case EK_DEVICE_ALIGNMENT: *number = 16; break;
    case EK_DEVICE_WARP: *number = state->subgroup; break;
    case EK_DEVICE_VECTOR: *number = 32; break;
    case EK_DEVICE_LOCAL: *number = !is_processor; break;
    default: return host->error("ValueError", "vulkan: there is no attribute %d", which);
  }
  return 0;
}

/* Memory of tensors ---------------------------------------------------------------------------- */

static int device_alloc(ek_device device, size_t size, size_t alignment, const char *scope, void **out) {
  block made;
  char doing[64];
  (void)alignment; /* blocks are aligned for every type */
  if (scope != NULL && strcmp(scope, "global") != 0) {
    return host->error("DeviceError", "vulkan(%d): there is no memory '%s', expected 'global'", device.id,
                       scope);
  }
  device_state *state = locked(device);
  if (state == NULL) return -1;
  vk_result code = new_block(state, size, false, &made);
  if (code == VK_SUCCESS && !driver_block_add(&state->blocks, sizeof made, &made.range)) {
    release(state, &made);
    code = VK_OUT_OF_HOST_MEMORY;
  }
  if (code == VK_SUCCESS) *out = (void *)made.range.begin;
  snprintf(doing, sizeof doing, "allocate %zu bytes", size);
  return unlocked(state, device, doing, code);
}

/* Waits for queued work, which may use the memory. The runtime keeps memory for reuse, so this is rare. */
static void device_free(ek_device device, void *data, size_t size) {
  device_state *state = &devices[device.id];
  (void)size;
  if (is_forked) return; /* the lock may be held by a thread that is not here */
  pthread_mutex_lock(&state->lock);
  block gone;
  if (driver_block_remove(&state->blocks, sizeof gone, data, &gone.range)) {
    finish(state);
    release(state, &gone);
  }
  pthread_mutex_unlock(&state->lock);
}

static vk_result copy_buffers(device_state *state, vk_handle from, size_t from_at, vk_handle to,
                              size_t to_at, size_t size) {
  vk_result code;
  slot *s = next_command(state, 0, &code);
  if (s != NULL) vk.vkCmdCopyBuffer(s->commands, from, to, 1, &(vk_region){from_at, to_at, size});
  return code;
}

/* Between the host and a block: by the processor where it sees the block, else through staging. */
static vk_result copy_host(device_state *state, const block *b, size_t at, unsigned char *there,
                           const unsigned char *from, size_t size) {
  vk_result code = finish(state);
  if (b->mapped != NULL) {
    if (from != NULL) memcpy(b->mapped + at, from, size);
    else memcpy(there, b->mapped + at, size);
    return code;
  }
  for (size_t done = 0; done < size && code == VK_SUCCESS;) {
    size_t part = size - done < STAGING_BYTES ? size - done : STAGING_BYTES;
    if (from != NULL) {
      memcpy(state->staging.mapped, from + done, part);
      code = copy_buffers(state, state->staging.buffer, 0, b->buffer, at + done, part);
    } else {
      code = copy_buffers(state, b->buffer, at + done, state->staging.buffer, 0, part);
    }
    if (code == VK_SUCCESS) code = finish(state);
    if (code == VK_SUCCESS && from == NULL) memcpy(there + done, state->staging.mapped, part);
    done += part;
  }
  return code;
}

static int copy_one(ek_device device, void *to, const void *from, size_t size, bool is_to_device) {
  device_state *state = locked(device);
  if (state == NULL) return -1;
  const void *at = is_to_device ? to : from;
  const block *b = find_block(device, state, at, size);
  if (b == NULL) {
    pthread_mutex_unlock(&state->lock);
    return -1;
  }
  size_t place = (uintptr_t)at - b->range.begin;
  vk_result code = copy_host(state, b, place, is_to_device ? NULL : to, is_to_device ? from : NULL, size);
  return unlocked(state, device, is_to_device ? "copy from the host" : "copy to the host", code);
}

static int copy_within_device(ek_device device, void *to, const void *from, size_t size) {
  device_state *state = locked(device);
  if (state == NULL) return -1;
  const block *source = find_block(device, state, from, size);
  const block *target = source == NULL ? NULL : find_block(device, state, to, size);
  if (target == NULL) {
    pthread_mutex_unlock(&state->lock);
    return -1;
  }
  vk_result code = copy_buffers(state, source->buffer, (uintptr_t)from - source->range.begin, target->buffer,
                                (uintptr_t)to - target->range.begin, size);
  if (code == VK_SUCCESS) code = finish(state);
  return unlocked(state, device, "copy", code);
}

static int device_copy(const void *from, ek_device from_device, void *to, ek_device to_device, size_t size,
                       void *stream) {
  (void)stream;
  if (size == 0) return 0;
  if (from_device.type != EK_VULKAN_TYPE) return copy_one(to_device, to, from, size, true);
  if (to_device.type != EK_VULKAN_TYPE) return copy_one(from_device, to, from, size, false);
  if (from_device.id == to_device.id) return copy_within_device(to_device, to, from, size);
  void *between = malloc(size);
  if (between == NULL) return fail(to_device, "copy", VK_OUT_OF_HOST_MEMORY);
  int status = copy_one(from_device, between, from, size, false);
  if (status == 0) status = copy_one(to_device, to, between, size, true);
  free(between);
  return status;
}

static int synchronize(ek_device device, void *stream) {
  device_state *state = locked(device);
  (void)stream;
  return state == NULL ? -1 : unlocked(state, device, "wait", finish(state));
}

/* Events: a time on the device, in a ring of the last ones. There is one stream, whose order they
** have. */

static int event_new(ek_device device, void *stream, void **out) {
  device_state *state = locked(device);
  vk_result code;
  (void)stream;
  if (state == NULL) return -1;
  uint64_t *result = malloc(sizeof *result);
  slot *s = result == NULL ? NULL : next_command(state, 0, &code);
  if (result == NULL) code = VK_OUT_OF_HOST_MEMORY;
  if (s == NULL) {
    free(result);
    return unlocked(state, device, "make an event", code);
  }
  *result = state->n_events++;
  uint32_t at = (uint32_t)(*result % QUERIES);
  vk.vkCmdResetQueryPool(s->commands, state->queries, at, 1);
  vk.vkCmdWriteTimestamp(s->commands, VK_AT_END, state->queries, at);
  *out = result;
  return unlocked(state, device, "make an event", VK_SUCCESS);
}

static int event_wait(ek_device device, void *stream, void *event) {
  (void)device, (void)stream, (void)event; /* what is queued later comes later */
  return 0;
}

static int event_time(ek_device device, void *from, void *to, int64_t *nanoseconds) {
  const uint64_t events[2] = {*(uint64_t *)from, *(uint64_t *)to};
  uint64_t times[2] = {0, 0};
  device_state *state = locked(device);
  if (state == NULL) return -1;
  vk_result code = finish(state);
  for (int i = 0; i < 2 && code == VK_SUCCESS; i++) {
    if (state->n_events - events[i] > QUERIES) {
      pthread_mutex_unlock(&state->lock);
      return host->error("DeviceError", "vulkan(%d): time an event: %d came after it", device.id, QUERIES);
    }
    code = vk.vkGetQueryPoolResults(state->device, state->queries, (uint32_t)(events[i] % QUERIES), 1,
                                    sizeof times[i], &times[i], sizeof times[i],
                                    VK_QUERY_64 | VK_QUERY_WAIT);
  }
  double unit = (double)state->properties.limits.timestamp_ns;
  *nanoseconds = (int64_t)((double)(int64_t)(times[1] - times[0]) * unit);
  return unlocked(state, device, "time an event", code);
}

static void event_free(ek_device device, void *event) {
  (void)device;
  free(event);
}

/* Code ----------------------------------------------------------------------------------------- */

/* Returns the first optional feature that a kernel needs and the device lacks; NULL if there is none. */
static const char *missing_feature(const device_state *state, const unsigned char *code, size_t size) {
  const struct { uint32_t number; bool has; const char *name; } known[] = {
      {1, true, ""}, {11, true, ""}, {5347, true, ""}, /* Shader, Int64, addresses */
      {4466, state->keeps_nan, "NaNs of float32 (shaderSignedZeroInfNanPreserveFloat32)"},
      {10, state->has_float64, "float64 (shaderFloat64)"},
      {22, state->has_int16, "numbers of 16 bits (shaderInt16)"},
      {39, state->has_int8, "numbers of 8 bits (shaderInt8)"},
      {4433, state->has_storage16, "memory of 16 bits (storageBuffer16BitAccess)"},
      {4448, state->has_storage8, "memory of 8 bits (storageBuffer8BitAccess)"}};
  for (size_t at = SPIRV_HEAD; at < size / 4;) {
    uint32_t words[2] = {0, 0};
    memcpy(words, code + 4 * at, size - 4 * at < sizeof words ? size - 4 * at : sizeof words);
    if ((words[0] & 0xffff) != 17) return NULL; /* capabilities come first */
    const char *lacks = "a capability of SPIR-V that this driver does not know";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
      if (known[i].number == words[1]) lacks = known[i].has ? NULL : known[i].name;
    }
    if (lacks != NULL) return lacks;
    at += words[0] >> 16;
  }
  return NULL;
}

typedef struct device_module {
  vk_handle module, pipeline;
} device_module;

static int device_load(ek_device device, const char *format, const char *name, const void *code,
                       size_t size, void **out) {
  uint32_t version = 0;
  if (strcmp(format, "vulkan") != 0) {
    return host->error("DeviceError", "vulkan(%d): kernel '%s': code of format 'vulkan' expected, got '%s'",
                       device.id, name, format);
  }
  const char *fault = spirv_fault(code, size, &version);
  if (fault != NULL) {
    return host->error("DeviceError", "vulkan(%d): kernel '%s': its code is no SPIR-V: %s", device.id, name,
                       fault);
  }
  device_state *state = locked(device);
  if (state == NULL) return -1;
  const char *lacks = missing_feature(state, code, size);
  if (lacks != NULL) {
    pthread_mutex_unlock(&state->lock);
    return host->error("DeviceError", "vulkan(%d): kernel '%s': '%s' has not what it needs: %s", device.id,
                       name, state->properties.name, lacks);
  }
  device_module *made = calloc(1, sizeof *made);
  uint32_t *words = malloc(size); /* aligned, which the caller's bytes need not be */
  vk_result result = made == NULL || words == NULL ? VK_OUT_OF_HOST_MEMORY : VK_SUCCESS;
  if (result == VK_SUCCESS) {
    memcpy(words, code, size);
    vk_shader_info about = {VK_SHADER_MODULE_CREATE_INFO, NULL, 0, size, words};
    result = vk.vkCreateShaderModule(state->device, &about, NULL, &made->module);
  }
  free(words);
  if (result == VK_SUCCESS) *out = made;
  else free(made);
  char doing[160];
  snprintf(doing, sizeof doing, "kernel '%.96s': vkCreateShaderModule", name);
  return unlocked(state, device, doing, result);
}

static void device_unload(ek_device device, void *module) {
  device_state *state = &devices[device.id];
  device_module *gone = module;
  if (is_forked) return;
  pthread_mutex_lock(&state->lock);
  finish(state);
  if (gone->pipeline != 0) vk.vkDestroyPipeline(state->device, gone->pipeline, NULL);
  vk.vkDestroyShaderModule(state->device, gone->module, NULL);
  pthread_mutex_unlock(&state->lock);
  free(gone);
}

typedef struct device_kernel {
  vk_handle pipeline;          /* its module's */
  char name[96];
} device_kernel;

static int kernel_of(ek_device device, void *module, const char *name, void **out) {
  device_module *m = module;
  char doing[160];
  device_kernel *made = calloc(1, sizeof *made);
  device_state *state = made == NULL ? NULL : locked(device);
  if (state == NULL) {
    free(made);
    return made == NULL ? fail(device, "make a kernel", VK_OUT_OF_HOST_MEMORY) : -1;
  }
  vk_pipeline_info about = {
      .kind = VK_COMPUTE_PIPELINE_CREATE_INFO,
      .stage = {VK_PIPELINE_SHADER_STAGE_CREATE_INFO, NULL, 0, VK_STAGE_COMPUTE, m->module, name, NULL},
      .layout = state->layout};
  vk_result code = vk.vkCreateComputePipelines(state->device, 0, 1, &about, NULL, &made->pipeline);
  m->pipeline = made->pipeline;
  snprintf(made->name, sizeof made->name, "%s", name);
  snprintf(doing, sizeof doing, "kernel '%.96s': vkCreateComputePipelines", name);
  if (code == VK_SUCCESS) *out = made; /* as its module, it lives as long as the code that has it */
  else free(made);
  return unlocked(state, device, doing, code);
}

static int check_launch(ek_device device, const device_state *state, const device_kernel *k,
                        const ek_launch *launch) {
  int64_t threads = launch->threads[0] * launch->threads[1] * launch->threads[2];
  if (threads > (int64_t)state->properties.limits.max_threads) {
    return host->error("DeviceError", "vulkan(%d): kernel '%s': %lld threads a block, of which this device "
                       "runs at most %u; the target's option max_num_threads says so", device.id, k->name,
                       (long long)threads, state->properties.limits.max_threads);
  }
  for (int32_t i = 0; i < launch->n_args; i++) {
    if (launch->args[i].size == 0 && find_block(device, state, launch->args[i].memory, 0) == NULL) {
      return host->error("DeviceError", "vulkan(%d): kernel '%s': argument %d, at %p, is no memory of the "
                         "device", device.id, k->name, i, launch->args[i].memory);
    }
  }
  return 0;
}

/* Blocks as a line, folded where it is longer than a dimension may be: the kernel takes its number
** apart. */
static int device_launch(ek_device device, void *stream, void *kernel, const ek_launch *launch) {
  const device_kernel *k = kernel;
  device_state *state = locked(device);
  char doing[128];
  vk_result code;
  (void)stream;
  if (state == NULL) return -1;
  if (check_launch(device, state, k, launch) != 0) {
    pthread_mutex_unlock(&state->lock);
    return -1;
  }
  const uint64_t total = (uint64_t)launch->blocks[0] * (uint64_t)launch->blocks[1] * (uint64_t)launch->blocks[2];
  const uint32_t *most = state->properties.limits.max_blocks;
  const uint64_t width = total < most[0] ? total : most[0], height = (total + width - 1) / width;
  if (height > most[1]) {
    pthread_mutex_unlock(&state->lock);
    return host->error("DeviceError", "vulkan(%d): kernel '%s': %llu blocks, of which this device runs at "
                       "most %llu", device.id, k->name, (unsigned long long)total,
                       (unsigned long long)most[0] * most[1]);
  }
  const size_t bytes = sizeof(uint64_t) * (size_t)(AXES + launch->n_args);
  slot *s = next_command(state, bytes, &code);
  if (s != NULL) {
    size_t at = (size_t)(s - state->slots) * SLOT_BYTES + s->used;
    uint64_t *words = (uint64_t *)(void *)(state->arguments.mapped + at), place = state->arguments.range.begin + at;
    for (int i = 0; i < AXES; i++) words[i] = (uint64_t)launch->blocks[i];
    for (int32_t i = 0; i < launch->n_args; i++) {
      const ek_launch_arg *arg = &launch->args[i];
      words[AXES + i] = arg->size == 0 ? (uint64_t)(uintptr_t)arg->memory : (uint64_t)arg->number;
    }
    s->used += bytes;
    vk.vkCmdBindPipeline(s->commands, VK_BIND_COMPUTE, k->pipeline);
    vk.vkCmdPushConstants(s->commands, state->layout, VK_STAGE_COMPUTE, 0, sizeof place, &place);
    vk.vkCmdDispatch(s->commands, (uint32_t)width, (uint32_t)height, 1);
  }
  snprintf(doing, sizeof doing, "kernel '%.96s'", k->name);
  return unlocked(state, device, doing, code);
}

/* The table ------------------------------------------------------------------------------------ */

static const ek_device_table table = {
    .name = "vulkan", .alloc = device_alloc, .free = device_free, .copy = device_copy,
    .count = device_count, .attribute = device_attribute, .synchronize = synchronize,
    .event_new = event_new, .event_wait = event_wait, .event_time = event_time, .event_free = event_free,
    .load = device_load, .unload = device_unload, .kernel = kernel_of, .launch = device_launch};

/* Whether a device can run kernels; what is known of it then. */
static bool can_run(vk_physical physical, device_state *out) {
  vk_features_1_2 later = {.kind = VK_VULKAN_1_2_FEATURES};
  vk_features_1_1 next = {.kind = VK_VULKAN_1_1_FEATURES, .next = &later};
  vk_features_2 features = {.kind = VK_FEATURES_2, .next = &next};
  vk_float_controls floats = {.kind = VK_FLOAT_CONTROLS};
  vk_subgroup_properties subgroup = {.kind = VK_SUBGROUP_PROPERTIES, .next = &floats};
  vk_properties_2 properties = {.kind = VK_PROPERTIES_2, .next = &subgroup};
  vk_queue_family families[16];
  uint32_t n = sizeof families / sizeof families[0], family = 0;
  vk.vkGetPhysicalDeviceProperties(physical, &out->properties);
  if (out->properties.api_version < (1u << 22 | 2u << 12)) return false;
  vk.vkGetPhysicalDeviceFeatures2(physical, &features);
  vk.vkGetPhysicalDeviceProperties2(physical, &properties);
  vk.vkGetPhysicalDeviceQueueFamilyProperties(physical, &n, families);
  while (family < n && (families[family].flags & VK_QUEUE_COMPUTE) == 0) family++;
  out->physical = physical;
  out->family = family;
  out->subgroup = subgroup.size;
  out->keeps_nan = floats.keeps_nan32 != 0;
  out->has_float64 = features.features.float64 != 0;
  out->has_int16 = features.features.int16 != 0;
  out->has_int8 = later.int8 != 0;
  out->has_storage16 = next.storage16 != 0;
  out->has_storage8 = later.storage8 != 0;
  return family < n && later.address != 0 && features.features.int64 != 0;
}

/* Devices of their own come first, processors last. */
static vk_result find_devices(void) {
  static const uint32_t order[] = {VK_TYPE_DISCRETE, VK_TYPE_INTEGRATED, VK_TYPE_VIRTUAL, 0, VK_TYPE_CPU};
  vk_application_info about = {.kind = VK_APPLICATION_INFO, .name = "ekiden", .api_version = 1u << 22 | 2u << 12};
  vk_instance_info info = {.kind = VK_INSTANCE_CREATE_INFO, .application = &about};
  vk_instance instance;
  vk_physical found[MAX_DEVICES];
  uint32_t n = MAX_DEVICES;
  vk_result code = vk.vkCreateInstance(&info, NULL, &instance);
  if (code != VK_SUCCESS) return code;
  code = vk.vkEnumeratePhysicalDevices(instance, &n, found);
  if (code < VK_SUCCESS) return code;
  for (size_t kind = 0; kind < sizeof order / sizeof order[0]; kind++) {
    for (uint32_t i = 0; i < n && n_devices < MAX_DEVICES; i++) {
      device_state *state = &devices[n_devices];
      if (!can_run(found[i], state) || state->properties.type != order[kind]) continue;
      pthread_mutex_init(&state->lock, NULL);
      n_devices++;
    }
  }
  return VK_SUCCESS;
}

EK_API int ek_driver_open(const ek_driver_host *given);
int ek_driver_open(const ek_driver_host *given) {
  host = given;
  if (given->version != 1) {
    return given->error("DeviceError", "vulkan: a runtime of version 1 expected, got %d; install driver and "
                        "runtime together", given->version);
  }
  void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return given->error("DeviceError", "vulkan: libvulkan.so.1 is not there: install Vulkan's loader and a "
                        "driver (Debian: libvulkan1, and mesa-vulkan-drivers); the system says: %s", dlerror());
  }
  const char *lacks = vulkan_api_load(&vk, library);
  if (lacks != NULL) {
    return given->error("DeviceError", "vulkan: libvulkan.so.1 has no '%s'; install one of Vulkan 1.2 or later",
                        lacks);
  }
  vk_result code = n_devices == 0 ? find_devices() : VK_SUCCESS;
  if (n_devices != 0) {
    pthread_atfork(NULL, NULL, after_fork);
    return given->register_device(EK_VULKAN_TYPE, &table);
  }
  return given->error("DeviceError", "vulkan: libvulkan.so.1 finds no device of Vulkan 1.2 with "
                      "bufferDeviceAddress and shaderInt64 (%s, error %d): install a driver (Debian: "
                      "mesa-vulkan-drivers, for processors too)", name_of(code), code);
}
