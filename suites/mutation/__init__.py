"""Does the unit suite notice? Bugs planted in provisioning, by hand and by a tool."""
