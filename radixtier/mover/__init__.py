"""What moves between the tiers below HBM, and the accounts of it. Scheduler thread only."""

from radixtier.mover.mover import Mover
from radixtier.mover.promotion import Promotion, Trigger
from radixtier.mover.stats import MoverStats

__all__ = ["Mover", "MoverStats", "Promotion", "Trigger"]
