/* A child that is forked finds a library's lock free, so that it can ask for counts. Linked into
 * each library that has a lock. */
#include <pthread.h>

extern pthread_mutex_t lock;

static void take(void) {
    pthread_mutex_lock(&lock);
}

static void give(void) {
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void free_the_lock_in_children(void) {
    pthread_atfork(take, give, give);
}
