"""The demo, and the measurements of ``radixtier bench`` that need a real server.

Owns no state. Nothing here is imported by the server; every module imports without torch and sglang.
"""
