/* The exact relative position of a Kepler pair that starts at pericentre on the x axis. */
#ifndef KEPLER_H
#define KEPLER_H

/* Semi-major axis 1, the given eccentricity and mean motion (rad per unit time), at time t. */
void kepler_position(double eccentricity, double mean_motion, double t, double out[3]);

#endif
