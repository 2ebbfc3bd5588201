#include "frames.h"

#include <stdlib.h>

FILE *open_output(const char *folder, const char *name)
{
    char path[600];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "w");
    if (!file) {
        fprintf(stderr, "%s cannot be written\n", path);
        exit(2);
    }
    return file;
}

void write_frame(const char *folder, int number, int step, double time, double dt, const struct bodies *s)
{
    char name[32];
    FILE *file;
    snprintf(name, sizeof name, "frame%03d.txt", number);
    file = open_output(folder, name);
    fprintf(file, "# frame %d step %d time %.16e dt %.16e\n", number, step, time, dt);
    fprintf(file, "# rows %d columns 6\n", s->n);
    for (int i = 0; i < s->n; i++)
        fprintf(file, "%25.16e%25.16e%25.16e%25.16e%25.16e%25.16e\n", s->x[i][0], s->x[i][1], s->x[i][2], s->v[i][0], s->v[i][1],
            s->v[i][2]);
    fclose(file);
}
