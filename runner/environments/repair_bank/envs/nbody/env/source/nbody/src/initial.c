#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bodies.h"
#include "vec.h"

static const double PI = 3.14159265358979323846;

/* Moves the state to the frame in which the centre of mass rests at the origin. */
static void centre(struct bodies *s)
{
    double total = 0.0, x[3] = {0}, v[3] = {0};
    for (int i = 0; i < s->n; i++) {
        total += s->mass[i];
        add_scaled(x, s->mass[i], s->x[i]);
        add_scaled(v, s->mass[i], s->v[i]);
    }
    for (int i = 0; i < s->n; i++) {
        add_scaled(s->x[i], -1.0 / total, x);
        add_scaled(s->v[i], -1.0 / total, v);
    }
}

/* Two bodies of total mass 1 and semi-major axis 1, at pericentre on the x axis. */
static struct bodies kepler_pair(const struct deck *d)
{
    struct bodies s = new_bodies(2);
    double e = d->eccentricity;
    s.mass[0] = 1.0 / (1.0 + d->mass_ratio);
    s.mass[1] = d->mass_ratio / (1.0 + d->mass_ratio);
    s.x[1][0] = 1.0 - e;
    s.v[1][1] = sqrt(d->gravity * (1.0 + e) / (1.0 - e));
    return s;
}

/* Three equal masses chasing each other on a figure of eight (Chenciner and Montgomery 2000; Simo's initial values). */
static struct bodies figure_eight(void)
{
    static const double x[2] = {0.97000436, -0.24308753}, v[2] = {-0.93240737, -0.86473146};
    struct bodies s = new_bodies(3);
    for (int i = 0; i < 3; i++)
        s.mass[i] = 1.0;
    for (int k = 0; k < 2; k++) {
        s.x[0][k] = x[k];
        s.x[1][k] = -x[k];
        s.v[0][k] = s.v[1][k] = -0.5 * v[k];
        s.v[2][k] = v[k];
    }
    return s;
}

/* A light satellite on a circular orbit of radius 1 about a body whose equator is the x-y plane. */
static struct bodies oblate_orbit(const struct deck *d)
{
    struct bodies s = new_bodies(2);
    double speed;
    s.mass[0] = 1.0;
    s.mass[1] = 1e-6;
    speed = sqrt(d->gravity * (s.mass[0] + s.mass[1]));
    s.x[1][0] = 1.0;
    s.v[1][1] = speed * cos(d->inclination);
    s.v[1][2] = speed * sin(d->inclination);
    return s;
}

/* The sun and planets on circular coplanar orbits: name, mass, distance and longitude (degrees) from a table. */
static struct bodies table(const struct deck *d, const char *path)
{
    char line[200];
    struct bodies s = new_bodies(8);
    FILE *file = fopen(path, "r");
    if (!file)
        abort();
    s.n = 0;
    while (s.n < 8 && fgets(line, sizeof line, file)) {
        double mass, distance, longitude;
        if (line[0] == '#' || sscanf(line, "%*s %lf %lf %lf", &mass, &distance, &longitude) != 3)
            continue;
        s.mass[s.n] = mass;
        if (distance > 0.0) {
            double angle = longitude * PI / 180.0, speed = sqrt(d->gravity * (s.mass[0] + mass) / distance);
            s.x[s.n][0] = distance * cos(angle);
            s.x[s.n][1] = distance * sin(angle);
            s.v[s.n][0] = -speed * sin(angle);
            s.v[s.n][1] = speed * cos(angle);
        }
        s.n++;
    }
    fclose(file);
    return s;
}

/* Uniform on (0, 1), from a 64-bit linear congruential generator, so that every machine draws the same cluster. */
static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 11) + 0.5) / 9007199254740992.0;
}

static void on_sphere(uint64_t *state, double radius, double out[3])
{
    double z = 2.0 * uniform(state) - 1.0, angle = 2.0 * PI * uniform(state);
    out[0] = radius * sqrt(1.0 - z * z) * cos(angle);
    out[1] = radius * sqrt(1.0 - z * z) * sin(angle);
    out[2] = radius * z;
}

/* A Plummer sphere of mass 1 and scale length 1, cut at 4 (sampling of Aarseth, Henon and Wielen 1974). */
static struct bodies plummer(const struct deck *d)
{
    struct bodies s = new_bodies(d->bodies);
    uint64_t state = 20240229u;
    for (int i = 0; i < s.n; i++) {
        double r, q, y;
        s.mass[i] = 1.0 / s.n;
        do {
            r = 1.0 / sqrt(pow(uniform(&state), -2.0 / 3.0) - 1.0);
        } while (r > 4.0);
        do {
            q = uniform(&state);
            y = 0.1 * uniform(&state);
        } while (y > q * q * pow(1.0 - q * q, 3.5));
        on_sphere(&state, r, s.x[i]);
        on_sphere(&state, q * sqrt(2.0 * d->gravity) * pow(1.0 + r * r, -0.25), s.v[i]);
    }
    return s;
}

struct bodies initial_state(const struct deck *d)
{
    struct bodies s;
    if (strcmp(d->initial, "kepler") == 0)
        s = kepler_pair(d);
    else if (strcmp(d->initial, "eight") == 0)
        s = figure_eight();
    else if (strcmp(d->initial, "plummer") == 0)
        s = plummer(d);
    else if (strcmp(d->initial, "oblate") == 0)
        s = oblate_orbit(d);
    else if (strcmp(d->initial, "giants") == 0)
        s = table(d, "data/planets.dat");
    else {
        fprintf(stderr, "initial = %s: must be kepler, eight, plummer, oblate or giants\n", d->initial);
        exit(2);
    }
    centre(&s);
    return s;
}
