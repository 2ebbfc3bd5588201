"""The control plane: what the team sees, and what remembers."""
