/* Newtonian gravity with Plummer softening, the quadrupole of an oblate body 0, and the jerk for Hermite steps. */
#ifndef GRAVITY_H
#define GRAVITY_H

#include "bodies.h"

void accelerations(const struct deck *d, struct bodies *s);
void accelerations_and_jerks(const struct deck *d, struct bodies *s);
double potential_energy(const struct deck *d, const struct bodies *s);

#endif
