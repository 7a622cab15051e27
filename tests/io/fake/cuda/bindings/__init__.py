"""See `cuda`."""
