/* Output frames: two header lines, then position and velocity of one body a line. */
#ifndef FRAMES_H
#define FRAMES_H

#include <stdio.h>

#include "bodies.h"

void write_frame(const char *folder, int number, int step, double time, double dt, const struct bodies *s);
FILE *open_output(const char *folder, const char *name);

#endif
