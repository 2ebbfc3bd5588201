#include "deck.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, INTEGER, REAL };

static const struct { const char *key; enum kind kind; size_t offset; } KEYS[] = {
    {"initial", TEXT, offsetof(struct deck, initial)},
    {"composition", TEXT, offsetof(struct deck, composition)},
    {"bodies", INTEGER, offsetof(struct deck, bodies)},
    {"steps", INTEGER, offsetof(struct deck, steps)},
    {"frames", INTEGER, offsetof(struct deck, frames)},
    {"dt", REAL, offsetof(struct deck, dt)},
    {"gravity", REAL, offsetof(struct deck, gravity)},
    {"softening", REAL, offsetof(struct deck, softening)},
    {"eccentricity", REAL, offsetof(struct deck, eccentricity)},
    {"mass_ratio", REAL, offsetof(struct deck, mass_ratio)},
    {"inclination", REAL, offsetof(struct deck, inclination)},
    {"j2", REAL, offsetof(struct deck, j2)},
    {"radius", REAL, offsetof(struct deck, radius)},
};

static void fail(const char *path, const char *what)
{
    fprintf(stderr, "deck %s: %s\n", path, what);
    exit(2);
}

static int assign(struct deck *deck, const char *key, const char *value)
{
    for (size_t i = 0; i < sizeof KEYS / sizeof KEYS[0]; i++) {
        char *field = (char *)deck + KEYS[i].offset;
        if (strcmp(key, KEYS[i].key) != 0)
            continue;
        if (KEYS[i].kind == TEXT)
            snprintf(field, sizeof deck->initial, "%s", value);
        else if (KEYS[i].kind == INTEGER)
            *(int *)field = atoi(value);
        else
            *(double *)field = strtod(value, NULL);
        return 1;
    }
    return 0;
}

struct deck read_deck(const char *path)
{
    struct deck deck = {.steps = 100, .frames = 4, .dt = 0.01, .gravity = 1.0, .mass_ratio = 1.0};
    char line[200], key[32], value[32];
    FILE *file = fopen(path, "r");
    if (!file)
        fail(path, "cannot be opened");
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#' || sscanf(line, " %31[a-z0-9_] = %31s", key, value) != 2)
            continue;
        if (!assign(&deck, key, value))
            fail(path, key);
    }
    fclose(file);
    if (deck.frames < 1 || deck.steps % deck.frames != 0)
        fail(path, "frames must divide steps");
    return deck;
}
