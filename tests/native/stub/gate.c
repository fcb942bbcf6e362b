/* The entry of every function: state, delay, scripted code, initialisation, call count, lock. */
#define _GNU_SOURCE
#include "fake.h"
#include "state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gate_t *gates;
int initialised;

void gate_lock(void)
{
    pthread_mutex_lock(&lock);
}

void gate_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* A child of a fork must not wait for a lock that a thread of its parent held. */
static void forked(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* The script for a function: the device's own, then everybody's, then the device's "*". */
static const char *script_of(const char *what, const char *function, device_t device)
{
    char key[160];
    const char *value = NULL;
    snprintf(key, sizeof key, "%s.%s", what, function);
    if (device)
        value = device_get(device, key);
    if (!value)
        value = state_get(key);
    if (!value && device) {
        snprintf(key, sizeof key, "%s.*", what);
        value = device_get(device, key);
    }
    return value;
}

static void wait_scripted(const char *function, device_t device)
{
    const char *value = script_of("delay_ms", function, device);
    double seconds = value ? strtod(value, NULL) / 1e3 : 0;
    if (seconds <= 0)
        return;
    struct timespec pause = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    gate_unlock(); /* a slow call must not slow the others */
    nanosleep(&pause, NULL);
    gate_lock();
    state_refresh();
}

ret_t gate_enter(gate_t *gate, const char *function, device_t handle, int needs)
{
    gate_lock();
    if (!gate->function) {
        gate->function = function;
        gate->next = gates;
        gates = gate;
    }
    gate->calls++;
    bool scripted = state_refresh();
    device_t device = device_is_known(handle) ? handle : NULL;
    wait_scripted(function, device);

    const char *code = script_of("ret", function, device);
    if (code && atoi(code))
        return gate_leave(atoi(code));
    if (needs != NEEDS_NOTHING && !initialised)
        return gate_leave(UNINITIALIZED);
    if (!scripted)
        return gate_leave(DRIVER_NOT_LOADED);
    if (needs == NEEDS_DEVICE && (!device || device->card >= device_count()))
        return gate_leave(INVALID_ARGUMENT);
    return OK;
}

ret_t gate_leave(ret_t code)
{
    gate_unlock();
    return code;
}

/* For tests: how often a function was called in this process. */
API unsigned long fake_nvml_calls(const char *function)
{
    unsigned long calls = 0;
    gate_lock();
    for (const gate_t *gate = gates; gate; gate = gate->next)
        if (strcmp(gate->function, function) == 0)
            calls += gate->calls;
    gate_unlock();
    return calls;
}

/* For tests: as if the library had just been loaded. */
API void fake_nvml_reset(void)
{
    gate_lock();
    for (gate_t *gate = gates; gate; gate = gate->next)
        gate->calls = 0;
    initialised = 0;
    gate_unlock();
}
