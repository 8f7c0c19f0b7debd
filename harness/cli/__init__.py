"""Build, boot and look by hand."""
