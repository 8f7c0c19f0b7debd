"""Packs harness.provisioning as a reproducible zipapp, named by its digest."""
