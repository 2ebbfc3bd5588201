#include "kepler.h"

#include <math.h>

/* Solves Kepler's equation E - e sin E = M by Newton's method. */
static double eccentric_anomaly(double e, double mean_anomaly)
{
    double anomaly = mean_anomaly + e * sin(mean_anomaly);
    for (int k = 0; k < 20; k++)
        anomaly -= (anomaly - e * sin(anomaly) - mean_anomaly) / (1.0 - e * cos(anomaly));
    return anomaly;
}

void kepler_position(double e, double mean_motion, double t, double out[3])
{
    double anomaly = eccentric_anomaly(e, mean_motion * t);
    out[0] = cos(anomaly) - e;
    out[1] = sqrt(1.0 - e * e) * sin(anomaly);
    out[2] = 0.0;
}
