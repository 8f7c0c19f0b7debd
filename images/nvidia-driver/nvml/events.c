/* Events: a caller can wait for them, but there are never any. */
#define _GNU_SOURCE
#include "session.h"

#include <limits.h>
#include <poll.h>
#include <stdlib.h>

EXPORT nvmlReturn_t nvmlEventSetCreate(void **set)
{
	if (session_check())
		return NVML_ERROR_UNINITIALIZED;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = malloc(1);
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlEventSetFree(void *set)
{
	if (session_check())
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
	if (session_check())
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
