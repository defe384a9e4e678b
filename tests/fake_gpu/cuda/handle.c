/* Handles. */
#include "internal.h"

/* A handle is this, the kind and the number. It looks like an address that is not mapped. */
#define MARK ((uintptr_t)0x0fa4e0 << 40)
#define KIND_SHIFT 32

static struct {
    void **objects;
    size_t count, room, live;
} tables[HANDLE_KINDS];

void *handle_new(enum handle_kind kind, void *object) {
    if (tables[kind].count == tables[kind].room) {
        tables[kind].room = tables[kind].room == 0 ? 64 : 2 * tables[kind].room;
        tables[kind].objects = realloc(tables[kind].objects, tables[kind].room * sizeof(void *));
        if (tables[kind].objects == NULL)
            fatal("out of host memory");
    }
    size_t number = tables[kind].count++;
    tables[kind].objects[number] = object;
    tables[kind].live++;
    return (void *)(MARK | (uintptr_t)kind << KIND_SHIFT | number);
}

/* Where the object of a handle stands, or NULL. */
static void **place(enum handle_kind kind, const void *handle) {
    uintptr_t number = (uintptr_t)handle - (MARK | (uintptr_t)kind << KIND_SHIFT);
    return number < tables[kind].count ? &tables[kind].objects[number] : NULL;
}

void *handle_get(enum handle_kind kind, const void *handle) {
    void **object = place(kind, handle);
    return object != NULL ? *object : NULL;
}

void handle_drop(enum handle_kind kind, void *handle) {
    *place(kind, handle) = NULL;
    tables[kind].live--;
}

size_t handle_live(enum handle_kind kind) {
    return tables[kind].live;
}
