/* A disk that forgets, for tests: a library to preload into a broker.

   Whatever the process changes in the files under POWERCUT_ROOT is noted in POWERCUT_LOG before it
   is done, with what was there before. A sync that succeeded is noted too. After a kill the log
   says everything that no sync covered, and powercut.py undoes that, as a power cut would.

   Data belong to a file (its inode), names to the directory that they are in: a name is safe when
   its directory was synced. A file that is unlinked or replaced gets a second name in
   POWERCUT_GRAVES, on the same file system, from which it can come back.

   Shared writable mappings can't be noted; one of a file under the root is noted as unsupported,
   but for SQLite's shared memory, which is rebuilt after a crash. POWERCUT_CONTROL is a mapped page
   of numbers that makes writes and syncs fail or hang (see struct control). */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#undef open
#undef open64
#undef openat
#undef openat64
#undef creat
#undef creat64
#undef mmap
#undef mmap64
#undef fallocate
#undef fallocate64
#undef posix_fallocate
#undef posix_fallocate64

enum { WRITE = 1, SIZE, CREATE, UNLINK, RENAME, MKDIR, RMDIR, SYNC, CANCEL, UNSUPPORTED };

struct entry {
    uint32_t magic, kind;
    uint64_t seq, inode, a, b, c;
    uint32_t names, data;
};

/* What powercut.py writes, and counts that it reads. */
struct control {
    volatile uint32_t write_error;  /* errno of writes and of reserving space; 0: none */
    volatile uint32_t sync_error;   /* errno of syncs */
    volatile uint32_t hang_syncs;   /* syncs wait while this is not 0 */
    volatile uint32_t hang_writes;
    volatile uint32_t writes, syncs, hanging;
};

#define MAGIC 0x54554357u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char root[PATH_MAX], graves[PATH_MAX];
static size_t root_length;
static int log_fd = -1;
static struct control idle, *control = &idle;
static uint64_t last_seq, graves_made;

/* --- the real calls, which need no library */

static ssize_t real_pread(int fd, void *to, size_t size, off_t at) {
    return syscall(SYS_pread64, fd, to, size, at);
}

static void must_write(const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        ssize_t done = syscall(SYS_write, log_fd, at, size);
        if (done < 0) {
            if (errno == EINTR) continue;
            abort();
        }
        at += done;
        size -= done;
    }
}

static void begin(void) {
    const char *given_root = getenv("POWERCUT_ROOT"), *log = getenv("POWERCUT_LOG");
    const char *given_graves = getenv("POWERCUT_GRAVES"), *page = getenv("POWERCUT_CONTROL");
    if (!given_root || !log || !given_graves) return;
    root_length = strlen(given_root);
    if (root_length >= sizeof root || strlen(given_graves) >= sizeof graves) abort();
    strcpy(root, given_root);
    strcpy(graves, given_graves);
    if (page) {
        int fd = syscall(SYS_openat, AT_FDCWD, page, O_RDWR | O_CLOEXEC, 0);
        void *found = fd < 0 ? MAP_FAILED
                             : (void *)syscall(SYS_mmap, NULL, sizeof idle, PROT_READ | PROT_WRITE,
                                               MAP_SHARED, fd, 0);
        if (found == MAP_FAILED) abort();
        control = found;
        syscall(SYS_close, fd);
    }
    log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) abort();
}

static int watching(void) {
    pthread_once(&once, begin);
    return log_fd >= 0;
}

/* --- what is under the root */

static int within(const char *path) {
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || !path[root_length]);
}

static int path_of(int fd, char *to) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, to, PATH_MAX - 1);
    if (size < 0) return 0;
    to[size] = 0;
    return 1;
}

/* Whether a descriptor is of a regular file, or of a directory, under the root. */
static int ours(int fd, struct stat *found) {
    char path[PATH_MAX];
    int saved = errno;
    int mine = syscall(SYS_newfstatat, fd, "", found, AT_EMPTY_PATH) == 0 &&
               (S_ISREG(found->st_mode) || S_ISDIR(found->st_mode)) && path_of(fd, path) &&
               within(path);
    errno = saved;
    return mine;
}

/* A path as an absolute one; 0 unless it is under the root, whose own name is not looked after. The
   directories on the way are as the caller names them: a broker is given an absolute path without
   links. */
static int resolved(int directory, const char *path, char *to) {
    int saved = errno, found = 1;
    if (path[0] == '/') {
        found = strlen(path) < PATH_MAX;
        if (found) strcpy(to, path);
    } else {
        char base[PATH_MAX];
        if (directory == AT_FDCWD) {
            if (syscall(SYS_getcwd, base, sizeof base) < 0) found = 0;
        } else if (!path_of(directory, base)) {
            found = 0;
        }
        if (found) found = snprintf(to, PATH_MAX, "%s/%s", base, path) < PATH_MAX;
    }
    errno = saved;
    return found && within(to) && to[root_length] == '/';
}

