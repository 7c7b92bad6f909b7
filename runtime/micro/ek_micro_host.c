/* The host as a machine without an allocator: sessions over standard input and output. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>
#include <unistd.h>

#include "ek_micro_config.h"
#include "ek_micro_rpc.h"

static int read_all(void *data, uint32_t size) {
  for (uint32_t at = 0; at < size;) {
    ssize_t got = read(0, (char *)data + at, size - at);
    if (got <= 0) return -1;
    at += (uint32_t)got;
  }
  return 0;
}

static int write_all(const void *data, uint32_t size) {
  for (uint32_t at = 0; at < size;) {
    ssize_t put = write(1, (const char *)data + at, size - at);
    if (put <= 0) return -1;
    at += (uint32_t)put;
  }
  return 0;
}

static uint64_t ticks(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(void) {
  const ek_micro_io io = {read_all, write_all, ticks, 1000000000u, NULL};
  const ek_micro_memory memory = EK_MICRO_MEMORY;
  ek_micro_serve(&EK_MICRO_MODEL, &io, &memory);
  return 0;
}
