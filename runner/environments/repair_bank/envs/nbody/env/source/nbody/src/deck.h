/* The input deck: "key = value" lines, '#' starts a comment. */
#ifndef DECK_H
#define DECK_H

struct deck {
    char initial[32];      /* kepler, eight, plummer, oblate, giants */
    char composition[32];  /* a row of data/compositions.dat; symplectic program only */
    int bodies;            /* of a Plummer sphere */
    int steps, frames;     /* frames divides steps */
    double dt;             /* time step, in the units of the initial state */
    double gravity;        /* gravitational constant in those units */
    double softening;      /* Plummer softening length */
    double eccentricity, mass_ratio;  /* of a Kepler pair */
    double inclination;    /* rad, of the orbit about an oblate body */
    double j2, radius;     /* quadrupole and equatorial radius of body 0 */
};

/* Ends the program with a message when the deck cannot be read. */
struct deck read_deck(const char *path);

#endif
