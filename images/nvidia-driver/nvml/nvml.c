/*
 * A stand-in for libnvidia-ml.so.1, NVIDIA's management library, for GPUs that have no engine behind
 * their registers: it answers from the driver's files and the PCI tree, and opens no device, which
 * an emulated GPU would refuse. What it does not know it calls not supported (unsupported.c).
 */
#define _GNU_SOURCE
#include "nvml.h"
#include "mig.h"
#include "node.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUDA_VERSION 12020 /* what drivers 535 support */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;
static struct node node;

static nvmlReturn_t open_library(void)
{
	if (node_read_version(node.driver_version, sizeof(node.driver_version)))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	if (strcmp(node.driver_version, NV_VERSION_STRING))
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	node_read_gpus(&node);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	nvmlReturn_t result = NVML_SUCCESS;

	(void)flags;
	pthread_mutex_lock(&lock);
	if (!users)
		result = open_library();
	if (result == NVML_SUCCESS)
		users++;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&lock);
	if (users) {
		users--;
		result = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

static nvmlReturn_t is_open(void)
{
	unsigned int now;

	pthread_mutex_lock(&lock);
	now = users;
	pthread_mutex_unlock(&lock);
	return now ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* Looks at a handle, and whether anybody is behind it. */
static nvmlReturn_t look_at(nvmlDevice_t device)
{
	if (is_open())
		return NVML_ERROR_UNINITIALIZED;
	if (device < node.gpus || device >= node.gpus + node.count ||
	    ((const char *)device - (const char *)node.gpus) % sizeof(*device))
		return NVML_ERROR_INVALID_ARGUMENT;
	return gpu_is_on_bus(device) ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

static nvmlReturn_t give_text(char *text, unsigned int size, const char *value)
{
	if (!text)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(value) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(text, value);
	return NVML_SUCCESS;
}

/* Begins a function that answers for a device by way of pointers. */
#define LOOK_AT(device, is_argument_good)                            \
	do {                                                         \
		nvmlReturn_t seen_ = look_at(device);                \
		if (seen_ != NVML_SUCCESS)                           \
			return seen_;                                \
		if (!(is_argument_good))                             \
			return NVML_ERROR_INVALID_ARGUMENT;          \
	} while (0)

/* The library and the driver. */

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_ERROR_MEMORY: return "Insufficient Memory";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	case NVML_ERROR_UNKNOWN: return "Unknown Error";
	}
	return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
	return is_open() ? NVML_ERROR_UNINITIALIZED : give_text(version, size, node.driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int size)
{
	return give_text(version, size, "12." NV_VERSION_STRING);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = CUDA_VERSION;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* Which devices there are. */

static nvmlReturn_t give_count(unsigned int *count, unsigned int value)
{
	if (is_open())
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = value;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	return give_count(count, node.count);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return give_count(count, node.count);
}

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
	return give_count(count, 0);
}

EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count)
{
	return give_count(count, 0);
}

static nvmlReturn_t give_device(nvmlDevice_t *device, nvmlDevice_t found)
{
	nvmlReturn_t seen = look_at(found);

	if (seen == NVML_SUCCESS)
		*device = found;
	return seen;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	if (is_open())
		return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= node.count)
		return NVML_ERROR_INVALID_ARGUMENT;
	return give_device(device, &node.gpus[index]);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	unsigned int index;

	if (is_open())
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (index = 0; index < node.count; index++)
		if (!strcmp(node.gpus[index].uuid, uuid))
			return give_device(device, &node.gpus[index]);
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	unsigned int index, domain, bus, slot;

	if (is_open())
		return NVML_ERROR_UNINITIALIZED;
	if (!bus_id || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(bus_id, "%x:%x", &bus, &slot) != 2)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (index = 0; index < node.count; index++) {
		const struct gpu *gpu = &node.gpus[index];

		if (gpu->domain == domain && gpu->bus == bus && gpu->slot == slot)
			return give_device(device, gpu);
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

/* What a device is. */

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size)
{
	LOOK_AT(device, name);
	return give_text(name, size, device->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
	LOOK_AT(device, uuid);
	return give_text(uuid, size, device->uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	LOOK_AT(device, index);
	*index = (unsigned int)(device - node.gpus);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
	LOOK_AT(device, minor);
	*minor = device->minor;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	LOOK_AT(device, info);
	snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "%04X:%02X:%02X.0",
		 device->domain & 0xffff, device->bus & 0xff, device->slot & 0x1f);
	info->domain = device->domain;
	info->bus = device->bus;
	info->device = device->slot;
	info->pciDeviceId = (unsigned int)device->device << 16 | device->vendor;
	info->pciSubSystemId = (unsigned int)device->subsystem << 16 | device->subsystem_vendor;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	nvmlReturn_t result = nvmlDeviceGetPciInfo_v2(device, info);

	if (result == NVML_SUCCESS)
		snprintf(info->busId, sizeof(info->busId), "%08X:%02X:%02X.0", device->domain,
			 device->bus & 0xff, device->slot & 0x1f);
	return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	LOOK_AT(device, memory);
	if (!device->model)
		return NVML_ERROR_NOT_SUPPORTED;
	memory->total = (unsigned long long)device->model->memory_mib << 20;
	memory->free = memory->total;
	memory->used = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	LOOK_AT(device, memory);
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!device->model)
		return NVML_ERROR_NOT_SUPPORTED;
	memory->total = (unsigned long long)device->model->memory_mib << 20;
	memory->free = memory->total;
	memory->reserved = 0;
	memory->used = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	LOOK_AT(device, major && minor);
	if (!device->model)
		return NVML_ERROR_NOT_SUPPORTED;
	*major = device->model->compute_major;
	*minor = device->model->compute_minor;
	return NVML_SUCCESS;
}

/* MIG: a mode that is asked for comes with the next boot, as on a virtual machine, which may not reset
 * its GPU. Nobody makes instances. */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
					 unsigned int *pending)
{
	struct mig_mode mode;

	LOOK_AT(device, current && pending);
	if (!device->model || !device->model->has_mig)
		return NVML_ERROR_NOT_SUPPORTED;
	mode = mig_read(device);
	*current = mode.current;
	*pending = mode.pending;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode,
					 nvmlReturn_t *activation)
{
	LOOK_AT(device, activation && mode <= 1);
	if (!device->model || !device->model->has_mig)
		return NVML_ERROR_NOT_SUPPORTED;
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	if (mig_request(device, mode))
		return NVML_ERROR_UNKNOWN;
	*activation = mig_read(device).current == mode ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
	LOOK_AT(device, is_mig);
	*is_mig = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	LOOK_AT(device, count);
	*count = device->model && device->model->has_mig ? 7 : 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
							nvmlDevice_t *instance)
{
	(void)index;
	LOOK_AT(device, instance);
	return NVML_ERROR_NOT_FOUND;
}

/* What runs on a device: nothing ever does. */

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count)
{
	LOOK_AT(device, count);
	*count = 0;
	return NVML_SUCCESS;
}

#define NO_PROCESSES(function)                                                              \
	EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, void *infos) \
	{                                                                                   \
		(void)infos;                                                                \
		return no_processes(device, count);                                         \
	}

NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)

/* Events: they can be waited for, and none comes. */

EXPORT nvmlReturn_t nvmlEventSetCreate(void **set)
{
	if (is_open())
		return NVML_ERROR_UNINITIALIZED;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = malloc(1);
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlEventSetFree(void *set)
{
	if (is_open())
		return NVML_ERROR_UNINITIALIZED;
	free(set);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	LOOK_AT(device, types);
	*types = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, void *set)
{
	(void)types;
	LOOK_AT(device, set);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(void *set, void *data, unsigned int timeout_ms)
{
	if (is_open())
		return NVML_ERROR_UNINITIALIZED;
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	poll(NULL, 0, timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms);
	return NVML_ERROR_TIMEOUT;
}

EXPORT nvmlReturn_t nvmlEventSetWait(void *set, void *data, unsigned int timeout_ms)
{
	return nvmlEventSetWait_v2(set, data, timeout_ms);
}
