"""Where radixtier meets SGLang: which SGLang is installed, the names it must have, and the patch for it.

Nothing here imports SGLang or torch: files are read, and for the patch written.
"""
