/* Kinds of devices other than the CPU: a table of tables; names of devices. */
#include "ek_internal.h"

#include <stdio.h>

enum { KINDS = 64 };

static const ek_device_table *tables[KINDS];

int ek_device_register(int32_t type, const ek_device_table *table) {
  const ek_device_table *known = NULL;
  if (type <= EK_CPU || type >= KINDS) {
    return ek_error("ValueError", "register device: a type from 2 to %d expected, got %d",
                    KINDS - 1, type);
  }
  if (!__atomic_compare_exchange_n(&tables[type], &known, table, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE) &&
      known != table) {
    return ek_error("ValueError", "register device: type %d is '%s' already, got '%s'", type,
                    known->name, table->name);
  }
  return 0;
}

ek_device_name ek_device_describe(ek_device device) {
  ek_device_name name;
  if (device.type == EK_CPU) snprintf(name.text, sizeof name.text, "cpu(%d)", device.id);
  else snprintf(name.text, sizeof name.text, "device %d(%d)", device.type, device.id);
  return name;
}

const ek_device_table *ek_device_table_of(ek_device device, const char *doing) {
  const ek_device_table *table = NULL;
  if (device.type >= 0 && device.type < KINDS) {
    table = __atomic_load_n(&tables[device.type], __ATOMIC_ACQUIRE);
  }
  if (table == NULL) {
    ek_error("ValueError", "%s: expected the CPU (device type %d) or a registered device, got "
             "device type %d", doing, EK_CPU, device.type);
  }
  return table;
}
