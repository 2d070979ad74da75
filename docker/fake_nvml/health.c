/* Memory errors, rows and pages that replace bad memory, critical events (XID). */
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CORRECTED, UNCORRECTED };
enum { VOLATILE, AGGREGATE };

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type,
                                             unsigned int counter, unsigned long long *count)
{
    ENTER(v, device);
    NEED(count && type <= UNCORRECTED && counter <= AGGREGATE);
    if (!fake_number(&v, "ecc", 1))
        return NVML_ERROR_NOT_SUPPORTED;
    const char *key = type == UNCORRECTED ? "ecc_uncorrected" : "ecc_corrected";
    if (counter == VOLATILE && type == UNCORRECTED)
        key = "ecc_uncorrected_now";
    *count = (unsigned long long)fake_number(&v, key, 0);
    return NVML_SUCCESS;
}

/* From Ampere on: "remapped" rows after uncorrectable errors, or none at all if it is -1. */
API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                           unsigned int *uncorrected, unsigned int *pending,
                                           unsigned int *failed)
{
    ENTER(v, device);
    NEED(corrected && uncorrected && pending && failed);
    if (fake_number(&v, "remapped", -1) < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = 0;
    *uncorrected = (unsigned)fake_number(&v, "remapped", 0);
    *pending = fake_number(&v, "remap_pending", 0) > 0;
    *failed = fake_number(&v, "remap_failed", 0) > 0;
    return NVML_SUCCESS;
}

/* Before Ampere: whether pages wait for a reset to be retired. */
API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending)
{
    ENTER(v, device);
    NEED(pending);
    if (fake_number(&v, "remapped", -1) >= 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *pending = fake_number(&v, "retired_pending", 0) > 0;
    return NVML_SUCCESS;
}

/* "xids" of the machine file, then of the override: objects with "gpu" (minor) and "xid". A set
 * reports those that were appended since it was made. */
struct nvmlEventSet_st {
    size_t seen;
    unsigned long long types[MAX_GPUS];
};

static size_t xids(const struct view *v)
{
    return json_length(json_get(v->machine, "xids")) + json_length(json_get(v->override, "xids"));
}

static const struct json *xid_at(const struct view *v, size_t position)
{
    size_t first = json_length(json_get(v->machine, "xids"));
    const struct json *file = position < first ? v->machine : v->override;
    const struct json *entry = json_get(file, "xids")->child;
    for (size_t n = position < first ? position : position - first; n; n--)
        entry = entry->next;
    return entry;
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER(v, NULL);
    NEED(set);
    *set = calloc(1, sizeof **set);
    if (!*set)
        return NVML_ERROR_UNKNOWN;
    (*set)->seen = xids(&v);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER(v, NULL);
    NEED(set);
    free(set);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER(v, device);
    NEED(types);
    *types = NVML_EVENT_XID;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                          nvmlEventSet_t set)
{
    ENTER(v, device);
    NEED(set);
    if (types & ~NVML_EVENT_XID)
        return NVML_ERROR_NOT_SUPPORTED;
    set->types[device->position] |= types;
    return NVML_SUCCESS;
}

/* The next event of a registered GPU, into `data`; 0: there is none. */
static int next(const struct view *v, nvmlEventSet_t set, nvmlEventData_t *data)
{
    size_t count = xids(v);
    if (set->seen > count) /* healed meanwhile */
        set->seen = count;
    while (set->seen < count) {
        const struct json *entry = xid_at(v, set->seen++);
        int position = fake_position_of_minor(v->machine, (int)json_number(entry, "gpu", -1));
        if (position < 0 || position >= MAX_GPUS || !(set->types[position] & NVML_EVENT_XID))
            continue;
        memset(data, 0, sizeof *data);
        data->device = &fake_devices[position];
        data->eventType = NVML_EVENT_XID;
        data->eventData = (unsigned long long)json_number(entry, "xid", 0);
        return 1;
    }
    return 0;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                     unsigned int timeout_ms)
{
    const struct timespec step = {0, 10000000};
    NEED(set && data);
    for (unsigned int waited = 0;; waited += 10) {
        ENTER(v, NULL);
        if (next(&v, set, data))
            return NVML_SUCCESS;
        if (waited >= timeout_ms)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&step, NULL);
    }
}
