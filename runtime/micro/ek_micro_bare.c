/* The entry point of your program: this one runs the model once, on its static inputs. */
#include "ek_micro_config.h"
#include "ek_micro_rpc.h"

void ek_systick(void);
void ek_systick(void) {}

int main(void) {
  const ekiden_micro_model *model = &EK_MICRO_MODEL;
  const ek_micro_memory memory = EK_MICRO_MEMORY;
  void *given[2][32];
  uint32_t at = 0;
  if (model->num_inputs > 32 || model->num_outputs > 32) return 1;
  for (int32_t i = 0; i < model->num_inputs + model->num_outputs; i++) {
    int32_t is_output = i >= model->num_inputs, number = is_output ? i - model->num_inputs : i;
    const ekiden_micro_tensor *of = is_output ? &model->outputs[number] : &model->inputs[number];
    given[is_output][number] = memory.heap + at;
    at += (of->nbytes + 15) / 16 * 16;
  }
  return (int)model->run(given[0], given[1], memory.pools);
}
