/*
 * What the library knows from the first nvmlInit to the last nvmlShutdown: a node that is read once, as
 * the real library knows the GPUs that it found at its start.
 */
#ifndef SESSION_H
#define SESSION_H

#include "node.h"
#include "nvml.h"

/* Valid, and nobody's to change, while a session is open. */
extern const struct node *const session_node;

/* NVML_SUCCESS, or NVML_ERROR_UNINITIALIZED. */
nvmlReturn_t session_check(void);

/* Looks at a handle: whether one got it here, and whether the GPU behind it still answers. */
nvmlReturn_t session_look_at(nvmlDevice_t device);

/* Gives a caller a text, where its buffer is large enough. */
nvmlReturn_t give_text(char *text, unsigned int size, const char *value);

/* Begins a function that answers for a device by way of pointers. */
#define LOOK_AT(device, is_argument_good)                           \
	do {                                                        \
		nvmlReturn_t seen_ = session_look_at(device);       \
		if (seen_ != NVML_SUCCESS)                          \
			return seen_;                               \
		if (!(is_argument_good))                            \
			return NVML_ERROR_INVALID_ARGUMENT;         \
	} while (0)

#endif
