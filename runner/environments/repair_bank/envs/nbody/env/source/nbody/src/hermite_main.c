/* Collisional systems with the Hermite scheme. */
#include <stdio.h>

#include "gravity.h"
#include "hermite.h"
#include "run.h"

static void step(const struct deck *d, void *context, struct bodies *s, double dt)
{
    hermite_step(d, s, context, dt);
}

int main(int argc, char **argv)
{
    struct deck d;
    struct bodies s, scratch;
    if (argc != 3) {
        fprintf(stderr, "usage: hermite DECK OUTPUT_FOLDER\n");
        return 2;
    }
    d = read_deck(argv[1]);
    s = initial_state(&d);
    scratch = new_bodies(s.n);
    accelerations_and_jerks(&d, &s);
    run(&d, &s, step, &scratch, argv[2]);
    free_bodies(&scratch);
    free_bodies(&s);
    return 0;
}
