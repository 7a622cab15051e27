"""Everything of radixtier that imports SGLang or torch; imported only when SGLang asks for it."""
