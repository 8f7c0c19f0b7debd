/*
 * A table of functions that nvidia-smi requests at its start, and without which it ends with
 * 'Mismatch in versions'. Its content is not documented. It was found with a table whose functions
 * report their calls: nvidia-smi 535 calls one function, with a format and arguments as for a log
 * message, and ignores the result.
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
	/* The first word is the table's size. Concurrent callers write the same value. */
	table[0] = (const void *)sizeof(table);
	for (index = 1; index <= ENTRIES; index++)
		table[index] = (const void *)unknown;
	*found = table;
	return NVML_SUCCESS;
}
