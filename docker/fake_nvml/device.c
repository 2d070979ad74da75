/* Identity, memory, processors, power, temperature, processes. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static nvmlReturn_t put_text(const char *text, char *out, unsigned int size)
{
    NEED(out);
    if (strlen(text) + 1 > size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int size)
{
    ENTER(v, NULL);
    return put_text(json_text(v.machine, "driver", "550.54.15"), out, size);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    int major = 12, minor = 4;
    ENTER(v, NULL);
    NEED(version);
    (void)sscanf(json_text(v.machine, "cuda", ""), "%d.%d", &major, &minor);
    *version = 1000 * major + 10 * minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int size)
{
    ENTER(v, NULL);
    return put_text(json_text(v.machine, "nvml", "12.550.54.15"), out, size);
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER(v, NULL);
    NEED(count);
    size_t n = json_length(json_get(v.machine, "gpus"));
    *count = n > MAX_GPUS ? MAX_GPUS : (unsigned)n;
    return NVML_SUCCESS;
}

/* The faults of the GPU are applied before its handle is returned, as in the driver. */
static nvmlReturn_t handle(unsigned int position, const char *call, nvmlDevice_t *device)
{
    struct view v;
    nvmlReturn_t code = fake_enter(&v, call, &fake_devices[position]);
    if (code == NVML_SUCCESS)
        *device = &fake_devices[position];
    return code;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    NEED(device && index < MAX_GPUS);
    return handle(index, __func__, device);
}

static nvmlReturn_t handle_by(const char *key, const char *wanted, const char *call,
                              nvmlDevice_t *device)
{
    ENTER(v, NULL);
    NEED(wanted && device);
    const struct json *gpu;
    for (unsigned int i = 0; i < MAX_GPUS && (gpu = fake_gpu_at(v.machine, i)); i++) {
        const char *has = json_text(gpu, key, "");
        /* PCI ids are given with a domain of four or of eight digits, in either case. */
        if (strcasecmp(has, wanted) == 0 ||
            (strcmp(key, "pci") == 0 && strlen(has) > 4 && strcasecmp(has + 4, wanted) == 0))
            return handle(i, call, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return handle_by("uuid", uuid, __func__, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, nvmlDevice_t *device)
{
    return handle_by("pci", pci, __func__, device);
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int size)
{
    ENTER(v, device);
    return put_text(fake_text(&v, "name", "Fake GPU"), out, size);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int size)
{
    ENTER(v, device);
    return put_text(json_text(v.gpu, "uuid", ""), out, size);
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    ENTER(v, device);
    NEED(minor);
    *minor = (unsigned)v.minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER(v, device);
    NEED(index);
    *index = device->position;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER(v, device);
    NEED(pci);
    memset(pci, 0, sizeof *pci);
    const char *id = json_text(v.gpu, "pci", "00000000:00:00.0");
    if (sscanf(id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3)
        return NVML_ERROR_UNKNOWN;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xFF,
             pci->device & 0xFF);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF,
             pci->bus & 0xFF, pci->device & 0xFF);
    pci->pciDeviceId = 0x10DE;
    return NVML_SUCCESS;
}

/* A call whose answer is a number of the machine's file. */
#define NUMBER(call, value)                                                                        \
    API nvmlReturn_t call(nvmlDevice_t device, unsigned int *found)                                \
    {                                                                                              \
        ENTER(v, device);                                                                          \
        NEED(found);                                                                               \
        *found = (unsigned)(value);                                                                \
        return NVML_SUCCESS;                                                                       \
    }

NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, fake_number(&v, "pcie_gen", 3))
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, fake_number(&v, "pcie_lanes", 16))
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration,
       fake_number(&v, "pcie_gen_gpu", fake_number(&v, "pcie_gen", 3)))
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration,
       fake_number(&v, "pcie_gen_now", fake_number(&v, "pcie_gen", 3)))
NUMBER(nvmlDeviceGetCurrPcieLinkWidth,
       fake_number(&v, "pcie_lanes_now", fake_number(&v, "pcie_lanes", 16)))
NUMBER(nvmlDeviceGetPerformanceState, fake_number(&v, "performance_state", 0))

enum { MAX_PROCESSES = 64 };

/* STATE/gpuN.processes holds pairs "pid used_mb"; tests and job scripts write it. */
static unsigned int processes(const struct view *v, unsigned long long *pairs)
{
    return (unsigned)state_read(v->minor, "processes", pairs, 2 * MAX_PROCESSES) / 2;
}

