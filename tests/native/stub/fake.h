/* What every function of the fake library shares: return codes, device handles, the gate at its entry.
 *
 * A function reads
 *
 *     API ret_t nvmlDeviceGetSomething(device_t device, unsigned *answer)
 *     {
 *         ENTER_DEVICE(device);
 *         ...
 *         LEAVE(OK);
 *     }
 *
 * The gate refreshes the state, waits the scripted delay, answers a scripted code, counts the call, and holds the one lock
 * until LEAVE.
 */
#ifndef FAKE_NVML_FAKE_H
#define FAKE_NVML_FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef int ret_t;

/* nvmlReturn_t of nvml.h, as far as the fake answers them by itself. */
enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    VERSION_MISMATCH = 25,
};

#define NOT_AVAILABLE UINT64_MAX /* NVML_VALUE_NOT_AVAILABLE */
#define MAX_CARDS 64
#define MAX_SLICES 8

/* A card (slice < 0) or one of its MIG slices. Handles point into one static table and stay valid for ever. */
typedef struct device {
    int card;
    int slice;
} *device_t;

int device_count(void);
int device_slices(int card);
device_t device_of(int card, int slice);
bool device_is_known(const void *handle);

/* The text of a key of this device, of its card ("*." included) where it is one, or NULL. */
const char *device_get(device_t device, const char *key);
bool device_number(device_t device, const char *key, uint64_t *value);

/* Copies a text answer as NVML does: INSUFFICIENT_SIZE where it does not fit. */
ret_t copy_text(char *target, unsigned size, const char *source);

typedef struct gate {
    const char *function;
    unsigned long calls;
    struct gate *next;
} gate_t;

enum { NEEDS_NOTHING, NEEDS_INIT, NEEDS_DEVICE };

/* OK with the lock held, or the code to answer at once without it. */
ret_t gate_enter(gate_t *gate, const char *function, device_t device, int needs);
ret_t gate_leave(ret_t code);
void gate_unlock(void);
void gate_lock(void);

/* Counts nvmlInit and nvmlShutdown. */
extern int initialised;

/* What the last nvmlShutdown takes with it. */
void event_sets_end(void);

#define ENTER(device, needs)                                          \
    static gate_t gate;                                               \
    do {                                                              \
        ret_t code_ = gate_enter(&gate, __func__, (device), (needs)); \
        if (code_)                                                    \
            return code_;                                             \
    } while (0)
#define ENTER_SYSTEM() ENTER(NULL, NEEDS_INIT)
#define ENTER_DEVICE(device) ENTER(device, NEEDS_DEVICE)
#define LEAVE(code) return gate_leave(code)

/* Answers that a slice cannot give (NVML says NOT_SUPPORTED on MIG handles). */
#define WHOLE_CARD_ONLY(device)   \
    do {                          \
        if ((device)->slice >= 0) \
            LEAVE(NOT_SUPPORTED); \
    } while (0)

/* A number of the state as the answer, or NOT_SUPPORTED. */
#define ANSWER_NUMBER(device, key, target)                \
    do {                                                  \
        uint64_t value_;                                  \
        if (!device_number((device), (key), &value_))     \
            LEAVE(NOT_SUPPORTED);                         \
        *(target) = (__typeof__(*(target)))value_;        \
        LEAVE(OK);                                        \
    } while (0)

#endif
