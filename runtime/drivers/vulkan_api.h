/* The part of Vulkan 1.2 that the driver uses: types, numbers and functions, found in a library at
** run time. Layouts and numbers are those of the specification. Handles of objects are 64 bits. */
#ifndef EK_VULKAN_API_H_
#define EK_VULKAN_API_H_

#include <stddef.h>
#include <stdint.h>

#include "driver_library.h"

typedef int32_t vk_result;
typedef uint64_t vk_handle, vk_size;
typedef struct vk_instance_s *vk_instance;
typedef struct vk_physical_s *vk_physical;
typedef struct vk_device_s *vk_device;
typedef struct vk_queue_s *vk_queue;
typedef struct vk_commands_s *vk_commands;

enum {
  VK_SUCCESS = 0,
  VK_OUT_OF_HOST_MEMORY = -1,
  VK_OUT_OF_DEVICE_MEMORY = -2,
  VK_DEVICE_LOST = -4
};

enum { /* kinds of structures */
  VK_APPLICATION_INFO = 0,
  VK_INSTANCE_CREATE_INFO = 1,
  VK_DEVICE_QUEUE_CREATE_INFO = 2,
  VK_DEVICE_CREATE_INFO = 3,
  VK_SUBMIT_INFO = 4,
  VK_MEMORY_ALLOCATE_INFO = 5,
  VK_FENCE_CREATE_INFO = 8,
  VK_QUERY_POOL_CREATE_INFO = 11,
  VK_BUFFER_CREATE_INFO = 12,
  VK_SHADER_MODULE_CREATE_INFO = 16,
  VK_PIPELINE_SHADER_STAGE_CREATE_INFO = 18,
  VK_COMPUTE_PIPELINE_CREATE_INFO = 29,
  VK_PIPELINE_LAYOUT_CREATE_INFO = 30,
  VK_COMMAND_POOL_CREATE_INFO = 39,
  VK_COMMAND_BUFFER_ALLOCATE_INFO = 40,
  VK_COMMAND_BUFFER_BEGIN_INFO = 42,
  VK_MEMORY_BARRIER = 46,
  VK_VULKAN_1_1_FEATURES = 49,
  VK_VULKAN_1_2_FEATURES = 51,
  VK_FEATURES_2 = 1000059000,
  VK_PROPERTIES_2 = 1000059001,
  VK_MEMORY_ALLOCATE_FLAGS_INFO = 1000060000,
  VK_SUBGROUP_PROPERTIES = 1000094000,
  VK_FLOAT_CONTROLS = 1000197000,
  VK_BUFFER_DEVICE_ADDRESS_INFO = 1000244001
};

enum {
  VK_TYPE_INTEGRATED = 1, VK_TYPE_DISCRETE = 2, VK_TYPE_VIRTUAL = 3, VK_TYPE_CPU = 4,
  VK_QUEUE_COMPUTE = 1 << 1,
  VK_MEMORY_DEVICE_LOCAL = 1 << 0, VK_MEMORY_HOST_VISIBLE = 1 << 1, VK_MEMORY_HOST_COHERENT = 1 << 2,
  VK_USE_TRANSFER_SOURCE = 1 << 0, VK_USE_TRANSFER_TARGET = 1 << 1, VK_USE_STORAGE = 1 << 5,
  VK_USE_ADDRESS = 1 << 17,
  VK_ALLOCATE_ADDRESS = 1 << 1,
  VK_STAGE_COMPUTE = 1 << 5,
  VK_POOL_RESET = 1 << 1, VK_BEGIN_ONCE = 1 << 0,
  VK_AT_COMPUTE = 1 << 11, VK_AT_TRANSFER = 1 << 12, VK_AT_END = 1 << 13, VK_AT_HOST = 1 << 14,
  VK_SHADER_READ = 1 << 5, VK_SHADER_WRITE = 1 << 6, VK_TRANSFER_READ = 1 << 11,
  VK_TRANSFER_WRITE = 1 << 12, VK_HOST_READ = 1 << 13, VK_HOST_WRITE = 1 << 14,
  VK_BIND_COMPUTE = 1, VK_QUERY_TIMESTAMP = 2, VK_QUERY_64 = 1 << 0, VK_QUERY_WAIT = 1 << 1
};

