"""What the demo and the end-to-end tests need around the product: models to serve.

Owns no state. Nothing here is imported by the server; every module imports without torch and sglang.
"""
