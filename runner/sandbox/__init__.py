"""Containers for hostile task code: two backends, the episode runner, and what keeps a node clean.

Read in this order: base (what a backend offers), reasons (what can go wrong, by name), task, episode (the phases), verifier, node.
"""