typedef struct vk_application_info {
  int32_t kind;
  const void *next;
  const char *name;
  uint32_t version;
  const char *engine;
  uint32_t engine_version, api_version;
} vk_application_info;

typedef struct vk_instance_info {
  int32_t kind;
  const void *next;
  uint32_t flags;
  const vk_application_info *application;
  uint32_t n_layers;
  const char *const *layers;
  uint32_t n_extensions;
  const char *const *extensions;
} vk_instance_info;

/* VkPhysicalDeviceFeatures: a VkBool32 for each feature, in the order of the specification. */
typedef struct vk_features {
  uint32_t others[39], float64, int64, int16, more[13];
} vk_features;

typedef struct vk_features_1_1 {
  int32_t kind;
  void *next;
  uint32_t storage16, others[11];
} vk_features_1_1;

typedef struct vk_features_1_2 {
  int32_t kind;
  void *next;
  uint32_t others[2], storage8, more[5], int8, rest[29], address, last[8];
} vk_features_1_2;

typedef struct vk_features_2 {
  int32_t kind;
  void *next;
  vk_features features;
} vk_features_2;

typedef struct vk_limits {
  uint32_t images[9], max_allocations, samplers;
  vk_size granularity, sparse;
  uint32_t stages[38], shared_memory, max_blocks[3], max_threads, max_size[3], drawing[5];
  float sampling[2];
  uint32_t viewports[3];
  float bounds[2];
  uint32_t subpixels;
  size_t map_alignment;
  vk_size texel_alignment, uniform_alignment, storage_alignment;
  uint32_t texels[4];
  float offsets[2];
  uint32_t framebuffers[15], has_timestamps;
  float timestamp_ns;
  uint32_t clipping[4];
  float points[6];
  uint32_t lines[2];
  vk_size copies[3];
} vk_limits;

typedef struct vk_properties {
  uint32_t api_version, driver_version, vendor, device, type;
  char name[256];
  uint8_t uuid[16];
  vk_limits limits;
  uint32_t sparse[5];
} vk_properties;

typedef struct vk_subgroup_properties {
  int32_t kind;
  void *next;
  uint32_t size, stages, operations, quads;
} vk_subgroup_properties;

typedef struct vk_float_controls {
  int32_t kind;
  void *next;
  uint32_t independence[2], keeps_nan16, keeps_nan32, keeps_nan64, others[12];
} vk_float_controls;

typedef struct vk_properties_2 {
  int32_t kind;
  void *next;
  vk_properties properties;
} vk_properties_2;

typedef struct vk_queue_family {
  uint32_t flags, count, timestamp_bits, granularity[3];
} vk_queue_family;

typedef struct vk_memory_properties {
  uint32_t n_types;
  struct { uint32_t flags, heap; } types[32];
  uint32_t n_heaps;
  struct { vk_size size; uint32_t flags; } heaps[16];
} vk_memory_properties;

typedef struct vk_queue_info {
  int32_t kind;
  const void *next;
  uint32_t flags, family, count;
  const float *priorities;
} vk_queue_info;

typedef struct vk_device_info {
  int32_t kind;
  const void *next;
  uint32_t flags, n_queues;
  const vk_queue_info *queues;
  uint32_t n_layers;
  const char *const *layers;
  uint32_t n_extensions;
  const char *const *extensions;
  const vk_features *features;
} vk_device_info;

typedef struct vk_buffer_info {
  int32_t kind;
  const void *next;
  uint32_t flags;
  vk_size size;
  uint32_t use, sharing, n_families;
  const uint32_t *families;
} vk_buffer_info;

typedef struct vk_requirements {
  vk_size size, alignment;
  uint32_t types;
} vk_requirements;

