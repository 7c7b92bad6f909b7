/* Hides features of an x86-64 processor from a process and its children: loaded before the libraries
** (LD_PRELOAD) by emulate_cpu.py, for engines that choose their kernels by the CPUID instruction.
**
** The kernel makes CPUID fault in threads that ask for it (arch_prctl(2), ARCH_SET_CPUID); the
** handler executes it in the thread's stead and clears the hidden bits of its answer. Threads inherit
** that, exec ends it. HIDDEN_FEATURES holds the bits to clear, in hexadecimal: of leaf 1 ecx, of leaf
** 7 ebx, ecx, edx, of its subleaf 1 eax, edx. */

#define _GNU_SOURCE
#include <asm/prctl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { VERSION_LEAF = 1, FEATURE_LEAF = 7, CPUID_BYTES = 2, HIDDEN_WORDS = 6 };

static unsigned hidden_version_ecx, hidden_ebx, hidden_ecx, hidden_edx, hidden_1_eax, hidden_1_edx;

static void enable_cpuid(long is_enabled) { syscall(SYS_arch_prctl, ARCH_SET_CPUID, is_enabled); }

static void answer_cpuid(int number, siginfo_t *info, void *context) {
  (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *code = (const uint8_t *)registers[REG_RIP];
  if (code[0] != 0x0f || code[1] != 0xa2) { /* a fault of the program's own: it comes again */
    signal(number, SIG_DFL);
    return;
  }
  uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX];
  uint32_t eax, ebx, ecx, edx;
  enable_cpuid(1);
  __asm__ volatile("cpuid"
                   : "=a"(eax), "=b"(ebx), "=c"(ecx), "=d"(edx)
                   : "a"(leaf), "c"(subleaf));
  enable_cpuid(0);
  if (leaf == VERSION_LEAF) {
    ecx &= ~hidden_version_ecx;
  } else if (leaf == FEATURE_LEAF && subleaf == 0) {
    ebx &= ~hidden_ebx;
    ecx &= ~hidden_ecx;
    edx &= ~hidden_edx;
  } else if (leaf == FEATURE_LEAF && subleaf == 1) {
    eax &= ~hidden_1_eax;
    edx &= ~hidden_1_edx;
  }
  registers[REG_RAX] = eax;
  registers[REG_RBX] = ebx;
  registers[REG_RCX] = ecx;
  registers[REG_RDX] = edx;
  registers[REG_RIP] += CPUID_BYTES;
}

__attribute__((constructor)) static void hide_features(void) {
  const char *bits = getenv("HIDDEN_FEATURES");
  if (bits == NULL) return;
  int count = sscanf(bits, "%x,%x,%x,%x,%x,%x", &hidden_version_ecx, &hidden_ebx, &hidden_ecx,
                     &hidden_edx, &hidden_1_eax, &hidden_1_edx);
  struct sigaction action = {.sa_sigaction = answer_cpuid, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  if (count != HIDDEN_WORDS || sigaction(SIGSEGV, &action, NULL) != 0 ||
      syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0L) != 0) {
    fputs("hide_features: this system cannot hide features (arch_prctl, ARCH_SET_CPUID)\n", stderr);
    _exit(1);
  }
}
