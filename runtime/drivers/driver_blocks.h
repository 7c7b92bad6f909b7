/* Table of memory blocks, sorted by address, for drivers that find memory by its address. Blocks do
** not overlap. A driver's block structure begins with a driver_range. The table is not thread-safe:
** the driver holds a lock around each call. */
#ifndef EK_DRIVER_BLOCKS_H_
#define EK_DRIVER_BLOCKS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct driver_range {
  uintptr_t begin;
  size_t size;
} driver_range;

typedef struct driver_blocks {
  char *rows; /* of the driver's structures, by address; owned by the table, which the process keeps */
  size_t count, capacity;
} driver_blocks;

static inline driver_range *driver_block_at(const driver_blocks *table, size_t row_size, size_t number) {
  return (driver_range *)(void *)(table->rows + number * row_size);
}

/* The number of the first block that begins behind an address. */
static inline size_t driver_block_behind(const driver_blocks *table, size_t row_size, uintptr_t address) {
  size_t low = 0, high = table->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (driver_block_at(table, row_size, middle)->begin <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* The block that holds 'size' bytes from an address on, its end included, where a tensor without elements
** may begin; NULL where there is none. */
static inline driver_range *driver_block_of(const driver_blocks *table, size_t row_size, const void *at,
                                            size_t size) {
  uintptr_t address = (uintptr_t)at;
  size_t behind = driver_block_behind(table, row_size, address);
  if (behind == 0) return NULL;
  driver_range *range = driver_block_at(table, row_size, behind - 1);
  size_t offset = address - range->begin;
  return offset <= range->size && size <= range->size - offset ? range : NULL;
}

/* Copies a block into the table; false where there is no memory for it. */
static inline bool driver_block_add(driver_blocks *table, size_t row_size, const driver_range *block) {
  if (table->count == table->capacity) {
    size_t capacity = 2 * table->capacity + 64;
    char *larger = realloc(table->rows, capacity * row_size);
    if (larger == NULL) return false;
    table->rows = larger;
    table->capacity = capacity;
  }
  size_t number = driver_block_behind(table, row_size, block->begin);
  char *row = table->rows + number * row_size;
  memmove(row + row_size, row, (table->count - number) * row_size);
  memcpy(row, block, row_size);
  table->count++;
  return true;
}

/* Takes the block that begins at an address out of the table, into 'block'; false where there is none. */
static inline bool driver_block_remove(driver_blocks *table, size_t row_size, const void *begin,
                                       driver_range *block) {
  size_t behind = driver_block_behind(table, row_size, (uintptr_t)begin);
  if (behind == 0 || driver_block_at(table, row_size, behind - 1)->begin != (uintptr_t)begin) return false;
  char *row = table->rows + (behind - 1) * row_size;
  memcpy(block, row, row_size);
  memmove(row, row + row_size, (table->count - behind) * row_size);
  table->count--;
  return true;
}

#endif /* EK_DRIVER_BLOCKS_H_ */
