/* Find the line of a kernel's source that a compiler log refers to. */
#ifndef EK_DRIVER_LOG_H_
#define EK_DRIVER_LOG_H_

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number that the first line with "error" of a log gives, as in "f.cl:12:5: error", "f.cu(12):
** error" or "error: f.cl:12:5"; 0 where there is none. */
static inline long log_line(const char *log) {
  const char *at = strstr(log, "error");
  while (at != NULL && at > log && at[-1] != '\n') at--;
  for (; at != NULL && *at != '\0' && *at != '\n'; at++) {
    char *end;
    if ((*at != ':' && *at != '(') || at[1] < '0' || at[1] > '9') continue;
    long line = strtol(at + 1, &end, 10);
    if (*end == (*at == ':' ? ':' : ')')) return line;
  }
  return 0;
}

/* Writes "line 12 (its text): " for the first error of a log; nothing where the log names no line
** of the text. */
static inline void log_place(const char *log, const char *code, size_t size, char *out,
                             size_t capacity) {
  long line = log_line(log);
  const char *at = code, *end = code + size;
  out[0] = '\0';
  for (long n = 1; n < line && at != NULL; n++) {
    at = memchr(at, '\n', (size_t)(end - at));
    if (at != NULL) at++;
  }
  if (line <= 0 || at == NULL || at >= end) return;
  const char *stop = memchr(at, '\n', (size_t)(end - at));
  if (stop == NULL) stop = end;
  while (at < stop && (*at == ' ' || *at == '\t')) at++;
  int shown = stop - at > 160 ? 160 : (int)(stop - at);
  snprintf(out, capacity, "line %ld (%.*s): ", line, shown, at);
}

#endif /* EK_DRIVER_LOG_H_ */
