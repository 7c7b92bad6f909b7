/* A board of Arm's FPGA images: sessions over its first UART, time by SysTick. */
#include "ek_micro_board.h"
#include "ek_micro_config.h"
#include "ek_micro_rpc.h"

enum { DATA = 0, STATE = 4, CONTROL = 8, DIVIDER = 16 };
#define SYSTICK UINT32_C(0xe000e010)
static const uint32_t RELOAD = 0x00ffffff;

static volatile uint32_t turns;            /* of SysTick, which has 24 bits */

void ek_systick(void);
void ek_systick(void) { turns++; }

static uint64_t ticks(void) {
  for (;;) {
    uint32_t before = turns, left = EK_REGISTER(SYSTICK + 8);
    if (before == turns) return (uint64_t)before * (RELOAD + 1) + (RELOAD - left);
  }
}

static int read_all(void *data, uint32_t size) {
  uint8_t *to = data;
  for (uint32_t i = 0; i < size; i++) {
    while ((EK_REGISTER(EK_UART + STATE) & 2u) == 0) continue;
    to[i] = (uint8_t)EK_REGISTER(EK_UART + DATA);
  }
  return 0;
}

static int write_all(const void *data, uint32_t size) {
  const uint8_t *from = data;
  for (uint32_t i = 0; i < size; i++) {
    while ((EK_REGISTER(EK_UART + STATE) & 1u) != 0) continue;
    EK_REGISTER(EK_UART + DATA) = from[i];
  }
  return 0;
}

int main(void) {
  const ek_micro_io io = {read_all, write_all, ticks, EK_CLOCK_HZ, ek_measure_stack};
  const ek_micro_memory memory = EK_MICRO_MEMORY;
  EK_REGISTER(EK_UART + DIVIDER) = 16;
  EK_REGISTER(EK_UART + CONTROL) = 3;      /* send and receive */
  EK_REGISTER(SYSTICK + 4) = RELOAD;
  EK_REGISTER(SYSTICK + 8) = 0;
  EK_REGISTER(SYSTICK) = 7;                /* the processor's clock, interrupts, on */
  for (;;) ek_micro_serve(&EK_MICRO_MODEL, &io, &memory);
}
