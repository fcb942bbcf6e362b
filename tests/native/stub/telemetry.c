/* Memory, utilization, power, clocks, temperature, PCIe: one number or two each. */
#include "fake.h"

typedef struct {
    uint64_t total, free, used;
} memory_t;

typedef struct {
    unsigned version;
    uint64_t total, reserved, free, used;
} memory_v2_t;

#define MEMORY_V2 0x02000028u /* NVML_STRUCT_VERSION(Memory, 2) */

/* False where the device has no memory of its own. */
static bool memory_of(device_t device, uint64_t *total, uint64_t *reserved, uint64_t *used)
{
    *reserved = 0;
    device_number(device, "mem_reserved", reserved);
    return device_number(device, "mem_total", total) && device_number(device, "mem_used", used);
}

API ret_t nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory)
{
    ENTER_DEVICE(device);
    uint64_t total, reserved, used;
    if (!memory_of(device, &total, &reserved, &used))
        LEAVE(NOT_SUPPORTED);
    uint64_t taken = used + reserved; /* the first version counts the driver's part as used */
    *memory = (memory_t){.total = total, .used = taken < total ? taken : total, .free = taken < total ? total - taken : 0};
    LEAVE(OK);
}

API ret_t nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *memory)
{
    ENTER_DEVICE(device);
    if (memory->version != MEMORY_V2)
        LEAVE(VERSION_MISMATCH);
    uint64_t total, reserved, used;
    if (!memory_of(device, &total, &reserved, &used))
        LEAVE(NOT_SUPPORTED);
    memory->total = total;
    memory->reserved = reserved;
    memory->used = used;
    memory->free = used + reserved < total ? total - used - reserved : 0;
    LEAVE(OK);
}

API ret_t nvmlDeviceGetUtilizationRates(device_t device, unsigned rates[2])
{
    ENTER_DEVICE(device);
    WHOLE_CARD_ONLY(device);
    uint64_t gpu, memory;
    if (device_slices(device->card) || !device_number(device, "util_gpu", &gpu) || !device_number(device, "util_mem", &memory))
        LEAVE(NOT_SUPPORTED); /* nor does a card that is split into slices tell */
    rates[0] = (unsigned)gpu;
    rates[1] = (unsigned)memory;
    LEAVE(OK);
}

/* A function that answers one number of a whole card. */
#define NUMBER_OF_CARD(function, type, key)         \
    API ret_t function(device_t device, type *answer) \
    {                                               \
        ENTER_DEVICE(device);                       \
        WHOLE_CARD_ONLY(device);                    \
        ANSWER_NUMBER(device, key, answer);         \
    }

NUMBER_OF_CARD(nvmlDeviceGetPowerUsage, unsigned, "power_mw")
NUMBER_OF_CARD(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit_mw")
NUMBER_OF_CARD(nvmlDeviceGetPowerManagementLimit, unsigned, "power_limit_mw")
NUMBER_OF_CARD(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "power_default_limit_mw")
NUMBER_OF_CARD(nvmlDeviceGetTotalEnergyConsumption, uint64_t, "energy_mj")
NUMBER_OF_CARD(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, "clock_reasons")
NUMBER_OF_CARD(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, "clock_reasons")
NUMBER_OF_CARD(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_gen")
NUMBER_OF_CARD(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
NUMBER_OF_CARD(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_gen_max")
NUMBER_OF_CARD(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width_max")

API ret_t nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius)
{
    ENTER_DEVICE(device);
    WHOLE_CARD_ONLY(device);
    if (sensor != 0)
        LEAVE(INVALID_ARGUMENT);
    ANSWER_NUMBER(device, "temp", celsius);
}

API ret_t nvmlDeviceGetClockInfo(device_t device, unsigned type, unsigned *mhz)
{
    static const char *const keys[] = {"clock_gr", "clock_sm", "clock_mem", "clock_video"};
    ENTER_DEVICE(device);
    WHOLE_CARD_ONLY(device);
    if (type >= sizeof keys / sizeof *keys)
        LEAVE(INVALID_ARGUMENT);
    ANSWER_NUMBER(device, keys[type], mhz);
}
