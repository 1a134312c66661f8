/* A counter of the memory blocks that a process allocates. bench/counts.py loads it before the interpreter, and has
   Python allocate each object by malloc. */
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

long bench_allocations;

static void count(void) { __atomic_fetch_add(&bench_allocations, 1, __ATOMIC_RELAXED); }

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    count();
    return __libc_calloc(number, size);
}

void *realloc(void *block, size_t size)
{
    if (!block)
        count();
    return __libc_realloc(block, size);
}
