/* ECC counts and the field values that answer several of them in one call. */
#define _GNU_SOURCE
#include "fake.h"

#include <time.h>

/* ECC counts since the driver was loaded (volatile); "aggregate" ones are not scripted. */
API ret_t nvmlDeviceGetTotalEccErrors(device_t device, unsigned type, unsigned counter, uint64_t *count)
{
    ENTER_DEVICE(device);
    WHOLE_CARD_ONLY(device);
    if (counter != 0)
        LEAVE(NOT_SUPPORTED);
    ANSWER_NUMBER(device, type ? "ecc_uncorrected" : "ecc_corrected", count);
}

typedef struct {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    unsigned type;
    ret_t code;
    union {
        double number;
        unsigned u32;
        uint64_t u64;
    } value;
} field_t;

enum { TYPE_U32 = 1, TYPE_U64 = 3 }; /* nvmlValueType_t */

static const struct {
    unsigned field; /* NVML_FI_... of nvml.h */
    const char *key;
} known[] = {
    {3, "ecc_corrected"},    /* NVML_FI_DEV_ECC_SBE_VOL_TOTAL */
    {4, "ecc_uncorrected"},  /* NVML_FI_DEV_ECC_DBE_VOL_TOTAL */
    {83, "energy_mj"},       /* NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION */
    {186, "power_mw"},       /* NVML_FI_DEV_POWER_INSTANT */
};

static const char *key_of(unsigned field)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].field == field)
            return known[i].key;
    return NULL;
}

API ret_t nvmlDeviceGetFieldValues(device_t device, int count, field_t *fields)
{
    ENTER_DEVICE(device);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        const char *key = key_of(fields[i].field);
        uint64_t value = 0;
        fields[i].timestamp_us = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        fields[i].latency_us = 0;
        fields[i].type = TYPE_U64;
        fields[i].code = device->slice < 0 && key && device_number(device, key, &value) ? OK : NOT_SUPPORTED;
        fields[i].value.u64 = value;
    }
    LEAVE(OK);
}
