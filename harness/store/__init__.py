"""The result store: journals written by cells, a DuckDB file built from them, and what `harness show` reads.

Imports without torch. `docs/store.md` describes folders, tables and columns.
"""
