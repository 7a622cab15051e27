"""Moving bytes: engines behind one interface, and the DRAM pool described as raw memory.

Owns open files and how bytes get in and out of them; knows nothing of trees, handles or residency.
"""
