/* Reads the node's facts about its GPUs: the driver's files in /proc, and the PCI tree in /sys. */
#ifndef NODE_H
#define NODE_H

#include <stddef.h>

#ifndef NODE_ROOT
#define NODE_ROOT ""
#endif

#define GPU_LIMIT 64
#define NO_MINOR 0xffffffff

/* Facts of a GPU model that neither the bus nor a register has; `name` is for a GPU whose name the
 * driver does not know before it opens the GPU. */
struct model {
	unsigned short device;
	const char *name;
	unsigned int memory_mib;
	unsigned char compute_major, compute_minor;
	unsigned char has_mig;
};

struct gpu {
	char address[16]; /* as in /sys: 0000:01:00.0 */
	unsigned int domain, bus, slot;
	unsigned short vendor, device, subsystem_vendor, subsystem;
	unsigned int minor; /* NO_MINOR for a GPU that has left the bus */
	char name[96];
	char uuid[48];
	const struct model *model; /* NULL for an unknown model */
};

struct node {
	char driver_version[64];
	unsigned int count;
	struct gpu gpus[GPU_LIMIT]; /* in the order of their addresses */
};

/* Reads a small file as text; returns -1 if the file can't be read. */
int node_read_text(const char *path, char *text, size_t size);

/* Reads the loaded driver's version; returns -1 if no driver is loaded. */
int node_read_version(char *version, size_t size);

/* Reads the GPUs to which the driver is bound. */
void node_read_gpus(struct node *node);

/* Returns whether a GPU still answers; a GPU that has left the bus reads as all ones. */
int gpu_is_on_bus(const struct gpu *gpu);

#endif
