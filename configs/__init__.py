"""Config files that ship with this package, one per kernel and device: `<device slug>/<kernel>.json`.

They are written by `autotuned tune --out`, never by hand; `docs/config-files.md` describes the format and
`schema/config-file.json` defines it.
"""
