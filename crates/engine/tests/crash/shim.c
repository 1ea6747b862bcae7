// Faults of a disk, put between the program and its libc: ABIDE_SHIM=WHAT:N.
//   wal-sync-eio:N  from the Nth on, every sync of the WAL fails with EIO
//   db-sync-eio:N   the same for the database itself, which is synced only by checkpoints
//   sync-slow:N     every sync takes N milliseconds
//   db-write-kill:N the Nth write to the database, which is inside a checkpoint, ends the process as kill -9 does
//   wal-write-erofs:N  from the Nth on, every write to the WAL fails as on a disk that became read-only
//   wal-write-enospc:N from the Nth on, five writes to the WAL fail as on a full disk; then there is room again
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char what[32];
static long number;
static atomic_long seen;

__attribute__((constructor)) static void read_setting(void) {
    const char *setting = getenv("ABIDE_SHIM");
    if (setting) sscanf(setting, "%31[^:]:%ld", what, &number);
}

static int is(const char *name) { return strcmp(what, name) == 0; }

static int ends(int fd, const char *end) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    size_t length = strlen(end);
    return (size_t)size >= length && strcmp(path + size - length, end) == 0;
}

// How often this has come, counted from 1.
static long count(void) { return atomic_fetch_add(&seen, 1) + 1; }

static int refuse_sync(int fd) {
    if (is("sync-slow")) {
        struct timespec pause = {number / 1000, (number % 1000) * 1000000};
        nanosleep(&pause, NULL);
        return 0;
    }
    int counted = (is("wal-sync-eio") && ends(fd, "abide.db-wal")) || (is("db-sync-eio") && ends(fd, "abide.db"));
    if (!counted || count() < number) return 0;
    errno = EIO;
    return 1;
}

static int refuse_write(int fd) {
    if (is("db-write-kill") && ends(fd, "abide.db") && count() == number) raise(SIGKILL);
    if (is("wal-write-enospc") && ends(fd, "abide.db-wal")) {
        long nth = count();
        if (nth < number || nth >= number + 5) return 0;
        errno = ENOSPC;
        return 1;
    }
    if (!is("wal-write-erofs") || !ends(fd, "abide.db-wal") || count() < number) return 0;
    errno = EROFS;
    return 1;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int fsync(int fd) { REAL(fsync); return refuse_sync(fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return refuse_sync(fd) ? -1 : real(fd); }
ssize_t write(int fd, const void *from, size_t size) { REAL(write); return refuse_write(fd) ? -1 : real(fd, from, size); }
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
    REAL(pwrite);
    return refuse_write(fd) ? -1 : real(fd, from, size, at);
}
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
    REAL(pwrite64);
    return refuse_write(fd) ? -1 : real(fd, from, size, at);
}
