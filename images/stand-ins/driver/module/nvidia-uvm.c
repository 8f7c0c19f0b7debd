// SPDX-License-Identifier: GPL-2.0
/*
 * A stand-in for NVIDIA's unified-memory module. It holds a reference to 'nvidia', so that the
 * modules have to be unloaded in order. nvidia-modprobe makes its device nodes.
 */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>

#include "nv-version.h"
#include "nv-stand-in.h"

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
};

/* /dev/nvidia-uvm and /dev/nvidia-uvm-tools; the kernel chooses the major number. */
#define UVM_MINORS 2

static dev_t uvm_device;
static struct cdev uvm_cdev;

static int __init uvm_init(void)
{
	int rc;

	if (!nvidia_stand_in_gpus())
		return -ENODEV;
	rc = alloc_chrdev_region(&uvm_device, 0, UVM_MINORS, "nvidia-uvm");
	if (rc)
		return rc;
	cdev_init(&uvm_cdev, &uvm_fops);
	uvm_cdev.owner = THIS_MODULE;
	rc = cdev_add(&uvm_cdev, uvm_device, UVM_MINORS);
	if (rc)
		unregister_chrdev_region(uvm_device, UVM_MINORS);
	return rc;
}

static void __exit uvm_exit(void)
{
	cdev_del(&uvm_cdev);
	unregister_chrdev_region(uvm_device, UVM_MINORS);
}

module_init(uvm_init);
module_exit(uvm_exit);

MODULE_DESCRIPTION("Stand-in for NVIDIA's unified-memory module, for tests of provisioning");
MODULE_LICENSE("GPL");
MODULE_VERSION(NV_VERSION_STRING);
