#define _GNU_SOURCE
#include "node.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRIVER NODE_ROOT "/proc/driver/nvidia"
#define PCI NODE_ROOT "/sys/bus/pci/devices"

/* As nvidia-smi shows for real GPUs: memory.total in MiB, compute capability, MIG. */
static const struct model models[] = {
	{ 0x1db4, "Tesla V100-PCIE-16GB", 16384, 7, 0, 0 },
	{ 0x1eb8, "Tesla T4", 15360, 7, 5, 0 },
	{ 0x20b0, "NVIDIA A100-SXM4-40GB", 40960, 8, 0, 1 },
	{ 0x20b2, "NVIDIA A100-SXM4-80GB", 81920, 8, 0, 1 },
	{ 0x2236, "NVIDIA A10", 23028, 8, 6, 0 },
	{ 0x2330, "NVIDIA H100 80GB HBM3", 81559, 9, 0, 1 },
	{ 0x2335, "NVIDIA H200", 143771, 9, 0, 1 },
	{ 0x26b9, "NVIDIA L40S", 46068, 8, 9, 0 },
	{ 0x27b8, "NVIDIA L4", 23034, 8, 9, 0 },
};

int node_read_text(const char *path, char *text, size_t size)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	size_t length = 0;
	ssize_t got;

	if (file < 0)
		return -1;
	while (length + 1 < size) {
		got = read(file, text + length, size - 1 - length);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		length += (size_t)got;
	}
	close(file);
	text[length] = '\0';
	return 0;
}

/* Copies the rest of the line that begins with `field` and a colon, without blanks around it. */
static int read_field(const char *text, const char *field, char *value, size_t size)
{
	size_t length = strlen(field);
	const char *line, *end;

	for (line = text; line && *line; line = (end = strchr(line, '\n')) ? end + 1 : NULL) {
		if (strncmp(line, field, length) || line[length] != ':')
			continue;
		line += length + 1;
		line += strspn(line, " \t");
		end = line + strcspn(line, "\n");
		while (end > line && (end[-1] == ' ' || end[-1] == '\t'))
			end--;
		snprintf(value, size, "%.*s", (int)(end - line), line);
		return 0;
	}
	return -1;
}

static unsigned short read_id(const char *address, const char *name)
{
	char path[256], text[32];

	snprintf(path, sizeof(path), PCI "/%s/%s", address, name);
	return node_read_text(path, text, sizeof(text)) ? 0 : (unsigned short)strtoul(text, NULL, 16);
}

int node_read_version(char *version, size_t size)
{
	/* NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Mon … */
	static const char before[] = "Kernel Module";
	char text[1024], *found;

	if (node_read_text(DRIVER "/version", text, sizeof(text)))
		return -1;
	found = strstr(text, before);
	if (!found)
		return -1;
	found += sizeof(before) - 1;
	found += strspn(found, " \t");
	snprintf(version, size, "%.*s", (int)strcspn(found, " \t\n"), found);
	return *version ? 0 : -1;
}

static uint64_t fnv1a(const char *text, uint64_t digest)
{
	for (; *text; text++)
		digest = (digest ^ (unsigned char)*text) * 0x100000001b3u;
	return digest;
}

/*
 * The driver reads the UUID when it opens the GPU, and shows question marks before. So the UUID is
 * derived from the GPU's address and ids: it does not change, and is unique on this node.
 */
static void make_uuid(struct gpu *gpu)
{
	char told[96];
	uint64_t high, low;

	snprintf(told, sizeof(told), "%s %04x:%04x %04x:%04x", gpu->address, gpu->vendor, gpu->device,
		 gpu->subsystem_vendor, gpu->subsystem);
	high = fnv1a(told, 0xcbf29ce484222325u);
	low = fnv1a(told, high);
	snprintf(gpu->uuid, sizeof(gpu->uuid), "GPU-%08x-%04x-%04x-%04x-%012llx",
		 (unsigned int)(high >> 32), (unsigned int)(high >> 16 & 0xffff),
		 (unsigned int)(high & 0xffff), (unsigned int)(low >> 48),
		 (unsigned long long)(low & 0xffffffffffffu));
}

static int read_gpu(const char *address, struct gpu *gpu)
{
	char path[256], text[1024], number[16];
	unsigned int function;
	size_t index;

	memset(gpu, 0, sizeof(*gpu));
	if (sscanf(address, "%x:%x:%x.%x", &gpu->domain, &gpu->bus, &gpu->slot, &function) != 4)
		return -1;
	if (strlen(address) >= sizeof(gpu->address))
		return -1;
	strcpy(gpu->address, address);
	gpu->vendor = read_id(address, "vendor");
	gpu->device = read_id(address, "device");
	gpu->subsystem_vendor = read_id(address, "subsystem_vendor");
	gpu->subsystem = read_id(address, "subsystem_device");
	for (index = 0; index < sizeof(models) / sizeof(*models); index++)
		if (models[index].device == gpu->device)
			gpu->model = &models[index];
	gpu->minor = NO_MINOR;
	/*
	 * The driver reads some of these facts from the GPU itself. If the GPU has left the bus, the
	 * driver spins for minutes, as a watchdog of the kernel reported.
	 */
	if (!gpu_is_on_bus(gpu))
		return 0;
	snprintf(path, sizeof(path), DRIVER "/gpus/%s/information", address);
	if (node_read_text(path, text, sizeof(text)))
		return -1;
	if (read_field(text, "Model", gpu->name, sizeof(gpu->name)))
		return -1;
	if (!strcmp(gpu->name, "Unknown") && gpu->model)
		snprintf(gpu->name, sizeof(gpu->name), "%s", gpu->model->name);
	if (!read_field(text, "Device Minor", number, sizeof(number)))
		gpu->minor = (unsigned int)strtoul(number, NULL, 10);
	if (read_field(text, "GPU UUID", gpu->uuid, sizeof(gpu->uuid)) || strchr(gpu->uuid, '?'))
		make_uuid(gpu);
	return 0;
}

static int by_address(const void *one, const void *other)
{
	return strcmp(((const struct gpu *)one)->address, ((const struct gpu *)other)->address);
}

void node_read_gpus(struct node *node)
{
	DIR *folder = opendir(DRIVER "/gpus");
	struct dirent *entry;

	node->count = 0;
	if (!folder)
		return;
	while (node->count < GPU_LIMIT && (entry = readdir(folder)))
		if (entry->d_name[0] != '.' && !read_gpu(entry->d_name, &node->gpus[node->count]))
			node->count++;
	closedir(folder);
	qsort(node->gpus, node->count, sizeof(*node->gpus), by_address);
}

int gpu_is_on_bus(const struct gpu *gpu)
{
	unsigned char id[2] = { 0xff, 0xff };
	char path[256];
	int file, is_read;

	snprintf(path, sizeof(path), PCI "/%s/config", gpu->address);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return 0;
	is_read = read(file, id, sizeof(id)) == sizeof(id);
	close(file);
	return is_read && (id[0] & id[1]) != 0xff;
}
