/* What the node says of its GPUs: the driver's files in /proc, and the PCI tree in /sys. */
#ifndef NODE_H
#define NODE_H

#include <stddef.h>

#ifndef NODE_ROOT
#define NODE_ROOT ""
#endif

#define GPU_LIMIT 64
#define NO_MINOR 0xffffffff

/* What a GPU of a kind is, and no bus and no register tells; `name` is for one that the driver does
 * not know by name before it opens it. */
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
	unsigned int minor; /* NO_MINOR for one that is not on the bus any more */
	char name[96];
	char uuid[48];
	const struct model *model; /* NULL for one that is not known */
};

struct node {
	char driver_version[64];
	unsigned int count;
	struct gpu gpus[GPU_LIMIT]; /* in the order of their addresses */
};

/* Reads a small file as text; -1 where it cannot be read. */
int node_read_text(const char *path, char *text, size_t size);

/* Reads the loaded driver's version; -1 where none is loaded. */
int node_read_version(char *version, size_t size);

/* Reads the GPUs that the driver is bound to. */
void node_read_gpus(struct node *node);

/* Tells whether a GPU still answers: what has left the bus reads as all ones. */
int gpu_is_on_bus(const struct gpu *gpu);

#endif
