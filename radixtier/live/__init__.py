"""Real SGLang servers on this machine, to try things on: models, server processes, a client, texts.

Owns no figures: what is asked and measured is the business of `load`, `demo` and `gate`.
"""
