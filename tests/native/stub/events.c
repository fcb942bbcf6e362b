/* Xid events: one at a time, scripted as "xid_event=SEQ:CARD:XID", each SEQ delivered once to each event set. */
#define _GNU_SOURCE
#include "fake.h"
#include "state.h"

#include <stdio.h>
#include <time.h>

#define XID_CRITICAL 8 /* nvmlEventTypeXidCriticalError */

typedef struct event_set {
    bool taken;
    int delivered; /* the last SEQ */
    bool registered[MAX_CARDS];
} *event_set_t;

/* A pool, so that a handle that was never given out is refused and not followed, and a leak runs dry. */
static struct event_set pool[16];

static bool is_set(const void *handle)
{
    for (size_t i = 0; i < sizeof pool / sizeof *pool; i++)
        if (handle == &pool[i])
            return pool[i].taken;
    return false;
}

typedef struct {
    device_t device;
    uint64_t type, data;
    unsigned gpu_instance, compute_instance;
} event_t;

void event_sets_end(void)
{
    for (size_t i = 0; i < sizeof pool / sizeof *pool; i++)
        pool[i].taken = false;
}

API ret_t nvmlEventSetCreate(event_set_t *set)
{
    ENTER_SYSTEM();
    for (size_t i = 0; i < sizeof pool / sizeof *pool; i++)
        if (!pool[i].taken) {
            pool[i] = (struct event_set){.taken = true};
            *set = &pool[i];
            LEAVE(OK);
        }
    LEAVE(INSUFFICIENT_SIZE);
}

API ret_t nvmlEventSetFree(event_set_t set)
{
    ENTER_SYSTEM();
    if (!is_set(set))
        LEAVE(INVALID_ARGUMENT);
    set->taken = false;
    LEAVE(OK);
}

API ret_t nvmlDeviceRegisterEvents(device_t device, uint64_t types, event_set_t set)
{
    ENTER_DEVICE(device);
    if (!is_set(set))
        LEAVE(INVALID_ARGUMENT);
    if (types & ~(uint64_t)XID_CRITICAL)
        LEAVE(NOT_SUPPORTED);
    set->registered[device->card] = true;
    LEAVE(OK);
}

/* True with the event filled where one waits. */
static bool take(event_set_t set, event_t *event)
{
    int sequence, card;
    unsigned long long xid;
    const char *text = state_get("xid_event");
    if (!text || sscanf(text, "%d:%d:%llu", &sequence, &card, &xid) != 3)
        return false;
    if (sequence == set->delivered || card < 0 || card >= device_count() || !set->registered[card])
        return false;
    set->delivered = sequence;
    *event = (event_t){
        .device = device_of(card, -1),
        .type = XID_CRITICAL,
        .data = xid,
        .gpu_instance = UINT32_MAX,
        .compute_instance = UINT32_MAX,
    };
    return true;
}

API ret_t nvmlEventSetWait_v2(event_set_t set, event_t *event, unsigned timeout_ms)
{
    ENTER_SYSTEM();
    if (!is_set(set))
        LEAVE(INVALID_ARGUMENT);
    for (unsigned waited_ms = 0; !take(set, event); waited_ms += 10) {
        if (waited_ms >= timeout_ms)
            LEAVE(TIMEOUT);
        struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
        gate_unlock();
        nanosleep(&pause, NULL);
        gate_lock();
        state_refresh();
    }
    LEAVE(OK);
}
