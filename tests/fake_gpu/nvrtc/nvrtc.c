/*
 * A stand-in for NVRTC 13, or 12 if FAKE_NVRTC_MAJOR says so. It "compiles" every source to the
 * text that a fake driver of that version or a newer one takes for a module: for an architecture
 * that it knows (sm_90) to a cubin, for a virtual one (compute_90) to PTX.
 *
 * FAKE_NVRTC=fail makes every compilation fail with a log.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#ifndef FAKE_NVRTC_MAJOR
#define FAKE_NVRTC_MAJOR 13
#endif
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#define IMAGE "FAKE CUBIN " TEXT(FAKE_NVRTC_MAJOR) "\n"
#define PTX "// FAKE PTX " TEXT(FAKE_NVRTC_MAJOR) "\n"
#define FAILURE_LOG "fake.cu(1): error: this compiler was told to fail\n"

typedef struct program *nvrtcProgram;

typedef enum {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
    NVRTC_ERROR_INTERNAL_ERROR = 11,
} nvrtcResult;

/* A program stays in memory when it is destroyed, so that a second use is seen. */
struct program {
    struct program *next;
    bool destroyed;
    bool defines_twice;
    const char *cubin, *ptx, *log;
};

static const int architectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
static struct program *programs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static nvrtcResult find(nvrtcProgram program) {
    const struct program *known = programs;
    while (known != NULL && known != program)
        known = known->next;
    return known != NULL && !known->destroyed ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_PROGRAM;
}

static nvrtcResult check(nvrtcProgram program) {
    pthread_mutex_lock(&lock);
    nvrtcResult result = find(program);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT nvrtcResult nvrtcVersion(int *major, int *minor) {
    if (major == NULL || minor == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    *major = FAKE_NVRTC_MAJOR;
    *minor = 0;
    return NVRTC_SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
    case NVRTC_SUCCESS:
        return "NVRTC_SUCCESS";
    case NVRTC_ERROR_INVALID_INPUT:
        return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_ERROR_INVALID_PROGRAM:
        return "NVRTC_ERROR_INVALID_PROGRAM";
    case NVRTC_ERROR_INVALID_OPTION:
        return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION:
        return "NVRTC_ERROR_COMPILATION";
    default:
        return "NVRTC_ERROR unknown";
    }
}

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
    if (count == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    *count = sizeof architectures / sizeof architectures[0];
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int *supported) {
    if (supported == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(supported, architectures, sizeof architectures);
    return NVRTC_SUCCESS;
}

/* Whether a line that defines a kernel, DCL_…, is there twice. */
static bool has_a_line_twice(const char *source) {
    for (const char *line = source; line != NULL; line = strchr(line, '\n') != NULL ? strchr(line, '\n') + 1 : NULL) {
        size_t length = strcspn(line, "\n");
        if (strncmp(line, "DCL_", 4) != 0)
            continue;
        for (const char *other = line + length; *other != '\0'; other += strcspn(other, "\n")) {
            other++;
            if (strncmp(other, line, length) == 0 && (other[length] == '\n' || other[length] == '\0'))
                return true;
        }
    }
    return false;
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int header_count,
    const char *const *headers, const char *const *header_names) {
    (void)name;
    if (program == NULL || source == NULL || header_count < 0
        || (header_count > 0 && (headers == NULL || header_names == NULL)))
        return NVRTC_ERROR_INVALID_INPUT;
    *program = calloc(1, sizeof **program);
    if (*program == NULL)
        return NVRTC_ERROR_OUT_OF_MEMORY;
    (*program)->log = "";
    (*program)->defines_twice = has_a_line_twice(source);
    pthread_mutex_lock(&lock);
    (*program)->next = programs;
    programs = *program;
    pthread_mutex_unlock(&lock);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    if (program == NULL)
        return NVRTC_ERROR_INVALID_PROGRAM;
    pthread_mutex_lock(&lock);
    nvrtcResult result = find(*program);
    if (result == NVRTC_SUCCESS)
        (*program)->destroyed = true;
    pthread_mutex_unlock(&lock);
    if (result == NVRTC_SUCCESS)
        *program = NULL;
    return result;
}

/* Whether an option names an architecture that this compiler knows, or no architecture. */
static bool is_known(const char *option) {
    const char *number = strrchr(option, '_');
    if (strncmp(option, "--gpu-architecture=", 19) != 0)
        return true;
    for (size_t i = 0; number != NULL && i < sizeof architectures / sizeof architectures[0]; i++) {
        if (atoi(number + 1) == architectures[i])
            return true;
    }
    return false;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int option_count, const char *const *options) {
    nvrtcResult result = check(program);
    if (result != NVRTC_SUCCESS)
        return result;
    if (option_count < 0 || (option_count > 0 && options == NULL))
        return NVRTC_ERROR_INVALID_INPUT;
    bool is_virtual = false;
    for (int i = 0; i < option_count; i++) {
        if (options[i] == NULL || options[i][0] != '-' || !is_known(options[i]))
            return NVRTC_ERROR_INVALID_OPTION;
        is_virtual = is_virtual || strncmp(options[i], "--gpu-architecture=compute_", 27) == 0;
    }
    const char *script = getenv("FAKE_NVRTC");
    if (script != NULL && strcmp(script, "fail") == 0) {
        program->log = FAILURE_LOG;
        return NVRTC_ERROR_COMPILATION;
    }
    if (program->defines_twice) {
        program->log = "a kernel has already been defined";
        return NVRTC_ERROR_COMPILATION;
    }
    program->cubin = is_virtual ? NULL : IMAGE;
    program->ptx = PTX;
    return NVRTC_SUCCESS;
}

/* Text is handed out with the zero at its end. */
static nvrtcResult text_size(nvrtcProgram program, const char *text, size_t *size) {
    if (check(program) != NVRTC_SUCCESS)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (size == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    *size = text != NULL ? strlen(text) + 1 : 0;
    return NVRTC_SUCCESS;
}

static nvrtcResult copy_text(nvrtcProgram program, const char *text, char *to) {
    if (check(program) != NVRTC_SUCCESS)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (to == NULL || text == NULL)
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(to, text, strlen(text) + 1);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
    return program == NULL ? NVRTC_ERROR_INVALID_PROGRAM : text_size(program, program->cubin, size);
}

EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin) {
    return program == NULL ? NVRTC_ERROR_INVALID_PROGRAM : copy_text(program, program->cubin, cubin);
}

EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) {
    return program == NULL ? NVRTC_ERROR_INVALID_PROGRAM : text_size(program, program->ptx, size);
}

EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx) {
    return program == NULL ? NVRTC_ERROR_INVALID_PROGRAM : copy_text(program, program->ptx, ptx);
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
    return program == NULL ? NVRTC_ERROR_INVALID_PROGRAM : text_size(program, program->log, size);
}

EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
    return program == NULL ? NVRTC_ERROR_INVALID_PROGRAM : copy_text(program, program->log, log);
}
