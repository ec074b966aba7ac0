"""Code that several test files share; pytest finds it through `pythonpath` in pyproject.toml."""
