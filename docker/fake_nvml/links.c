/* Links between the GPUs: PCIe tree and NVLinks. */
#include "state.h"

#include <stdio.h>
#include <string.h>

/* "pcie": "socket/host bridge/root port/switch". The closer two paths agree, the closer the GPUs. */
static unsigned int common_ancestor(const char *a, const char *b)
{
    static const unsigned int level[] = {NVML_TOPOLOGY_SYSTEM, NVML_TOPOLOGY_NODE,
                                         NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_MULTIPLE};
    for (int same = 0; same < 4; same++) {
        size_t n = strcspn(a, "/"), m = strcspn(b, "/");
        if (n != m || strncmp(a, b, n) != 0)
            return level[same];
        a += n + (a[n] == '/');
        b += m + (b[m] == '/');
    }
    return NVML_TOPOLOGY_SINGLE;
}

static unsigned int level_between(const struct json *a, const struct json *b)
{
    if (a == b)
        return NVML_TOPOLOGY_INTERNAL;
    return common_ancestor(json_text(a, "pcie", ""), json_text(b, "pcie", ""));
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                     unsigned int *level)
{
    ENTER(a, one);
    ENTER(b, other);
    NEED(level);
    *level = level_between(a.gpu, b.gpu);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level,
                                                  unsigned int *count, nvmlDevice_t *out)
{
    ENTER(v, device);
    NEED(count);
    unsigned int room = *count, n = 0;
    const struct json *gpu;
    for (unsigned int i = 0; i < MAX_GPUS && (gpu = fake_gpu_at(v.machine, i)); i++) {
        if (gpu == v.gpu || level_between(gpu, v.gpu) > level)
            continue;
        if (out && n < room)
            out[n] = &fake_devices[i];
        n++;
    }
    *count = out && n > room ? room : n;
    return NVML_SUCCESS;
}

/* Where NVLink `link` of a GPU ends. Links are numbered in the order of the machine file. */
struct far_end {
    int active;
    int minor; /* -1: a switch, -2: a CPU */
};

static struct far_end far_end(const struct view *v, unsigned int link)
{
    unsigned int at = 0;
    const struct json *list = json_get(v->machine, "nvlinks");
    for (const struct json *l = list ? list->child : NULL; l; l = l->next) {
        int a = (int)json_number(l, "a", -1), b = (int)json_number(l, "b", -1);
        if (a != v->minor && b != v->minor)
            continue;
        at += (unsigned)json_number(l, "links", 1);
        if (link < at)
            return (struct far_end){1, a == v->minor ? b : a};
    }
    at += (unsigned)json_number(v->machine, "nvswitch_links", 0);
    if (link < at)
        return (struct far_end){1, -1};
    return (struct far_end){link < at + (unsigned)json_number(v->machine, "cpu_nvlinks", 0), -2};
}

static nvmlReturn_t check_link(const struct view *v, unsigned int link)
{
    NEED(link < NVML_NVLINK_MAX_LINKS);
    return fake_number(v, "nvlink_version", 0) > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

#define ENTER_LINK(v, device, link)                    \
    ENTER(v, device);                                  \
    do {                                               \
        nvmlReturn_t checked_ = check_link(&v, link);  \
        if (checked_ != NVML_SUCCESS)                  \
            return checked_;                           \
    } while (0)

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                          unsigned int *active)
{
    ENTER_LINK(v, device, link);
    NEED(active);
    *active = link >= fake_number(&v, "nvlinks_down", 0) && far_end(&v, link).active;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link,
                                            unsigned int *version)
{
    ENTER_LINK(v, device, link);
    NEED(version);
    *version = (unsigned)fake_number(&v, "nvlink_version", 0);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                               unsigned int capability, unsigned int *has)
{
    ENTER_LINK(v, device, link);
    NEED(has && capability <= NVML_NVLINK_CAP_VALID);
    *has = (unsigned)far_end(&v, link).active;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                     unsigned int *type)
{
    ENTER_LINK(v, device, link);
    NEED(type);
    struct far_end end = far_end(&v, link);
    if (!end.active)
        return NVML_ERROR_NOT_SUPPORTED;
    *type = end.minor == -2  ? NVML_NVLINK_DEVICE_TYPE_IBMNPU
            : end.minor == -1 ? NVML_NVLINK_DEVICE_TYPE_SWITCH
                              : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                     nvmlPciInfo_t *pci)
{
    ENTER_LINK(v, device, link);
    NEED(pci);
    struct far_end end = far_end(&v, link);
    if (!end.active)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    char id[32];
    if (end.minor < 0) /* switches and CPUs sit on a bus where no GPU is, several links to each */
        snprintf(id, sizeof id, "00000000:F%X:00.0", link % 6);
    else {
        int position = fake_position_of_minor(v.machine, end.minor);
        const struct json *peer = position < 0 ? NULL : fake_gpu_at(v.machine, (unsigned)position);
        snprintf(id, sizeof id, "%s", json_text(peer, "pci", ""));
    }
    if (sscanf(id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3)
        return NVML_ERROR_UNKNOWN;
    snprintf(pci->busId, sizeof pci->busId, "%s", id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%.15s", id + 4);
    return NVML_SUCCESS;
}
