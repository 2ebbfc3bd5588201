"""Banks of containerised repair tasks, before any container: layouts, validation, compiler, digest, dataset."""
