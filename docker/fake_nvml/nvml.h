/* The part of NVML's public interface that the fake answers: names, numbers and layouts as the
 * real library has them (NVML API reference), so that real bindings load it unchanged. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#define API __attribute__((visibility("default")))

typedef unsigned int nvmlReturn_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};

enum {
    NVML_TOPOLOGY_INTERNAL = 0,
    NVML_TOPOLOGY_SINGLE = 10,     /* PIX: at most one PCIe switch */
    NVML_TOPOLOGY_MULTIPLE = 20,   /* PXB: several PCIe switches, no host bridge */
    NVML_TOPOLOGY_HOSTBRIDGE = 30, /* PHB: a PCIe host bridge */
    NVML_TOPOLOGY_NODE = 40,       /* NODE: several host bridges of one NUMA node */
    NVML_TOPOLOGY_SYSTEM = 50      /* SYS: the interconnect between NUMA nodes */
};

enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO };
enum { NVML_NVLINK_MAX_LINKS = 18, NVML_NVLINK_CAP_P2P_SUPPORTED = 0, NVML_NVLINK_CAP_VALID = 5 };
enum {
    NVML_NVLINK_DEVICE_TYPE_GPU = 0,
    NVML_NVLINK_DEVICE_TYPE_IBMNPU = 1,
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
};

#define NVML_EVENT_XID 8ULL

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData; /* the data of an XID event is its number */
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used; /* bytes */
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used; /* bytes */
} nvmlMemory_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory; /* bytes */
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    unsigned int gpu, memory; /* percent */
} nvmlUtilization_t;

typedef struct {
    unsigned int version;
    unsigned int sensorType;
    int temperature; /* degrees C */
} nvmlTemperature_t;

typedef struct {
    unsigned int mask[8];
} nvmlMask255_t;

typedef struct {
    unsigned int version;
    nvmlMask255_t perfProfilesMask, requestedProfilesMask, enforcedProfilesMask;
} nvmlWorkloadPowerProfileCurrentProfiles_t;

#endif
