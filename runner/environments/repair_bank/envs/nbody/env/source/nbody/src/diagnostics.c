#include "diagnostics.h"

#include <math.h>
#include <string.h>

#include "gravity.h"
#include "kepler.h"
#include "vec.h"

static double length(const double a[3])
{
    return sqrt(dot(a, a));
}

struct invariants measure(const struct deck *d, const struct bodies *s)
{
    struct invariants out = {0};
    for (int i = 0; i < s->n; i++) {
        double spin[3];
        out.mass += s->mass[i];
        out.energy += 0.5 * s->mass[i] * dot(s->v[i], s->v[i]);
        add_scaled(out.momentum, s->mass[i], s->v[i]);
        cross(spin, s->x[i], s->v[i]);
        add_scaled(out.angular_momentum, s->mass[i], spin);
    }
    out.energy += potential_energy(d, s);
    return out;
}

static double kepler_error(const struct deck *d, const struct bodies *s, double t)
{
    double exact[3], r[3];
    kepler_position(d->eccentricity, sqrt(d->gravity * (s->mass[0] + s->mass[1])), t, exact);
    difference(r, s->x[1], s->x[0]);
    add_scaled(r, -1.0, exact);
    return length(r);
}

/* Largest distance of a body from where it started. */
static double closing_distance(const struct bodies *start, const struct bodies *s)
{
    double worst = 0.0;
    for (int i = 0; i < s->n; i++) {
        double r[3];
        difference(r, s->x[i], start->x[i]);
        worst = fmax(worst, length(r));
    }
    return worst;
}

/* Rate at which the node of the satellite's orbit moves, over the secular rate -(3/2) n J2 (R/a)^2 cos i. */
static double node_rate_ratio(const struct deck *d, const struct bodies *s, double t)
{
    double r[3], v[3], normal[3], node, expected;
    difference(r, s->x[1], s->x[0]);
    difference(v, s->v[1], s->v[0]);
    cross(normal, r, v);
    node = atan2(normal[0], -normal[1]);
    expected = -1.5 * sqrt(d->gravity * (s->mass[0] + s->mass[1])) * d->j2 * d->radius * d->radius * cos(d->inclination);
    return node / t / expected;
}

void write_diagnostics(FILE *file, const struct deck *d, const struct bodies *start, const struct bodies *s, double t)
{
    struct invariants first = measure(d, start), last = measure(d, s);
    double change[3];
    fprintf(file, "energy %.16e\n", last.energy);
    fprintf(file, "energy_change %.16e\n", last.energy / first.energy - 1.0);
    fprintf(file, "momentum %.16e\n", length(last.momentum) / last.mass);
    difference(change, last.angular_momentum, first.angular_momentum);
    fprintf(file, "angular_momentum_change %.16e\n", (d->j2 != 0.0 ? fabs(change[2]) : length(change)) / last.mass);
    if (strcmp(d->initial, "kepler") == 0)
        fprintf(file, "position_error %.16e\n", kepler_error(d, s, t));
    if (strcmp(d->initial, "eight") == 0)
        fprintf(file, "closing_distance %.16e\n", closing_distance(start, s));
    if (strcmp(d->initial, "oblate") == 0)
        fprintf(file, "node_rate_ratio %.16e\n", node_rate_ratio(d, s, t));
}
