"""GPUs and NICs of a node, as drivers and sysfs show them."""
