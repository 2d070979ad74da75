"""The site's configuration: one TOML file, checked completely before anything starts."""
