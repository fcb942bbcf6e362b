/* Who holds memory on a device. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    unsigned pid;
    uint64_t used_bytes;
    unsigned gpu_instance, compute_instance;
} process_t;

static process_t parse(const char *text)
{
    const char *colon = strchr(text, ':');
    const char *bytes = colon ? colon + 1 : "NA";
    return (process_t){
        .pid = strncmp(text, "self", 4) ? (unsigned)strtoul(text, NULL, 10) : (unsigned)getpid(),
        .used_bytes = strcmp(bytes, "NA") ? strtoull(bytes, NULL, 10) : NOT_AVAILABLE,
        .gpu_instance = UINT32_MAX,
        .compute_instance = UINT32_MAX,
    };
}

/* NVML's convention: too small an array (or none) is answered with the size that is needed. */
static ret_t list(device_t device, const char *kind, unsigned *count, process_t *rows)
{
    char key[32];
    const char *text;
    unsigned room = *count, found = 0;
    for (;; found++) {
        snprintf(key, sizeof key, "%s.%u", kind, found);
        if (!(text = device_get(device, key)))
            break;
        if (rows && found < room)
            rows[found] = parse(text);
    }
    *count = found;
    return found && (!rows || found > room) ? INSUFFICIENT_SIZE : OK;
}

API ret_t nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *rows)
{
    ENTER_DEVICE(device);
    LEAVE(list(device, "proc", count, rows));
}

/* The same rows under the name of drivers before R510. */
API ret_t nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned *count, process_t *rows)
{
    ENTER_DEVICE(device);
    LEAVE(list(device, "proc", count, rows));
}

API ret_t nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count, process_t *rows)
{
    ENTER_DEVICE(device);
    LEAVE(list(device, "gproc", count, rows));
}
