/* A stand-in for a library of NVIDIA's user space: the loader finds it, and it has a version. */
const char *nvidia_stand_in_version(void)
{
	return NV_VERSION_STRING;
}
