"""Reports of measurements: HTML, Markdown, charts."""
