// SPDX-License-Identifier: GPL-2.0
/*
 * A stand-in for NVIDIA's unified-memory module: it exists so that 'nvidia' has a holder, and
 * unloading has an order to keep.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

#include "nv-version.h"
#include "nv-stand-in.h"

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
};

static struct miscdevice uvm_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvidia-uvm",
	.fops = &uvm_fops,
	.mode = 0666,
};

static int __init uvm_init(void)
{
	return nvidia_stand_in_gpus() ? misc_register(&uvm_device) : -ENODEV;
}

static void __exit uvm_exit(void)
{
	misc_deregister(&uvm_device);
}

module_init(uvm_init);
module_exit(uvm_exit);

MODULE_DESCRIPTION("Stand-in for NVIDIA's unified-memory module, for tests of provisioning");
MODULE_LICENSE("GPL");
MODULE_VERSION(NV_VERSION_STRING);
