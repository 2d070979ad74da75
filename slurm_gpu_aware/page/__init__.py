"""Static pages of a site: blocks, drawings, sections, and the files."""
