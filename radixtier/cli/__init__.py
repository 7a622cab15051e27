"""The ``radixtier`` command."""
