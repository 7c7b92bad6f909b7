/* Start-up code of Cortex-M: vector table, floating-point unit, memory, main. The linker's script
** has the symbols. */
#include <stdint.h>
#include <string.h>

#include "ek_micro_board.h"

extern uint32_t ek_stack_top[], ek_data_from[], ek_data_begin[], ek_data_end[], ek_bss_begin[], ek_bss_end[],
    ek_memory_end[];
extern int main(void);

void ek_reset(void) __attribute__((noreturn));
void ek_fault(void) __attribute__((noreturn));
void ek_systick(void);

__attribute__((section(".ekiden.vectors"), used)) static void (*const vectors[16])(void) = {
  (void (*)(void))(uintptr_t)ek_stack_top, ek_reset, ek_fault, ek_fault, ek_fault, ek_fault, ek_fault,
  ek_fault, 0, 0, 0, ek_fault, ek_fault, 0, ek_fault, ek_systick,
};

static uint32_t semihost(uint32_t operation, const void *argument) {
  register uint32_t r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

/* Ends the emulator with a status; on a board without a debugger it stands still. */
static void __attribute__((noreturn)) leave(uint32_t status) {
#ifdef EK_SEMIHOSTING
  const uint32_t exits[2] = {0x20026, status}; /* ADP_Stopped_ApplicationExit */
  semihost(0x20, exits);
#else
  (void)semihost;
  (void)status;
#endif
  for (;;) continue;
}

void ek_fault(void) { leave(70); }

/* Measure the stack use of a run by painting the memory below this frame and looking for the lowest
** changed word afterwards. Interrupts are disabled meanwhile, so their stack use is not
** included. */
int32_t ek_measure_stack(const ekiden_micro_model *model, void *const *inputs, void *const *outputs,
                         void *const *pools, uint32_t *bytes) {
  static const uint32_t PAINT = 0xa5c35a3c;
  volatile uint32_t *top, *at = ek_memory_end;
  __asm__ volatile("cpsid i\n\tmov %0, sp" : "=r"(top) : : "memory");
  while (at < top) *at++ = PAINT;
  int32_t code = model->run(inputs, outputs, pools);
  __asm__ volatile("cpsie i" : : : "memory");
  for (at = ek_memory_end; at < top && *at == PAINT;) at++;
  *bytes = (uint32_t)((uintptr_t)top - (uintptr_t)at);
  return code;
}

void ek_reset(void) {
  EK_REGISTER(0xe000ed88) |= 0xfu << 20;   /* CPACR: floating point, and vectors where they are */
  EK_REGISTER(0xe000ed14) |= 1u << 18;     /* CCR.LOB: loops without branches (Armv8.1-M) */
  __asm__ volatile("dsb\n\tisb" : : : "memory");
  memcpy(ek_data_begin, ek_data_from, (size_t)((char *)ek_data_end - (char *)ek_data_begin));
  memset(ek_bss_begin, 0, (size_t)((char *)ek_bss_end - (char *)ek_bss_begin));
  leave((uint32_t)main());
}