static uint64_t inode_of(const char *path) {
    struct stat found;
    int saved = errno;
    int failed = syscall(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW);
    errno = saved;
    return failed ? 0 : found.st_ino;
}

static const char *split(const char *path, uint64_t *directory) {
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t size = slash - path;
    memcpy(parent, path, size);
    parent[size] = 0;
    *directory = inode_of(parent);
    return slash + 1;
}

/* --- notes; the lock is held */

static uint64_t next_seq(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t seq = now.tv_sec * 1000000000ull + now.tv_nsec;
    if (seq <= last_seq) seq = last_seq + 1;
    return last_seq = seq;
}

static uint64_t note(uint32_t kind, uint64_t inode, uint64_t a, uint64_t b, uint64_t c,
                     const char *names, uint32_t names_size, const char *data, uint32_t data_size) {
    int saved = errno;
    struct entry entry = {MAGIC, kind, next_seq(), inode, a, b, c, names_size, data_size};
    char *whole = malloc(sizeof entry + names_size + data_size);
    if (!whole) abort();
    memcpy(whole, &entry, sizeof entry);
    if (names_size) memcpy(whole + sizeof entry, names, names_size);
    if (data_size) memcpy(whole + sizeof entry + names_size, data, data_size);
    must_write(whole, sizeof entry + names_size + data_size);
    free(whole);
    errno = saved;
    return entry.seq;
}

static void cancel(uint64_t seq) { note(CANCEL, 0, seq, 0, 0, NULL, 0, NULL, 0); }

/* What a file has in [from, to); nothing if that is zeros only. */
static char *old_bytes(int fd, off_t from, off_t to, uint32_t *size) {
    int saved = errno;
    *size = 0;
    if (from >= to) return NULL;
    if (to - from > UINT32_MAX) abort();
    char *old = malloc(to - from);
    if (!old) abort();
    /* The descriptor may be for writing only. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (again < 0) abort();
    off_t done = 0;
    while (done < to - from) {
        ssize_t got = real_pread(again, old + done, to - from - done, from + done);
        if (got <= 0) break;
        done += got;
    }
    syscall(SYS_close, again);
    off_t at = 0;
    while (at < done && !old[at]) at++;
    if (at < done) *size = done;
    errno = saved;
    return old;
}

static uint64_t note_write(int fd, const struct stat *before, off_t at, size_t size) {
    uint32_t kept;
    off_t end = at + (off_t)size < before->st_size ? at + (off_t)size : before->st_size;
    char *old = old_bytes(fd, at, end, &kept);
    uint64_t seq = note(WRITE, before->st_ino, at, size, before->st_size, NULL, 0, old, kept);
    free(old);
    return seq;
}

static uint64_t note_size(int fd, const struct stat *before, off_t size) {
    uint32_t kept;
    char *old = old_bytes(fd, size, before->st_size, &kept);
    uint64_t seq = note(SIZE, before->st_ino, size, 0, before->st_size, NULL, 0, old, kept);
    free(old);
    return seq;
}

static uint64_t bury(const char *path) {
    char grave[PATH_MAX + 64];
    snprintf(grave, sizeof grave, "%s/%d-%llu", graves, (int)getpid(),
             (unsigned long long)++graves_made);
    int saved = errno;
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, grave, 0) < 0) abort();
    errno = saved;
    return (uint64_t)getpid() << 32 | graves_made;
}

/* --- faults */

static void wait_while(volatile uint32_t *hang) {
    if (!*hang) return;
    __sync_fetch_and_add(&control->hanging, 1);
    while (*hang) {
        struct timespec nap = {0, 2000000};
        syscall(SYS_nanosleep, &nap, NULL);
    }
    __sync_fetch_and_sub(&control->hanging, 1);
}

static int write_fails(void) {
    wait_while(&control->hang_writes);
    __sync_fetch_and_add(&control->writes, 1);
    return control->write_error;
}

/* --- data */

static size_t total(const struct iovec *pieces, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += pieces[i].iov_len;
    return size;
}

static ssize_t written(int fd, const struct iovec *pieces, int count, off_t at, int placed) {
    struct stat before;
    if (!watching() || !ours(fd, &before) || !S_ISREG(before.st_mode)) {
        return placed ? syscall(SYS_pwritev, fd, pieces, count, (long)at, 0L)
                      : syscall(SYS_writev, fd, pieces, count);
    }
    int fails = write_fails();
    if (fails) {
        errno = fails;
        return -1;
    }
    pthread_mutex_lock(&lock);
    syscall(SYS_newfstatat, fd, "", &before, AT_EMPTY_PATH);
    if (!placed) {
        int flags = syscall(SYS_fcntl, fd, F_GETFL);
        at = flags & O_APPEND ? before.st_size : syscall(SYS_lseek, fd, 0, SEEK_CUR);
    }
    uint64_t seq = note_write(fd, &before, at, total(pieces, count));
    ssize_t done = placed ? syscall(SYS_pwritev, fd, pieces, count, (long)at, 0L)
                          : syscall(SYS_writev, fd, pieces, count);
    if (done < 0) cancel(seq);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec piece = {(void *)data, size};
    return written(fd, &piece, 1, 0, 0);
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    return written(fd, pieces, count, 0, 0);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    struct iovec piece = {(void *)data, size};
    return written(fd, &piece, 1, at, 1);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    return pwrite(fd, data, size, at);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    return written(fd, pieces, count, at, 1);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off_t at) {
    return written(fd, pieces, count, at, 1);
}

ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t at, int flags) {
    (void)flags;
    return written(fd, pieces, count, at, at != -1);
}

ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off_t at, int flags) {
    return pwritev2(fd, pieces, count, at, flags);
}

