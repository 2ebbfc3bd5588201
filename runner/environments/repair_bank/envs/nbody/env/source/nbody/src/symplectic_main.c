/* Few-body orbits and clusters with composed leapfrogs. */
#include <stdio.h>

#include "gravity.h"
#include "run.h"
#include "symplectic.h"

static void step(const struct deck *d, void *context, struct bodies *s, double dt)
{
    symplectic_step(d, context, s, dt);
}

int main(int argc, char **argv)
{
    struct deck d;
    struct bodies s;
    struct composition c;
    if (argc != 3) {
        fprintf(stderr, "usage: symplectic DECK OUTPUT_FOLDER\n");
        return 2;
    }
    d = read_deck(argv[1]);
    c = read_composition("data/compositions.dat", d.composition);
    s = initial_state(&d);
    accelerations(&d, &s);
    run(&d, &s, step, &c, argv[2]);
    free_bodies(&s);
    return 0;
}
