/* LD_PRELOAD shim of benchmarks/torture.py.

   Writes, flushes and renames below EIO_BELOW fail with EIO, one call in EIO_ONE_IN, drawn from EIO_SEED.
   The wall clock is ahead by the seconds in the file CLOCK_AHEAD; sleeps, time-outs and the monotonic clock are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
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

static time_t ahead(void) {
    const char *path = getenv("CLOCK_AHEAD");
    char text[32] = {0};
    if (!path) return 0;
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    return length > 0 ? (time_t)atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    int status = (int)syscall(SYS_gettimeofday, now, zone);
    if (status == 0) now->tv_sec += ahead();
    return status;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
