/* Conserved quantities and, where the deck has one, the error against a known solution. */
#ifndef DIAGNOSTICS_H
#define DIAGNOSTICS_H

#include <stdio.h>

#include "bodies.h"

struct invariants {
    double energy, momentum[3], angular_momentum[3], mass;
};

struct invariants measure(const struct deck *d, const struct bodies *s);

/* "name value" lines: drifts since the start, and what the deck's initial state lets one compare. */
void write_diagnostics(FILE *file, const struct deck *d, const struct bodies *start, const struct bodies *s, double t);

#endif
