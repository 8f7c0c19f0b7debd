"""GPU passthrough with real sysfs and VFIO: the host is a guest with an IOMMU and emulated GPUs."""
