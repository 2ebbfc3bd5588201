#include "run.h"

#include <string.h>

#include "diagnostics.h"
#include "frames.h"

void run(const struct deck *d, struct bodies *s, step_function *step, void *context, const char *folder)
{
    struct bodies start = new_bodies(s->n);
    int per_frame = d->steps / d->frames;
    FILE *file;
    memcpy(start.mass, s->mass, (size_t)s->n * sizeof *s->mass);
    memcpy(start.x, s->x, (size_t)s->n * sizeof *s->x);
    memcpy(start.v, s->v, (size_t)s->n * sizeof *s->v);
    write_frame(folder, 0, 0, 0.0, d->dt, s);
    for (int n = 1; n <= d->steps; n++) {
        step(d, context, s, d->dt);
        if (n % per_frame == 0)
            write_frame(folder, n / per_frame, n, n * d->dt, d->dt, s);
    }
    file = open_output(folder, "diagnostics.txt");
    write_diagnostics(file, d, &start, s, d->steps * d->dt);
    fclose(file);
    free_bodies(&start);
}
