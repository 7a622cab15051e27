"""The NVMe tier: slots in slab files on drives, handed out as extents, checked on every read, kept for a restart.

Knows slots, frames and bytes, and of a path only what a restart needs to find its pages again; which page is where
in the tree is known only above. From low to high: `jobs`, `extents`, `stripes` and `slots` say what is where, `slab`,
`header` and `journal` own the files, a `volume` is what is open in one directory, `transfers` and `keeper` are the
threads of one `drive`, and `store` puts the drives together.
"""
