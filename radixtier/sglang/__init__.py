"""Everything of radixtier that imports SGLang or torch; nothing here is imported unless SGLang asks for it."""
