"""User-data, meta-data and network-config; the seed volume that carries them."""
