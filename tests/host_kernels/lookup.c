/* Finds a kernel by its name. The build script puts this file behind the kernels, and before it
 * the macro DCL_HOST_KERNELS, which lists them. */

/* Runs a kernel with the structure at `arguments`. */
typedef void (*dcl_host_kernel_fn)(const void *arguments, unsigned grid, unsigned block);

/* The kernel with this name, or NULL. */
dcl_host_kernel_fn dcl_host_kernel(const char *name);

/* The size of its structure in bytes, or 0. */
size_t dcl_host_kernel_arguments(const char *name);

struct dcl_host_entry {
    const char *name;
    dcl_host_kernel_fn kernel;
    size_t argument_bytes;
};

static const struct dcl_host_entry *dcl_find(const char *name)
{
    static const struct dcl_host_entry entries[] = {DCL_HOST_KERNELS};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    return NULL;
}

dcl_host_kernel_fn dcl_host_kernel(const char *name)
{
    const struct dcl_host_entry *entry = dcl_find(name);
    return entry != NULL ? entry->kernel : NULL;
}

size_t dcl_host_kernel_arguments(const char *name)
{
    const struct dcl_host_entry *entry = dcl_find(name);
    return entry != NULL ? entry->argument_bytes : 0;
}