typedef struct vk_allocate_info {
  int32_t kind;
  const void *next;
  vk_size size;
  uint32_t type;
} vk_allocate_info;

typedef struct vk_allocate_flags {
  int32_t kind;
  const void *next;
  uint32_t flags, mask;
} vk_allocate_flags;

typedef struct vk_address_info {
  int32_t kind;
  const void *next;
  vk_handle buffer;
} vk_address_info;

typedef struct vk_shader_info {
  int32_t kind;
  const void *next;
  uint32_t flags;
  size_t size;
  const uint32_t *code;
} vk_shader_info;

typedef struct vk_push_range {
  uint32_t stages, offset, size;
} vk_push_range;

typedef struct vk_layout_info {
  int32_t kind;
  const void *next;
  uint32_t flags, n_sets;
  const vk_handle *sets;
  uint32_t n_ranges;
  const vk_push_range *ranges;
} vk_layout_info;

typedef struct vk_stage_info {
  int32_t kind;
  const void *next;
  uint32_t flags, stage;
  vk_handle module;
  const char *name;
  const void *specialization;
} vk_stage_info;

typedef struct vk_pipeline_info {
  int32_t kind;
  const void *next;
  uint32_t flags;
  vk_stage_info stage;
  vk_handle layout, base;
  int32_t base_index;
} vk_pipeline_info;

typedef struct vk_pool_info {
  int32_t kind;
  const void *next;
  uint32_t flags, family;
} vk_pool_info;

typedef struct vk_commands_info {
  int32_t kind;
  const void *next;
  vk_handle pool;
  uint32_t level, count;
} vk_commands_info;

typedef struct vk_begin_info {
  int32_t kind;
  const void *next;
  uint32_t flags;
  const void *inheritance;
} vk_begin_info;

typedef struct vk_submit_info {
  int32_t kind;
  const void *next;
  uint32_t n_waits;
  const vk_handle *waits;
  const uint32_t *stages;
  uint32_t n_commands;
  const vk_commands *commands;
  uint32_t n_signals;
  const vk_handle *signals;
} vk_submit_info;

typedef struct vk_fence_info {
  int32_t kind;
  const void *next;
  uint32_t flags;
} vk_fence_info;

typedef struct vk_barrier {
  int32_t kind;
  const void *next;
  uint32_t before, after;
} vk_barrier;

typedef struct vk_region {
  vk_size from, to, size;
} vk_region;

typedef struct vk_query_info {
  int32_t kind;
  const void *next;
  uint32_t flags, type, count, statistics;
} vk_query_info;

