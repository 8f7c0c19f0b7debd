/* Functions about a device's properties, and about processes on it. */
#define _GNU_SOURCE
#include "mig.h"
#include "session.h"

#include <stdio.h>
#include <unistd.h>

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
	*index = (unsigned int)(device - session_node->gpus);
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

/* MIG: a requested mode takes effect at the next boot, as on a virtual machine, which may not reset
 * its GPU. There are never instances. */

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

/* Processes on a device: there are never any. */

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
