/* Addresses of the boards of Arm's FPGA images, which QEMU has. One is named by the compiler's
** options. */
#ifndef EK_MICRO_BOARD_H_
#define EK_MICRO_BOARD_H_

#include <stdint.h>

#include "ekiden_micro.h"

#if defined(EK_BOARD_MPS2_AN500)           /* Cortex-M7 */
#define EK_UART UINT32_C(0x40004000)
#define EK_CLOCK_HZ 25000000u
#elif defined(EK_BOARD_MPS3_AN547)         /* Cortex-M55, in its secure state */
#define EK_UART UINT32_C(0x59303000)
#define EK_CLOCK_HZ 32000000u
#endif

#define EK_REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))

/* Runs a model, as its 'run' does; '*bytes' is what that took of the stack (ek_micro_start.c). */
int32_t ek_measure_stack(const ekiden_micro_model *model, void *const *inputs, void *const *outputs,
                         void *const *pools, uint32_t *bytes);

#endif /* EK_MICRO_BOARD_H_ */
