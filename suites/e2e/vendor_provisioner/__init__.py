"""A provisioner in the style of a cloud vendor, its tests on machines, and regressions planted in it."""
