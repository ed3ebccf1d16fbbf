/* LD_PRELOAD shim: writes, flushes and renames below EIO_BELOW fail with EIO, one call in EIO_ONE_IN, drawn from EIO_SEED. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int below(const char *path) {
    const char *root = getenv("EIO_BELOW");
    return root && *root && strncmp(path, root, strlen(root)) == 0;
}

static int drawn(void) {
    static __thread unsigned int state;
    const char *rate = getenv("EIO_ONE_IN"), *seed = getenv("EIO_SEED");
    if (!rate || atoi(rate) < 1) return 0;
    if (!state) state = (seed ? atoi(seed) : 1) * 2654435761u + (unsigned)getpid() + 1u;
    return rand_r(&state) % (unsigned)atoi(rate) == 0;
}

static int fails(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path) && drawn();
}

#define FAIL do { errno = EIO; return -1; } while (0)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size) { if (fails(file)) FAIL; return REAL(write)(file, data, size); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { if (fails(file)) FAIL; return REAL(pwrite)(file, data, size, at); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { if (fails(file)) FAIL; return REAL(pwrite64)(file, data, size, at); }
int fsync(int file) { if (fails(file)) FAIL; return REAL(fsync)(file); }
int rename(const char *from, const char *to) { if (below(to) && drawn()) FAIL; return REAL(rename)(from, to); }
