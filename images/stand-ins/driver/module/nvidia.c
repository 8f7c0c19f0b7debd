// SPDX-License-Identifier: GPL-2.0
/*
 * A stand-in for NVIDIA's kernel module. It has the effects of the real module that provisioning
 * and its tests can see, and does nothing for CUDA. It binds to NVIDIA's display controllers, reads
 * the first boot register through BAR 0, and has the same character devices and the same files in
 * /proc/driver/nvidia as the real module. It neither makes nor removes device nodes: programs do
 * that (nvidia-modprobe, nvidia-smi). Like the real module, it checks once a second whether the GPU
 * still answers.
 *
 * An emulated GPU has a mailbox that no real GPU has (harness/gpu/mailbox.py). Through the mailbox
 * the module reads what it reports about the GPU: Xids, the infoROM's state, the MIG mode.
 *
 * It compiles with kernels 6.1 to 6.12.
 */
#define pr_fmt(fmt) "NVRM: " fmt

#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#include "nv-version.h"
#include "nv-stand-in.h"

/* The numbers of the real driver's character devices (Documentation/admin-guide/devices.txt). */
#define NV_MAJOR 195
#define NV_CONTROL_MINOR 255
/* Other modules use the minors between the GPUs' minors and the control device's minor. */
#define NV_REGULAR_MINORS 248
#define NV_MAX_GPUS 32

#define NV_PMC_BOOT_0 0x0
/* The value of a read from a device that no longer answers. */
#define NV_NO_ANSWER 0xffffffff

#define NV_MAILBOX 0xfff000
#define NV_MAILBOX_END 0xfff010
#define NV_MAILBOX_MAGIC 0x47504e48
#define NV_MAILBOX_XID 0xfff004
#define NV_MAILBOX_HEALTH 0xfff008
#define NV_HEALTH_INFOROM_CORRUPTED BIT(0)
#define NV_MAILBOX_MIG 0xfff00c
#define NV_MIG_ABLE BIT(0)
#define NV_MIG_ENABLED BIT(1)
#define NV_MIG_PENDING BIT(2)

struct nv_gpu {
	struct pci_dev *pdev;
	struct delayed_work look;
	bool has_mailbox;
	bool lost;
	void __iomem *registers;
	struct proc_dir_entry *proc;
	u32 boot_0;
	unsigned int minor;
};

static const struct {
	u16 device;
	const char *name;
} nv_models[] = {
	{ 0x1db4, "Tesla V100-PCIE-16GB" },
	{ 0x1eb8, "Tesla T4" },
	{ 0x20b0, "NVIDIA A100-SXM4-40GB" },
	{ 0x20b2, "NVIDIA A100-SXM4-80GB" },
	{ 0x2236, "NVIDIA A10" },
	{ 0x26b9, "NVIDIA L40S" },
	{ 0x27b8, "NVIDIA L4" },
	{ 0x2330, "NVIDIA H100 80GB HBM3" },
	{ 0x2335, "NVIDIA H200" },
	{ 0x2bb5, "NVIDIA RTX PRO 6000 Blackwell Server Edition" },
};

static DEFINE_MUTEX(nv_lock);
static struct nv_gpu *nv_gpus[NV_MAX_GPUS];
static struct cdev nv_gpu_cdev;
static struct cdev nv_control_cdev;
static struct proc_dir_entry *nv_proc;
static struct proc_dir_entry *nv_proc_gpus;

unsigned int nvidia_stand_in_gpus(void)
{
	unsigned int minor, count = 0;

	mutex_lock(&nv_lock);
	for (minor = 0; minor < NV_MAX_GPUS; minor++)
		count += nv_gpus[minor] != NULL;
	mutex_unlock(&nv_lock);
	return count;
}
EXPORT_SYMBOL_GPL(nvidia_stand_in_gpus);

static const char *nv_model(u16 device)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(nv_models); i++)
		if (nv_models[i].device == device)
			return nv_models[i].name;
	return "Unknown";
}

static void nv_print_xid(struct nv_gpu *gpu, u32 xid, const char *words)
{
	struct pci_dev *pdev = gpu->pdev;

	pr_err("Xid (PCI:%04x:%02x:%02x): %u, pid='<unknown>', name=<unknown>, %s\n",
	       pci_domain_nr(pdev->bus), pdev->bus->number, PCI_SLOT(pdev->devfn), xid, words);
}

