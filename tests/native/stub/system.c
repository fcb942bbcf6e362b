/* The library as a whole: initialisation, versions, error texts. */
#include "fake.h"
#include "state.h"

#include <stdlib.h>

static ret_t init(gate_t *gate, const char *function)
{
    ret_t code = gate_enter(gate, function, NULL, NEEDS_NOTHING);
    if (code)
        return code;
    initialised++;
    LEAVE(OK);
}

API ret_t nvmlInitWithFlags(unsigned flags)
{
    static gate_t gate;
    (void)flags;
    return init(&gate, __func__);
}

API ret_t nvmlInit_v2(void)
{
    static gate_t gate;
    return init(&gate, __func__);
}

API ret_t nvmlShutdown(void)
{
    ENTER_SYSTEM();
    if (--initialised == 0)
        event_sets_end();
    LEAVE(OK);
}

API ret_t nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    ENTER_SYSTEM();
    LEAVE(copy_text(text, size, state_get("driver_version")));
}

API ret_t nvmlSystemGetNVMLVersion(char *text, unsigned size)
{
    ENTER_SYSTEM();
    LEAVE(copy_text(text, size, state_get("nvml_version")));
}

API ret_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER_SYSTEM();
    const char *text = state_get("cuda_driver_version");
    if (!text)
        LEAVE(NOT_SUPPORTED);
    *version = atoi(text);
    LEAVE(OK);
}

API const char *nvmlErrorString(ret_t code)
{
    static const struct {
        ret_t code;
        const char *text;
    } texts[] = {
        {0, "Success"},
        {1, "Uninitialized"},
        {2, "Invalid Argument"},
        {3, "Not Supported"},
        {4, "Insufficient Permissions"},
        {6, "Not Found"},
        {9, "Driver Not Loaded"},
        {10, "Timeout"},
        {13, "Function Not Found"},
        {15, "GPU is lost"},
        {16, "GPU requires reset"},
        {17, "The operating system has blocked the request"},
        {18, "Driver/library version mismatch"},
        {25, "Argument version mismatch"},
        {28, "GPU not found"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code)
            return texts[i].text;
    return "Unknown Error";
}