int ftruncate(int fd, off_t size) {
    struct stat before;
    if (!watching() || !ours(fd, &before)) return syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    syscall(SYS_newfstatat, fd, "", &before, AT_EMPTY_PATH);
    uint64_t seq = note_size(fd, &before, size);
    int failed = syscall(SYS_ftruncate, fd, size);
    if (failed) cancel(seq);
    pthread_mutex_unlock(&lock);
    return failed;
}

int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int truncate(const char *path, off_t size) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    int failed = ftruncate(fd, size), saved = errno;
    syscall(SYS_close, fd);
    errno = saved;
    return failed;
}

int truncate64(const char *path, off_t size) { return truncate(path, size); }

/* 0 or the errno. Space that is reserved reads as zeros: only the size is to be undone. */
static int reserve(int fd, int mode, off_t at, off_t size) {
    struct stat before;
    if (!watching() || !ours(fd, &before))
        return syscall(SYS_fallocate, fd, mode, at, size) ? errno : 0;
    int fails = write_fails();
    if (fails) return fails;
    pthread_mutex_lock(&lock);
    syscall(SYS_newfstatat, fd, "", &before, AT_EMPTY_PATH);
    uint64_t seq = mode ? note(UNSUPPORTED, before.st_ino, 0, 0, 0, "fallocate", 9, NULL, 0)
                        : note_size(fd, &before,
                                    at + size > before.st_size ? at + size : before.st_size);
    int error = syscall(SYS_fallocate, fd, mode, at, size) ? errno : 0;
    if (error == EOPNOTSUPP && !mode) {
        off_t end = at + size > before.st_size ? at + size : before.st_size;
        error = syscall(SYS_ftruncate, fd, end) ? errno : 0;
    }
    if (error) cancel(seq);
    pthread_mutex_unlock(&lock);
    return error;
}

int fallocate(int fd, int mode, off_t at, off_t size) {
    int error = reserve(fd, mode, at, size);
    if (!error) return 0;
    errno = error;
    return -1;
}

int fallocate64(int fd, int mode, off_t at, off_t size) { return fallocate(fd, mode, at, size); }
int posix_fallocate(int fd, off_t at, off_t size) { return reserve(fd, 0, at, size); }
int posix_fallocate64(int fd, off_t at, off_t size) { return reserve(fd, 0, at, size); }

/* --- syncs */

