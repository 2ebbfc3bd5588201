#include "bodies.h"

#include <stdlib.h>

static void *zeros(int n, size_t size)
{
    void *p = calloc((size_t)n, size);
    if (!p)
        abort();
    return p;
}

struct bodies new_bodies(int n)
{
    struct bodies s = {.n = n};
    s.mass = zeros(n, sizeof *s.mass);
    s.x = zeros(n, sizeof *s.x);
    s.v = zeros(n, sizeof *s.v);
    s.a = zeros(n, sizeof *s.a);
    s.jerk = zeros(n, sizeof *s.jerk);
    return s;
}

void free_bodies(struct bodies *s)
{
    free(s->mass);
    free(s->x);
    free(s->v);
    free(s->a);
    free(s->jerk);
}
