/* Clocks: supported, current, set and reset. */
#include "state.h"

#include <stdio.h>

static const struct json *clock_list(const struct view *v, const char *key)
{
    return json_get(fake_key(v, "clocks"), key);
}

static nvmlReturn_t put_list(const struct json *list, unsigned int *count, unsigned int *out)
{
    NEED(count);
    unsigned int n = (unsigned)json_length(list), room = *count;
    *count = n;
    if (!n)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!out || n > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned int i = 0;
    for (const struct json *c = list->child; c; c = c->next)
        out[i++] = (unsigned)c->number;
    return NVML_SUCCESS;
}

static int has_clock(const struct json *list, unsigned int mhz)
{
    for (const struct json *c = list ? list->child : NULL; c; c = c->next)
        if ((unsigned)c->number == mhz)
            return 1;
    return 0;
}

static unsigned int memory_clock(const struct view *v)
{
    const struct json *list = clock_list(v, "memory_mhz");
    return list && list->child ? (unsigned)list->child->number : 0;
}

API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count,
                                                    unsigned int *out)
{
    ENTER(v, device);
    return put_list(clock_list(&v, "memory_mhz"), count, out);
}

API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz,
                                                      unsigned int *count, unsigned int *out)
{
    ENTER(v, device);
    if (!has_clock(clock_list(&v, "memory_mhz"), memory_mhz))
        return NVML_ERROR_NOT_FOUND;
    return put_list(clock_list(&v, "graphics_mhz"), count, out);
}

static nvmlReturn_t put_clock(unsigned int type, unsigned int sm, unsigned int memory,
                              unsigned int *mhz)
{
    NEED(mhz && type <= NVML_CLOCK_VIDEO);
    *mhz = type == NVML_CLOCK_MEM ? memory : sm;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    ENTER(v, device);
    unsigned int sm = (unsigned)fake_number(&v, "sm_mhz", state_sm_clock(&v));
    return put_clock(type, sm, memory_clock(&v), mhz);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type,
                                           unsigned int *mhz)
{
    ENTER(v, device);
    return put_clock(type, state_max_clock(&v), memory_clock(&v), mhz);
}

API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int type,
                                                       unsigned int *mhz)
{
    ENTER(v, device);
    return put_clock(type, state_default_clock(&v), memory_clock(&v), mhz);
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type,
                                                unsigned int *mhz)
{
    ENTER(v, device);
    unsigned long long set[2] = {memory_clock(&v), state_default_clock(&v)};
    (void)state_read(v.minor, "applications_clocks", set, 2);
    return put_clock(type, (unsigned)set[1], (unsigned)set[0], mhz);
}

/* ids: 0 current, 1 application target, 2 application default, 3 maximum */
API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id,
                                    unsigned int *mhz)
{
    ENTER(v, device);
    switch (id) {
    case 0: return nvmlDeviceGetClockInfo(device, type, mhz);
    case 1: return nvmlDeviceGetApplicationsClock(device, type, mhz);
    case 2: return nvmlDeviceGetDefaultApplicationsClock(device, type, mhz);
    case 3: return nvmlDeviceGetMaxClockInfo(device, type, mhz);
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

API nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int least,
                                              unsigned int most)
{
    char text[48];
    ENTER(v, device);
    NEED(least <= most && most <= state_max_clock(&v) && least > 0);
    snprintf(text, sizeof text, "%u %u\n", least, most);
    return state_write(&v, "locked_clocks", text);
}

API nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    ENTER(v, device);
    return state_write(&v, "locked_clocks", NULL);
}

API nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory_mhz,
                                                 unsigned int graphics_mhz)
{
    char text[48];
    ENTER(v, device);
    NEED(has_clock(clock_list(&v, "memory_mhz"), memory_mhz) &&
         has_clock(clock_list(&v, "graphics_mhz"), graphics_mhz));
    snprintf(text, sizeof text, "%u %u\n", memory_mhz, graphics_mhz);
    return state_write(&v, "applications_clocks", text);
}

API nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    ENTER(v, device);
    return state_write(&v, "applications_clocks", NULL);
}

/* Reason bits: 1 GPU idle, 2 application clock setting, 4 software power cap. */
static nvmlReturn_t put_reasons(const struct view *v, unsigned long long *reasons)
{
    unsigned long long set[2];
    NEED(reasons);
    if (fake_key(v, "throttle_reasons"))
        *reasons = (unsigned long long)fake_number(v, "throttle_reasons", 0);
    else if (state_is_capped(v))
        *reasons = 4;
    else if (state_read(v->minor, "locked_clocks", set, 2) == 2 ||
             state_read(v->minor, "applications_clocks", set, 2) == 2)
        *reasons = 2;
    else
        *reasons = state_load(v) > 0 ? 0 : 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                        unsigned long long *reasons)
{
    ENTER(v, device);
    return put_reasons(&v, reasons);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                           unsigned long long *reasons)
{
    ENTER(v, device);
    return put_reasons(&v, reasons);
}

API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device,
                                                          unsigned long long *reasons)
{
    ENTER(v, device);
    NEED(reasons);
    *reasons = 0x1FF;
    return NVML_SUCCESS;
}
