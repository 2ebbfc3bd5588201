#include "symplectic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gravity.h"
#include "vec.h"

static void kick(struct bodies *s, double dt)
{
    for (int i = 0; i < s->n; i++)
        add_scaled(s->v[i], dt, s->a[i]);
}

static void drift(struct bodies *s, double dt)
{
    for (int i = 0; i < s->n; i++)
        add_scaled(s->x[i], dt, s->v[i]);
}

/* Second order, time symmetric. */
static void leapfrog(const struct deck *d, struct bodies *s, double dt)
{
    kick(s, 0.5 * dt);
    drift(s, dt);
    accelerations(d, s);
    kick(s, 0.5 * dt);
}

void symplectic_step(const struct deck *d, const struct composition *c, struct bodies *s, double dt)
{
    for (int k = 0; k < c->stages; k++)
        leapfrog(d, s, c->weight[k] * dt);
}

struct composition read_composition(const char *path, const char *name)
{
    struct composition c = {0};
    char row[32];
    int order, found = 0;
    FILE *file = fopen(path, "r");
    if (!file)
        abort();
    fscanf(file, "%*[#]%*[^\n]");
    while (!found && fscanf(file, "%31s %d %d", row, &order, &c.stages) == 3 && c.stages <= MAX_STAGES) {
        for (int k = 0; k < c.stages; k++)
            if (fscanf(file, "%lf", &c.weight[k]) != 1)
                abort();
        found = strcmp(row, name) == 0;
    }
    fclose(file);
    if (!found) {
        fprintf(stderr, "composition = %s: no such row in %s\n", name, path);
        exit(2);
    }
    return c;
}
