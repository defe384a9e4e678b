/* Where the ranks of a communicator meet on the host, in the order of their calls. */
#include "internal.h"

struct assembly *assemble(struct communicator *communicator, const char *kind, void *gift, size_t size,
    void (*conclude)(struct clique *clique, struct assembly *assembly)) {
    struct clique *clique = communicator->clique;
    if (clique->gathering != NULL)
        return assemble_processes(communicator, kind, gift, size, conclude);
    uint64_t number = communicator->assembled++;
    struct assembly *assembly = clique->assemblies;
    while (assembly != NULL && (assembly->number != number || strcmp(assembly->kind, kind) != 0))
        assembly = assembly->next;
    if (assembly == NULL) {
        assembly = allocate(sizeof *assembly);
        assembly->next = clique->assemblies;
        assembly->number = number;
        assembly->kind = kind;
        assembly->gifts = allocate((size_t)clique->size * sizeof(void *));
        assembly->results = allocate((size_t)clique->size * sizeof(void *));
        clique->assemblies = assembly;
    }
    assembly->gifts[communicator->rank] = gift;
    if (++assembly->arrived == clique->size) {
        if (conclude != NULL)
            conclude(clique, assembly);
        assembly->complete = true;
        pthread_cond_broadcast(&changed);
    }
    while (!assembly->complete && !communicator_ended(communicator))
        pthread_cond_wait(&changed, &lock);
    if (assembly->complete)
        return assembly;
    /* The rank takes back that it came, so that the others cannot complete without it. */
    assembly->arrived--;
    assembly->gifts[communicator->rank] = NULL;
    return NULL;
}

void assembly_leave(struct communicator *communicator, struct assembly *assembly) {
    struct clique *clique = communicator->clique;
    if (clique->gathering == NULL && ++assembly->left < clique->size)
        return;
    struct assembly **place = &clique->assemblies;
    while (*place != NULL && *place != assembly)
        place = &(*place)->next;
    if (*place != NULL)
        *place = assembly->next;
    for (int rank = 0; rank < clique->size && clique->gathering != NULL; rank++)
        free(assembly->gifts[rank]);
    free(assembly->gifts);
    free(assembly->results);
    free(assembly);
}
