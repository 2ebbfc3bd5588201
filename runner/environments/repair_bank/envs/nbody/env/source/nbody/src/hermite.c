#include "hermite.h"

#include <string.h>

#include "gravity.h"

#define CORRECTIONS 2

static void copy_state(struct bodies *to, const struct bodies *from)
{
    size_t bytes = (size_t)from->n * sizeof *from->x;
    memcpy(to->x, from->x, bytes);
    memcpy(to->v, from->v, bytes);
    memcpy(to->a, from->a, bytes);
    memcpy(to->jerk, from->jerk, bytes);
}

/* Taylor series about the old state, up to the jerk. */
static void predict(struct bodies *s, const struct bodies *old, double dt)
{
    for (int i = 0; i < s->n; i++) {
        for (int k = 0; k < 3; k++) {
            double a = old->a[i][k], jerk = old->jerk[i][k];
            s->x[i][k] = old->x[i][k] + dt * (old->v[i][k] + dt * (a / 2.0 + dt * jerk / 6.0));
            s->v[i][k] = old->v[i][k] + dt * (a + dt * jerk / 2.0);
        }
    }
}

/* Hermite interpolation between the old state and the derivatives found at the predicted one. */
static void correct(struct bodies *s, const struct bodies *old, double dt)
{
    for (int i = 0; i < s->n; i++) {
        for (int k = 0; k < 3; k++) {
            s->v[i][k] = old->v[i][k] + dt / 2.0 * (old->a[i][k] + s->a[i][k])
                + dt * dt / 12.0 * (old->jerk[i][k] - s->jerk[i][k]);
            s->x[i][k] = old->x[i][k] + dt / 2.0 * (old->v[i][k] + s->v[i][k])
                + dt * dt / 12.0 * (old->a[i][k] - s->a[i][k]);
        }
    }
}

void hermite_step(const struct deck *d, struct bodies *s, struct bodies *scratch, double dt)
{
    copy_state(scratch, s);
    predict(s, scratch, dt);
    for (int pass = 0; pass < CORRECTIONS; pass++) {
        accelerations_and_jerks(d, s);
        correct(s, scratch, dt);
    }
    accelerations_and_jerks(d, s);
}
