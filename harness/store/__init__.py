"""The result store: cells' journals, and a DuckDB file built from them; `docs/store.md`. Imports without torch."""
