/* The command line of the samples in C and C++. */
#ifndef SAMPLES_OPTIONS_H
#define SAMPLES_OPTIONS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

/* Exit codes: 0, 1 and 2. */
enum { PASSED, FAILED, WRONG_USAGE };

/* A program has an option if it gives it a default; an option that it does not have is NULL. */
struct options {
    /* The number of ranks, or 0 to leave it to run_on_ranks. Every program has it. */
    int32_t nb_ranks;
    /* An operation's name, or "all". */
    const char *op;
    const char *backend;
    /* An element type's name. */
    const char *dtype;
    /* The root's rank, a number. */
    const char *root;
};

/* The number that a text is, or -1 if it is none from `least` to `most`. */
static inline int32_t parse_number(const char *text, long least, long most) {
    char *end = NULL;
    long number = strtol(text, &end, 10);
    return *text != '\0' && *end == '\0' && number >= least && number <= most ? (int32_t)number : -1;
}

/* Takes one option. Returns 0 if the program has no such option, or not with this value. */
static inline int parse_option(const char *name, const char *value, struct options *options) {
    if (strcmp(name, "--ranks") == 0) {
        options->nb_ranks = parse_number(value, 1, MAX_RANKS);
        return options->nb_ranks > 0;
    }
    const char **texts[] = {&options->op, &options->backend, &options->dtype, &options->root};
    const char *names[] = {"--op", "--backend", "--dtype", "--root"};
    for (int i = 0; i < 4; i++) {
        if (*texts[i] && strcmp(name, names[i]) == 0) {
            *texts[i] = value;
            return 1;
        }
    }
    return 0;
}

static inline void print_usage(FILE *file, const char *program, const struct options *options) {
    fprintf(file, "usage: %s [--ranks N]%s%s%s%s\n", program, options->op ? " [--op NAME|all]" : "",
            options->backend ? " [--backend auto|host|nccl]" : "", options->dtype ? " [--dtype TYPE]" : "",
            options->root ? " [--root K]" : "");
    fprintf(file, "  --ranks N  the number of ranks, 1 to %d, each a thread (%d unless given);\n", MAX_RANKS,
            (int)(options->nb_ranks > 0 ? options->nb_ranks : DEFAULT_RANKS));
    fprintf(file, "             under a launcher it is the launcher's number\n");
    fprintf(file, "example: %s --ranks 4\n", program);
}

/* Reads the command line. Ends the program after --help, and after an option that it does not
 * have. */
static inline void parse_options(int argc, char **argv, struct options *options) {
    const struct options defaults = *options;
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            print_usage(stdout, argv[0], &defaults);
            exit(PASSED);
        }
        if (!argv[i + 1] || !parse_option(argv[i], argv[i + 1], options)) {
            print_usage(stderr, argv[0], &defaults);
            exit(WRONG_USAGE);
        }
    }
}

#endif /* SAMPLES_OPTIONS_H */