/* Return whether the GPU still answers; log once that it does not. */
static bool nv_answers(struct nv_gpu *gpu)
{
	if (ioread32(gpu->registers + NV_PMC_BOOT_0) != NV_NO_ANSWER)
		return true;
	if (!gpu->lost) {
		gpu->lost = true;
		nv_print_xid(gpu, 79, "GPU has fallen off the bus.");
		pr_err("GPU %s: GPU has fallen off the bus.\n", pci_name(gpu->pdev));
	}
	return false;
}

static void nv_look(struct work_struct *work)
{
	struct nv_gpu *gpu = container_of(to_delayed_work(work), struct nv_gpu, look);
	u32 xid;

	if (!nv_answers(gpu))
		return;
	if (gpu->has_mailbox) {
		xid = ioread32(gpu->registers + NV_MAILBOX_XID);
		if (xid && xid != NV_NO_ANSWER) {
			iowrite32(0, gpu->registers + NV_MAILBOX_XID);
			nv_print_xid(gpu, xid, "reported by the emulated GPU.");
		}
	}
	schedule_delayed_work(&gpu->look, HZ);
}

static int nv_open(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);
	struct nv_gpu *gpu;
	int rc = 0;

	if (minor == NV_CONTROL_MINOR)
		return 0;
	mutex_lock(&nv_lock);
	gpu = minor < NV_MAX_GPUS ? nv_gpus[minor] : NULL;
	if (!gpu) {
		rc = -ENODEV;
	} else if (!nv_answers(gpu)) {
		rc = -EIO;
	}
	mutex_unlock(&nv_lock);
	return rc;
}

/* With the owner set, every open file holds a reference to the module. */
static const struct file_operations nv_fops = {
	.owner = THIS_MODULE,
	.open = nv_open,
};

static int nv_show_version(struct seq_file *out, void *unused)
{
	seq_printf(out, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  %s\n",
		   NV_VERSION_STRING, NV_BUILD_DATE);
	seq_printf(out, "GCC version:  %s\n", NV_COMPILER);
	return 0;
}

static int nv_show_information(struct seq_file *out, void *unused)
{
	struct nv_gpu *gpu = out->private;
	struct pci_dev *pdev = gpu->pdev;

	seq_printf(out, "Model: \t\t %s\n", nv_model(pdev->device));
	seq_printf(out, "IRQ:   \t\t %u\n", pdev->irq);
	seq_printf(out, "GPU UUID: \t GPU-%08x-%04x-%04x-%04x-%012x\n", gpu->boot_0, pdev->device,
		   pdev->subsystem_device, pci_domain_nr(pdev->bus),
		   pdev->bus->number << 8 | pdev->devfn);
	seq_puts(out, "Video BIOS: \t ??.??.??.??.??\n");
	seq_puts(out, "Bus Type: \t PCIe\n");
	seq_puts(out, "DMA Size: \t 52 bits\n");
	seq_puts(out, "DMA Mask: \t 0xfffffffffffff\n");
	seq_printf(out, "Bus Location: \t %s\n", pci_name(pdev));
	seq_printf(out, "Device Minor: \t %u\n", gpu->minor);
	seq_printf(out, "GPU Firmware: \t N/A\n");
	seq_printf(out, "GPU Excluded:\t No\n");
	return 0;
}

/* Data for the stand-in nvidia-smi, which the real module does not show. */
static int nv_show_mailbox(struct seq_file *out, void *unused)
{
	struct nv_gpu *gpu = out->private;
	u32 health = ioread32(gpu->registers + NV_MAILBOX_HEALTH);
	u32 mig = ioread32(gpu->registers + NV_MAILBOX_MIG);

	if (health == NV_NO_ANSWER || mig == NV_NO_ANSWER)
		return -EIO;
	seq_printf(out, "infoROM: %s\n",
		   health & NV_HEALTH_INFOROM_CORRUPTED ? "corrupted" : "valid");
	seq_printf(out, "MIG current: %s\n", !(mig & NV_MIG_ABLE) ? "[N/A]" :
		   mig & NV_MIG_ENABLED ? "Enabled" : "Disabled");
	seq_printf(out, "MIG pending: %s\n", !(mig & NV_MIG_ABLE) ? "[N/A]" :
		   mig & NV_MIG_PENDING ? "Enabled" : "Disabled");
	return 0;
}

