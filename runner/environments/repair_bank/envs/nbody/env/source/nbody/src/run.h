/* The time loop that both programs share. */
#ifndef RUN_H
#define RUN_H

#include "bodies.h"

/* Advances s by one step of length dt; context is the integrator's own. */
typedef void step_function(const struct deck *d, void *context, struct bodies *s, double dt);

/* Steps from start to the deck's end, writing frames and diagnostics.txt into folder. */
void run(const struct deck *d, struct bodies *s, step_function *step, void *context, const char *folder);

#endif
