"""Pictures of sweeps and plans. Needs matplotlib, imported when one is drawn; no display."""
