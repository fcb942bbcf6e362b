/* Cards that are split into MIG slices. */
#include "fake.h"

API ret_t nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(device);
    WHOLE_CARD_ONLY(device);
    uint64_t mode;
    if (!device_number(device, "mig_mode", &mode))
        LEAVE(NOT_SUPPORTED);
    *current = *pending = (unsigned)mode;
    LEAVE(OK);
}

API ret_t nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count)
{
    ENTER_DEVICE(device);
    WHOLE_CARD_ONLY(device);
    *count = MAX_SLICES - 1;
    LEAVE(OK);
}

API ret_t nvmlDeviceGetMigDeviceHandleByIndex(device_t card, unsigned index, device_t *slice)
{
    ENTER_DEVICE(card);
    WHOLE_CARD_ONLY(card);
    if ((int)index >= device_slices(card->card))
        LEAVE(NOT_FOUND);
    *slice = device_of(card->card, (int)index);
    LEAVE(OK);
}

API ret_t nvmlDeviceGetGpuInstanceId(device_t device, unsigned *id)
{
    ENTER_DEVICE(device);
    if (device->slice < 0)
        LEAVE(NOT_SUPPORTED);
    ANSWER_NUMBER(device, "gi", id);
}

API ret_t nvmlDeviceGetComputeInstanceId(device_t device, unsigned *id)
{
    ENTER_DEVICE(device);
    if (device->slice < 0)
        LEAVE(NOT_SUPPORTED);
    ANSWER_NUMBER(device, "ci", id);
}