static nvmlMemory_t memory(const struct view *v)
{
    unsigned long long pairs[2 * MAX_PROCESSES], used = 0;
    for (unsigned int i = 0, n = processes(v, pairs); i < n; i++)
        used += pairs[2 * i + 1] << 20;
    unsigned long long total = (unsigned long long)fake_number(v, "memory_mb", 16160) << 20;
    return (nvmlMemory_t){total, total > used ? total - used : 0, used};
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    ENTER(v, device);
    NEED(out);
    *out = memory(&v);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    ENTER(v, device);
    NEED(out);
    if (out->version != (sizeof *out | 2U << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlMemory_t all = memory(&v);
    out->total = all.total;
    out->reserved = 0;
    out->free = all.free;
    out->used = all.used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_t *out)
{
    ENTER(v, device);
    NEED(count);
    unsigned long long pairs[2 * MAX_PROCESSES];
    unsigned int room = *count, n = processes(&v, pairs);
    *count = n;
    if (n > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; out && i < n; i++)
        out[i] = (nvmlProcessInfo_t){(unsigned)pairs[2 * i], pairs[2 * i + 1] << 20, ~0U, ~0U};
    return NVML_SUCCESS;
}

static const struct json *socket_of(const struct view *v)
{
    const struct json *sockets = json_get(v->machine, "sockets");
    const struct json *s = sockets ? sockets->child : NULL;
    for (int n = (int)json_number(v->gpu, "socket", 0); s && n > 0; n--)
        s = s->next;
    return s;
}

static void set_bit(unsigned long *set, unsigned int words, unsigned long bit)
{
    const unsigned long width = 8 * sizeof *set;
    if (bit / width < words)
        set[bit / width] |= 1UL << bit % width;
}

/* "0-3,8" as Linux writes CPU lists. */
static nvmlReturn_t put_cpus(const struct view *v, unsigned int words, unsigned long *set)
{
    NEED(set && words);
    memset(set, 0, words * sizeof *set);
    const char *list = json_text(socket_of(v), "cpus", NULL);
    if (!list)
        return NVML_ERROR_NOT_SUPPORTED;
    while (*list) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        if (end == list)
            return NVML_ERROR_UNKNOWN;
        for (unsigned long cpu = first; cpu <= last && cpu < 8192; cpu++)
            set_bit(set, words, cpu);
        list = end + (*end == ',');
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words,
                                          unsigned long *set)
{
    ENTER(v, device);
    return put_cpus(&v, words, set);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words,
                                                     unsigned long *set, unsigned int scope)
{
    (void)scope; /* a fake socket is one NUMA node */
    ENTER(v, device);
    return put_cpus(&v, words, set);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words,
                                             unsigned long *set, unsigned int scope)
{
    (void)scope;
    ENTER(v, device);
    NEED(set && words);
    memset(set, 0, words * sizeof *set);
    double numa = json_number(socket_of(&v), "numa", -1);
    if (numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    set_bit(set, words, (unsigned long)numa);
    return NVML_SUCCESS;
}

static nvmlReturn_t put_uint(double value, unsigned int *out)
{
    NEED(out);
    *out = (unsigned)(value + 0.5);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *mw)
{
    ENTER(v, device);
    return put_uint(state_power_w(&v) * 1e3, mw);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *mw)
{
    ENTER(v, device);
    return put_uint(state_limit_w(&v) * 1e3, mw);
}

API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *mw)
{
    ENTER(v, device);
    return put_uint(state_limit_w(&v) * 1e3, mw);
}

static double least_limit_w(const struct view *v)
{
    return fake_number(v, "power_min_w", fake_number(v, "power_limit_w", 300) / 3);
}

static double most_limit_w(const struct view *v)
{
    return fake_number(v, "power_max_w", fake_number(v, "power_limit_w", 300));
}

API nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int mw)
{
    char text[24];
    ENTER(v, device);
    NEED(mw / 1e3 >= least_limit_w(&v) && mw / 1e3 <= most_limit_w(&v));
    snprintf(text, sizeof text, "%u\n", mw);
    return state_write(&v, "power_limit", text);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *mw)
{
    ENTER(v, device);
    double limit = fake_number(&v, "power_limit_w", 300);
    return put_uint(fake_number(&v, "power_default_w", limit) * 1e3, mw);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device,
                                                              unsigned int *least,
                                                              unsigned int *most)
{
    ENTER(v, device);
    NEED(least && most);
    put_uint(least_limit_w(&v) * 1e3, least);
    return put_uint(most_limit_w(&v) * 1e3, most);
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *mj)
{
    ENTER(v, device);
    NEED(mj);
    *mj = (unsigned long long)(state_energy_j(&v) * 1e3);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor,
                                          unsigned int *celsius)
{
    ENTER(v, device);
    NEED(sensor == 0);
    return put_uint(fake_number(&v, "temperature_c", 40), celsius);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
    ENTER(v, device);
    NEED(out && out->sensorType == 0);
    if (out->version != (sizeof *out | 1U << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->temperature = (int)fake_number(&v, "temperature_c", 40);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    ENTER(v, device);
    NEED(out);
    out->gpu = (unsigned)(100 * state_load(&v));
    out->memory = out->gpu / 2;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current,
                                      unsigned int *pending)
{
    ENTER(v, device);
    NEED(current && pending);
    return put_uint(*pending = (unsigned)fake_number(&v, "ecc", 1), current);
}

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
    ENTER(v, device);
    return put_uint(fake_number(&v, "compute_mode", 0), mode);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                      unsigned int *pending)
{
    ENTER(v, device);
    NEED(current && pending);
    double mode = fake_number(&v, "mig", -1);
    if (mode < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return put_uint(*pending = (unsigned)mode, current);
}

/* Profiles are bits of whole numbers: the first 32 of 255. GPUs before Blackwell have none. */
API nvmlReturn_t nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(
    nvmlDevice_t device, nvmlWorkloadPowerProfileCurrentProfiles_t *out)
{
    ENTER(v, device);
    NEED(out);
    unsigned int offered = (unsigned)fake_number(&v, "power_profiles", 0);
    if (!offered)
        return NVML_ERROR_NOT_SUPPORTED;
    if (out->version != (sizeof *out | 1U << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(out->perfProfilesMask.mask, 0, sizeof *out - sizeof out->version);
    out->perfProfilesMask.mask[0] = offered;
    out->requestedProfilesMask.mask[0] = (unsigned)fake_number(&v, "requested_profiles", 0);
    out->enforcedProfilesMask = out->requestedProfilesMask;
    return NVML_SUCCESS;
}
