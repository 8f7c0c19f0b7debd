/* SPDX-License-Identifier: GPL-2.0 */
#ifndef NV_STAND_IN_H
#define NV_STAND_IN_H

/* The symbol that nvidia exports; a module that uses it holds a reference to nvidia. */
unsigned int nvidia_stand_in_gpus(void);

#endif
