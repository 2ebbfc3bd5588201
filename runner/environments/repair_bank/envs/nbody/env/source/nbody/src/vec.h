/* Three-vectors as plain arrays. */
#ifndef VEC_H
#define VEC_H

static inline double dot(const double a[3], const double b[3])
{
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

/* a += s b */
static inline void add_scaled(double a[3], double s, const double b[3])
{
    for (int k = 0; k < 3; k++)
        a[k] += s * b[k];
}

static inline void difference(double out[3], const double a[3], const double b[3])
{
    for (int k = 0; k < 3; k++)
        out[k] = a[k] - b[k];
}

static inline void cross(double out[3], const double a[3], const double b[3])
{
    out[0] = a[1] * b[2] - a[2] * b[1];
    out[1] = a[2] * b[0] - a[0] * b[2];
    out[2] = a[0] * b[1] - a[1] * b[0];
}

#endif
