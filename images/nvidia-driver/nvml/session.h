/*
 * The library's data from the first nvmlInit to the last nvmlShutdown. The node is read once, since
 * the real library also knows only the GPUs that it found at its start.
 */
#ifndef SESSION_H
#define SESSION_H

#include "node.h"
#include "nvml.h"

/* Valid and constant while a session is open. */
extern const struct node *const session_node;

/* Returns NVML_SUCCESS, or NVML_ERROR_UNINITIALIZED. */
nvmlReturn_t session_check(void);

/* Checks that a handle is from this library, and that its GPU still answers. */
nvmlReturn_t session_look_at(nvmlDevice_t device);

/* Copies a text into the caller's buffer, if the buffer is large enough. */
nvmlReturn_t give_text(char *text, unsigned int size, const char *value);

/* The beginning of a function that returns data about a device through pointers. */
#define LOOK_AT(device, is_argument_good)                           \
	do {                                                        \
		nvmlReturn_t seen_ = session_look_at(device);       \
		if (seen_ != NVML_SUCCESS)                          \
			return seen_;                               \
		if (!(is_argument_good))                            \
			return NVML_ERROR_INVALID_ARGUMENT;         \
	} while (0)

#endif
