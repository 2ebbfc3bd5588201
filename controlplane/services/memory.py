"""How long-lived processes give memory back. Read by glibc when a process starts."""

# By default each thread grows a heap of its own, and the size above which freed memory goes back rises up to 64 MiB with what was
# once freed: a server that answered one large query keeps the room for it in every thread and every connection.
GIVING_BACK = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
