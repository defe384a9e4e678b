/* The samples' command line. */
#ifndef SAMPLES_OPTIONS_H
#define SAMPLES_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

/* Exit codes: 0, 1 and 2. */
enum { PASSED, FAILED, WRONG_USAGE };

struct options {
    /* An operation's name, or "all". NULL where the program has no such option. */
    const char *op;
    /* The backend. NULL where the program has no such option. */
    const char *backend;
    int32_t nb_ranks;
    /* Whether to make mistakes on purpose and show the errors. */
    bool mistakes;
};

/* A number of ranks, or 0 if it is none. */
static inline int32_t parse_ranks(const char *text) {
    char *end = NULL;
    long number = strtol(text, &end, 10);
    return *text != '\0' && *end == '\0' && number >= 1 && number <= MAX_RANKS ? (int32_t)number : 0;
}

/* Takes one option, and says how many arguments that were; 0 is a mistake. */
static inline int parse_option(const char *name, const char *value, struct options *options) {
    if (strcmp(name, "--mistakes") == 0) {
        options->mistakes = true;
        return 1;
    }
    if (!value) {
        return 0;
    }
    if (strcmp(name, "--ranks") == 0) {
        options->nb_ranks = parse_ranks(value);
        return options->nb_ranks > 0 ? 2 : 0;
    }
    if (strcmp(name, "--op") == 0 && options->op) {
        options->op = value;
        return 2;
    }
    if (strcmp(name, "--backend") == 0 && options->backend) {
        options->backend = value;
        return 2;
    }
    return 0;
}

static inline void print_usage(FILE *file, const char *program, const struct options *options) {
    fprintf(file, "usage: %s%s%s [--ranks N] [--mistakes]\n", program, options->op ? " [--op NAME|all]" : "",
            options->backend ? " [--backend auto|host|nccl]" : "");
    fprintf(file, "  --ranks N   the ranks are N threads, 1 to %d; a launcher's are processes, as many as it says\n", MAX_RANKS);
    fprintf(file, "  --mistakes  makes mistakes on purpose, on 2 ranks or more, and shows the errors\n");
}

/* Takes the command line, and ends the program where that cannot be understood. */
static inline void parse_options(int argc, char **argv, struct options *options) {
    int used = 0;
    for (int i = 1; i < argc; i += used) {
        if (strcmp(argv[i], "--help") == 0) {
            print_usage(stdout, argv[0], options);
            exit(PASSED);
        }
        used = parse_option(argv[i], argv[i + 1], options);
        if (used == 0) {
            print_usage(stderr, argv[0], options);
            exit(WRONG_USAGE);
        }
    }
    if (options->mistakes && options->nb_ranks < 2) {
        print_usage(stderr, argv[0], options);
        exit(WRONG_USAGE);
    }
}

#endif /* SAMPLES_OPTIONS_H */
