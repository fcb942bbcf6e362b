/* Which devices there are and who they are. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>

API ret_t nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER_SYSTEM();
    *count = (unsigned)device_count();
    LEAVE(OK);
}

API ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    ENTER(index < MAX_CARDS ? device_of((int)index, -1) : NULL, NEEDS_INIT);
    if ((int)index >= device_count())
        LEAVE(INVALID_ARGUMENT);
    *device = device_of((int)index, -1);
    LEAVE(OK);
}

/* The device of a UUID, slices included; the state must not change meanwhile. */
static device_t find(const char *uuid)
{
    for (int card = 0; card < device_count(); card++)
        for (int slice = -1; slice < device_slices(card); slice++) {
            const char *known = device_get(device_of(card, slice), "uuid");
            if (known && strcmp(known, uuid) == 0)
                return device_of(card, slice);
        }
    return NULL;
}

API ret_t nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
    ENTER_SYSTEM();
    device_t found = find(uuid);
    if (!found)
        LEAVE(NOT_FOUND);
    /* A lost device refuses its handle too; the gate could not know which one was meant. */
    const char *code = device_get(found, "ret.*");
    if (!code)
        code = device_get(found, "ret.nvmlDeviceGetHandleByUUID");
    if (code && atoi(code))
        LEAVE(atoi(code));
    *device = found;
    LEAVE(OK);
}

API ret_t nvmlDeviceGetUUID(device_t device, char *text, unsigned size)
{
    ENTER_DEVICE(device);
    LEAVE(copy_text(text, size, device_get(device, "uuid")));
}

API ret_t nvmlDeviceGetName(device_t device, char *text, unsigned size)
{
    ENTER_DEVICE(device);
    LEAVE(copy_text(text, size, device_get(device, "name")));
}

API ret_t nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor)
{
    ENTER_DEVICE(device);
    const char *text = device_get(device, "compute_capability");
    if (!text)
        LEAVE(NOT_SUPPORTED);
    char *dot = NULL;
    *major = (int)strtol(text, &dot, 10);
    *minor = *dot == '.' ? atoi(dot + 1) : 0;
    LEAVE(OK);
}
