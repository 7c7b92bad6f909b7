/* The part of oneDNN 3 that its engine uses: functions, found in a library at run time, and numbers of
** its interface. */
#ifndef EK_ONEDNN_API_H_
#define EK_ONEDNN_API_H_

#include <stddef.h>
#include <stdint.h>

typedef struct dnnl_engine dnnl_engine;
typedef struct dnnl_stream dnnl_stream;
typedef struct dnnl_desc dnnl_desc;           /* of memory: sizes, type, how it lies */
typedef struct dnnl_memory dnnl_memory;
typedef struct dnnl_primitive_desc dnnl_primitive_desc;
typedef struct dnnl_primitive dnnl_primitive;
typedef struct dnnl_attr dnnl_attr;
typedef struct dnnl_post_ops dnnl_post_ops;

typedef struct dnnl_arg {
  int arg;
  dnnl_memory *memory;
} dnnl_arg;

enum {
  DNNL_CPU = 1,
  DNNL_IN_ORDER = 1,
  DNNL_F32 = 3,
  DNNL_ANY = 1,                /* of format tags */
  DNNL_INFERENCE = 96,
  DNNL_USER_SCRATCHPAD = 1,
  DNNL_MAX_DIMS = 12
};

enum { DNNL_CONVOLUTION = 0x3, DNNL_RELU = 0x20, DNNL_POOLING_MAX = 0x1ff, DNNL_SOFTMAX = 0x30000 };

enum { DNNL_SRC_MD = 129, DNNL_WEIGHTS_MD = 131, DNNL_DST_MD = 133, DNNL_SCRATCHPAD_MD = 136 };

enum {
  DNNL_ARG_SRC = 1,
  DNNL_ARG_SRC_1 = 2,
  DNNL_ARG_DST = 17,
  DNNL_ARG_WEIGHTS = 33,
  DNNL_ARG_BIAS = 41,
  DNNL_ARG_SCRATCHPAD = 80
};

/* DNNL(result, name, parameters). Results of type int are 0 or a status. */
#define DNNL_FUNCTIONS(DNNL)                                                                        \
  DNNL(int, dnnl_engine_create, (dnnl_engine **, int, size_t))                                      \
  DNNL(int, dnnl_stream_create, (dnnl_stream **, dnnl_engine *, unsigned))                          \
  DNNL(int, dnnl_stream_destroy, (dnnl_stream *))                                                   \
  DNNL(int, dnnl_stream_wait, (dnnl_stream *))                                                      \
  DNNL(int, dnnl_memory_desc_create_with_strides,                                                   \
       (dnnl_desc **, int, const int64_t *, int, const int64_t *))                                  \
  DNNL(int, dnnl_memory_desc_create_with_tag, (dnnl_desc **, int, const int64_t *, int, int))       \
  DNNL(int, dnnl_memory_desc_destroy, (dnnl_desc *))                                                \
  DNNL(int, dnnl_memory_desc_equal, (const dnnl_desc *, const dnnl_desc *))                         \
  DNNL(size_t, dnnl_memory_desc_get_size, (const dnnl_desc *))                                      \
  DNNL(int, dnnl_memory_create, (dnnl_memory **, const dnnl_desc *, dnnl_engine *, void *))         \
  DNNL(int, dnnl_memory_set_data_handle, (dnnl_memory *, void *))                                   \
  DNNL(int, dnnl_memory_get_memory_desc, (const dnnl_memory *, const dnnl_desc **))                 \
  DNNL(int, dnnl_memory_destroy, (dnnl_memory *))                                                   \
  DNNL(int, dnnl_primitive_attr_create, (dnnl_attr **))                                             \
  DNNL(int, dnnl_primitive_attr_set_scratchpad_mode, (dnnl_attr *, int))                            \
  DNNL(int, dnnl_primitive_attr_set_post_ops, (dnnl_attr *, const dnnl_post_ops *))                 \
  DNNL(int, dnnl_primitive_attr_destroy, (dnnl_attr *))                                             \
  DNNL(int, dnnl_post_ops_create, (dnnl_post_ops **))                                               \
  DNNL(int, dnnl_post_ops_append_eltwise, (dnnl_post_ops *, int, float, float))                     \
  DNNL(int, dnnl_post_ops_destroy, (dnnl_post_ops *))                                               \
  DNNL(int, dnnl_matmul_primitive_desc_create,                                                      \
       (dnnl_primitive_desc **, dnnl_engine *, const dnnl_desc *, const dnnl_desc *,                \
        const dnnl_desc *, const dnnl_desc *, const dnnl_attr *))                                   \
  DNNL(int, dnnl_convolution_forward_primitive_desc_create,                                         \
       (dnnl_primitive_desc **, dnnl_engine *, int, int, const dnnl_desc *, const dnnl_desc *,      \
        const dnnl_desc *, const dnnl_desc *, const int64_t *, const int64_t *, const int64_t *,    \
        const int64_t *, const dnnl_attr *))                                                        \
  DNNL(int, dnnl_pooling_forward_primitive_desc_create,                                             \
       (dnnl_primitive_desc **, dnnl_engine *, int, int, const dnnl_desc *, const dnnl_desc *,      \
        const int64_t *, const int64_t *, const int64_t *, const int64_t *, const int64_t *,        \
        const dnnl_attr *))                                                                         \
  DNNL(int, dnnl_eltwise_forward_primitive_desc_create,                                             \
       (dnnl_primitive_desc **, dnnl_engine *, int, int, const dnnl_desc *, const dnnl_desc *,      \
        float, float, const dnnl_attr *))                                                           \
  DNNL(int, dnnl_binary_primitive_desc_create,                                                      \
       (dnnl_primitive_desc **, dnnl_engine *, int, const dnnl_desc *, const dnnl_desc *,           \
        const dnnl_desc *, const dnnl_attr *))                                                      \
  DNNL(int, dnnl_softmax_forward_primitive_desc_create,                                             \
       (dnnl_primitive_desc **, dnnl_engine *, int, int, const dnnl_desc *, const dnnl_desc *, int, \
        const dnnl_attr *))                                                                         \
  DNNL(int, dnnl_reorder_primitive_desc_create,                                                     \
       (dnnl_primitive_desc **, const dnnl_desc *, dnnl_engine *, const dnnl_desc *,                \
        dnnl_engine *, const dnnl_attr *))                                                          \
  DNNL(const dnnl_desc *, dnnl_primitive_desc_query_md, (const dnnl_primitive_desc *, int, int))    \
  DNNL(int, dnnl_primitive_desc_destroy, (dnnl_primitive_desc *))                                   \
  DNNL(int, dnnl_primitive_create, (dnnl_primitive **, const dnnl_primitive_desc *))                \
  DNNL(int, dnnl_primitive_execute,                                                                 \
       (const dnnl_primitive *, dnnl_stream *, int, const dnnl_arg *))                              \
  DNNL(int, dnnl_primitive_destroy, (dnnl_primitive *))

typedef struct onednn_api {
#define DNNL_MEMBER(result, name, parameters) result(*name) parameters;
  DNNL_FUNCTIONS(DNNL_MEMBER)
#undef DNNL_MEMBER
} onednn_api;

extern onednn_api dnnl;
extern dnnl_engine *dnnl_cpu;

#endif /* EK_ONEDNN_API_H_ */
