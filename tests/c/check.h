/* Assertions of the C tests, which are on in every build. A failed one ends the program. */
#ifndef CHECK_H_
#define CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ek_internal.h"

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);  \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

/* 'call' fails with an error of this kind and whole message. */
#define CHECK_ERROR(call, kind_text, message_text)                                   \
  do {                                                                               \
    CHECK((call) == -1);                                                             \
    check_error(__FILE__, __LINE__, kind_text, message_text);                        \
  } while (0)

static inline bool same_text(ek_bytes bytes, const char *text) {
  return bytes.size == strlen(text) && memcmp(bytes.data, text, bytes.size) == 0;
}

/* Whether a message is a text, or the text and then where in a program the error came up. */
static inline bool same_message(ek_bytes message, const char *text) {
  static const char place[] = " (in '";
  size_t size = strlen(text), more = sizeof place - 1;
  if (message.size >= size + more && memcmp(message.data + size, place, more) == 0) {
    message.size = size;
  }
  return same_text(message, text);
}

static inline void check_error(const char *file, int line, const char *kind, const char *message) {
  ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
  if (error == NULL) {
    fprintf(stderr, "%s:%d: there is no error\n", file, line);
    exit(1);
  }
  if (!same_text(error->kind, kind) || !same_message(error->message, message)) {
    fprintf(stderr, "%s:%d: expected %s: %s\n   got %.*s: %.*s\n", file, line, kind, message,
            (int)error->kind.size, error->kind.data, (int)error->message.size, error->message.data);
    exit(1);
  }
  ek_object_release(&error->base);
}

static inline void drop_error(void) { ek_object_release(ek_error_take()); }

static const ek_device cpu = {EK_CPU, 0};
static const ek_dtype float32 = {EK_DTYPE_FLOAT, 32, 1};

#endif /* CHECK_H_ */