static int nv_open_mailbox(struct inode *inode, struct file *file)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 17, 0)
	return single_open(file, nv_show_mailbox, pde_data(inode));
#else
	return single_open(file, nv_show_mailbox, PDE_DATA(inode));
#endif
}

/* Write "0" or "1": the requested MIG mode. */
static ssize_t nv_write_mailbox(struct file *file, const char __user *from, size_t length,
				loff_t *offset)
{
	struct nv_gpu *gpu = ((struct seq_file *)file->private_data)->private;
	bool wanted;
	int rc = kstrtobool_from_user(from, length, &wanted);

	if (rc)
		return rc;
	if (!(ioread32(gpu->registers + NV_MAILBOX_MIG) & NV_MIG_ABLE))
		return -EOPNOTSUPP;
	iowrite32(wanted ? NV_MIG_PENDING : 0, gpu->registers + NV_MAILBOX_MIG);
	return length;
}

static const struct proc_ops nv_mailbox_ops = {
	.proc_open = nv_open_mailbox,
	.proc_read = seq_read,
	.proc_write = nv_write_mailbox,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static int nv_claim_minor(struct nv_gpu *gpu)
{
	unsigned int minor;
	int rc = -ENOSPC;

	mutex_lock(&nv_lock);
	for (minor = 0; minor < NV_MAX_GPUS; minor++) {
		if (nv_gpus[minor])
			continue;
		nv_gpus[minor] = gpu;
		gpu->minor = minor;
		rc = 0;
		break;
	}
	mutex_unlock(&nv_lock);
	return rc;
}

static void nv_yield_minor(struct nv_gpu *gpu)
{
	mutex_lock(&nv_lock);
	nv_gpus[gpu->minor] = NULL;
	mutex_unlock(&nv_lock);
}

static int nv_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct proc_dir_entry *folder;
	struct nv_gpu *gpu;
	int rc;

	rc = pcim_enable_device(pdev);
	if (rc)
		return rc;
	gpu = devm_kzalloc(&pdev->dev, sizeof(*gpu), GFP_KERNEL);
	if (!gpu)
		return -ENOMEM;
	gpu->pdev = pdev;
	gpu->registers = pcim_iomap(pdev, 0, 0);
	if (!gpu->registers) {
		dev_err(&pdev->dev, "BAR0 could not be mapped\n");
		return -ENOMEM;
	}
	gpu->boot_0 = ioread32(gpu->registers + NV_PMC_BOOT_0);
	dev_info(&pdev->dev, "PMC_BOOT_0 = 0x%08x\n", gpu->boot_0);
	if (gpu->boot_0 == NV_NO_ANSWER) {
		pr_err("GPU %s has fallen off the bus.\n", pci_name(pdev));
		return -ENODEV;
	}
	gpu->has_mailbox = pci_resource_len(pdev, 0) >= NV_MAILBOX_END &&
			   ioread32(gpu->registers + NV_MAILBOX) == NV_MAILBOX_MAGIC;
	INIT_DELAYED_WORK(&gpu->look, nv_look);
	rc = nv_claim_minor(gpu);
	if (rc)
		return rc;
	gpu->proc = proc_mkdir(pci_name(pdev), nv_proc_gpus);
	folder = gpu->proc;
	if (folder)
		proc_create_single_data("information", 0444, folder, nv_show_information, gpu);
	if (folder && gpu->has_mailbox)
		proc_create_data("stand-in", 0600, folder, &nv_mailbox_ops, gpu);
	pci_set_drvdata(pdev, gpu);
	schedule_delayed_work(&gpu->look, HZ);
	return 0;
}

static void nv_remove(struct pci_dev *pdev)
{
	struct nv_gpu *gpu = pci_get_drvdata(pdev);

	cancel_delayed_work_sync(&gpu->look);
	proc_remove(gpu->proc);
	nv_yield_minor(gpu);
}

/* During a reset, every register reads as all ones, as if the GPU had left the bus. */
static void nv_reset_prepare(struct pci_dev *pdev)
{
	struct nv_gpu *gpu = pci_get_drvdata(pdev);

	cancel_delayed_work_sync(&gpu->look);
}

static void nv_reset_done(struct pci_dev *pdev)
{
	struct nv_gpu *gpu = pci_get_drvdata(pdev);

	schedule_delayed_work(&gpu->look, HZ);
}

