"""Loads on running servers: what is sent, in which order, and what came of it.

`answer` is one request as a client saw it, `target` a server that can be asked (`connect` finds out which), `workloads`
what is asked, `play` who asks when, `figures` what is made of the answers, `compare` two servers in one run. Owns the
servers that `launch` starts. Imports neither SGLang nor torch.
"""
