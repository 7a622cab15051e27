"""The prefix tree below HBM: where every page's bytes live, and how warm its path is."""