static int synced(int fd, long call) {
    struct stat found;
    if (!watching() || !ours(fd, &found)) return syscall(call, fd);
    pthread_mutex_lock(&lock);
    uint64_t begun = next_seq();
    pthread_mutex_unlock(&lock);
    __sync_fetch_and_add(&control->syncs, 1);
    wait_while(&control->hang_syncs);
    if (control->sync_error) {
        errno = control->sync_error;
        return -1;
    }
    int failed = syscall(call, fd);
    if (!failed) {
        pthread_mutex_lock(&lock);
        note(SYNC, found.st_ino, begun, 0, 0, NULL, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return failed;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* --- names */

static int opened(int directory, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    if (!watching() || !(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE ||
        !resolved(directory, path, whole))
        return syscall(SYS_openat, directory, path, flags, mode);
    int existed, fd;
    uint64_t seq = 0;
    pthread_mutex_lock(&lock);
    existed = inode_of(whole) != 0;
    if (!existed && flags & O_CREAT) {
        uint64_t parent;
        const char *name = split(whole, &parent);
        seq = note(CREATE, parent, 0, 0, 0, name, strlen(name), NULL, 0);
    } else if (existed && flags & O_TRUNC && (flags & O_ACCMODE) != O_RDONLY) {
        int old = syscall(SYS_openat, AT_FDCWD, whole, O_RDONLY | O_CLOEXEC, 0);
        struct stat before;
        if (old >= 0 && syscall(SYS_newfstatat, old, "", &before, AT_EMPTY_PATH) == 0)
            seq = note_size(old, &before, 0);
        if (old >= 0) syscall(SYS_close, old);
    }
    fd = syscall(SYS_openat, directory, path, flags, mode);
    if (fd < 0 && seq) cancel(seq);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags, mode)                                     \
    mode_t mode = 0;                                          \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                         \
        va_start(rest, flags);                                \
        mode = va_arg(rest, mode_t);                          \
        va_end(rest);                                         \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(directory, path, flags, mode);
}

int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }

int creat(const char *path, mode_t mode) {
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *path, mode_t mode) { return creat(path, mode); }

int unlinkat(int directory, const char *path, int flags) {
    char whole[PATH_MAX];
    if (!watching() || !resolved(directory, path, whole))
        return syscall(SYS_unlinkat, directory, path, flags);
    pthread_mutex_lock(&lock);
    uint64_t seq = 0, parent, inode = inode_of(whole);
    const char *name = split(whole, &parent);
    if (inode && flags & AT_REMOVEDIR)
        seq = note(RMDIR, parent, 0, inode, 0, name, strlen(name), NULL, 0);
    else if (inode)
        seq = note(UNLINK, parent, bury(whole), inode, 0, name, strlen(name), NULL, 0);
    int failed = syscall(SYS_unlinkat, directory, path, flags);
    if (failed && seq) cancel(seq);
    pthread_mutex_unlock(&lock);
    return failed;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int directory, const char *path, mode_t mode) {
    char whole[PATH_MAX];
    if (!watching() || !resolved(directory, path, whole))
        return syscall(SYS_mkdirat, directory, path, mode);
    pthread_mutex_lock(&lock);
    uint64_t parent;
    const char *name = split(whole, &parent);
    uint64_t seq = note(MKDIR, parent, 0, 0, 0, name, strlen(name), NULL, 0);
    int failed = syscall(SYS_mkdirat, directory, path, mode);
    if (failed) cancel(seq);
    pthread_mutex_unlock(&lock);
    return failed;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int renameat2(int from_directory, const char *from, int to_directory, const char *to,
              unsigned flags) {
    char old[PATH_MAX], new[PATH_MAX];
    int known = watching() && resolved(from_directory, from, old);
    if (!known || !resolved(to_directory, to, new))
        return syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    pthread_mutex_lock(&lock);
    char names[2 * NAME_MAX + 2];
    uint64_t from_parent, to_parent, grave = 0, replaced = inode_of(new), moved = inode_of(old);
    int size = snprintf(names, sizeof names, "%s", split(old, &from_parent)) + 1;
    size += snprintf(names + size, sizeof names - size, "%s", split(new, &to_parent));
    struct stat target;
    if (replaced && replaced != moved &&
        syscall(SYS_newfstatat, AT_FDCWD, new, &target, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(target.st_mode))
        grave = bury(new);
    uint64_t seq = note(RENAME, from_parent, grave, moved, to_parent, names, size, NULL, 0);
    int failed = syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    if (failed) cancel(seq);
    pthread_mutex_unlock(&lock);
    return failed;
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return renameat2(from_directory, from, to_directory, to, 0);
}

int rename(const char *from, const char *to) {
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* --- what can't be noted */

static void unsupported(const char *what, uint64_t inode) {
    pthread_mutex_lock(&lock);
    note(UNSUPPORTED, inode, 0, 0, 0, what, strlen(what), NULL, 0);
    pthread_mutex_unlock(&lock);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t at) {
    if (fd >= 0 && flags & MAP_SHARED && protection & PROT_WRITE && watching()) {
        struct stat found;
        char path[PATH_MAX];
        size_t length;
        if (ours(fd, &found) && path_of(fd, path) &&
            ((length = strlen(path)) < 4 || strcmp(path + length - 4, "-shm") != 0))
            unsupported("mmap", found.st_ino);
    }
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, at);
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t at) {
    return mmap(address, size, protection, flags, fd, at);
}

ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t size,
                        unsigned flags) {
    struct stat found;
    if (watching() && ours(to, &found)) unsupported("copy_file_range", found.st_ino);
    return syscall(SYS_copy_file_range, from, from_at, to, to_at, size, flags);
}

ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    struct stat found;
    if (watching() && ours(to, &found)) unsupported("sendfile", found.st_ino);
    return syscall(SYS_sendfile, to, from, at, size);
}

ssize_t sendfile64(int to, int from, off_t *at, size_t size) { return sendfile(to, from, at, size); }

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    char whole[PATH_MAX];
    if (watching() && resolved(to_directory, to, whole)) unsupported("link", 0);
    return syscall(SYS_linkat, from_directory, from, to_directory, to, flags);
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
