// Faults of a disk, put between the program and its libc: ABIDE_SHIM=WHAT:N, or WHAT:N:MANY for so many from the Nth on.
// Each refusal is told on the standard output, as `@ fault`.
//   wal-sync-eio    syncs of the WAL fail with EIO
//   db-sync-eio     the same for the database itself, which is synced only by checkpoints
//   sync-slow:N     every sync takes N milliseconds
//   db-write-kill:N the Nth write to the database, which is inside a checkpoint, ends the process as kill -9 does
//   wal-write-erofs   writes to the WAL fail as on a disk that became read-only
//   wal-write-enospc  writes to the WAL fail as on a full disk
//   db-write-enospc   the same for the database, which is written only by checkpoints
//
// ABIDE_SHIM_LOG=FILE writes down what the disk is told, so that a test can say what would be left of it after a power
// cut: writes, truncations and syncs of both files, and what is said on the standard output in between. A record is
// what it is, of which file, offset, length (each eight bytes), and the bytes that were written.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char what[32];
static long number, many = LONG_MAX / 2;
static atomic_long seen;
static int record_to = -1;

enum { WROTE, TRUNCATED, SYNC_BEGAN, SYNC_ENDED, SAID };
enum { NEITHER, DATABASE, WAL };

__attribute__((constructor)) static void read_settings(void) {
    const char *setting = getenv("ABIDE_SHIM");
    if (setting) sscanf(setting, "%31[^:]:%ld:%ld", what, &number, &many);
    const char *log = getenv("ABIDE_SHIM_LOG");
    if (log) record_to = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int is(const char *name) { return strcmp(what, name) == 0; }

static int file_of(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return NEITHER;
    path[size] = 0;
    const char *name = strrchr(path, '/');
    if (!name) return NEITHER;
    if (strcmp(name, "/abide.db") == 0) return DATABASE;
    return strcmp(name, "/abide.db-wal") == 0 ? WAL : NEITHER;
}

// One call, so that records of several threads do not mix. What is recorded first is told to the disk first.
static void record(uint64_t kind, uint64_t file, uint64_t at, const void *bytes, uint64_t size) {
    uint64_t head[] = {kind, file, at, size};
    struct iovec both[] = {{head, sizeof head}, {(void *)bytes, bytes ? size : 0}};
    int error = errno;
    if (writev(record_to, both, 2) != (ssize_t)(sizeof head + both[1].iov_len)) raise(SIGKILL);
    errno = error;
}

static void record_of(int fd, uint64_t kind, uint64_t at, const void *bytes, uint64_t size) {
    int file = record_to < 0 ? NEITHER : file_of(fd);
    if (file != NEITHER) record(kind, file, at, bytes, size);
}

// How often this has come, counted from 1.
static long count(void) { return atomic_fetch_add(&seen, 1) + 1; }

static int refuse(int error) {
    long nth = count();
    if (nth < number || nth - number >= many) return 0;
    REAL(write);
    real(1, "@ fault\n", 8);
    errno = error;
    return 1;
}

static int refuse_sync(int fd) {
    if (is("sync-slow")) {
        struct timespec pause = {number / 1000, (number % 1000) * 1000000};
        nanosleep(&pause, NULL);
    }
    int counted = (is("wal-sync-eio") && file_of(fd) == WAL) || (is("db-sync-eio") && file_of(fd) == DATABASE);
    return counted && refuse(EIO);
}

static int refuse_write(int fd) {
    if (is("db-write-kill") && file_of(fd) == DATABASE && count() == number) raise(SIGKILL);
    if (is("wal-write-enospc") && file_of(fd) == WAL) return refuse(ENOSPC);
    if (is("db-write-enospc") && file_of(fd) == DATABASE) return refuse(ENOSPC);
    return is("wal-write-erofs") && file_of(fd) == WAL && refuse(EROFS);
}

// Whoever is answered while a sync is under way is answered before it.
#define SYNC(name)                                                                                                     \
    int name(int fd) {                                                                                                 \
        REAL(name);                                                                                                    \
        if (refuse_sync(fd)) return -1;                                                                                \
        record_of(fd, SYNC_BEGAN, 0, NULL, 0);                                                                         \
        int done = real(fd);                                                                                           \
        if (done == 0) record_of(fd, SYNC_ENDED, 0, NULL, 0);                                                          \
        return done;                                                                                                   \
    }
SYNC(fsync)
SYNC(fdatasync)

ssize_t write(int fd, const void *from, size_t size) {
    REAL(write);
    if (refuse_write(fd)) return -1;
    if (fd == 1 && record_to >= 0) record(SAID, NEITHER, 0, from, size);
    return real(fd, from, size);
}

#define PWRITE(name, offset)                                                                                           \
    ssize_t name(int fd, const void *from, size_t size, offset at) {                                                   \
        REAL(name);                                                                                                    \
        if (refuse_write(fd)) return -1;                                                                               \
        record_of(fd, WROTE, at, from, size);                                                                          \
        return real(fd, from, size, at);                                                                               \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define TRUNCATE(name, offset)                                                                                         \
    int name(int fd, offset size) {                                                                                    \
        REAL(name);                                                                                                    \
        record_of(fd, TRUNCATED, 0, NULL, size);                                                                       \
        return real(fd, size);                                                                                         \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)
