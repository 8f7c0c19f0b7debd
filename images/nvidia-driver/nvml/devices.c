/* Functions that list the devices. */
#define _GNU_SOURCE
#include "session.h"

#include <stdio.h>
#include <string.h>

static nvmlReturn_t give_count(unsigned int *count, unsigned int value)
{
	if (session_check())
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = value;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	return give_count(count, session_node->count);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return give_count(count, session_node->count);
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
	nvmlReturn_t seen = session_look_at(found);

	if (seen == NVML_SUCCESS)
		*device = found;
	return seen;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	if (session_check())
		return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= session_node->count)
		return NVML_ERROR_INVALID_ARGUMENT;
	return give_device(device, &session_node->gpus[index]);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	unsigned int index;

	if (session_check())
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (index = 0; index < session_node->count; index++)
		if (!strcmp(session_node->gpus[index].uuid, uuid))
			return give_device(device, &session_node->gpus[index]);
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	unsigned int index, domain, bus, slot;

	if (session_check())
		return NVML_ERROR_UNINITIALIZED;
	if (!bus_id || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(bus_id, "%x:%x", &bus, &slot) != 2)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (index = 0; index < session_node->count; index++) {
		const struct gpu *gpu = &session_node->gpus[index];

		if (gpu->domain == domain && gpu->bus == bus && gpu->slot == slot)
			return give_device(device, gpu);
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
