/* The fourth-order Hermite predictor-corrector of Makino and Aarseth (1992), with two corrections. */
#ifndef HERMITE_H
#define HERMITE_H

#include "bodies.h"

/* Needs s->a and s->jerk at the current state, leaves them at the new one. scratch has as many bodies as s. */
void hermite_step(const struct deck *d, struct bodies *s, struct bodies *scratch, double dt);

#endif
