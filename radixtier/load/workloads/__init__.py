"""What is asked: each module makes the conversations of one kind of load.

`common` is what they share, `catalogue` lists them. A workload is a frozen dataclass whose fields are its flags.
Invariant: the same workload, source and order make the same conversations. Pure but for the source; any thread.
"""
