"""The NVMe tier: slots in slab files, handed out as extents, moved by I/O threads, checked on every read.

Knows slots, frames and bytes; which page of which prefix they belong to is known only above.
"""
