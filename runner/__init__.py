"""What runs on the nodes. Knows nothing of Django; talks to the control plane over HTTP only."""
