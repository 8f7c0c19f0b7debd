/*
 * A stand-in for libnvidia-ml.so.1, NVIDIA's management library, for GPUs without an engine behind
 * their registers. It answers from the driver's files and the PCI tree. It opens no device, since
 * the driver can't open such a GPU. It reports all other functions as not supported
 * (unsupported.c).
 */
#define _GNU_SOURCE
#include "session.h"

#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CUDA_VERSION 12020 /* what drivers 535 support */

#define PROBE NODE_ROOT "/usr/bin/nvidia-modprobe"
#define CONTROL_DEVICE NODE_ROOT "/dev/nvidiactl"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;
static struct node node;

const struct node *const session_node = &node;

/* Runs the setuid program that loads the driver, and makes the device node that `option` names. */
static void run_probe(const char *option)
{
	char *const argv[] = { "nvidia-modprobe", (char *)option, NULL };
	char *const environment[] = { NULL };
	pid_t child;

	if (!posix_spawn(&child, PROBE, NULL, NULL, argv, environment))
		waitpid(child, NULL, 0);
}

/* The real library also loads the driver and makes its device nodes, which other programs use. */
static void make_device_nodes(void)
{
	char option[16], path[256];
	unsigned int index;

	if (access(CONTROL_DEVICE, F_OK))
		run_probe("-c255");
	for (index = 0; index < node.count; index++) {
		if (node.gpus[index].minor == NO_MINOR)
			continue;
		snprintf(path, sizeof(path), NODE_ROOT "/dev/nvidia%u", node.gpus[index].minor);
		snprintf(option, sizeof(option), "-c%u", node.gpus[index].minor);
		if (access(path, F_OK))
			run_probe(option);
	}
}

static nvmlReturn_t open_session(void)
{
	if (node_read_version(node.driver_version, sizeof(node.driver_version))) {
		run_probe(NULL);
		if (node_read_version(node.driver_version, sizeof(node.driver_version)))
			return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	if (strcmp(node.driver_version, NV_VERSION_STRING))
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	node_read_gpus(&node);
	make_device_nodes();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	nvmlReturn_t result = NVML_SUCCESS;

	(void)flags;
	pthread_mutex_lock(&lock);
	if (!users)
		result = open_session();
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

nvmlReturn_t session_check(void)
{
	unsigned int now;

	pthread_mutex_lock(&lock);
	now = users;
	pthread_mutex_unlock(&lock);
	return now ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t session_look_at(nvmlDevice_t device)
{
	if (session_check())
		return NVML_ERROR_UNINITIALIZED;
	if (device < node.gpus || device >= node.gpus + node.count ||
	    ((const char *)device - (const char *)node.gpus) % sizeof(*device))
		return NVML_ERROR_INVALID_ARGUMENT;
	return gpu_is_on_bus(device) ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t give_text(char *text, unsigned int size, const char *value)
{
	if (!text)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(value) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(text, value);
	return NVML_SUCCESS;
}

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
	return session_check() ? NVML_ERROR_UNINITIALIZED : give_text(version, size, node.driver_version);
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
