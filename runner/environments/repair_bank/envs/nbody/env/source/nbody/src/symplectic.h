/* Symplectic steps: kick-drift-kick leapfrogs, composed to higher order. */
#ifndef SYMPLECTIC_H
#define SYMPLECTIC_H

#include "bodies.h"

#define MAX_STAGES 16

struct composition {
    int stages;
    double weight[MAX_STAGES];  /* fractions of the step; they sum to 1 */
};

/* Reads a row of a table of compositions: name, order, number of stages, weights. */
struct composition read_composition(const char *path, const char *name);

/* Needs s->a at the current positions, leaves it at the new ones. */
void symplectic_step(const struct deck *d, const struct composition *c, struct bodies *s, double dt);

#endif