#define VULKAN_FUNCTIONS(ROW)                                                                          \
  ROW(vk_result, vkCreateInstance, (const vk_instance_info *, const void *, vk_instance *))            \
  ROW(vk_result, vkEnumeratePhysicalDevices, (vk_instance, uint32_t *, vk_physical *))                 \
  ROW(void, vkGetPhysicalDeviceProperties, (vk_physical, vk_properties *))                             \
  ROW(void, vkGetPhysicalDeviceProperties2, (vk_physical, vk_properties_2 *))                          \
  ROW(void, vkGetPhysicalDeviceFeatures2, (vk_physical, vk_features_2 *))                              \
  ROW(void, vkGetPhysicalDeviceMemoryProperties, (vk_physical, vk_memory_properties *))                \
  ROW(void, vkGetPhysicalDeviceQueueFamilyProperties, (vk_physical, uint32_t *, vk_queue_family *))    \
  ROW(vk_result, vkCreateDevice, (vk_physical, const vk_device_info *, const void *, vk_device *))     \
  ROW(void, vkGetDeviceQueue, (vk_device, uint32_t, uint32_t, vk_queue *))                             \
  ROW(vk_result, vkCreateBuffer, (vk_device, const vk_buffer_info *, const void *, vk_handle *))       \
  ROW(void, vkDestroyBuffer, (vk_device, vk_handle, const void *))                                     \
  ROW(void, vkGetBufferMemoryRequirements, (vk_device, vk_handle, vk_requirements *))                  \
  ROW(vk_result, vkAllocateMemory, (vk_device, const vk_allocate_info *, const void *, vk_handle *))   \
  ROW(void, vkFreeMemory, (vk_device, vk_handle, const void *))                                        \
  ROW(vk_result, vkBindBufferMemory, (vk_device, vk_handle, vk_handle, vk_size))                       \
  ROW(vk_result, vkMapMemory, (vk_device, vk_handle, vk_size, vk_size, uint32_t, void **))             \
  ROW(vk_size, vkGetBufferDeviceAddress, (vk_device, const vk_address_info *))                         \
  ROW(vk_result, vkCreateShaderModule, (vk_device, const vk_shader_info *, const void *, vk_handle *)) \
  ROW(void, vkDestroyShaderModule, (vk_device, vk_handle, const void *))                               \
  ROW(vk_result, vkCreatePipelineLayout, (vk_device, const vk_layout_info *, const void *, vk_handle *)) \
  ROW(vk_result, vkCreateComputePipelines,                                                             \
      (vk_device, vk_handle, uint32_t, const vk_pipeline_info *, const void *, vk_handle *))           \
  ROW(void, vkDestroyPipeline, (vk_device, vk_handle, const void *))                                   \
  ROW(vk_result, vkCreateCommandPool, (vk_device, const vk_pool_info *, const void *, vk_handle *))    \
  ROW(vk_result, vkAllocateCommandBuffers, (vk_device, const vk_commands_info *, vk_commands *))       \
  ROW(vk_result, vkBeginCommandBuffer, (vk_commands, const vk_begin_info *))                           \
  ROW(vk_result, vkEndCommandBuffer, (vk_commands))                                                    \
  ROW(vk_result, vkCreateFence, (vk_device, const vk_fence_info *, const void *, vk_handle *))         \
  ROW(vk_result, vkResetFences, (vk_device, uint32_t, const vk_handle *))                              \
  ROW(vk_result, vkWaitForFences, (vk_device, uint32_t, const vk_handle *, uint32_t, uint64_t))        \
  ROW(vk_result, vkQueueSubmit, (vk_queue, uint32_t, const vk_submit_info *, vk_handle))               \
  ROW(vk_result, vkCreateQueryPool, (vk_device, const vk_query_info *, const void *, vk_handle *))     \
  ROW(vk_result, vkGetQueryPoolResults,                                                                \
      (vk_device, vk_handle, uint32_t, uint32_t, size_t, void *, vk_size, uint32_t))                   \
  ROW(void, vkCmdBindPipeline, (vk_commands, uint32_t, vk_handle))                                     \
  ROW(void, vkCmdPushConstants, (vk_commands, vk_handle, uint32_t, uint32_t, uint32_t, const void *))  \
  ROW(void, vkCmdDispatch, (vk_commands, uint32_t, uint32_t, uint32_t))                                \
  ROW(void, vkCmdCopyBuffer, (vk_commands, vk_handle, vk_handle, uint32_t, const vk_region *))         \
  ROW(void, vkCmdPipelineBarrier,                                                                      \
      (vk_commands, uint32_t, uint32_t, uint32_t, uint32_t, const vk_barrier *, uint32_t, const void *, \
       uint32_t, const void *))                                                                        \
  ROW(void, vkCmdResetQueryPool, (vk_commands, vk_handle, uint32_t, uint32_t))                         \
  ROW(void, vkCmdWriteTimestamp, (vk_commands, uint32_t, vk_handle, uint32_t))

typedef struct vulkan_api {
  VULKAN_FUNCTIONS(DRIVER_MEMBER)
} vulkan_api;

/* The first function that the library lacks, or NULL. */
static inline const char *vulkan_api_load(vulkan_api *api, void *library) {
  static const char *const names[] = {VULKAN_FUNCTIONS(DRIVER_NAME)};
  return driver_find(library, names, sizeof names / sizeof names[0], api);
}

#endif /* EK_VULKAN_API_H_ */
