#include "gravity.h"

#include <math.h>
#include <string.h>

#include "vec.h"

/* The potential of an axisymmetric body at offset r from its centre, per unit mass, without its monopole:
   G m J2 R^2 (3 z^2 / r^2 - 1) / (2 r^3). */
static double quadrupole_potential(const struct deck *d, double mass, const double r[3])
{
    double r2 = dot(r, r);
    return d->gravity * mass * d->j2 * d->radius * d->radius * (3.0 * r[2] * r[2] / r2 - 1.0) / (2.0 * r2 * sqrt(r2));
}

/* Minus the gradient of that potential. */
static void quadrupole_acceleration(const struct deck *d, double mass, const double r[3], double out[3])
{
    double r2 = dot(r, r), z2 = r[2] * r[2] / r2;
    double c = -1.5 * d->gravity * mass * d->j2 * d->radius * d->radius / (r2 * r2 * sqrt(r2));
    out[0] = c * r[0] * (1.0 - 5.0 * z2);
    out[1] = c * r[1] * (1.0 - 5.0 * z2);
    out[2] = c * r[2] * (3.0 - 5.0 * z2);
}

static void add_quadrupole(const struct deck *d, struct bodies *s)
{
    for (int i = 1; i < s->n; i++) {
        double r[3], a[3];
        difference(r, s->x[i], s->x[0]);
        quadrupole_acceleration(d, s->mass[0], r, a);
        add_scaled(s->a[i], 1.0, a);
        add_scaled(s->a[0], -s->mass[i] / s->mass[0], a);
    }
}

/* Each pair once: the force on j is minus the force on i. */
void accelerations(const struct deck *d, struct bodies *s)
{
    memset(s->a, 0, (size_t)s->n * sizeof *s->a);
    for (int i = 0; i < s->n; i++) {
        for (int j = i + 1; j < s->n; j++) {
            double r[3], r2, inverse_cube;
            difference(r, s->x[j], s->x[i]);
            r2 = dot(r, r) + d->softening * d->softening;
            inverse_cube = 1.0 / (r2 * sqrt(r2));
            add_scaled(s->a[i], d->gravity * s->mass[j] * inverse_cube, r);
            add_scaled(s->a[j], -d->gravity * s->mass[i] * inverse_cube, r);
        }
    }
    if (d->j2 != 0.0)
        add_quadrupole(d, s);
}

/* Adds what a body of the given mass at offset r with relative velocity v does to an acceleration and a jerk:
   a = G m r / r^3,   jerk = G m (v - 3 (r.v) r / r^2) / r^3,   with r^2 softened. */
static void add_pull(const struct deck *d, double mass, const double r[3], const double v[3], double a[3], double jerk[3])
{
    double r2 = dot(r, r) + d->softening * d->softening;
    double strength = d->gravity * mass / (r2 * sqrt(r2));
    double approach = dot(r, v) / r2;
    add_scaled(a, strength, r);
    add_scaled(jerk, strength, v);
    add_scaled(jerk, -3.0 * approach * strength, r);
}

void accelerations_and_jerks(const struct deck *d, struct bodies *s)
{
    memset(s->a, 0, (size_t)s->n * sizeof *s->a);
    memset(s->jerk, 0, (size_t)s->n * sizeof *s->jerk);
    for (int i = 0; i < s->n; i++) {
        for (int j = 0; j < s->n; j++) {
            double r[3], v[3];
            if (j == i)
                continue;
            difference(r, s->x[j], s->x[i]);
            difference(v, s->v[j], s->v[i]);
            add_pull(d, s->mass[j], r, v, s->a[i], s->jerk[i]);
        }
    }
}

double potential_energy(const struct deck *d, const struct bodies *s)
{
    double sum = 0.0;
    for (int i = 0; i < s->n; i++) {
        for (int j = i + 1; j < s->n; j++) {
            double r[3];
            difference(r, s->x[j], s->x[i]);
            sum -= d->gravity * s->mass[i] * s->mass[j] / sqrt(dot(r, r) + d->softening * d->softening);
            if (i == 0 && d->j2 != 0.0)
                sum += s->mass[j] * quadrupole_potential(d, s->mass[0], r);
        }
    }
    return sum;
}
