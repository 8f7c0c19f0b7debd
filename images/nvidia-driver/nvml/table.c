/*
 * A table of functions that nvidia-smi asks for at its start, and without which it ends with
 * 'Mismatch in versions'. Its content is not documented. Seen from outside, with a table whose every
 * function tells that it was called: nvidia-smi 535 calls one of them, with a format and its
 * arguments, as one calls a log; the answer does not matter to it.
 */
#include "nvml.h"

#define ENTRIES 256

static nvmlReturn_t unknown(void)
{
	return NVML_ERROR_NOT_SUPPORTED;
}

static const void *table[1 + ENTRIES];

EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **found, const void *id)
{
	unsigned int index;

	if (!found || !id)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* The first word is the table's size. Whoever asks at once writes the same. */
	table[0] = (const void *)sizeof(table);
	for (index = 1; index <= ENTRIES; index++)
		table[index] = (const void *)unknown;
	*found = table;
	return NVML_SUCCESS;
}