static const struct pci_error_handlers nv_handlers = {
	.reset_prepare = nv_reset_prepare,
	.reset_done = nv_reset_done,
};

static const struct pci_device_id nv_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID),
	  .class = PCI_CLASS_DISPLAY_VGA << 8, .class_mask = ~0 },
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID),
	  .class = PCI_CLASS_DISPLAY_3D << 8, .class_mask = ~0 },
	{}
};
MODULE_DEVICE_TABLE(pci, nv_ids);

static struct pci_driver nv_driver = {
	.name = "nvidia",
	.id_table = nv_ids,
	.probe = nv_probe,
	.remove = nv_remove,
	.err_handler = &nv_handlers,
};

/* nvidia-modprobe and NVML read from this the owner of the device nodes that they make. */
static int nv_show_params(struct seq_file *out, void *unused)
{
	seq_puts(out, "ModifyDeviceFiles: 1\n");
	seq_puts(out, "DeviceFileUID: 0\n");
	seq_puts(out, "DeviceFileGID: 0\n");
	seq_puts(out, "DeviceFileMode: 438\n");
	return 0;
}

static int nv_make_proc(void)
{
	nv_proc = proc_mkdir("driver/nvidia", NULL);
	if (!nv_proc)
		return -ENOMEM;
	nv_proc_gpus = proc_mkdir("gpus", nv_proc);
	if (!nv_proc_gpus || !proc_create_single("version", 0444, nv_proc, nv_show_version) ||
	    !proc_create_single("params", 0444, nv_proc, nv_show_params)) {
		proc_remove(nv_proc);
		return -ENOMEM;
	}
	return 0;
}

/* Two devices in /proc/devices, like the real module since release 545. */
static int nv_add_device(struct cdev *device, unsigned int minor, unsigned int count,
			 const char *name)
{
	int rc = register_chrdev_region(MKDEV(NV_MAJOR, minor), count, name);

	if (rc)
		return rc;
	cdev_init(device, &nv_fops);
	device->owner = THIS_MODULE;
	rc = cdev_add(device, MKDEV(NV_MAJOR, minor), count);
	if (rc)
		unregister_chrdev_region(MKDEV(NV_MAJOR, minor), count);
	return rc;
}

static void nv_remove_devices(void)
{
	cdev_del(&nv_control_cdev);
	unregister_chrdev_region(MKDEV(NV_MAJOR, NV_CONTROL_MINOR), 1);
	cdev_del(&nv_gpu_cdev);
	unregister_chrdev_region(MKDEV(NV_MAJOR, 0), NV_REGULAR_MINORS);
}

static int __init nv_init(void)
{
	int rc;

	rc = nv_add_device(&nv_gpu_cdev, 0, NV_REGULAR_MINORS, "nvidia");
	if (rc)
		return rc;
	rc = nv_add_device(&nv_control_cdev, NV_CONTROL_MINOR, 1, "nvidiactl");
	if (rc) {
		cdev_del(&nv_gpu_cdev);
		unregister_chrdev_region(MKDEV(NV_MAJOR, 0), NV_REGULAR_MINORS);
		return rc;
	}
	rc = nv_make_proc();
	if (rc)
		goto no_proc;
	rc = pci_register_driver(&nv_driver);
	if (rc)
		goto no_driver;
	if (!nvidia_stand_in_gpus()) {
		/* Like the real module, it does not stay loaded without a GPU. */
		pr_err("No NVIDIA GPU found.\n");
		rc = -ENODEV;
		goto no_gpu;
	}
	pr_info("loading NVIDIA UNIX x86_64 Kernel Module  %s  %s\n", NV_VERSION_STRING,
		NV_BUILD_DATE);
	return 0;

no_gpu:
	pci_unregister_driver(&nv_driver);
no_driver:
	proc_remove(nv_proc);
no_proc:
	nv_remove_devices();
	return rc;
}

static void __exit nv_exit(void)
{
	pci_unregister_driver(&nv_driver);
	proc_remove(nv_proc);
	nv_remove_devices();
}

module_init(nv_init);
module_exit(nv_exit);

MODULE_DESCRIPTION("Stand-in for NVIDIA's kernel module, for tests of provisioning");
MODULE_LICENSE("GPL");
MODULE_VERSION(NV_VERSION_STRING);
