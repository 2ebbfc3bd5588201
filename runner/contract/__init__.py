"""The schemas shared by both halves of Assay: pure data, no torch, no Django, no network."""
