/* The state of the system and its initial conditions. */
#ifndef BODIES_H
#define BODIES_H

#include "deck.h"

struct bodies {
    int n;
    double *mass;
    double (*x)[3], (*v)[3];     /* position, velocity */
    double (*a)[3], (*jerk)[3];  /* acceleration and its time derivative */
};

struct bodies new_bodies(int n);
void free_bodies(struct bodies *s);

/* The initial state that the deck names, in its centre-of-mass frame. */
struct bodies initial_state(const struct deck *deck);

#endif
