"""Trace-driven what-if: the production policy objects over three tiers of any size, and the ceiling above them."""
