"""Many replays: grids of sizes and policies, in parallel processes, and the search for the cheapest sizes."""
