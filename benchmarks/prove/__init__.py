"""Long proofs of single claims: `./assay prove NAME [ARGS]` imports `benchmarks.prove.NAME` and calls its `main(arguments)`.

A proof's first docstring line is its description in the list; `main` returns nothing and raises, or exits with a status,
when the claim does not hold.
"""
