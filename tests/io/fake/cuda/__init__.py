"""A stand-in for NVIDIA's bindings, as far as `radixtier.io.device` uses them."""
