/* The script in FAKE_NCCL: which calls fail, stall or stay in progress. */
#include "internal.h"

#define MOST_RULES 64

struct rule {
    char name[32];
    char function[64];
    /* The numbers after the function, and how many there are. */
    long numbers[3];
    int count;
};

static struct rule rules[MOST_RULES];
static int rule_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Reads name, name=function:number… or name=number…. */
static void read_rule(char *text, struct rule *rule) {
    char *rest = strchr(text, '=');
    if (rest != NULL)
        *rest++ = '\0';
    snprintf(rule->name, sizeof rule->name, "%s", text);
    char *position = NULL;
    for (char *part = rest != NULL ? strtok_r(rest, ":", &position) : NULL; part != NULL;
        part = strtok_r(NULL, ":", &position)) {
        char *end;
        long number = strtol(part, &end, 10);
        if (*end != '\0' && rule->function[0] == '\0')
            snprintf(rule->function, sizeof rule->function, "%s", part);
        else if (*end == '\0' && rule->count < 3)
            rule->numbers[rule->count++] = number;
        else
            rule->count = -1;
        if (rule->count < 0)
            break;
    }
}

/* Which numbers each rule has. */
static bool is_known(const struct rule *rule) {
    static const struct {
        const char *name;
        bool function;
        int least, most;
    } known[] = {
        {"in_progress", true, 1, 1},
        {"never_in_progress", false, 0, 0},
        {"fail", true, 2, 3},
        {"async_error", false, 3, 3},
        {"stall", true, 1, 2},
        {"hang_abort", false, 0, 0},
        {"null_window", false, 0, 0},
        {"fifo", false, 1, 1},
        {"late_handle", false, 1, 1},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, rule->name) == 0 && known[i].function == (rule->function[0] != '\0')
            && rule->count >= known[i].least && rule->count <= known[i].most)
            return true;
    }
    return false;
}

static void read_rules(void) {
    const char *given = getenv("FAKE_NCCL");
    char *text = strdup(given != NULL ? given : "");
    char *position = NULL;
    for (char *part = strtok_r(text, ",", &position); part != NULL; part = strtok_r(NULL, ",", &position)) {
        if (rule_count < MOST_RULES)
            read_rule(part, &rules[rule_count++]);
        if (!is_known(&rules[rule_count - 1])) {
            fprintf(stderr, "fake libnccl: FAKE_NCCL has a rule that cannot be read: %s\n", part);
            abort();
        }
    }
    free(text);
}

/* The next rule of a name, beginning with the one after `last`. */
static const struct rule *next_rule(const char *name, const struct rule *last) {
    pthread_once(&once, read_rules);
    for (const struct rule *rule = last == NULL ? rules : last + 1; rule < rules + rule_count; rule++) {
        if (strcmp(rule->name, name) == 0)
            return rule;
    }
    return NULL;
}

bool script_has(const char *flag) {
    return next_rule(flag, NULL) != NULL;
}

int script_in_progress(const char *function) {
    for (const struct rule *rule = NULL; (rule = next_rule("in_progress", rule)) != NULL;) {
        if (strcmp(rule->function, function) == 0)
            return (int)rule->numbers[0];
    }
    return -1;
}

int script_fifo(void) {
    const struct rule *rule = next_rule("fifo", NULL);
    return rule != NULL ? (int)rule->numbers[0] : -1;
}

int script_late_handle(void) {
    const struct rule *rule = next_rule("late_handle", NULL);
    return rule != NULL ? (int)rule->numbers[0] : 0;
}

/* Whether the rule, whose rank is its number `rank_at` if it has so many, means this call. */
static bool means(
    const struct rule *rule, int rank_at, const char *function, uint64_t calls, uint64_t calls_of_rank, int rank) {
    if (strcmp(rule->function, function) != 0)
        return false;
    if (rule->count <= rank_at)
        return (uint64_t)rule->numbers[0] == calls;
    return rule->numbers[rank_at] == rank && (uint64_t)rule->numbers[0] == calls_of_rank;
}

ncclResult_t script_failure(const char *function, uint64_t calls, uint64_t calls_of_rank, int rank) {
    for (const struct rule *rule = NULL; (rule = next_rule("fail", rule)) != NULL;) {
        if (means(rule, 2, function, calls, calls_of_rank, rank))
            return (ncclResult_t)rule->numbers[1];
    }
    return ncclSuccess;
}

bool script_stall(const char *function, uint64_t calls, uint64_t calls_of_rank, int rank) {
    for (const struct rule *rule = NULL; (rule = next_rule("stall", rule)) != NULL;) {
        if (means(rule, 1, function, calls, calls_of_rank, rank))
            return true;
    }
    return false;
}

ncclResult_t script_async_error(uint64_t collective, int rank) {
    for (const struct rule *rule = NULL; (rule = next_rule("async_error", rule)) != NULL;) {
        if ((uint64_t)rule->numbers[0] == collective && rule->numbers[2] == rank)
            return (ncclResult_t)rule->numbers[1];
    }
    return ncclSuccess;
}
