/* Stands in for NVIDIA's libnvidia-ml: NVML_GPUS GPUs (2), with numbers that tell which was asked.
   GPU 1 is lost when NVML_LOST_AFTER samples of its utilisation were taken. "MIG-1" is an instance that has its memory alone.
   Layouts and numbers are those of nvml.h. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_INITIALISED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NO_DRIVER = 9, LOST = 15 };
enum { PCIE_SENT = 197, PCIE_RECEIVED = 198, NVLINK_SENT = 138, NVLINK_RECEIVED = 139 };

typedef struct {
    int number, mig, samples;
    unsigned long long sent, received;
} Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    unsigned type, result;
    union { double d; unsigned long long ull; } value;
} Field;

static Device devices[8], instance = {.number = 1, .mig = 1};
static int users;

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int usable(const Device *device) {
    int lost_after = setting("NVML_LOST_AFTER", -1);
    if (users == 0) return NOT_INITIALISED;
    if (device->mig) return NOT_SUPPORTED;
    return device->number == 1 && lost_after >= 0 && device->samples > lost_after ? LOST : 0;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (setting("NVML_GPUS", 2) < 0) return NO_DRIVER;
    users++;
    return 0;
}
int nvmlShutdown(void) {
    const char *path = getenv("NVML_SHUTDOWN");
    if (users == 0) return NOT_INITIALISED;
    users--;
    if (path) fclose(fopen(path, "a"));
    return 0;
}
const char *nvmlErrorString(int code) {
    static char text[40];
    snprintf(text, sizeof text, "stand-in error %d", code);
    return text;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)setting("NVML_GPUS", 2);
    return users ? 0 : NOT_INITIALISED;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= (unsigned)setting("NVML_GPUS", 2)) return INVALID;
    *device = &devices[index];
    (*device)->number = (int)index;
    return 0;
}
int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned size) {
    snprintf(uuid, size, "GPU-%d0000000-aaaa", device->number);
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    char own[40];
    if (strcmp(uuid, "MIG-1") == 0) {
        *device = &instance;
        return 0;
    }
    for (unsigned index = 0; nvmlDeviceGetHandleByIndex_v2(index, device) == 0; index++) {
        nvmlDeviceGetUUID(*device, own, sizeof own);
        if (strcmp(own, uuid) == 0) return 0;
    }
    return NOT_FOUND;
}
int nvmlDeviceGetName(Device *device, char *name, unsigned size) {
    (void)device;
    snprintf(name, size, "Stand-in");
    return 0;
}
int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    device->samples++;
    rates->gpu = 50 + (unsigned)device->number;
    rates->memory = 20;
    return usable(device);
}
int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    if (memory->version != (sizeof *memory | 2u << 24)) return 25; /* as NVML checks it */
    memory->total = 80ull << 30;
    memory->used = (1ull + (unsigned)device->number) << 30;
    memory->free = memory->total - memory->used;
    return device->mig ? 0 : usable(device);
}
int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    *milliwatts = 300250;
    return usable(device);
}
int nvmlDeviceGetClockInfo(Device *device, int kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1980 : 2619;
    return usable(device);
}
int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) {
    *celsius = 40;
    return sensor == 0 ? usable(device) : INVALID;
}
int nvmlDeviceGetPcieThroughput(Device *device, int which, unsigned *kilobytes) {
    *kilobytes = which == 0 ? 3 : 4;
    return usable(device);
}
int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
    int counts_pcie = setting("NVML_COUNTS_PCIE", 1);
    for (int i = 0; i < count; i++) {
        Field *field = &fields[i];
        int nvlink = field->field == NVLINK_SENT || field->field == NVLINK_RECEIVED;
        field->result = nvlink || counts_pcie ? 0 : NOT_SUPPORTED;
        if (nvlink && field->scope != UINT32_MAX) field->result = INVALID;
        if (field->field == PCIE_SENT || field->field == NVLINK_SENT)
            field->value.ull = device->sent += 1000;
        else
            field->value.ull = device->received += 2000;
    }
    return usable(device);
}
