/* MIG modes, which a GPU keeps while its node is off. */
#ifndef MIG_H
#define MIG_H

#include "node.h"

struct mig_mode {
	unsigned int current, pending;
};

struct mig_mode mig_read(const struct gpu *gpu);

/* Sets a GPU's mode from the next boot on; returns -1 if the mode can't be stored. */
int mig_request(const struct gpu *gpu, unsigned int mode);

#endif
