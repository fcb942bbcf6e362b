/* GPU performance monitoring: shares of SMs and tensor cores at work between two samples (Hopper and newer). */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>

typedef struct sample {
    bool taken;
    device_t device; /* whose values count; a sample of a slice remembers the slice */
} *sample_t;

/* A pool, so that a handle that was never given out is refused and not followed, and a leak runs dry. */
static struct sample pool[64];

static bool is_sample(const void *handle)
{
    for (size_t i = 0; i < sizeof pool / sizeof *pool; i++)
        if (handle == &pool[i])
            return pool[i].taken;
    return false;
}

typedef struct {
    unsigned version, supported;
} support_t;

typedef struct {
    unsigned id;
    ret_t code;
    double value;
    const char *short_name, *long_name, *unit;
} metric_t;

typedef struct {
    unsigned version, count;
    sample_t first, second;
    metric_t metrics[];
} request_t;

static const char *key_of(unsigned metric)
{
    switch (metric) {
    case 2:
        return "gpm_sm"; /* NVML_GPM_METRIC_SM_UTIL */
    case 5:
        return "gpm_tensor"; /* NVML_GPM_METRIC_ANY_TENSOR_UTIL */
    default:
        return "gpm_unknown";
    }
}

API ret_t nvmlGpmQueryDeviceSupport(device_t device, support_t *support)
{
    ENTER_DEVICE(device);
    support->supported = device_get(device, "gpm") != NULL;
    LEAVE(OK);
}

API ret_t nvmlGpmSampleAlloc(sample_t *sample)
{
    ENTER_SYSTEM();
    for (size_t i = 0; i < sizeof pool / sizeof *pool; i++)
        if (!pool[i].taken) {
            pool[i] = (struct sample){.taken = true};
            *sample = &pool[i];
            LEAVE(OK);
        }
    LEAVE(INSUFFICIENT_SIZE);
}

API ret_t nvmlGpmSampleFree(sample_t sample)
{
    ENTER_SYSTEM();
    if (!is_sample(sample))
        LEAVE(INVALID_ARGUMENT);
    sample->taken = false;
    LEAVE(OK);
}

API ret_t nvmlGpmSampleGet(device_t device, sample_t sample)
{
    ENTER_DEVICE(device);
    if (!is_sample(sample))
        LEAVE(INVALID_ARGUMENT);
    sample->device = device;
    LEAVE(OK);
}

API ret_t nvmlGpmMigSampleGet(device_t card, unsigned gpu_instance, sample_t sample)
{
    ENTER_DEVICE(card);
    if (!is_sample(sample))
        LEAVE(INVALID_ARGUMENT);
    for (int slice = 0; slice < device_slices(card->card); slice++) {
        uint64_t instance;
        device_t device = device_of(card->card, slice);
        if (device_number(device, "gi", &instance) && instance == gpu_instance) {
            sample->device = device;
            LEAVE(OK);
        }
    }
    LEAVE(NOT_FOUND);
}

API ret_t nvmlGpmMetricsGet(request_t *request)
{
    ENTER_SYSTEM();
    if (request->version != 1)
        LEAVE(VERSION_MISMATCH);
    if (!is_sample(request->first) || !is_sample(request->second) || !request->second->device)
        LEAVE(INVALID_ARGUMENT);
    for (unsigned i = 0; i < request->count; i++) {
        const char *text = device_get(request->second->device, key_of(request->metrics[i].id));
        request->metrics[i].code = text ? OK : NOT_SUPPORTED;
        request->metrics[i].value = text ? strtod(text, NULL) : 0;
    }
    LEAVE(OK);
}
