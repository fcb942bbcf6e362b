/* Device handles and the values scripted for them. */
#define _GNU_SOURCE
#include "fake.h"
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct device table[MAX_CARDS][MAX_SLICES + 1];

__attribute__((constructor)) static void fill_table(void)
{
    for (int card = 0; card < MAX_CARDS; card++)
        for (int place = 0; place <= MAX_SLICES; place++)
            table[card][place] = (struct device){.card = card, .slice = place - 1};
}

int device_count(void)
{
    const char *count = state_get("device_count");
    int cards = count ? atoi(count) : 0;
    return cards < MAX_CARDS ? cards : MAX_CARDS;
}

int device_slices(int card)
{
    char key[64];
    int slices = 0;
    for (; slices < MAX_SLICES; slices++) {
        snprintf(key, sizeof key, "%d.mig.%d.mem_total", card, slices);
        if (!state_get(key))
            break;
    }
    return slices;
}

device_t device_of(int card, int slice)
{
    return &table[card][slice + 1];
}

bool device_is_known(const void *handle)
{
    return (const char *)handle >= (const char *)table && (const char *)handle < (const char *)table + sizeof table;
}

const char *device_get(device_t device, const char *key)
{
    char full[192];
    const char *value;
    if (device->slice >= 0) {
        snprintf(full, sizeof full, "%d.mig.%d.%s", device->card, device->slice, key);
        value = state_get(full);
        /* A slice has its own values only; what happens to its card happens to it. */
        if (value || (strncmp(key, "ret.", 4) && strncmp(key, "delay_ms.", 9)))
            return value;
    }
    snprintf(full, sizeof full, "%d.%s", device->card, key);
    if ((value = state_get(full)))
        return value;
    snprintf(full, sizeof full, "*.%s", key);
    return state_get(full);
}

bool device_number(device_t device, const char *key, uint64_t *value)
{
    const char *text = device_get(device, key);
    if (text)
        *value = strtoull(text, NULL, 0);
    return text != NULL;
}

ret_t copy_text(char *target, unsigned size, const char *source)
{
    if (!source)
        return NOT_SUPPORTED;
    if (strlen(source) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(target, source);
    return OK;
}
