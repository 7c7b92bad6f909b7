/* The table of memory blocks that drivers look addresses up in. */
#include "../../runtime/drivers/driver_blocks.h"

#include "check.h"

typedef struct block {
  driver_range range;
  int number;
} block;

static const block *holding(const driver_blocks *table, uintptr_t address, size_t size) {
  return (const block *)driver_block_of(table, sizeof(block), (const void *)address, size);
}

static void an_address_is_found_in_the_block_that_holds_it(void) {
  driver_blocks table = {0};
  for (int i = 0; i < 200; i++) { /* begins 1000, 8000, 15000, ...: not in order, more than the first rows */
    int number = i * 77 % 200;
    block made = {{(uintptr_t)(1000 + 7000 * number), 100}, number};
    CHECK(driver_block_add(&table, sizeof made, &made.range));
  }
  for (int number = 0; number < 200; number++) {
    uintptr_t begin = (uintptr_t)(1000 + 7000 * number);
    CHECK(holding(&table, begin, 100)->number == number);
    CHECK(holding(&table, begin + 99, 1)->number == number);
    CHECK(holding(&table, begin + 100, 0)->number == number); /* a tensor without elements at the end */
    CHECK(holding(&table, begin + 100, 1) == NULL);
    CHECK(holding(&table, begin - 1, 1) == NULL);
    CHECK(holding(&table, begin, SIZE_MAX) == NULL);
  }
  free(table.rows);
}

static void a_removed_block_is_found_no_more(void) {
  driver_blocks table = {0};
  block first = {{4096, 64}, 1}, second = {{8192, 64}, 2}, gone;
  CHECK(!driver_block_remove(&table, sizeof gone, (const void *)(uintptr_t)4096, &gone.range));
  CHECK(driver_block_add(&table, sizeof second, &second.range));
  CHECK(driver_block_add(&table, sizeof first, &first.range));
  CHECK(!driver_block_remove(&table, sizeof gone, (const void *)(uintptr_t)4100, &gone.range));
  CHECK(driver_block_remove(&table, sizeof gone, (const void *)(uintptr_t)4096, &gone.range));
  CHECK(gone.number == 1 && table.count == 1);
  CHECK(holding(&table, 4096, 1) == NULL && holding(&table, 8192, 1)->number == 2);
  free(table.rows);
}

int main(void) {
  an_address_is_found_in_the_block_that_holds_it();
  a_removed_block_is_found_no_more();
  return 0;
}
